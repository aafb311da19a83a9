"""The formulas that `regard check` compares with, and the mistakes that students make in them.

Each formula takes the arguments of a case and a set of switches. Without switches it is right: it is the formula of
regard/reference.py. Every switch is one mistake, made where a student would make it, so mistakes compose: {"no_scale",
"softmax_queries"} forgets the scale and normalises over the wrong axis. A formula raises ValueError where a mistake does not
fit the shapes, as the student's code does.

Letters: Lq queries, Lk keys, d their width, dv the width of the values, h heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard import reference

Array = NDArray[Any]
Arguments = Mapping[str, Any]
Wrong = frozenset[str]
Values = tuple[Array, ...]
"""What a function returns: the output, or the output and the weights."""

RIGHT: Wrong = frozenset()
SMALL = "mask_small:"
"""Masks with a number that is not low enough: "mask_small:fill 10" sets masked scores to −10, "mask_small:add 10" adds −10."""
VALUES = "mask_values:"
"""The mask sets values to 0: "mask_values:some" those that some query may not see, "mask_values:all" those that none may."""
PROJECTED = "wrong_projection:"
"""A matrix stands where another belongs: "wrong_projection:W_k W_q" projects the keys with W_q."""
EPSILON = "epsilon:"
"""Adds a small number to the sum of a softmax: "epsilon:shifted 1e-9" after the maximum was subtracted, "epsilon:raw 1e-9"
without that. It hardly changes a result."""


# --- softmax -----------------------------------------------------------------------------------------------------------------


def softmax(given: Arguments, wrong: Wrong = RIGHT) -> Values:
    return (normalised(given["x"], None, wrong),)


def normalised(S: Array, allow: Array | None, wrong: Wrong) -> Array:
    """Scores -> weights. A row in which nothing is allowed has no right answer: NaN."""
    if "argmax" in wrong:
        return reference.hard(S, allow)
    if "no_softmax" in wrong:
        return reference.masked(S, allow, 0.0)
    if "no_exp" in wrong:
        S = reference.masked(S, allow, 0.0)
        return S / S.sum(-1, keepdims=True)
    if "not_normalised" in wrong:
        return np.exp(reference.masked(S, allow, -np.inf))
    if "sigmoid" in wrong:
        return reference.sigmoid(reference.masked(S, allow, -np.inf))
    if "softmax_queries" in wrong:
        return normalised(S.T, None if allow is None else allow.T, wrong - {"softmax_queries"}).T
    if "softmax_all" in wrong:
        return reference.softmax(S.reshape(1, -1), None if allow is None else allow.reshape(1, -1)).reshape(S.shape)
    if "log_softmax" in wrong:
        return S - np.logaddexp.reduce(S, axis=-1, keepdims=True)
    weights = reference.softmax(S, allow)
    for switch in wrong:
        if switch.startswith(EPSILON):
            how, number = switch.removeprefix(EPSILON).split()
            S = reference.masked(S, allow, -np.inf)
            total = np.exp(S - S.max(-1, keepdims=True) if how == "shifted" else S).sum(-1, keepdims=True)
            weights = weights * total / (total + float(number))
    return weights if allow is None else np.where(allow.any(-1, keepdims=True), weights, np.nan)


# --- attention ---------------------------------------------------------------------------------------------------------------


def attention(given: Arguments, wrong: Wrong = RIGHT) -> Values:
    """softmax(Q Kᵀ / √d) V, with a mask or with the look-ahead mask."""
    Q, K, V = given["query"], given["key"], given["value"]
    allow = allowed(given, len(Q), len(K), wrong)
    if "shared_rows" in wrong:
        Q = np.broadcast_to(Q[:1], Q.shape)
    if "values_are_keys" in wrong:
        V = K
    S = scaled(product(Q, K, wrong), len(Q), len(K), Q.shape[-1], V.shape[-1], wrong)
    W = weighted(S, allow, wrong)
    if "scale_after" in wrong:
        W = W / np.sqrt(Q.shape[-1])
    if "returns_weights" in wrong:
        return W, W
    if "returns_values" in wrong:
        return V, W
    if "returns_scores" in wrong:
        return reference.masked(S, allow, np.nan), W
    if allow is not None:
        V = np.where(visible(allow, wrong)[:, None], V, 0.0)
    mixed = (W.T if "weights_transposed" in wrong else W) @ V
    return (mixed.T if "output_transposed" in wrong else mixed), W


def scores(given: Arguments, wrong: Wrong = RIGHT) -> Values:
    """Q Kᵀ / √d."""
    Q, K = given["query"], given["key"]
    S = scaled(product(Q, K, wrong), len(Q), len(K), Q.shape[-1], K.shape[-1], wrong)
    if "softmax_applied" in wrong:
        S = reference.softmax(S)
    return (S.T if "output_transposed" in wrong else S,)


def visible(allow: Array, wrong: Wrong) -> Array:
    """Returns which values are kept: all, unless the mask is applied to them."""
    if f"{VALUES}some" in wrong:
        return np.all(allow, axis=0)
    return np.any(allow, axis=0) | (f"{VALUES}all" not in wrong)


def product(Q: Array, K: Array, wrong: Wrong) -> Array:
    if "cosine" in wrong:
        Q, K = (X / np.linalg.norm(X, axis=-1, keepdims=True) for X in (Q, K))
    if "swapped" in wrong:
        return reference.dot(K, Q)
    if "not_transposed" in wrong:
        return Q @ K
    if "queries_only" in wrong:
        return reference.dot(Q, Q)
    if "keys_only" in wrong:
        return reference.dot(K, K)
    return reference.dot(Q, K)


def scaled(S: Array, Lq: int, Lk: int, d: int, dv: int, wrong: Wrong, width: int = 0) -> Array:
    """width: of all heads together."""
    divisors = {
        "no_scale": 1.0,
        "cosine": 1.0,
        "scale_after": 1.0,
        "scale_d": float(d),
        "scale_multiplied": 1 / np.sqrt(d),
        "scale_keys": np.sqrt(Lk),
        "scale_queries": np.sqrt(Lq),
        "scale_values": np.sqrt(dv),
        "scale_width": np.sqrt(width or d),
        "scale_twice": float(d) ** 2,
    }
    return S / next((divisor for name, divisor in divisors.items() if name in wrong), np.sqrt(d))


def allowed(given: Arguments, Lq: int, Lk: int, wrong: Wrong) -> Array | None:
    allow: Array | None = given.get("mask")
    if given.get("causal"):
        allow = look_ahead(Lq, Lk, wrong)
    return allow


def weighted(S: Array, allow: Array | None, wrong: Wrong) -> Array:
    """Scores and mask -> weights."""
    if allow is None or "mask_ignored" in wrong or any(switch.startswith(VALUES) for switch in wrong):
        return normalised(S, None, wrong)
    if "mask_one_row" in wrong:
        allow = np.broadcast_to(allow[:1], allow.shape)
    if "mask_inverted" in wrong:
        allow = ~allow
    if "mask_transposed" in wrong:
        allow = allow.T
    if "mask_after" in wrong:
        return normalised(S, None, wrong) * allow
    if "mask_zero" in wrong:
        return normalised(np.where(allow, S, 0.0), None, wrong)
    if "mask_added" in wrong:
        return normalised(S + allow, None, wrong)
    for switch in wrong:
        if switch.startswith(SMALL):
            how, number = switch.removeprefix(SMALL).split()
            low = np.where(allow, S, -float(number) if how == "fill" else S - float(number))
            return normalised(low, None, wrong)
    return normalised(S, allow, wrong)


# --- masks -------------------------------------------------------------------------------------------------------------------


def causal_mask(given: Arguments, wrong: Wrong = RIGHT) -> Values:
    Lq = given["queries"]
    allow = look_ahead(Lq, given.get("keys") or Lq, wrong)
    return ((~allow if "mask_inverted" in wrong else allow).astype(np.float64),)


def look_ahead(Lq: int, Lk: int, wrong: Wrong) -> Array:
    """True where query i may attend to key j: j ≤ i, counted so that the last query and the last key are at one position."""
    i, j = np.arange(Lq)[:, None], np.arange(Lk)[None, :]
    i = i if "misaligned" in wrong else i + (Lk - Lq)
    if "sees_next" in wrong:
        return j <= i + 1
    if "hides_itself" in wrong:
        return j < i
    if "sees_future" in wrong:
        return j >= i
    if "causal_ignored" in wrong:
        return np.ones((Lq, Lk), dtype=bool)
    return j <= i


# --- several heads -----------------------------------------------------------------------------------------------------------


def multi_head(given: Arguments, wrong: Wrong = RIGHT) -> Values:
    """[head_1; …; head_h] W_o, each head with its share of the columns of x W_q, x W_k and x W_v. Without matrices, the columns
    of x are shared out."""
    h = 1 if "heads_ignored" in wrong else given["heads"]
    Q, K, V = (projected(given, *names, wrong) for names in (("query", "W_q"), ("key", "W_k"), ("value", "W_v")))
    allow = allowed(given, len(Q), len(K), wrong)
    split_Q, split_K, split_V = (split_heads(X, h, wrong) for X in (Q, K, V))
    S = np.stack(
        [
            scaled(product(q, k, wrong), len(q), len(k), q.shape[-1], v.shape[-1], wrong, Q.shape[-1])
            for q, k, v in zip(split_Q, split_K, split_V, strict=True)
        ]
    )
    W = weights_of_heads(S, allow, wrong)
    if "scale_after" in wrong:
        W = W / np.sqrt(split_Q.shape[-1])
    output = join_heads(W @ split_V, wrong)
    if "W_o" in given and "no_output_projection" not in wrong:
        output = output @ given["W_o"]
    return (output,)


def projected(given: Arguments, name: str, matrix: str, wrong: Wrong) -> Array:
    """Returns queries, keys or values: x W, or the argument itself if there are no matrices."""
    X: Array = given.get(name, given.get("x"))
    if matrix not in given:
        return X
    others = (switch.split()[1] for switch in wrong if switch.startswith(f"{PROJECTED}{matrix} "))
    return X @ given[next(others, matrix)]


def weights_of_heads(S: Array, allow: Array | None, wrong: Wrong) -> Array:
    """(h, Lq, Lk) -> (h, Lq, Lk)."""
    if "softmax_heads" in wrong:
        weights = np.moveaxis(reference.softmax(np.moveaxis(S, 0, -1)), -1, 0)
        return weights if allow is None else np.where(allow, weights, np.nan)
    weights = np.stack([weighted(scores, allow, wrong) for scores in S])
    return np.broadcast_to(weights[:1], weights.shape) if "heads_share_weights" in wrong else weights


def split_heads(X: Array, h: int, wrong: Wrong) -> Array:
    """(L, h·d) -> (h, L, d)."""
    L = len(X)
    if "head_view" in wrong:
        return X.reshape(h, L, -1)
    if "head_interleaved" in wrong:
        return X.reshape(L, -1, h).transpose(2, 0, 1)
    heads = X.reshape(L, h, -1).transpose(1, 0, 2)
    return np.broadcast_to(heads[:1], heads.shape) if "head_repeated" in wrong else heads


def join_heads(X: Array, wrong: Wrong) -> Array:
    """(h, L, d) -> (L, h·d)."""
    h, L, d = X.shape
    if "heads_mean" in wrong:
        return X.sum(0) / h
    if "heads_sum" in wrong:
        return X.sum(0)
    if "join_view" in wrong:
        return X.reshape(L, h * d)
    if "join_interleaved" in wrong:
        return X.transpose(1, 2, 0).reshape(L, h * d)
    if "join_reversed" in wrong:
        X = X[::-1]
    return X.transpose(1, 0, 2).reshape(L, h * d)


# --- additive scores ---------------------------------------------------------------------------------------------------------


def additive_scores(given: Arguments, wrong: Wrong = RIGHT) -> Values:
    """vᵀ tanh(W_q q + W_k k) (Bahdanau et al. 2015)."""
    Q, K, W_q, W_k, v = (given[name] for name in ("query", "key", "W_q", "W_k", "v"))
    if "matrices_swapped" in wrong:
        W_q, W_k = W_k, W_q
    q, k = (Q @ W_q)[:, None, :], (K @ W_k)[None, :, :]
    if "query_forgotten" in wrong:
        q = np.zeros_like(q)
    if "key_forgotten" in wrong:
        k = np.zeros_like(k)
    v = np.full_like(v, 1 / len(v) if "v_mean" in wrong else 1.0) if {"v_forgotten", "v_mean"} & wrong else v
    if "tanh_forgotten" in wrong:
        S = (q + k) @ v
    elif "tanh_each" in wrong:
        S = (np.tanh(q) + np.tanh(k)) @ v
    elif "tanh_last" in wrong:
        S = np.tanh((q + k) @ v)
    elif "product" in wrong:
        S = np.tanh(q * k) @ v
    else:
        squash = reference.sigmoid if "sigmoid_for_tanh" in wrong else reference.relu if "relu_for_tanh" in wrong else np.tanh
        S = squash(q + k) @ v
    if "scaled_too" in wrong:
        S = S / np.sqrt(len(v))
    if "softmax_applied" in wrong:
        S = reference.softmax(S)
    return (S.T if "output_transposed" in wrong else S,)


# --- positions ---------------------------------------------------------------------------------------------------------------


def positions(given: Arguments, wrong: Wrong = RIGHT) -> Values:
    """sin(ω_k i) and cos(ω_k i), interleaved, ω_k = 10000^(−2k/d), i = 0, 1, …"""
    L, d = given["length"], given["width"]
    i = np.arange(L)[:, None] + (1.0 if "starts_at_one" in wrong else 0.0)
    base = 1000.0 if "base_1000" in wrong else 10000.0
    k = np.arange(d // 2)[None, :]
    sines = cosines = 2 * k / d
    if "exponent_half" in wrong:
        sines = cosines = k / d
    if "exponent_index" in wrong:
        cosines = (2 * k + 1) / d
    if "exponent_double" in wrong:
        sines, cosines = 4 * k / d, 4 * k / d
    sign = 1 if "frequency_inverted" in wrong else -1
    a, b = np.sin(i * base ** (sign * sines)), np.cos(i * base ** (sign * cosines))
    if "sin_cos_swapped" in wrong:
        a, b = b, a
    table = reference.join(a, b, "halves" if "halves" in wrong else "interleaved")
    return (table.T if "output_transposed" in wrong else table,)
