"""The formulas of attention, in NumPy, one line each where possible: a page to read, and the oracle of the parity tests.

Nothing here is fast and nothing here is used by the models. Needs numpy (`pip install "regard[plot]"` brings it).

Letters: Q (…, Lq, dq) queries, K (…, Lk, dk) keys, V (…, Lk, dv) values; s a decoder state, h an encoder state;
allow (…, Lq, Lk) is True where a query may attend to a key.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

# --- scores: how well a query fits a key, (…, Lq, Lk) ------------------------------------------------------------------------


def dot(Q: Array, K: Array) -> Array:
    """s·h (Luong et al. 2015)."""
    return Q @ K.swapaxes(-1, -2)


def scaled_dot(Q: Array, K: Array, divide_by: float | None = None) -> Array:
    """s·h / √d (Vaswani et al. 2017), or divided by any other number."""
    return dot(Q, K) / (np.sqrt(Q.shape[-1]) if divide_by is None else divide_by)


def general(Q: Array, K: Array, W: Array) -> Array:
    """sᵀ W h (Luong et al. 2015); W is (dq, dk)."""
    return Q @ W @ K.swapaxes(-1, -2)


def additive(Q: Array, K: Array, W_b: Array, W_c: Array, v: Array) -> Array:
    """vᵀ tanh(W_b s + W_c h) (Bahdanau et al. 2015); W_b is (a, dq), W_c (a, dk), v (a,)."""
    s, h = Q[..., :, None, :], K[..., None, :, :]
    return np.tanh(s @ W_b.T + h @ W_c.T) @ v


def concat(Q: Array, K: Array, W: Array, v: Array) -> Array:
    """vᵀ tanh(W [s; h]) (Luong et al. 2015); W is (a, dq + dk)."""
    s, h = Q[..., :, None, :], K[..., None, :, :]
    pairs = np.broadcast_shapes(s.shape[:-1], h.shape[:-1])
    together = np.concatenate([np.broadcast_to(s, (*pairs, s.shape[-1])), np.broadcast_to(h, (*pairs, h.shape[-1]))], axis=-1)
    return np.tanh(together @ W.T) @ v


def cosine(Q: Array, K: Array, temperature: float) -> Array:
    """cos(s, h) / temperature; a zero vector has the cosine 0 with everything."""
    norms = np.linalg.norm(Q, axis=-1)[..., :, None] * np.linalg.norm(K, axis=-1)[..., None, :]
    return np.divide(dot(Q, K), norms, out=np.zeros_like(norms), where=norms > 0) / temperature


def distance(Q: Array, K: Array) -> Array:
    """−‖s − h‖² / 2d."""
    difference = Q[..., :, None, :] - K[..., None, :, :]
    return -(difference**2).sum(-1) / (2 * Q.shape[-1])


# --- from scores to weights to context ---------------------------------------------------------------------------------------


def softmax(scores: Array, allow: Mask | None = None) -> Array:
    """Per row, and stable. A key that is not allowed has the score −∞ and the weight 0; a row without any key gives zeros."""
    scores = scores if allow is None else np.where(allow, scores, -np.inf)
    top = scores.max(-1, keepdims=True)
    e = np.exp(scores - np.where(np.isfinite(top), top, 0.0))
    total = e.sum(-1, keepdims=True)
    return np.divide(e, total, out=np.zeros_like(e), where=total > 0)


def attention(scores: Array, V: Array, allow: Mask | None = None) -> Array:
    """output_i = Σ_j weights_ij · v_j."""
    return softmax(scores, allow) @ V


def entropy(weights: Array) -> Array:
    """−Σ_j w_j ln w_j of every row: 0 where one key has all the weight, ln Lk where all are equal."""
    return -np.where(weights > 0, weights * np.log(np.where(weights > 0, weights, 1.0)), 0.0).sum(-1)


# --- masks -------------------------------------------------------------------------------------------------------------------


def causal(Lq: int, Lk: int) -> Mask:
    """The last query sees every key, the one before it all but the last, and so on."""
    return np.arange(Lk)[None, :] <= np.arange(Lq)[:, None] + (Lk - Lq)


def window(Lq: int, Lk: int, w: int) -> Mask:
    """Query i sees the keys from i − w to i + w: hard attention by position, as in a convolution."""
    i = np.arange(Lq)[:, None] + (Lk - Lq)
    return np.abs(np.arange(Lk)[None, :] - i) <= w


# --- positions ---------------------------------------------------------------------------------------------------------------


def sinusoidal(i: int, d: int) -> Array:
    """φ(i) = (sin ω_0 i, cos ω_0 i, sin ω_1 i, cos ω_1 i, …), ω_k = 10000^(−2k/d) (Vaswani et al. 2017)."""
    omega = 10000.0 ** (-2 * np.arange(d // 2) / d)
    return np.stack([np.sin(omega * i), np.cos(omega * i)], axis=-1).reshape(d)
