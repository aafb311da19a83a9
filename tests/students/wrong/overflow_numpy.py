# expect softmax: overflow
# expect attention: overflow
import numpy as np

def softmax(x):
    e = np.exp(x)
    return e / e.sum(axis=-1, keepdims=True)

def attention(query, key, value, mask=None):
    scores = query @ key.T / np.sqrt(query.shape[-1])
    if mask is not None:
        scores = np.where(mask, scores, -1e9)
    return softmax(scores) @ value
