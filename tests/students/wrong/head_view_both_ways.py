# expect multi_head: head_view join_view
import numpy as np

def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)

def multi_head(x, W_q, W_k, W_v, W_o, heads):
    L, columns = len(x), W_q.shape[1]
    q, k, v = [(x @ W).reshape(heads, L, columns // heads) for W in (W_q, W_k, W_v)]
    out = softmax(q @ k.transpose(0, 2, 1) / np.sqrt(columns // heads)) @ v
    return out.reshape(L, columns) @ W_o
