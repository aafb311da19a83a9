# expect attention: results_swapped
import numpy as np

def attention(query, key, value):
    scores = query @ key.T / np.sqrt(query.shape[-1])
    e = np.exp(scores - scores.max(-1, keepdims=True))
    weights = e / e.sum(-1, keepdims=True)
    return weights, weights @ value
