# expect attention: scale_after
import torch

def attention(query, key, value):
    weights = torch.softmax(query @ key.mT, -1) / query.size(-1) ** 0.5
    return weights @ value
