# expect attention: scale_d overflow
# expect softmax: not_normalised
from math import exp


def softmax(row):
    return (exp(x) for x in row)


def attend(Q, K, V):
    for q in Q:
        e = list(softmax(sum(map(float.__mul__, q, k)) / len(q) for k in K))
        yield (sum(w * v[c] for w, v in zip(e, V, strict=True)) / sum(e) for c in range(len(V[0])))
