# expect attention: softmax_all
import torch

def attention(q, k, v):
    s = (q @ k.transpose(-2, -1)) / q.shape[-1] ** 0.5
    w = torch.softmax(s.flatten(), dim=0).view_as(s)
    return w @ v
