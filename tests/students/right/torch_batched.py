import math
import torch

def attention(Q, K, V, mask=None):
    """Only for (batch, heads, length, width)."""
    B, H, L, d = Q.shape
    scores = torch.einsum("bhid,bhjd->bhij", Q, K) / math.sqrt(d)
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    weights = torch.softmax(scores, dim=3)
    return torch.einsum("bhij,bhjd->bhid", weights, V), weights
