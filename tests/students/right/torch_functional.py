import torch
import torch.nn.functional as F


def softmax(x):
    return F.softmax(x, dim=-1)


def attention(query, key, value, mask=None, is_causal=False):
    if is_causal:
        n, m = query.size(-2), key.size(-2)
        mask = torch.ones(n, m, dtype=torch.bool).tril(m - n)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def multi_head(x, w_query, w_key, w_value, w_out, num_heads, mask=None):
    def split(t):
        return t.unflatten(-1, (num_heads, -1)).transpose(-3, -2)

    heads = F.scaled_dot_product_attention(split(F.linear(x, w_query.T)), split(x @ w_key), split(x @ w_value), mask)
    return F.linear(heads.transpose(-3, -2).flatten(-2), w_out.T)


def additive_scores(query, key, W_q, W_k, v):
    return torch.tanh((query @ W_q).unsqueeze(-2) + (key @ W_k).unsqueeze(-3)).matmul(v)


def causal_mask(n, m=None):
    m = n if m is None else m
    return ~torch.triu(torch.ones(n, m, dtype=torch.bool), diagonal=1 + m - n)


def positions(length, width):
    pe = torch.zeros(length, width, dtype=torch.float64)
    pos = torch.arange(length).unsqueeze(1)
    div = torch.exp(
        torch.arange(0, width, 2, dtype=torch.float64) * (-torch.log(torch.tensor(10000.0, dtype=torch.float64)) / width)
    )
    pe[:, 0::2], pe[:, 1::2] = torch.sin(pos * div), torch.cos(pos * div)
    return pe
