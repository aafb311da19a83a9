# expect multi_head: join_reversed
import numpy as np

def one_head(q, k, v):
    s = q @ k.T / np.sqrt(q.shape[-1])
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) @ v

def multi_head_attention(x, Wq, Wk, Wv, Wo, num_heads):
    out = None
    for q, k, v in zip(*(np.split(x @ W, num_heads, axis=1) for W in (Wq, Wk, Wv))):
        head = one_head(q, k, v)
        out = head if out is None else np.concatenate([head, out], axis=1)
    return out @ Wo
