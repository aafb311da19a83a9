# expect attention: mask_small
from math import exp, sqrt

def attention(query, key, value, mask=None):
    out = []
    for i in range(len(query)):
        s = []
        for j in range(len(key)):
            dot = 0
            for c in range(len(key[j])):
                dot += query[i][c] * key[j][c]
            dot /= sqrt(len(query[i]))
            if mask is not None and not mask[i][j]:
                dot = -10
            s.append(dot)
        m = max(s)
        total = sum(exp(x - m) for x in s)
        w = [exp(x - m) / total for x in s]
        out.append([sum(w[j] * value[j][c] for j in range(len(value))) for c in range(len(value[0]))])
    return out
