# expect positions: starts_at_one
import math

def positional_encoding(length, d_model):
    table = []
    for position in range(1, length + 1):
        row = []
        for k in range(0, d_model, 2):
            row.append(math.sin(position / 10000 ** (k / d_model)))
            row.append(math.cos(position / 10000 ** (k / d_model)))
        table.append(row)
    return table
