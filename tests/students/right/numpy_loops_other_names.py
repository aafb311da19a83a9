import numpy as np

def ScaledDotAttention(a, b, c, d=None):  # names that nobody knows: passed by order
    out = np.zeros((a.shape[0], c.shape[1]))
    for i in range(a.shape[0]):
        s = np.array([a[i] @ b[j] for j in range(len(b))]) / np.sqrt(a.shape[1])
        if d is not None:
            s = np.where(d[i], s, -1e30)
        w = np.exp(s - s.max())
        out[i] = (w / w.sum()) @ c
    return out
