# expect attention: hidden_maximum
import numpy as np

def attention(query, key, value, mask=None):
    s = query @ key.T / np.sqrt(query.shape[-1])
    e = np.exp(s - s.max(-1, keepdims=True))
    if mask is not None:
        e = e * mask
    return e / e.sum(-1, keepdims=True) @ value
