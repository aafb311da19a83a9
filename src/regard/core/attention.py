"""Attention as pure functions: scores -> weights -> context. They have no parameters, no hidden randomness and no state.

    weights = normalise(score(Q, K))        output_i = Σ_j weights_ij · v_j

Shapes: query (..., Lq, dq), key (..., Lk, dk), value (..., Lk, dv), allow (..., Lq, Lk); the leading dimensions broadcast.
`prepared` is the result of `Score.prepare` for the keys, computed once per source. It and the values may have fewer heads
(axis -3) than the queries if their number is a divisor: each then serves a group of query heads (Ainslie et al. 2023).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, overload

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from regard.core import masks
from regard.core.checks import check_dtype, check_tensor
from regard.core.mechanism import Mechanism
from regard.core.precision import is_rounding
from regard.core.score import Score
from regard.core.transforms import is_readable, is_transformed, is_vmapped
from regard.core.weights import SAMPLED, AttentionType
from regard.core.window import Window, check_window, in_window
from regard.equality import ByValue
from regard.errors import check_positive
from regard.look import Seen
from regard.native import additive as native

TILE = 1 << 22
"""The most numbers that a tile of the plain (not fused) computation may hold at a time (16 MB in float32)."""


def same_width(query: Tensor, key: Tensor) -> int:
    """Returns the common width of queries and keys; raises ValueError if they differ or the width is 0."""
    width, key_width = query.shape[-1], key.shape[-1]
    if width == 0:
        raise ValueError(f"queries {tuple(query.shape)} have width 0, so there is no dot product; expected width 1 or more")
    if width != key_width:
        raise ValueError(
            f"a dot product needs queries and keys of the same width, but queries have {width} and keys {key_width}; "
            f"use General({width}, {key_width}) or Additive({width}, {key_width}, …), which accept different widths"
        )
    return width


def additive_scores(query_TA: Tensor, key_SA: Tensor, v_A: Tensor) -> Tensor:
    """vᵀ tanh(W_b s + W_c h) (Bahdanau et al. 2015, A.1.2), given W_b s as query and W_c h as key."""
    hidden_TSA = (query_TA.unsqueeze(-2) + key_SA.unsqueeze(-3)).tanh_()
    return hidden_TSA @ v_A


@dataclass(frozen=True)
class ScaledDot(Score):
    """Scaled dot product s·h / √d (Vaswani et al. 2017, eq. 1).

    divide_by: √d, or "d" as in one of the lecture notes, or any positive number.

    >>> x = torch.ones(2, 16)
    >>> regard.scores.ScaledDot().scores(x, x)
    tensor([[4., 4.],
            [4., 4.]])
    """

    divide_by: float | Literal["√d", "d"] = "√d"
    name = "scaled_dot"
    rotary = True

    def __post_init__(self) -> None:
        if self.divide_by not in ("√d", "d"):
            check_positive("divide_by", self.divide_by, '"√d", "d" or a number above 0')

    def scores(self, query: Tensor, prepared: Tensor) -> Tensor:
        query, prepared, scale = self.as_dot(query, prepared)
        return (query * scale) @ prepared.transpose(-1, -2)

    def as_dot(self, query: Tensor, prepared: Tensor) -> tuple[Tensor, Tensor, float]:
        width = same_width(query, prepared)
        divisor = math.sqrt(width) if self.divide_by == "√d" else width if self.divide_by == "d" else self.divide_by
        return query, prepared, 1.0 / divisor


# --- the public functions ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class AttentionOutput(ByValue):
    """The result of attention: the context, the log-probability of choices, and what was seen.

    context (..., Lq, dv): the context vectors c_i = Σ_j α_ij v_j.
    log_prob, entropy (..., Lq): of each query's choice, if attention is hard or gated.
    seen: what a Look requested.

    >>> x = torch.tensor([[9.0, 0.0], [0.0, 9.0]])
    >>> hard = regard.attend(x, x, x, attention="hard")
    >>> hard.context
    tensor([[9., 0.],
            [0., 9.]])
    >>> hard.entropy < 0.01
    tensor([True, True])
    """

    context: Tensor
    log_prob: Tensor | None = None
    entropy: Tensor | None = None
    seen: tuple[Seen[Tensor], ...] = ()


@overload
def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    score: Score | None = None,
    allow: Tensor | None = None,
    attention: Literal["soft", "unnormalised"] = "soft",
    dropout: float = 0.0,
    generator: torch.Generator | None = None,
    window: int | None = None,
    axes: tuple[int, int] | None = None,
) -> Tensor: ...


@overload
def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    score: Score | None = None,
    allow: Tensor | None = None,
    attention: Literal["hard", "gated"],
    dropout: float = 0.0,
    generator: torch.Generator | None = None,
    window: int | None = None,
    axes: tuple[int, int] | None = None,
) -> AttentionOutput: ...


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    score: Score | None = None,
    allow: Tensor | None = None,
    attention: AttentionType = "soft",
    dropout: float = 0.0,
    generator: torch.Generator | None = None,
    window: int | None = None,
    axes: tuple[int, int] | None = None,
) -> Tensor | AttentionOutput:
    """Computes the context vectors (..., Lq, dv), one per query. The default is scaled dot-product attention on torch's fused
    kernel.

    score: score function: how well a query fits a key.
    allow: boolean attention mask (..., Lq, Lk), True = may attend. A query with no key allowed has the context 0.
    attention: "soft" (softmax), "unnormalised" (Σ_j f(q, k_j) v_j, no softmax), "hard" (one key) or "gated" (an independent
    0/1 gate per key).
    dropout: attention dropout, the probability of dropping a weight; needs a generator.
    generator: source of random numbers for dropout and for the choices of hard and gated attention.
    window: a query may attend only to keys at most this many positions before or after its own, as under `masks.window`, in
    time and memory O(L·window) instead of O(L²). (Scores by position, such as Location, and exported graphs use that mask.)
    axes: (rows, columns) if queries and keys are the cells of a grid, row by row; the window then has this many rows and
    columns to each side, as under `masks.grid_window`.

    Returns the context; for "hard" and "gated" an `AttentionOutput` with the log-probability and entropy of each choice for a
    policy gradient (`regard.losses.policy_gradient`), because no gradient flows through a choice itself. Choices are sampled
    with the generator; without one, the most probable is taken. Raises ValueError or TypeError for arguments that do not fit.

    >>> query = torch.tensor([[9.0, 0.0], [0.0, 9.0]])
    >>> value = torch.tensor([[1.0], [2.0]])
    >>> regard.attend(query, query, value)  # each query finds the key that equals it
    tensor([[1.],
            [2.]])
    >>> regard.attend(query, query, value, allow=torch.tensor([[True, False]]))  # or only the first key
    tensor([[1.],
            [1.]])
    """
    mechanism = Mechanism(
        ScaledDot() if score is None else score, allow, attention=attention, dropout=dropout, generator=generator
    )
    mechanism.check()
    check_tensor("value", value)
    check_shapes(query, key, value, allow)
    if window is not None or axes is not None:
        check_window(window, axes, query.shape[-2], key.shape[-2])
    attended = _attend(query, key, value, mechanism, None if window is None else Window(window, axes))
    return attended if attention in SAMPLED else attended.context


def self_attention(x: Tensor, *, allow: Tensor | None = None) -> Tensor:
    """Computes softmax(X Xᵀ) X, without parameters: each position attends to all, itself included, by their dot products.

    >>> x = torch.tensor([[9.0, 0.0], [0.0, 9.0]])
    >>> regard.self_attention(x).round(decimals=2)
    tensor([[9., 0.],
            [0., 9.]])
    """
    return attend(x, x, x, score=ScaledDot(divide_by=1.0), allow=allow)


def attention_weights(
    query: Tensor,
    key: Tensor,
    *,
    score: Score | None = None,
    allow: Tensor | None = None,
    attention: AttentionType = "soft",
    generator: torch.Generator | None = None,
) -> Tensor:
    """Computes the attention weights (..., Lq, Lk). The arguments are those of `attend`.

    Soft weights sum to 1 in every row; a row with no key allowed is all zeros.

    >>> x = torch.zeros(3, 4)
    >>> regard.attention_weights(x, x, allow=regard.masks.causal(3))
    tensor([[1.0000, 0.0000, 0.0000],
            [0.5000, 0.5000, 0.0000],
            [0.3333, 0.3333, 0.3333]])
    """
    mechanism = Mechanism(ScaledDot() if score is None else score, allow, attention=attention, generator=generator)
    mechanism.check()
    check_shapes(query, key, None, allow)
    return weights_prepared(query, prepare(mechanism.score, key, allow), mechanism)


def prepare(score: Score, key: Tensor, allow: Tensor | None) -> Tensor:
    """Calls `score.prepare` for the keys. A key to which no query may attend is padding, so it does not count as a position."""
    if not score.by_position:
        return score.prepare(key)
    num_keys = key.shape[-2]
    positions = torch.arange(num_keys, device=key.device) if allow is None else masks.key_positions(allow, num_keys)
    lead = torch.broadcast_shapes(positions.shape[:-1], key.shape[:-2])
    return score.prepare(key, positions.expand(*lead, -1))


def check_shapes(query: Tensor, key: Tensor, value: Tensor | None, allow: Tensor | None) -> None:
    """Raises TypeError or ValueError unless shapes, dtypes and devices fit together."""
    named = {"query": query, "key": key} | ({} if value is None else {"value": value})
    for name, tensor in named.items():
        check_tensor(name, tensor)
        if tensor.dim() < 2:
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)}, expected (…, length, width); for a single vector write {name}[None]"
            )
        if not tensor.is_floating_point():
            raise ValueError(f"{name} has dtype {tensor.dtype}, expected floating-point vectors; write {name}.float()")
        check_dtype(name, tensor, query.dtype, "query has")
    if value is not None and value.shape[-2] != key.shape[-2]:
        raise ValueError(
            f"every key needs one value, but there are {key.shape[-2]} keys and {value.shape[-2]} values: "
            f"key {tuple(key.shape)}, value {tuple(value.shape)}"
        )
    if allow is not None:
        check_allow(allow, query.shape[-2], key.shape[-2])
        check_device(allow, query)
    tensors = [tensor for tensor in (query, key, value, allow) if tensor is not None]
    try:
        leading_shape(*tensors)
    except ValueError:
        raise ValueError(
            f"the leading dimensions do not broadcast: {', '.join(str(tuple(tensor.shape)) for tensor in tensors)}; "
            "all but the last two must be equal or 1"
        ) from None


def check_allow(allow: Tensor, num_queries: int, num_keys: int) -> None:
    """Raises unless a mask is boolean and its last two axes fit the scores; the caller checks the leading axes."""
    check_tensor("allow", allow)
    if allow.dtype != torch.bool:
        raise ValueError(
            f"allow has dtype {allow.dtype}, expected torch.bool with True = may attend; "
            "write `mask.bool()`, or `mask == 0` if it is an additive mask"
        )
    sizes = zip(allow.shape[-2:], (num_queries, num_keys), strict=False)
    if allow.dim() < 2 or any(got not in (1, size) for got, size in sizes):
        raise ValueError(
            f"allow has shape {tuple(allow.shape)}, which does not broadcast to (…, {num_queries} queries, {num_keys} keys); "
            "for a padding mask (B, S) write allow[:, None, :]"
        )


def check_device(allow: Tensor, query: Tensor) -> None:
    """Raises unless the mask is on the queries' device; torch reads a mask without data (device meta) as if it had data."""
    if allow.device != query.device:
        raise ValueError(f"allow is on device {allow.device}, expected {query.device}, where the queries are")


# --- fused or plain ----------------------------------------------------------------------------------------------------------


def attend_prepared(query: Tensor, prepared: Tensor, value: Tensor, mechanism: Mechanism) -> AttentionOutput:
    """Computes `attend` for prepared keys: on the fused kernel if the score can be written as a dot product, else in tiles.

    Hard, gated and unnormalised attention never use the fused kernel, nor does vmap, for which torch would run it once per
    example. With dropout, only devices other than the CPU use it, unless there is a generator. (On a CPU, torch's own function
    does not use it either, and gives no warning.) Additive scores have a kernel of their own.
    """
    mechanism, dropout = mechanism.without_unknown(prepared), mechanism.dropout
    additive = _as_additive(query, prepared, mechanism)
    if additive is not None:
        inputs = (_without_autocast(additive[0]), _without_autocast(additive[1]), additive[2], _without_autocast(value))
        if native.fits(*inputs):
            return AttentionOutput(_fused_additive(*inputs, mechanism))
    drops_in_kernel = mechanism.generator is None and query.device.type != "cpu"
    fits = mechanism.attention == "soft" and (not dropout or drops_in_kernel) and not is_vmapped()
    dot = mechanism.score.as_dot(query, prepared) if fits else None
    if dot is None:
        return _plain(query, prepared, value, mechanism)
    if mechanism.alibi is None:
        return AttentionOutput(_fused(*dot, value, mechanism.allow, causal=mechanism.causal, dropout=dropout))
    query, key, scale = dot

    def fused(part: slice, seed: int | None) -> Tensor:
        return _fused(query[..., part, :], key, scale, value, mechanism.bias_rows(part).to(query.dtype), dropout=dropout)

    return AttentionOutput(_in_tiles(fused, query, prepared[..., :1, :, :], mechanism))  # [:1] broadcasts to all query heads


def _as_additive(query: Tensor, prepared: Tensor, mechanism: Mechanism) -> tuple[Tensor, Tensor, Tensor] | None:
    """Returns (query', key', v) for the kernel of additive attention, or None if it does not serve here.

    An exported graph needs no operator of ours. The kernel has no rules for torch.func, and a seed cannot be drawn in a traced
    graph.
    """
    if mechanism.attention != "soft" or mechanism.alibi is not None or is_transformed() or torch.compiler.is_exporting():
        return None
    if mechanism.dropout and torch.compiler.is_compiling():
        return None
    return mechanism.score.as_additive(query, same_heads(prepared, query))


def _without_autocast(x: Tensor) -> Tensor:
    """Returns a tensor that autocast has rounded as float32, which the kernel of additive attention computes with."""
    return x.float() if is_rounding(x.device) and x.dtype == torch.bfloat16 else x


def _fused_additive(query: Tensor, key: Tensor, v: Tensor, value: Tensor, mechanism: Mechanism) -> Tensor:
    """Calls the kernel of additive attention; the seed of its dropout comes from the generator, or torch's default one."""
    seed = mechanism.draw_seed() if mechanism.dropout else None
    if seed is None:
        seed = int(torch.randint(2**62, ())) if mechanism.dropout else 0
    return native.additive_attention(query, key, v, same_heads(value, query), mechanism.allow, mechanism.dropout, seed, TILE)


def _attend(query: Tensor, key: Tensor, value: Tensor, mechanism: Mechanism, window: Window | None) -> AttentionOutput:
    """Computes attention to all keys, or to those in the window: block by block, or under a mask where blocks are no help."""
    if window is not None and (mechanism.score.by_position or not query.shape[-2] or torch.compiler.is_exporting()):
        mechanism, window = under_mask(mechanism, window, query, key), None
    prepared = prepare(mechanism.score, key, mechanism.allow)
    if window is None:
        return attend_prepared(query, prepared, value, mechanism)
    return attend_in_window(query, prepared, value, mechanism, window)


def attend_in_window(query: Tensor, prepared: Tensor, value: Tensor, mechanism: Mechanism, window: Window) -> AttentionOutput:
    """Computes attention to the keys in a window, block by block: in time and memory O(L·w). There is at least one query."""

    def block(query: Tensor, prepared: Tensor, value: Tensor, allow: Tensor) -> Tensor:
        return _as_columns(attend_prepared(query, prepared, value, replace(mechanism, allow=allow)))

    repeatable = not mechanism.is_random and not is_transformed()
    columns = in_window(block, query, prepared, value, mechanism.allow, window, repeatable=repeatable)
    return _from_columns(columns, mechanism)


def under_mask(mechanism: Mechanism, window: Window, query: Tensor, key: Tensor) -> Mechanism:
    """Returns the mechanism with the window as part of its mask."""
    near = window.mask(query.shape[-2], key.shape[-2], query.device)
    return replace(mechanism, allow=near if mechanism.allow is None else masks.both(mechanism.allow, near))


def weights_prepared(query: Tensor, prepared: Tensor, mechanism: Mechanism) -> Tensor:
    """Computes `attention_weights` for prepared keys. Only the result is a whole matrix; intermediate tensors are tiles."""
    mechanism, prepared = mechanism.without_unknown(prepared), same_heads(prepared, query)
    additive = None if torch.is_grad_enabled() or torch.compiler.is_compiling() else _as_additive(query, prepared, mechanism)
    if additive is not None and native.fits(*additive, prepared) and is_readable(query):
        return native.additive_weights(*additive, mechanism.allow)

    def weights(part: slice, seed: int | None) -> Tensor:
        return mechanism.weights(query, prepared, part, seed).weights

    return _in_tiles(weights, query, prepared, mechanism)


def scores_prepared(query: Tensor, prepared: Tensor, mechanism: Mechanism) -> Tensor:
    """Computes the scores (..., Lq, Lk) that `weights_prepared` turns into weights; −∞ where a query may not attend."""
    mechanism, prepared = mechanism.without_unknown(prepared), same_heads(prepared, query)

    def scores(part: slice, seed: int | None) -> Tensor:
        unmasked, allow = mechanism.scores(query, prepared, part), mechanism.allow_rows(part)
        return unmasked if allow is None else unmasked.masked_fill(~allow, -math.inf)

    return _in_tiles(scores, query, prepared, mechanism)


def _plain(query: Tensor, prepared: Tensor, value: Tensor, mechanism: Mechanism) -> AttentionOutput:
    """Computes the weights explicitly and mixes the values with them, in tiles."""
    prepared, value = same_heads(prepared, query), same_heads(value, query)

    def context(part: slice, seed: int | None) -> Tensor:
        attention = mechanism.weights(query, prepared, part, seed)
        mixture = mechanism.dropped(attention.weights, seed) @ value
        return _as_columns(AttentionOutput(mixture, attention.log_prob, attention.entropy))

    return _from_columns(_in_tiles(context, query, prepared, mechanism), mechanism)


def _as_columns(attended: AttentionOutput) -> Tensor:
    """Returns context, log-probability and entropy as one tensor, so that tiles and blocks can be joined."""
    if attended.log_prob is None or attended.entropy is None:
        return attended.context
    choices = torch.stack((attended.log_prob, attended.entropy), dim=-1)  # values may have more leading dimensions
    return torch.cat((attended.context, choices.expand(*attended.context.shape[:-1], 2)), dim=-1)


def _from_columns(columns: Tensor, mechanism: Mechanism) -> AttentionOutput:
    """The inverse of `_as_columns`."""
    if mechanism.attention not in SAMPLED:
        return AttentionOutput(columns)
    return AttentionOutput(columns[..., :-2], columns[..., -2], columns[..., -1])


def same_heads(x: Tensor, query: Tensor) -> Tensor:
    """Repeats keys or values that have fewer heads than the queries for each head of their group."""
    heads, groups = (tensor.shape[-3] if tensor.dim() > 2 else 1 for tensor in (query, x))
    return x.repeat_interleave(heads // groups, dim=-3) if 1 < groups < heads else x


def leading_shape(*tensors: Tensor) -> torch.Size:
    """Returns the broadcast of all dimensions but the last two; raises ValueError if they do not broadcast.

    (torch.broadcast_shapes takes as long as a small attention. Tuples of different lengths are not compared, because Python
    would compare a batch size with a number of heads, and an exported graph would then exclude equal ones.)
    """
    shapes = [tensor.shape[:-2] for tensor in tensors]
    if all(len(shape) == len(shapes[0]) and shape == shapes[0] for shape in shapes):
        return shapes[0]
    common = [1] * max(map(len, shapes))
    for shape in shapes:
        for axis, size in enumerate(shape, start=len(common) - len(shape)):
            if size != 1 and common[axis] not in (1, size):
                raise ValueError(f"sizes {common[axis]} and {size} do not broadcast")
            common[axis] = common[axis] if size == 1 else size
    return torch.Size(common)


def _fused(
    query: Tensor,
    key: Tensor,
    scale: float,
    value: Tensor,
    mask: Tensor | None,
    *,
    causal: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    """Calls torch's scaled_dot_product_attention, whose fast kernels require exactly four dimensions.

    mask: boolean (True = may attend), or floats that are added to the scores. A query with no key allowed gives zeros.
    causal: the mask is exactly masks.causal, so it is not read.
    Query heads that share a head of keys become rows of one head, so that no key is copied.
    """
    heads = query.shape[-3] if query.dim() > 2 else 1
    groups = key.shape[-3] if key.dim() > 2 and value.dim() > 2 and key.shape[-3] == value.shape[-3] else heads
    if 0 < groups < heads:
        mask = None if mask is None else _fold_mask(mask, heads, groups, query.shape[-2])
        return _unfold(_fused(_fold(query, groups), key, scale, value, mask, dropout=dropout), heads)
    lead = leading_shape(query, key, value) if mask is None else leading_shape(query, key, value, mask)
    num_queries, num_keys, width = query.shape[-2], key.shape[-2], value.shape[-1]
    if 0 in (*lead, num_queries, num_keys):  # no queries or no keys
        return value.new_zeros(*lead, num_queries, width)
    batch, heads = math.prod(lead[:-1]), lead[-1] if lead else 1

    def to_4d(tensor: Tensor) -> Tensor:
        if len(lead) == 2 and tensor.dim() == 4 and tensor.shape[:2] == lead:
            return tensor
        return tensor.expand(*lead, *tensor.shape[-2:]).reshape(batch, heads, *tensor.shape[-2:])

    if mask is not None and not causal:
        shared = mask.dim() < 3 or mask.shape[-3] == 1  # a mask shared by all heads is not expanded
        mask = mask.expand(*lead[:-1], 1 if shared else heads, *mask.shape[-2:])
        mask = mask.reshape(batch, mask.shape[-3], *mask.shape[-2:])
    if query.shape[-1] != width:  # the fast kernels also require equal widths; zeros do not change a dot product
        widest = max(query.shape[-1], width)
        query, key, value = (F.pad(tensor, (0, widest - tensor.shape[-1])) for tensor in (query, key, value))
    context = F.scaled_dot_product_attention(
        to_4d(query), to_4d(key), to_4d(value), None if causal else mask, dropout, is_causal=causal, scale=scale
    )
    return context[..., :width].reshape(*lead, num_queries, width)


def _in_tiles(compute: Callable[[slice, int | None], Tensor], query: Tensor, prepared: Tensor, mechanism: Mechanism) -> Tensor:
    """Computes the query rows in tiles, so that memory stays O(tile); the backward pass recomputes each tile.

    A tile that needs random numbers gets a seed, so that the backward pass draws the same ones. An exported graph has a single
    tile, because it must work for sizes that are not known yet. torch.func cannot recompute: all tiles are kept.
    """
    if torch.compiler.is_exporting():
        return compute(slice(None), mechanism.draw_seed())
    lead = leading_shape(query, prepared) if mechanism.allow is None else leading_shape(query, prepared, mechanism.allow)
    numbers_per_row = lead.numel() * prepared.shape[-2] * mechanism.score.numbers_per_pair
    rows = max(1, TILE // max(1, numbers_per_row))
    num_queries = query.shape[-2]
    if rows >= num_queries:
        return compute(slice(None), mechanism.draw_seed())
    recompute = torch.is_grad_enabled() and not is_transformed()
    draws = mechanism.dropout > 0 and mechanism.generator is None  # from torch's default generator
    tiles = []
    for start in range(0, num_queries, rows):
        part, seed = slice(start, start + rows), mechanism.draw_seed()
        if recompute:
            tiles.append(checkpoint(compute, part, seed, use_reentrant=False, preserve_rng_state=draws))
        else:
            tiles.append(compute(part, seed))
    return torch.cat(tiles, dim=-2)


def _fold(x: Tensor, groups: int) -> Tensor:
    """Turns the heads of a group into rows of one head: (..., H, L, d) -> (..., G, H/G · L, d)."""
    folded: Tensor = x.unflatten(-3, (groups, -1)).flatten(-3, -2)
    return folded


def _fold_mask(mask: Tensor, heads: int, groups: int, num_queries: int) -> Tensor:
    """Returns the mask for folded queries. A row shared by all queries and heads is unchanged; a mask shared by all heads
    becomes one shared by all groups."""
    shared = mask.dim() < 3 or mask.shape[-3] == 1
    if shared and mask.shape[-2] == 1:
        return mask
    if shared:
        heads, groups = heads // groups, 1
    expanded = mask.expand(*mask.shape[:-3], heads, num_queries, -1).unflatten(-3, (groups, -1))
    return torch.cat(expanded.unbind(-3), dim=-2)  # flatten would fix the sizes in an exported graph


def _unfold(x: Tensor, heads: int) -> Tensor:
    """The inverse of `_fold`."""
    unfolded: Tensor = x.unflatten(-2, (heads // x.shape[-3], -1)).flatten(-4, -3)
    return unfolded
