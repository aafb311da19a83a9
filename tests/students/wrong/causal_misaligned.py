# expect causal_attention: misaligned
# expect causal_mask: misaligned
import torch

def causal_mask(queries, keys):
    return torch.ones(queries, keys).tril().bool()

def causal_attention(query, key, value):
    allow = causal_mask(query.shape[0], key.shape[0])
    s = query @ key.T / query.shape[1] ** 0.5
    return s.masked_fill(~allow, float("-inf")).softmax(-1) @ value
