# expect attention: returns_weights
import torch

def attention(query, key, value):
    return torch.softmax(query @ key.T / query.shape[-1] ** 0.5, dim=-1)
