import torch
import torch.nn.functional as F
from torch import Tensor

def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
    if is_causal:
        n, m = query.shape[-2], key.shape[-2]
        mask = torch.ones(n, m, dtype=torch.bool).tril(m - n)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)

def multi_head(x, W_q, W_k, W_v, W_o, heads, mask=None):
    q, k, v = (F.linear(x, W.T).unflatten(-1, (heads, -1)).transpose(-2, -3) for W in (W_q, W_k, W_v))
    return attention(q, k, v, mask).transpose(-2, -3).flatten(-2) @ W_o
