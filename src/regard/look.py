"""What one may ask of attention, and what comes back: taps, edits and what they saw. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Generic, Literal, TypeVar, get_args

from regard.equality import ByValue
from regard.errors import UserError, check_flags, shown

Numbers = TypeVar("Numbers")
"""The type of captured numbers: torch.Tensor inside models, numpy.ndarray outside them."""

Kind = Literal["encoder", "decoder", "cross", "fusion"]
"""Encoder self-attention, decoder self-attention, cross-attention from the decoder to the source, or fusion: attention from a
picture or a sound to its auxiliary text."""

What = Literal["weights", "scores", "norms", "summary", "posterior"]
"""The quantity that a tap captures.

weights: after the softmax, before dropout.  scores: before the softmax, −∞ where a query may not attend; those of monotone
attention are without the scores of the jumps.
norms: ‖α_ij v_j W_o‖, the size of what key j adds to the output of query i through this head, where W_o is the head's part of
the output projection (Kobayashi et al. 2020, without the bias); recurrent decoders have no such projection: ‖α_ij h_j‖.
summary: the largest weights, entropy, mass and block means, computed without holding the whole matrix.
posterior: the weights given the whole output. They differ from the weights for marginal and monotone attention only, whose
weights depend on the tokens before the current one, and whose posterior also on this one and those after it. A step does not
know these, so there it is the weights.
"""


def _check_target(request: Tap | Edit) -> None:
    """Checks kind, layer and head of a tap or an edit. Negative layers and heads count from the last."""
    check_kind(request.kind)
    for name in ("layer", "head"):
        if (number := getattr(request, name)) is not None and not _is_whole(number):
            raise ValueError(f"{name} is {shown(number)}, expected a whole number, or None for all")


def check_kind(kind: object) -> None:
    """Raises ValueError unless `kind` is a `Kind` of attention."""
    if kind not in get_args(Kind):
        raise ValueError(f"unknown kind of attention {shown(kind)}; expected one of {', '.join(get_args(Kind))}")


def _is_whole(number: object) -> bool:
    return isinstance(number, Integral) and not isinstance(number, bool)


@dataclass(frozen=True)
class Tap:
    """Requests the attention weights of one layer and head, or another quantity (`what`). `None` means all.

    rows: the queries to capture: positions of a sequence (only these are computed), or hypotheses of a step.
    """

    kind: Kind = "cross"
    layer: int | None = None
    head: int | None = None
    rows: tuple[int, ...] | None = None
    what: What = "weights"

    def __post_init__(self) -> None:
        _check_target(self)
        if self.rows is not None:
            if not isinstance(self.rows, Sequence) or not self.rows or not all(map(_is_whole, self.rows)):
                raise ValueError(f"rows is {shown(self.rows)}, expected whole numbers such as (0, 1), or None for all")
            object.__setattr__(self, "rows", tuple(self.rows))
        if self.what not in get_args(What):
            raise ValueError(f"a tap cannot ask for {shown(self.what)}; expected one of {', '.join(get_args(What))}")


@dataclass(frozen=True)
class Edit:
    """Changes attention weights during the forward pass: switches heads off, or makes them attend to one key only.

    key=None: the weights become 0, so the head adds nothing. key=j: all weight goes to key j; a query that may not attend to
    key j (padding, the future) attends to nothing. key="largest": all weight of a query goes to the key with the largest
    weight, so soft attention becomes hard.
    """

    kind: Kind = "cross"
    layer: int | None = None
    head: int | None = None
    key: int | Literal["largest"] | None = None

    def __post_init__(self) -> None:
        _check_target(self)
        if self.key in (None, "largest"):
            return
        if isinstance(self.key, str) or not _is_whole(self.key):
            raise ValueError(f"key is {shown(self.key)}, expected a whole number, 'largest', or None to switch heads off")
        if self.key < 0:
            raise ValueError(f"key is {self.key}; sentences differ in length, so keys are counted from the first, 0")


@dataclass(frozen=True)
class Look:
    """The taps and edits of one call, passed as an argument.

    With taps only, the output still comes from the same fused kernel, bit for bit; the requested weights are computed
    separately, before dropout, and detached. With edits or `grad=True` the plain formula is used, so that the output depends on
    the weights and gradients flow through them. With `grad`, weights are returned as the very tensor that the output was
    computed from, with all heads and rows: only that tensor has a gradient. Scores, norms, summaries and posteriors are always
    detached and ignore edits.
    """

    taps: tuple[Tap, ...] = ()
    edits: tuple[Edit, ...] = ()
    grad: bool = False

    def __post_init__(self) -> None:
        check_flags(grad=self.grad)
        for name, kind in (("taps", Tap), ("edits", Edit)):
            given = getattr(self, name)
            requests = (given,) if isinstance(given, kind) else given
            if not isinstance(requests, Sequence) or not all(isinstance(request, kind) for request in requests):
                raise TypeError(f"{name} is {shown(given)}, expected {kind.__name__}s, as in Look({name}=({kind.__name__}(),))")
            object.__setattr__(self, name, tuple(requests))

    def at(self, kind: Kind, layer: int, num_layers: int) -> Look | None:
        """Returns the taps and edits for one layer, or None if there are none; the taps returned carry the layer's number.

        Raises UserError if a tap or an edit names a layer that does not exist. Negative layers count from the last.
        """

        def matches(request: Tap | Edit) -> bool:
            if request.kind == kind and request.layer is not None and not -num_layers <= request.layer < num_layers:
                raise UserError(
                    f"there is no {kind} attention in layer {request.layer}: this model has layers 0 to {num_layers - 1}"
                )
            return request.kind == kind and request.layer in (None, layer, layer - num_layers)

        def with_layer(tap: Tap) -> Tap:
            needs_all = self.grad and tap.what == "weights"
            return replace(tap, layer=layer, head=None, rows=None) if needs_all else replace(tap, layer=layer)

        taps, edits = tuple(map(with_layer, filter(matches, self.taps))), tuple(filter(matches, self.edits))
        return replace(self, taps=tuple(dict.fromkeys(taps)), edits=edits) if taps or edits else None

    def at_row(self, row: int, num_rows: int) -> Look | None:
        """Returns the taps and edits for one query row, for models that run step by step, or None if there are none."""
        taps = dict.fromkeys(replace(tap, rows=None) for tap in self.taps if row in pick("row", tap.rows, num_rows))
        return replace(self, taps=tuple(taps)) if taps or self.edits or self.grad else None

    def at_any_row(self) -> Look:
        """Returns this Look with its taps extended to all query rows."""
        return replace(self, taps=tuple(dict.fromkeys(replace(tap, rows=None) for tap in self.taps)))


def pick(name: str, wanted: Sequence[int] | None, size: int) -> tuple[int, ...]:
    """Returns the indices of the wanted rows or heads, from 0; None means all, negative ones count from the last.

    Raises UserError if one of them does not exist.
    """
    for number in wanted or ():
        if not _is_whole(number) or not -size <= number < size:
            raise UserError(f"there is no {name} {shown(number)}: {name}s are numbered 0 to {size - 1} here")
    return tuple(range(size)) if wanted is None else tuple(number % size for number in wanted)


@dataclass(frozen=True, eq=False)
class Summary(ByValue, Generic[Numbers]):
    """Statistics of an attention matrix: the largest weights and the entropy of each query, the total weight on each key.

    top_weights, top_keys (..., Lq, k): the k largest weights of each query, the largest first, and their keys.
    entropy (..., Lq): −Σ w ln w; 0 where one key has all the weight, ln Lk where all keys have the same. (Weights that do not
    sum to 1 are first divided by the sum of their magnitudes.)
    mass (..., Lk): the sum of all weights on this key. Each query that may attend to any key contributes 1 in total.
    blocks (..., ≤ 128, ≤ 128), on request: the mean weight in rectangles of ⌈Lq/128⌉ queries and ⌈Lk/128⌉ keys.
    distance (..., Lq), on request, for self-attention: Σ_j w_ij |i − j|.
    """

    top_weights: Numbers
    top_keys: Numbers
    entropy: Numbers
    mass: Numbers
    blocks: Numbers | None = None
    distance: Numbers | None = None


@dataclass(frozen=True, eq=False)
class Seen(ByValue, Generic[Numbers]):
    """The result of one tap in one attention layer: by default the exact weights of each query on each key.

    heads, rows: the indices of the heads and queries on axes H and T of weights_BHTS. In a step, T counts hypotheses.
    what: the quantity in weights_BHTS: weights, scores or norms. For a summary it holds the largest weights of each query,
    (B, H, T, k), and `summary` the rest.
    """

    kind: Kind
    layer: int
    heads: tuple[int, ...]
    rows: tuple[int, ...]
    weights_BHTS: Numbers
    what: What = "weights"
    summary: Summary[Numbers] | None = None
