# expect attention: mask_inverted
import torch

def attention(query, key, value, mask=None):
    scores = query @ key.T / query.shape[-1] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(mask, float("-inf"))
    weights = scores.softmax(-1)
    return weights @ value
