# expect attention: random_output
import numpy as np

def attention(query, key, value):
    scores = query @ key.T / np.sqrt(query.shape[-1])
    scores = scores + 0.1 * np.random.randn(*scores.shape)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) @ value
