from math import exp, sqrt, tanh, sin, cos, inf

def dot(a, b):
    return sum(x * y for x, y in zip(a, b))

def softmax(row):
    top = max(row)
    e = [exp(x - top) for x in row]
    total = sum(e)
    return [x / total for x in e]

def attention(query, key, value, mask=None):
    result = []
    for i, q in enumerate(query):
        scores = [dot(q, k) / sqrt(len(q)) for k in key]
        if mask is not None:
            scores = [s if ok else -inf for s, ok in zip(scores, mask[i])]
        if max(scores) == -inf:
            result.append([0.0] * len(value[0]))
            continue
        weights = softmax(scores)
        result.append([dot(weights, column) for column in zip(*value)])
    return result

def additive_scores(state, annotations, W_q, W_k, v):
    s = [dot(state, column) for column in zip(*W_q)]
    scores = []
    for h in annotations:
        u = [dot(h, column) for column in zip(*W_k)]
        scores.append(sum(c * tanh(a + b) for a, b, c in zip(s, u, v)))
    return scores

def look_ahead_mask(n):
    return [[j <= i for j in range(n)] for i in range(n)]

def positional_encoding(length, d):
    return [[(sin, cos)[j % 2](i / 10000 ** ((j - j % 2) / d)) for j in range(d)] for i in range(length)]
