import numpy as np

def attention(query, key, value, mask=None):
    s = query @ key.T / np.sqrt(query.shape[-1])
    if mask is not None:
        s = np.where(mask, s, -1e9)
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / (e.sum(-1, keepdims=True) + 1e-8) @ value
