"""What a whole attention matrix says, without ever holding it: for long inputs, and for looking at many heads at once."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from regard.contracts import Score
from regard.core.attention import ScaledDot, check_shapes, leading_shape, prepare
from regard.core.rule import Rule

TILE = 1 << 19
"""How many weights are computed at a time: 2 MB in float32. Larger tiles are slower at L = 2048, smaller ones at 8192."""

MIN_ROWS = 64
"""Where a tile of all heads would have fewer rows, it has one head."""

BLOCK = 64
"""Width of the blocks in which the strongest links of a long row are looked for."""


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
    rule = Rule(ScaledDot() if score is None else score, allow)
    rule.check()
    check_shapes(query, key, None, allow)
    num_queries, num_keys = query.shape[-2], key.shape[-2]
    if not 1 <= top <= num_keys:
        raise ValueError(f"top is {top}, but there are {num_keys} keys; expected 1 to {num_keys}")
    prepared = prepare(rule.score, key, allow)
    rule = rule.without_unknown(prepared)
    lead = leading_shape(query, prepared) if rule.allow is None else leading_shape(query, prepared, rule.allow)
    found = Summary(  # made before the loop: small results between large tiles would leave holes that no tile fits into again
        top_weights=query.new_empty(*lead, num_queries, top),
        top_keys=query.new_empty(*lead, num_queries, top, dtype=torch.long),
        entropy=query.new_empty(*lead, num_queries),
        mass=query.new_zeros(*lead, num_keys),
    )
    numbers_per_row = max(1, num_keys * rule.score.numbers_per_pair)
    rows = TILE // (numbers_per_row * max(1, lead.numel()))
    if rows >= min(MIN_ROWS, num_queries):
        _add_rows(found, query, prepared, rule, rows)
        return found
    for index in itertools.product(*map(range, lead)):  # head by head: a product of few rows is slow
        alone = replace(rule, allow=rule.allow if rule.allow is None else _at(rule.allow, lead, index))
        one = Summary(*(getattr(found, field.name)[index] for field in fields(found)))
        _add_rows(one, _at(query, lead, index), _at(prepared, lead, index), alone, max(1, TILE // numbers_per_row))
    return found


def _at(tensor: Tensor, lead: torch.Size, index: tuple[int, ...]) -> Tensor:
    return tensor.expand(*lead, *tensor.shape[-2:])[index]


def _add_rows(found: Summary, query: Tensor, prepared: Tensor, rule: Rule, rows: int) -> None:
    for start in range(0, query.shape[-2], max(1, rows)):
        part = slice(start, start + rows)
        _add_tile(found, part, rule.score.scores(query[..., part, :], prepared), rule.allow_rows(part))


def _add_tile(found: Summary, part: slice, scores: Tensor, allow: Tensor | None) -> None:
    """Writes down what the rows `part` say, and adds their weights to the mass of the keys."""
    lowest = torch.finfo(scores.dtype).min / 2  # so that the distance to any score is a number too
    if allow is not None:
        scores = scores.masked_fill(~allow, lowest)
    peak, top_keys = _top(scores, found.top_keys.shape[-1])
    highest = peak[..., :1]
    shifted = scores - highest
    del scores  # one tile less in memory
    powers = shifted.exp()
    total = powers.sum(-1, keepdim=True)
    share = torch.where(highest > lowest, 1 / total, 0.0)  # a row with nothing allowed has no weights
    found.mass.add_((share.transpose(-1, -2) @ powers).squeeze(-2))
    entropy = (total.log() - shifted.mul_(powers).sum(-1, keepdim=True) * share) * (share > 0)
    found.entropy[..., part] = entropy.squeeze(-1)
    found.top_weights[..., part, :] = (peak - highest).exp() * share
    found.top_keys[..., part, :] = top_keys


def _top(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """`scores.topk(k)`, but quick on long rows: the k best lie in the k blocks with the highest peaks, or behind them all."""
    num_keys = scores.shape[-1]
    num_blocks = num_keys // BLOCK
    if num_blocks < 4 * k:
        return scores.topk(k, dim=-1)
    whole, rest = scores.split((num_blocks * BLOCK, num_keys % BLOCK), dim=-1)
    blocks = whole.unflatten(-1, (num_blocks, BLOCK))
    best = blocks.amax(-1).topk(k, dim=-1, sorted=False).indices
    chosen = blocks.gather(-2, best.unsqueeze(-1).expand(*best.shape, BLOCK)).flatten(-2)
    top, place = torch.cat((chosen, rest), dim=-1).topk(k, dim=-1)
    block, behind = best.gather(-1, (place // BLOCK).clamp(max=k - 1)), place - k * BLOCK
    return top, torch.where(behind < 0, block * BLOCK + place % BLOCK, num_blocks * BLOCK + behind)
