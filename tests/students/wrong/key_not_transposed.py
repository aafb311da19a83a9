# expect attention: not_transposed
import torch

def attention(query, key, value):
    return torch.softmax(query @ key / query.shape[-1] ** 0.5, dim=-1) @ value
