# expect multi_head: scale_width
import torch

def multi_head(x, W_q, W_k, W_v, W_o, heads, mask=None):
    B = lambda W: (x @ W).unflatten(-1, (heads, -1)).transpose(-2, -3)
    q, k, v = B(W_q), B(W_k), B(W_v)
    s = q @ k.mT / W_q.shape[1] ** 0.5
    if mask is not None:
        s = s.masked_fill(mask == 0, -1e30)
    return (s.softmax(-1) @ v).transpose(-2, -3).flatten(-2) @ W_o
