# expect softmax: 
import sys
import numpy as np

def softmax(x):
    for _ in range(20000):
        print("debug", "x" * 1000)
        print("debug", "x" * 1000, file=sys.stderr)
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)
