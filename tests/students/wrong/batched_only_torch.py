# expect attention: softmax_queries
import torch

def attention(query, key, value, mask=None):
    batch, length, d = query.shape
    scores = torch.bmm(query, key.transpose(1, 2)) / d ** 0.5
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    return torch.bmm(torch.softmax(scores, dim=1), value)
