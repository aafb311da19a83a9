# expect multi_head: head_view
import torch

def multi_head(x, W_q, W_k, W_v, W_o, heads):
    L = x.shape[0]
    q = (x @ W_q).view(heads, L, -1)
    k = (x @ W_k).view(heads, L, -1)
    v = (x @ W_v).view(heads, L, -1)
    weights = torch.softmax(q @ k.transpose(1, 2) / q.shape[-1] ** 0.5, dim=-1)
    out = weights @ v
    return out.transpose(0, 1).reshape(L, -1) @ W_o
