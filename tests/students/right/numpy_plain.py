import numpy as np

def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)

def scaled_dot_scores(query, key):
    return query @ key.T / np.sqrt(query.shape[-1])

def attention(query, key, value, mask=None):
    scores = scaled_dot_scores(query, key)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    weights = softmax(scores)
    return weights @ value, weights

def causal_mask(queries, keys):
    return np.tril(np.ones((queries, keys), dtype=bool), k=keys - queries)

def causal_attention(query, key, value):
    return attention(query, key, value, causal_mask(len(query), len(key)))

def multi_head(x, W_q, W_k, W_v, W_o, heads, mask=None):
    parts = zip(*(np.split(x @ W, heads, axis=-1) for W in (W_q, W_k, W_v)))
    return np.concatenate([attention(q, k, v, mask)[0] for q, k, v in parts], axis=-1) @ W_o

def additive_scores(query, key, W_q, W_k, v):
    return np.tanh((query @ W_q)[:, None, :] + (key @ W_k)[None, :, :]) @ v

def positions(length, width):
    angle = np.arange(length)[:, None] / 10000 ** (np.arange(0, width, 2) / width)
    table = np.empty((length, width))
    table[:, 0::2], table[:, 1::2] = np.sin(angle), np.cos(angle)
    return table
