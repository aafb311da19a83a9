# expect attention: softmax_queries
import numpy as np

def attention(query, key, value, mask=None):
    scores = query @ key.T / np.sqrt(query.shape[1])
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    e = np.exp(scores - scores.max(axis=0))
    weights = e / e.sum(axis=0)
    return weights @ value, weights
