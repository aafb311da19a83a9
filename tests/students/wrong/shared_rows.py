# expect attention: shared_rows
import numpy as np

def attention(query, key, value):
    out = np.zeros((len(query), value.shape[1]))
    for i in range(len(query)):
        s = key @ query[0] / np.sqrt(len(query[0]))
        w = np.exp(s - s.max())
        out[i] = w / w.sum() @ value
    return out
