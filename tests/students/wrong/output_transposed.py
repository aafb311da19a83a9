# expect attention: output_transposed
import numpy as np

def attention(query, key, value):
    s = query @ key.T / np.sqrt(query.shape[-1])
    e = np.exp(s - s.max(1, keepdims=True))
    w = e / e.sum(1, keepdims=True)
    return value.T @ w.T
