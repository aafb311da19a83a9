# expect attention: no_scale overflow mask_inverted
import numpy as np

def attention(query, key, value, mask=None):
    e = np.exp(query @ key.T)
    if mask is not None:
        e = e * (1 - mask)
    return e / e.sum(-1, keepdims=True) @ value
