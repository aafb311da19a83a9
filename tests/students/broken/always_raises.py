# expect attention: raises
import numpy as np

def attention(query, key, value):
    scores = np.dot(query, key.T)
    return scores.softmax(axis=-1) @ value
