# expect additive_scores: tanh_forgotten
import numpy as np

def bahdanau_score(s, h, W_a, U_a, v_a):
    return (s @ W_a + h @ U_a) @ v_a
