# expect attention: float32
import torch

def attention(query, key, value):
    out = torch.zeros(query.shape[0], value.shape[1])
    for i, q in enumerate(query):
        out[i] = torch.softmax(key @ q / len(q) ** 0.5, 0) @ value
    return out
