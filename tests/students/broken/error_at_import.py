# expect file: does_not_import
import numpy as np

def softmax(x):
    return np.exp(x)

print(softmax(np.zeros(3)) @ np.zeros(4))
