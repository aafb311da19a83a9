# expect positions: exponent_index
import torch

def positions(length, width):
    table = torch.zeros(length, width, dtype=torch.float64)
    for i in range(length):
        for j in range(width):
            angle = torch.tensor(i / 10000 ** (j / width), dtype=torch.float64)
            table[i, j] = torch.sin(angle) if j % 2 == 0 else torch.cos(angle)
    return table
