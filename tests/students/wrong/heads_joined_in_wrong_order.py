# expect multi_head: join_view
import numpy as np

def multi_head(query, key, value, heads):
    def split(a):
        return a.reshape(len(a), heads, -1).swapaxes(0, 1)
    q, k, v = split(query), split(key), split(value)
    s = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1])
    e = np.exp(s - s.max(-1, keepdims=True))
    o = e / e.sum(-1, keepdims=True) @ v
    return o.reshape(query.shape)
