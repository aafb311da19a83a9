# expect attention: swapped
import numpy as np

def attention(query, key, value):
    scores = key @ query.T / np.sqrt(query.shape[-1])
    scores -= scores.max(axis=1, keepdims=True)
    weights = np.exp(scores)
    weights /= weights.sum(axis=1, keepdims=True)
    return weights @ value
