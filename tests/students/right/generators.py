from math import exp, fsum, sqrt, tanh, sin, cos
from itertools import repeat
from operator import mul


def dot(a, b):
    return fsum(map(mul, a, b))


def softmax(row):
    top = max(row)
    parts = [exp(r - top) for r in row]
    total = fsum(parts)
    return [p / total for p in parts]


def attend(q, k, v, allow=None):
    def one(i, query):
        seen = [j for j in range(len(k)) if allow is None or allow[i][j]]
        if not seen:
            return [0.0] * len(v[0])
        w = softmax([dot(query, k[j]) / sqrt(len(query)) for j in seen])
        return [fsum(x * v[j][c] for x, j in zip(w, seen)) for c in range(len(v[0]))]

    yield from (one(i, query) for i, query in enumerate(q))


def causal_attention(q, k, v):
    shift = len(k) - len(q)
    for i, query in enumerate(q):
        yield from attend([query], k[: i + shift + 1], v[: i + shift + 1])


def scores(q, k):
    return (tuple(dot(a, b) / len(a) ** 0.5 for b in k) for a in q)


def look_ahead_mask(n):
    return ((j <= i for j in range(n)) for i in range(n))


def positional_encoding(max_len, d_model):
    return [[(sin, cos)[c % 2](p / 10000 ** ((c - c % 2) / d_model)) for c in range(d_model)] for p in range(max_len)]
