"""What a whole attention matrix says, without ever holding it: for long inputs, and for looking at many heads at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.contracts import Score
from regard.core.attention import ScaledDot, check_score, check_shapes, leading_shape

TILE = 1 << 18
"""How many weights are computed at a time (1 MB in float32: a tile stays in the cache of a core)."""


@dataclass(frozen=True)
class Summary:
    """Per query its strongest links and how spread out it is; per key how much it receives.

    top_weights, top_keys (..., Lq, k): the k largest weights of each query, the largest first, and the keys they belong to.
    entropy (..., Lq): −Σ w ln w; 0 where one key has all the weight, ln Lk where all keys have the same.
    mass (..., Lk): the sum of all weights on this key. All queries that may see anything add up to 1 each.
    """

    top_weights: Tensor
    top_keys: Tensor
    entropy: Tensor
    mass: Tensor


@torch.no_grad()
def summarise(query: Tensor, key: Tensor, *, top: int = 8, score: Score | None = None, allow: Tensor | None = None) -> Summary:
    """Exact figures about `attention_weights(query, key, …)` in memory O(Lq·top + Lk), worked off in tiles of query rows."""
    score = ScaledDot() if score is None else score
    check_score(score)
    check_shapes(query, key, None, allow)
    num_queries, num_keys = query.shape[-2], key.shape[-2]
    if not 1 <= top <= num_keys:
        raise ValueError(f"top is {top}, but there are {num_keys} keys; expected 1 to {num_keys}")
    prepared = score.prepare(key)
    lead = leading_shape(query, prepared) if allow is None else leading_shape(query, prepared, allow)
    rows = max(1, TILE // max(1, lead.numel() * num_keys * score.numbers_per_pair))
    mass = query.new_zeros(*lead, num_keys)
    parts = []
    for start in range(0, num_queries, rows):
        part = slice(start, start + rows)
        tile_allow = allow if allow is None or allow.shape[-2] == 1 else allow[..., part, :]
        parts.append(_tile(score.scores(query[..., part, :], prepared), tile_allow, top, mass))
    top_weights, top_keys, entropy = (
        torch.cat(tensors, dim=axis) for tensors, axis in zip(zip(*parts, strict=True), (-2, -2, -1), strict=True)
    )
    return Summary(top_weights, top_keys, entropy, mass)


def _tile(scores: Tensor, allow: Tensor | None, top: int, mass: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Top weights, their keys and the entropy of some query rows; adds their weights to `mass`."""
    lowest = torch.finfo(scores.dtype).min
    if allow is not None:
        scores = scores.masked_fill(~allow, lowest)
    peak, top_keys = scores.topk(top, dim=-1)
    highest = peak[..., :1]
    shifted = scores - highest
    powers = shifted.exp()
    total = powers.sum(-1, keepdim=True)
    share = torch.where(highest > lowest, 1 / total, 0.0)  # a row with nothing allowed has no weights
    mass += (share.transpose(-1, -2) @ powers).squeeze(-2)
    entropy = (total.log() - (powers * shifted).sum(-1, keepdim=True) * share) * (share > 0)
    return (peak - highest).exp() * share, top_keys, entropy.squeeze(-1)
