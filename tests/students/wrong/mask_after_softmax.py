# expect attention: mask_after
import numpy as np

def softmax(x):
    x = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return x / np.sum(x, axis=-1, keepdims=True)

def attention(query, key, value, mask=None):
    weights = softmax(np.dot(query, key.T) / np.sqrt(key.shape[-1]))
    if mask is not None:
        weights = weights * mask
    return np.dot(weights, value)
