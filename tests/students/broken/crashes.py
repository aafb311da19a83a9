# expect scaled_dot_scores: crashed
# expect attention: no_scale
import ctypes
import numpy as np

def scaled_dot_scores(query, key):
    return ctypes.string_at(0)

def attention(query, key, value):
    e = np.exp(query @ key.T - (query @ key.T).max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) @ value
