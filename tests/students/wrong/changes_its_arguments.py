# expect attention: changes_arguments
import numpy as np

def attention(query, key, value, mask=None):
    query /= np.sqrt(query.shape[-1])
    scores = query @ key.T
    if mask is not None:
        scores[~mask] = -np.inf
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) @ value
