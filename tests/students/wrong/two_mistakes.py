# expect attention: softmax_queries no_scale
import torch

def attention(query, key, value, mask=None):
    scores = query @ key.T
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return scores.softmax(dim=0) @ value
