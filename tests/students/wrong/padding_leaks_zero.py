# expect attention: mask_zero
import numpy as np

def attention(query, key, value, mask=None):
    scores = query @ key.T / np.sqrt(query.shape[-1])
    if mask is not None:
        scores = scores * mask  # hides the padding
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) @ value
