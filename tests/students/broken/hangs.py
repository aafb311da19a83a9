# expect attention: did_not_finish
# expect softmax: 
import numpy as np

def attention(query, key, value):
    while True:
        pass

def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)
