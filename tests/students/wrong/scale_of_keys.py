# expect attention: scale_keys
from numpy import exp, sqrt

def attention(Q, K, V):
    S = Q @ K.T / sqrt(K.shape[0])
    E = exp(S - S.max(axis=1, keepdims=True))
    return (E / E.sum(axis=1, keepdims=True)) @ V
