# expect multi_head: softmax_heads
import torch
import torch.nn.functional as F


def multi_head(x, Wq, Wk, Wv, Wo, h, mask=None):
    q, k, v = ((x @ W).view(len(x), h, -1).permute(1, 0, 2) for W in (Wq, Wk, Wv))
    s = torch.einsum("hqd,hkd->hqk", q, k) / q.shape[-1] ** 0.5
    if mask is not None:
        s = s.masked_fill(~mask, float("-inf"))
    return torch.einsum("hqk,hkd->qhd", F.softmax(s, dim=0), v).flatten(1) @ Wo
