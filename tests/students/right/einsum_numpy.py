import numpy as np


def normalise(e, axis):
    e = np.exp(e - np.max(e, axis=axis, keepdims=True))
    return e / np.sum(e, axis=axis, keepdims=True)


def scaled_dot_product_attention(Q, K, V, attn_mask=None):
    energy = np.einsum("td,sd->ts", Q, K) / Q.shape[-1] ** 0.5
    if attn_mask is not None:
        energy = np.where(attn_mask, energy, -np.inf)
    alpha = normalise(energy, axis=1)
    return np.einsum("ts,sv->tv", alpha, V), alpha


def mha(X, WQ, WK, WV, WO, n_heads, mask=None):
    q, k, v = (np.einsum("ld,dhe->hle", X, W.reshape(W.shape[0], n_heads, -1)) for W in (WQ, WK, WV))
    s = np.einsum("hqe,hke->hqk", q, k) / np.sqrt(q.shape[2])
    if mask is not None:
        s = s + np.where(mask, 0.0, -1e30)[None]
    z = np.einsum("hqk,hke->qhe", normalise(s, 2), v)
    return np.einsum("qhe,hed->qd", z, WO.reshape(n_heads, -1, WO.shape[1]))


def bahdanau_score(s, h, W_s, W_h, v_a):
    return np.einsum("tsa,a->ts", np.tanh(np.einsum("td,da->ta", s, W_s)[:, None] + np.einsum("sd,da->sa", h, W_h)[None]), v_a)


def subsequent_mask(size):
    i, j = np.ogrid[:size, :size]
    return j <= i


def sinusoidal(n, d):
    angle = np.arange(n)[:, None] / np.power(10000, 2 * (np.arange(d) // 2) / d)
    return np.where(np.arange(d) % 2, np.cos(angle), np.sin(angle))
