# expect additive_scores: v_forgotten
import numpy as np

def additive_scores(query, key, W_q, W_k, v):
    hidden = np.tanh((query @ W_q)[:, None, :] + (key @ W_k)[None, :, :])
    return hidden.sum(axis=-1)
