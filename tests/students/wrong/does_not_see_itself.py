# expect causal_attention: hides_itself
import numpy as np

def causal_attention(query, key, value):
    n, m = len(query), len(key)
    scores = query @ key.T / np.sqrt(query.shape[-1])
    hidden = np.arange(m)[None, :] >= np.arange(n)[:, None] + m - n
    scores[hidden] = -1e30
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) @ value
