"""Statistics of an attention matrix, computed without holding the matrix: for long inputs and for many heads at once."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import fields, replace

import torch
from torch import Tensor

from regard.core.attention import ScaledDot, check_shapes, leading_shape, prepare, same_heads
from regard.core.largest import largest
from regard.core.mechanism import Mechanism
from regard.core.score import Score
from regard.errors import check_whole
from regard.look import Summary

TILE = 1 << 19
"""The number of weights in a tile: 2 MB in float32. Larger tiles are slower at L = 2048, smaller ones at 8192."""

MIN_ROWS = 64
"""If a tile of all heads would have fewer rows than this, each tile holds one head."""

GRID = 128
"""The largest number of block means per axis."""


def block_size(length: int) -> int:
    """Returns the number of positions of an axis in one block."""
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
) -> Summary[Tensor]:
    """Computes exact statistics of `attention_weights(query, key, …)` in tiles of query rows, in memory O(Lq·top + Lk).

    top: the number of largest weights to keep per query.
    blocks, distance: also compute block means, and the mean distance between query and key (for self-attention).
    Raises ValueError or TypeError for arguments that do not fit.

    >>> x = torch.tensor([[9.0, 0.0], [0.0, 9.0], [0.0, 9.0]])
    >>> summary = regard.summarise(x, x, top=1)
    >>> summary.top_keys.shape
    torch.Size([3, 1])
    >>> summary.mass
    tensor([1., 1., 1.])
    """
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
) -> Summary[Tensor]:
    """Computes `summarise` for prepared keys. positions: those of the queries, if distances are requested."""
    mechanism, prepared = mechanism.without_unknown(prepared), same_heads(prepared, query)
    num_queries, num_keys = query.shape[-2], prepared.shape[-2]
    lead = leading_shape(query, prepared) if mechanism.allow is None else leading_shape(query, prepared, mechanism.allow)
    summary = _empty(query, (*lead, num_queries, num_keys), top, blocks=blocks, distance=positions is not None)
    numbers_per_row = max(1, num_keys * mechanism.score.numbers_per_pair)
    rows = TILE // (numbers_per_row * max(1, lead.numel()))
    if rows >= min(MIN_ROWS, num_queries) or mechanism.alibi is not None:
        _add_rows(summary, query, prepared, mechanism, max(1, rows), positions)
        return summary
    rows = max(1, TILE // numbers_per_row)
    for index in itertools.product(*map(range, lead)):  # head by head, because matrix products of few rows are slow
        allow = None if mechanism.allow is None else _at(mechanism.allow, lead, index)
        values = (getattr(summary, field.name) for field in fields(summary))
        head = Summary(*(None if value is None else value[index] for value in values))
        head_mechanism = replace(mechanism, allow=allow)
        _add_rows(head, _at(query, lead, index), _at(prepared, lead, index), head_mechanism, rows, positions)
    return summary


def summarise_weights(weights: Tensor, *, top: int, positions: Sequence[int] | None = None) -> Summary[Tensor]:
    """Computes the summary of given weights (..., Lq, Lk)."""
    summary = _empty(weights, weights.shape, top, blocks=True, distance=positions is not None)
    all_rows = slice(0, weights.shape[-2])
    _add_sums(summary, all_rows, weights, _add_weights(summary, all_rows, weights), positions)
    return summary


def _empty(like: Tensor, shape: Sequence[int], top: int, *, blocks: bool, distance: bool) -> Summary[Tensor]:
    """Allocates the result before any tile: small tensors between large tiles would fragment the memory."""
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
    """Selects one matrix by its index in the leading dimensions."""
    return tensor.expand(*lead, *tensor.shape[-2:])[index]


def _add_rows(
    summary: Summary[Tensor], query: Tensor, prepared: Tensor, mechanism: Mechanism, rows: int, positions: Sequence[int] | None
) -> None:
    """Computes the summary tile by tile, with `rows` query rows each."""
    for start in range(0, query.shape[-2], rows):
        part = slice(start, min(start + rows, query.shape[-2]))
        if mechanism.attention == "soft":
            numerators, factor = _add_softmax(
                summary, part, mechanism.scores(query, prepared, part), mechanism.allow_rows(part)
            )
        else:
            numerators = mechanism.weights(query, prepared, part, mechanism.draw_seed()).weights
            factor = _add_weights(summary, part, numerators)
        _add_sums(summary, part, numerators, factor, positions)


def _add_sums(
    summary: Summary[Tensor], part: slice, numerators: Tensor, factor: Tensor, positions: Sequence[int] | None
) -> None:
    """Adds the statistics that are sums of weights (numerators · factor): mass, block means, distances.

    Uses matrix products only, so that it needs no other large tensor.
    """
    if summary.blocks is None:
        summary.mass.add_((factor.transpose(-1, -2) @ numerators).squeeze(-2))
    else:
        num_queries, num_keys = summary.entropy.shape[-1], numerators.shape[-1]
        block_height, block_width = block_size(num_queries), block_size(num_keys)
        first, last = part.start // block_height, (part.stop - 1) // block_height + 1
        block_rows = torch.arange(first, last, device=numerators.device)
        block_of_query = torch.arange(part.start, part.stop, device=numerators.device) // block_height
        membership = (block_of_query[:, None] == block_rows).to(numerators.dtype)  # (queries, rows of blocks)
        sums = (factor * membership).transpose(-1, -2) @ numerators
        summary.mass.add_(sums.sum(-2))
        block_columns = torch.arange(summary.blocks.shape[-1], device=numerators.device)
        pairs = _num_in_block(num_queries, block_height, block_rows)[:, None]
        pairs = pairs * _num_in_block(num_keys, block_width, block_columns)
        summary.blocks[..., first:last, :] += _block_sums(sums, block_width) / pairs
    if summary.distance is not None and positions is not None:
        queries = positions[part]
        span = (min(queries), max(queries) + 1)
        consecutive = tuple(queries) == tuple(range(*span))
        runs = [span] if consecutive else [(position, position + 1) for position in queries]
        numbers = torch.cat([torch.arange(*run, device=numerators.device, dtype=numerators.dtype) for run in runs])
        summary.distance[..., part] = _distances(numerators, numbers, span) * factor.squeeze(-1)


def _distances(weights: Tensor, queries: Tensor, span: tuple[int, int]) -> Tensor:
    """Computes Σ_j w_ij |i − j| of each row, i being the positions `queries`, all of which are in `span` (from, to).

    Keys in the span may be on either side of a query. For keys before it |i − j| is i − j, after it j − i, so these parts are
    products with (1, j).
    """
    low, high = span
    keys = torch.arange(weights.shape[-1], device=weights.device, dtype=weights.dtype)
    ones_and_keys = torch.stack((torch.ones_like(keys), keys), dim=-1)
    count, moment = (weights[..., :low] @ ones_and_keys[:low]).unbind(-1)
    left = queries * count - moment
    count, moment = (weights[..., high:] @ ones_and_keys[high:]).unbind(-1)
    middle = (weights[..., low:high] * (queries[:, None] - keys[low:high]).abs()).sum(-1)
    return left + middle + moment - queries * count


def _block_sums(sums: Tensor, size: int) -> Tensor:
    """Adds up blocks of `size` columns; the last block may have fewer."""
    if size == 1:
        return sums
    full = sums.shape[-1] // size * size  # columns in full blocks
    added = sums[..., :full].unflatten(-1, (-1, size)).sum(-1)
    return added if full == sums.shape[-1] else torch.cat((added, sums[..., full:].sum(-1, keepdim=True)), dim=-1)


def _num_in_block(length: int, size: int, blocks: Tensor) -> Tensor:
    """Returns the number of positions in each of these blocks: `size`, but the last one may have fewer."""
    return (length - blocks * size).clamp(max=size)


def _add_weights(summary: Summary[Tensor], part: slice, weights: Tensor) -> Tensor:
    """Adds the statistics of the rows `part` for weights that are not a softmax. Returns the factor 1 for each row."""
    top_weights, top_keys = weights.topk(summary.top_keys.shape[-1], dim=-1)
    summary.top_weights[..., part, :], summary.top_keys[..., part, :] = top_weights, top_keys
    normalised = weights.abs() / weights.abs().sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
    summary.entropy[..., part] = torch.special.entr(normalised).sum(-1)
    return torch.ones_like(weights[..., :1])


def _add_softmax(summary: Summary[Tensor], part: slice, scores: Tensor, allow: Tensor | None) -> tuple[Tensor, Tensor]:
    """Adds the statistics of the rows `part`. Returns (numerators, factor): the softmax is their product."""
    lowest = torch.finfo(scores.dtype).min / 2  # so that the difference to any score is finite too
    forbidden = None if allow is None else ~allow
    if forbidden is not None:
        scores = scores.masked_fill(forbidden, lowest)
    top_scores, top_keys = largest(scores, summary.top_keys.shape[-1])
    highest = top_scores[..., :1]
    shifted = scores - highest
    del scores  # one tile less in memory
    if forbidden is None:
        numerators = shifted.exp()
    else:
        tiny = torch.finfo(shifted.dtype).tiny
        if tiny < 1e-30:  # exp takes several times as long where it underflows, and such small weights are negligible
            shifted.clamp_(min=math.log(tiny) + 8)
        numerators = shifted.exp().masked_fill_(forbidden, 0.0)
    total = numerators.sum(-1, keepdim=True).clamp(min=1.0)  # the best key contributes 1
    factor = torch.where(highest > lowest, 1 / total, 0.0)  # a row with no key allowed has no weights
    entropy = (total.log() - shifted.mul_(numerators).sum(-1, keepdim=True) * factor) * (factor > 0)
    summary.entropy[..., part] = entropy.squeeze(-1)
    summary.top_weights[..., part, :] = (top_scores - highest).exp() * factor
    summary.top_keys[..., part, :] = top_keys
    return numerators, factor
