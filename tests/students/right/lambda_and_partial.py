from functools import partial

import numpy as np

scores = np.zeros((3, 3))  # not a function
softmax = lambda z: np.exp(z - z.max(-1, keepdims=True)) / np.exp(z - z.max(-1, keepdims=True)).sum(-1, keepdims=True)


def _attention(scale, Q, K, V, mask=None):
    S = Q @ K.T * scale(Q.shape[-1])
    if mask is not None:
        S = np.ma.masked_array(S, ~mask).filled(-np.inf)
    return softmax(S) @ V


attention = partial(_attention, lambda d: d**-0.5)
