# expect attention: cosine
# expect multi_head: heads_share_weights
import numpy as np


def weights(similarity):
    e = np.exp(similarity - similarity.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def attention(queries, keys, values):
    directions = [x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (queries, keys)]
    return weights(directions[0] @ directions[1].T) @ values


def mha(X, WQ, WK, WV, WO, n_heads):
    d = WQ.shape[1] // n_heads
    a = weights((X @ WQ[:, :d]) @ (X @ WK[:, :d]).T / d**0.5)
    return np.concatenate([a @ (X @ WV[:, i * d : (i + 1) * d]) for i in range(n_heads)], -1) @ WO
