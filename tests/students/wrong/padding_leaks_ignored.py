# expect attention: mask_ignored
import torch

def attention(query, key, value, mask=None):
    scores = query @ key.transpose(0, 1) / query.shape[1] ** 0.5
    if mask is not None:
        scores.masked_fill(~mask, float("-inf"))  # forgot that this is not in place
    return scores.softmax(1) @ value
