# expect attention: wrong_shape
import numpy as np

def attention(query, key, value):
    return np.zeros((1000, 1000))
