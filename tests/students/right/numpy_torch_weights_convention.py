import numpy as np

def softmax(x, axis=-1):
    x = x - x.max(axis=axis, keepdims=True)
    return np.exp(x) / np.exp(x).sum(axis=axis, keepdims=True)

def bahdanau_scores(s, h, W_b, W_c, v):  # matrices as the papers write them: W s
    return np.array([v @ np.tanh(W_b @ s + W_c @ h_i) for h_i in h])

def causal_mask(n):
    return np.triu(np.full((n, n), -np.inf), k=1)  # to be added to the scores
