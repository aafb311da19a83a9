# expect attention: dropout
import torch
import torch.nn.functional as F

def attention(query, key, value, mask=None):
    scores = query @ key.T / query.shape[-1] ** 0.5
    weights = F.dropout(F.softmax(scores, dim=-1), p=0.3)
    return weights @ value, weights
