# expect attention: mask_small
import numpy as np

def attention(query, key, value, mask=None):
    scores = query @ key.T / np.sqrt(query.shape[-1])
    if mask is not None:
        scores = scores + (1 - mask) * -100.0
    scores = scores - scores.max(-1, keepdims=True)
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    return weights @ value
