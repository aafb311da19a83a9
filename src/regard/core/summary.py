"""What a whole attention matrix says, without ever holding it: for long inputs, and for looking at many heads at once."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import fields, replace

import torch
from torch import Tensor

from regard.contracts import Score, Summary
from regard.core.attention import ScaledDot, check_shapes, leading_shape, prepare, same_heads
from regard.core.largest import largest
from regard.core.mechanism import Mechanism
from regard.errors import check_whole

TILE = 1 << 19
"""How many weights are computed at a time: 2 MB in float32. Larger tiles are slower at L = 2048, smaller ones at 8192."""

MIN_ROWS = 64
"""Where a tile of all heads would have fewer rows, it has one head."""

GRID = 128
"""How many block means an axis has at most."""


def block_size(length: int) -> int:
    """How many places of an axis share a block mean."""
    return max(1, math.ceil(length / GRID))


@torch.no_grad()
def summarise(
    query: Tensor,
    key: Tensor,
    *,
    top: int = 8,
    score: Score | None = None,
    allow: Tensor | None = None,
    blocks: bool = False,
    distance: bool = False,
) -> Summary:
    """Exact figures about `attention_weights(query, key, …)` in memory O(Lq·top + Lk), worked off in tiles of query rows."""
    mechanism = Mechanism(ScaledDot() if score is None else score, allow)
    mechanism.check()
    check_shapes(query, key, None, allow)
    num_keys = key.shape[-2]
    check_whole("top", top)
    if top > num_keys:
        raise ValueError(f"top is {top}, but there are {num_keys} keys; expected at most as many")
    positions = range(query.shape[-2]) if distance else None
    return summarise_prepared(
        query, prepare(mechanism.score, key, allow), mechanism, top=top, blocks=blocks, positions=positions
    )


def summarise_prepared(
    query: Tensor,
    prepared: Tensor,
    mechanism: Mechanism,
    *,
    top: int,
    blocks: bool = False,
    positions: Sequence[int] | None = None,
) -> Summary:
    """`summarise` for keys that are prepared already. places: the numbers of the queries, if distances are wanted."""
    mechanism, prepared = mechanism.without_unknown(prepared), same_heads(prepared, query)
    num_queries, num_keys = query.shape[-2], prepared.shape[-2]
    lead = leading_shape(query, prepared) if mechanism.allow is None else leading_shape(query, prepared, mechanism.allow)
    found = _empty(query, (*lead, num_queries, num_keys), top, blocks=blocks, distance=positions is not None)
    numbers_per_row = max(1, num_keys * mechanism.score.numbers_per_pair)
    rows = TILE // (numbers_per_row * max(1, lead.numel()))
    if rows >= min(MIN_ROWS, num_queries) or mechanism.alibi is not None:
        _add_rows(found, query, prepared, mechanism, max(1, rows), positions)
        return found
    for index in itertools.product(*map(range, lead)):  # head by head: a product of few rows is slow
        alone = replace(mechanism, allow=mechanism.allow if mechanism.allow is None else _at(mechanism.allow, lead, index))
        parts = (getattr(found, field.name) for field in fields(found))
        one = Summary(*(None if part is None else part[index] for part in parts))  # type: ignore[arg-type]
        _add_rows(one, _at(query, lead, index), _at(prepared, lead, index), alone, max(1, TILE // numbers_per_row), positions)
    return found


def summarise_weights(weights: Tensor, *, top: int, positions: Sequence[int] | None = None) -> Summary:
    """The same of weights (..., Lq, Lk) that are there already."""
    found = _empty(weights, weights.shape, top, blocks=True, distance=positions is not None)
    everything = slice(0, weights.shape[-2])
    _add_sums(found, everything, weights, _add_weights(found, everything, weights), positions)
    return found


def _empty(like: Tensor, shape: Sequence[int], top: int, *, blocks: bool, distance: bool) -> Summary:
    """Made before any tile: small results between large tiles would leave holes that no tile fits into again."""
    *lead, num_queries, num_keys = shape
    return Summary(
        top_weights=like.new_empty(*lead, num_queries, top),
        top_keys=like.new_empty(*lead, num_queries, top, dtype=torch.long),
        entropy=like.new_empty(*lead, num_queries),
        mass=like.new_zeros(*lead, num_keys),
        blocks=like.new_zeros(*lead, *(-(-size // block_size(size)) for size in shape[-2:])) if blocks else None,
        distance=like.new_empty(*lead, num_queries) if distance else None,
    )


def _at(tensor: Tensor, lead: torch.Size, index: tuple[int, ...]) -> Tensor:
    return tensor.expand(*lead, *tensor.shape[-2:])[index]


def _add_rows(
    found: Summary, query: Tensor, prepared: Tensor, mechanism: Mechanism, rows: int, positions: Sequence[int] | None
) -> None:
    for start in range(0, query.shape[-2], rows):
        part = slice(start, min(start + rows, query.shape[-2]))
        if mechanism.attention == "soft":
            powers, share = _add_tile(found, part, mechanism.scores(query, prepared, part), mechanism.allow_rows(part))
        else:
            powers = mechanism.weights(query, prepared, part, mechanism.draw_seed()).weights
            share = _add_weights(found, part, powers)
        _add_sums(found, part, powers, share, positions)


def _add_sums(found: Summary, part: slice, powers: Tensor, share: Tensor, positions: Sequence[int] | None) -> None:
    """What adds up weights (powers · share): mass, block means, distances. By matrix products, with no other large tensor."""
    if found.blocks is None:
        found.mass.add_((share.transpose(-1, -2) @ powers).squeeze(-2))
    else:
        num_queries, num_keys = found.entropy.shape[-1], powers.shape[-1]
        high, wide = block_size(num_queries), block_size(num_keys)
        first, last = part.start // high, (part.stop - 1) // high + 1
        groups = torch.arange(first, last, device=powers.device)
        rows = torch.arange(part.start, part.stop, device=powers.device) // high
        belongs = (rows[:, None] == groups).to(powers.dtype)  # (rows, groups)
        sums = (share * belongs).transpose(-1, -2) @ powers
        found.mass.add_(sums.sum(-2))
        columns = torch.arange(found.blocks.shape[-1], device=powers.device)
        pairs = _filled(num_queries, high, groups)[:, None] * _filled(num_keys, wide, columns)
        found.blocks[..., first:last, :] += _block_sums(sums, wide) / pairs
    if found.distance is not None and positions is not None:
        own = positions[part]
        near = (min(own), max(own) + 1)
        in_order = tuple(own) == tuple(range(*near))
        runs = [near] if in_order else [(one, one + 1) for one in own]
        numbers = torch.cat([torch.arange(*run, device=powers.device, dtype=powers.dtype) for run in runs])
        found.distance[..., part] = _away(powers, numbers, near) * share.squeeze(-1)


def _away(powers: Tensor, own: Tensor, near: tuple[int, int]) -> Tensor:
    """Σ_j w_j |i − j| of each row. Keys in `near`, from here to there, may stand on either side of a query; left of them
    |i − j| is i − j, right of them j − i, so that these parts are products with (1, j)."""
    low, high = near
    keys = torch.arange(powers.shape[-1], device=powers.device, dtype=powers.dtype)
    ones_and_keys = torch.stack((torch.ones_like(keys), keys), dim=-1)
    count, moment = (powers[..., :low] @ ones_and_keys[:low]).unbind(-1)
    left = own * count - moment
    count, moment = (powers[..., high:] @ ones_and_keys[high:]).unbind(-1)
    middle = (powers[..., low:high] * (own[:, None] - keys[low:high]).abs()).sum(-1)
    return left + middle + moment - own * count


def _block_sums(sums: Tensor, wide: int) -> Tensor:
    if wide == 1:
        return sums
    whole = sums.shape[-1] // wide * wide
    added = sums[..., :whole].unflatten(-1, (-1, wide)).sum(-1)
    return added if whole == sums.shape[-1] else torch.cat((added, sums[..., whole:].sum(-1, keepdim=True)), dim=-1)


def _filled(length: int, size: int, blocks: Tensor) -> Tensor:
    """How many places each of these blocks has: `size`, but the last one may have fewer."""
    return (length - blocks * size).clamp(max=size)


def _add_weights(found: Summary, part: slice, weights: Tensor) -> Tensor:
    """`_add_tile` for weights that come from no softmax. Gives the factor 1 for each row."""
    top_weights, top_keys = weights.topk(found.top_keys.shape[-1], dim=-1)
    found.top_weights[..., part, :], found.top_keys[..., part, :] = top_weights, top_keys
    shares = weights.abs() / weights.abs().sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
    found.entropy[..., part] = torch.special.entr(shares).sum(-1)
    return torch.ones_like(weights[..., :1])


def _add_tile(found: Summary, part: slice, scores: Tensor, allow: Tensor | None) -> tuple[Tensor, Tensor]:
    """Writes down what each of the rows `part` says. Gives their weights as powers · share."""
    lowest = torch.finfo(scores.dtype).min / 2  # so that the distance to any score is a number too
    forbidden = None if allow is None else ~allow
    if forbidden is not None:
        scores = scores.masked_fill(forbidden, lowest)
    peak, top_keys = largest(scores, found.top_keys.shape[-1])
    highest = peak[..., :1]
    shifted = scores - highest
    del scores  # one tile less in memory
    if forbidden is None:
        powers = shifted.exp()
    else:
        tiny = torch.finfo(shifted.dtype).tiny
        if tiny < 1e-30:  # exp takes several times as long where it underflows; what is as small as that counts for nothing
            shifted.clamp_(min=math.log(tiny) + 8)
        powers = shifted.exp().masked_fill_(forbidden, 0.0)
    total = powers.sum(-1, keepdim=True).clamp(min=1.0)  # the best key has 1
    share = torch.where(highest > lowest, 1 / total, 0.0)  # a row with nothing allowed has no weights
    entropy = (total.log() - shifted.mul_(powers).sum(-1, keepdim=True) * share) * (share > 0)
    found.entropy[..., part] = entropy.squeeze(-1)
    found.top_weights[..., part, :] = (peak - highest).exp() * share
    found.top_keys[..., part, :] = top_keys
    return powers, share
