"""Attention as functions: scores -> weights -> context. No weights of their own, no randomness, no state.

    weights = normalise(score(Q, K))        output_i = Σ_j weights_ij · v_j

Shapes: query (..., Lq, dq), key (..., Lk, dk), value (..., Lk, dv), allow (..., Lq, Lk); the leading dimensions broadcast.
`prepared` is what a Score made of the keys (`Score.prepare`), once per source.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from regard.contracts import Edit, Kind, Look, Score, Seen

TILE = 1 << 22
"""How many numbers a tile of the plain path may hold at its widest (16 MB in float32)."""


def same_width(query: Tensor, key: Tensor) -> int:
    width, other = query.shape[-1], key.shape[-1]
    if width != other:
        raise ValueError(
            f"a dot product needs queries and keys of one width, but queries have {width} and keys {other}; "
            f"use General({width}, {other}) or Additive({width}, {other}, …), which take any two widths"
        )
    return width


def additive_scores(query_TA: Tensor, key_SA: Tensor, v_A: Tensor) -> Tensor:
    """vᵀ tanh(W_b s + W_c h) (Bahdanau et al. 2015, A.1.2), given W_b s as query and W_c h as key."""
    hidden_TSA = (query_TA.unsqueeze(-2) + key_SA.unsqueeze(-3)).tanh_()
    return hidden_TSA @ v_A


@dataclass(frozen=True)
class ScaledDot(Score):
    """s·h / √d (Vaswani et al. 2017, eq. 1). `divide_by` may also be "d", as one of the notes has it, or any number."""

    divide_by: float | Literal["√d", "d"] = "√d"
    name = "scaled_dot"

    def scores(self, query: Tensor, prepared: Tensor) -> Tensor:
        query, prepared, scale = self.as_dot(query, prepared)
        return (query * scale) @ prepared.transpose(-1, -2)

    def as_dot(self, query: Tensor, prepared: Tensor) -> tuple[Tensor, Tensor, float]:
        width = same_width(query, prepared)
        divisor = math.sqrt(width) if self.divide_by == "√d" else width if self.divide_by == "d" else self.divide_by
        return query, prepared, 1.0 / divisor


def normalise(scores: Tensor, allow: Tensor | None = None) -> Tensor:
    """How much each query looks at each key: softmax over the allowed keys. A row with nothing allowed gives zeros, not NaN."""
    if allow is None:
        return scores.softmax(-1)
    filled = scores.masked_fill(~allow, torch.finfo(scores.dtype).min)
    return filled.softmax(-1).masked_fill(~allow, 0.0)


# --- the public functions ----------------------------------------------------------------------------------------------------


def attend(query: Tensor, key: Tensor, value: Tensor, *, score: Score | None = None, allow: Tensor | None = None) -> Tensor:
    """The context of every query: (..., Lq, dv). Scaled dot product on torch's fused kernel unless another score is given."""
    score = ScaledDot() if score is None else score
    check_score(score)
    check_shapes(query, key, value, allow)
    return mix(query, score.prepare(key), value, score=score, allow=allow)


def attention_weights(query: Tensor, key: Tensor, *, score: Score | None = None, allow: Tensor | None = None) -> Tensor:
    """The weights themselves: (..., Lq, Lk). Rows sum to 1, except those with no key allowed, which are 0."""
    score = ScaledDot() if score is None else score
    check_score(score)
    check_shapes(query, key, None, allow)
    return weigh(query, score.prepare(key), score=score, allow=allow)


def check_score(score: Score) -> None:
    if not isinstance(score, Score):
        raise TypeError(f"score is {score!r}, expected a Score such as regard.scores.General(query_width, key_width)")


def check_shapes(query: Tensor, key: Tensor, value: Tensor | None, allow: Tensor | None) -> None:
    for name, tensor in {"query": query, "key": key, "value": value}.items():
        if tensor is not None and tensor.dim() < 2:
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)}, expected (…, length, width); one vector wants {name}[None]"
            )
    if value is not None and value.shape[-2] != key.shape[-2]:
        raise ValueError(
            f"every key needs one value, but there are {key.shape[-2]} keys and {value.shape[-2]} values: "
            f"key {tuple(key.shape)}, value {tuple(value.shape)}"
        )
    tensors = [tensor for tensor in (query, key, value, allow) if tensor is not None]
    try:
        leading_shape(*tensors)
    except RuntimeError:
        raise ValueError(
            f"the leading dimensions do not broadcast: {', '.join(str(tuple(tensor.shape)) for tensor in tensors)}; "
            "all but the last two must be equal or 1"
        ) from None
    if allow is None:
        return
    if allow.dtype != torch.bool:
        raise ValueError(
            f"allow has dtype {allow.dtype}, expected torch.bool with True = may attend; "
            "write `mask.bool()`, or `mask == 0` if it is an additive mask"
        )
    want = (query.shape[-2], key.shape[-2])
    if any(got not in (1, size) for got, size in zip(allow.shape[-2:], want, strict=False)) or allow.dim() < 2:
        raise ValueError(
            f"allow has shape {tuple(allow.shape)}, which does not broadcast to (…, {want[0]} queries, {want[1]} keys); "
            "a padding mask (B, S) wants allow[:, None, :]"
        )


# --- one place that chooses the path -----------------------------------------------------------------------------------------


def mix(query: Tensor, prepared: Tensor, value: Tensor, *, score: Score, allow: Tensor | None) -> Tensor:
    """`attend` for keys that are prepared already. Fused where the score is a dot product in disguise, else plain in tiles."""
    dot = score.as_dot(query, prepared)
    if dot is not None:
        return _fused(*dot, value, allow)

    def plain(query: Tensor, allow: Tensor | None) -> Tensor:
        return normalise(score.scores(query, prepared), allow) @ value

    return _in_tiles(plain, query, prepared, score, allow)


def weigh(query: Tensor, prepared: Tensor, *, score: Score, allow: Tensor | None) -> Tensor:
    """`attention_weights` for keys that are prepared already. The matrix is wanted, but what leads to it comes in tiles."""

    def plain(query: Tensor, allow: Tensor | None) -> Tensor:
        return normalise(score.scores(query, prepared), allow)

    return _in_tiles(plain, query, prepared, score, allow)


def leading_shape(*tensors: Tensor) -> torch.Size:
    """The common leading dimensions: all but the last two."""
    shape: torch.Size = torch.broadcast_shapes(*(tensor.shape[:-2] for tensor in tensors))
    return shape


def _fused(query: Tensor, key: Tensor, scale: float, value: Tensor, allow: Tensor | None) -> Tensor:
    """torch's scaled_dot_product_attention, whose fast kernels want exactly four dimensions. Empty rows give zeros."""
    lead = leading_shape(query, key, value) if allow is None else leading_shape(query, key, value, allow)
    num_queries, num_keys, width = query.shape[-2], key.shape[-2], value.shape[-1]
    if 0 in (*lead, num_queries, num_keys):  # nothing to mix
        return value.new_zeros(*lead, num_queries, width)
    batch, heads = lead[:-1].numel(), lead[-1] if lead else 1

    def four(tensor: Tensor) -> Tensor:
        return tensor.expand(*lead, *tensor.shape[-2:]).reshape(batch, heads, *tensor.shape[-2:])

    if allow is not None:
        shared = allow.dim() < 3 or allow.shape[-3] == 1  # one mask for all heads stays one
        allow = allow.expand(*lead[:-1], 1 if shared else heads, *allow.shape[-2:])
        allow = allow.reshape(batch, allow.shape[-3], *allow.shape[-2:])
    if query.shape[-1] != width:  # the fast kernels also want one width; zeros add nothing to a dot product
        widest = max(query.shape[-1], width)
        query, key, value = (F.pad(tensor, (0, widest - tensor.shape[-1])) for tensor in (query, key, value))
    context = F.scaled_dot_product_attention(four(query), four(key), four(value), attn_mask=allow, scale=scale)
    return context[..., :width].reshape(*lead, num_queries, width)


def _in_tiles(
    plain: Callable[[Tensor, Tensor | None], Tensor], query: Tensor, prepared: Tensor, score: Score, allow: Tensor | None
) -> Tensor:
    """Works off the query rows in tiles, so that memory stays O(tile); the backward pass computes each tile again."""
    numbers_per_row = leading_shape(query, prepared).numel() * prepared.shape[-2] * score.numbers_per_pair
    rows = max(1, TILE // max(1, numbers_per_row))
    num_queries = query.shape[-2]
    if num_queries <= rows:
        return plain(query, allow)
    tiles = []
    for start in range(0, num_queries, rows):
        part = slice(start, start + rows)
        tile_allow = allow if allow is None or allow.shape[-2] == 1 else allow[..., part, :]
        if torch.is_grad_enabled():
            tiles.append(checkpoint(plain, query[..., part, :], tile_allow, use_reentrant=False, preserve_rng_state=False))
        else:
            tiles.append(plain(query[..., part, :], tile_allow))
    return torch.cat(tiles, dim=-2)


# --- attention under a Look --------------------------------------------------------------------------------------------------


def watched(
    query: Tensor, prepared: Tensor, value: Tensor, *, score: Score, allow: Tensor | None, look: Look | None
) -> tuple[Tensor, Tensor | None]:
    """`mix`, and the weights a Look asks for (None if it asks for none).

    `look` is already narrowed to this place (`Look.at`). Read-only taps leave the output to the very same kernel.
    """
    if look is None:
        return mix(query, prepared, value, score=score, allow=allow), None
    if not (look.edits or look.grad):
        with torch.no_grad():
            weights = weigh(query, prepared, score=score, allow=allow)
        return mix(query, prepared, value, score=score, allow=allow), weights
    weights = weigh(query, prepared, score=score, allow=allow)
    for edit in look.edits:
        weights = _edited(weights, edit, allow)
    return weights @ value, weights if look.grad else weights.detach()


def _edited(weights_BHTS: Tensor, edit: Edit, allow: Tensor | None) -> Tensor:
    forced = torch.zeros_like(weights_BHTS)
    if edit.place is not None and edit.place < forced.shape[-1]:
        forced[..., edit.place] = 1.0
    if allow is not None:
        forced = forced.masked_fill(~allow, 0.0)
    if edit.head is None:
        return forced
    edited = weights_BHTS.clone()
    edited[:, edit.head] = forced[:, edit.head]
    return edited


def record(weights_BHTS: Tensor | None, look: Look | None, kind: Kind, layer: int) -> tuple[Seen, ...]:
    """The weights as `Seen`, one per tap, with only the heads and rows that the tap wants.

    Under `grad` everything comes as the one tensor that the output was computed from: only that one has a gradient.
    """
    if weights_BHTS is None or look is None:
        return ()
    heads, rows = (tuple(range(size)) for size in weights_BHTS.shape[1:3])
    wanted = dict.fromkeys(
        (
            heads if tap.head is None or look.grad else (heads[tap.head],),
            rows if tap.rows is None or look.grad else tuple(rows[row] for row in tap.rows),
        )
        for tap in look.taps
    )
    return tuple(Seen(kind, layer, *part, _pick(_pick(weights_BHTS, 1, part[0]), 2, part[1])) for part in wanted)


def _pick(tensor: Tensor, axis: int, numbers: tuple[int, ...]) -> Tensor:
    if numbers == tuple(range(tensor.shape[axis])):
        return tensor
    return torch.cat([tensor.narrow(axis, number, 1) for number in numbers], dim=axis)
