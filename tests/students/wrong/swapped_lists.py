# expect attention: swapped
import math

def attention(query, key, value):
    out = []
    for k in key:
        s = [sum(x * y for x, y in zip(k, q)) / math.sqrt(len(q)) for q in query]
        e = [math.exp(x - max(s)) for x in s]
        w = [x / sum(e) for x in e]
        out.append([sum(a * v[c] for a, v in zip(w, value)) for c in range(len(value[0]))])
    return out
