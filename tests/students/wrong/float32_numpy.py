# expect attention: float32
import numpy as np

def attention(query, key, value, mask=None):
    query, key = query.astype(np.float32), key.astype(np.float32)
    scores = query @ key.T / np.sqrt(query.shape[-1])
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) @ value
