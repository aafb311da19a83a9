# expect attention: needs_equal_lengths
import numpy as np

def attention(query, key, value):
    n = len(query)
    weights = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            weights[i, j] = query[i] @ key[j] / np.sqrt(query.shape[1])
    weights = np.exp(weights - weights.max(1, keepdims=True))
    weights /= weights.sum(1, keepdims=True)
    return weights @ value
