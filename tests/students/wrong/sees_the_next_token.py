# expect causal_mask: sees_next
import numpy as np

def causal_mask(n):
    return np.tril(np.ones((n, n), dtype=bool), k=1)
