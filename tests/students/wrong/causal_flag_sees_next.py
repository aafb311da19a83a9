# expect attention: sees_next
import numpy as np

def attention(query, key, value, mask=None, causal=False):
    s = query @ key.T / np.sqrt(query.shape[-1])
    if causal:
        n, m = s.shape
        s = np.where(np.triu(np.ones((n, m)), k=m - n + 2), -np.inf, s)
    if mask is not None:
        s = np.where(mask, s, -np.inf)
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) @ value
