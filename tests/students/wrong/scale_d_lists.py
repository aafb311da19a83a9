# expect attention: scale_d
import math

def softmax_row(row):
    top = max(row)
    e = [math.exp(x - top) for x in row]
    return [x / sum(e) for x in e]

def attention(query, key, value):
    d = len(query[0])
    output = []
    for q in query:
        scores = [sum(a * b for a, b in zip(q, k)) / d for k in key]
        weights = softmax_row(scores)
        output.append([sum(w * v[c] for w, v in zip(weights, value)) for c in range(len(value[0]))])
    return output
