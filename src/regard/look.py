"""What one may ask of attention, and what comes back: taps, edits and what they saw. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Generic, Literal, Self, TypeVar, get_args

from regard.equality import ByValue
from regard.errors import UserError, check_flags, plural, shown

Numbers = TypeVar("Numbers")
"""The type of captured numbers: torch.Tensor inside models, numpy.ndarray outside them."""

Kind = Literal["encoder", "decoder", "cross", "fusion"]
"""The kind of attention: encoder self-attention, decoder self-attention, cross-attention from the decoder to the source, or
fusion, which is attention from a picture or a sound to its auxiliary text."""

SOURCE_KINDS: tuple[Kind, ...] = ("encoder", "cross")
"""The kinds of attention whose keys are source positions. An Edit of the kind "source" changes all of them."""

What = Literal["weights", "scores", "norms", "summary"]
"""The quantity that a tap captures: weights, scores, norms or a summary.

weights: after the softmax, before dropout.  scores: before the softmax, −∞ where a query may not attend.
norms: ‖α_ij v_j W_o‖, the size of what key j adds to the output of query i through this head, where W_o is the head's part of
the output projection (Kobayashi et al. 2020, without the bias); recurrent decoders have no such projection: ‖α_ij h_j‖.
summary: the largest weights, entropy, mass and block means, computed without holding the whole matrix.
"""


def _check_target(request: Tap | Edit, kinds: Sequence[str] = get_args(Kind)) -> None:
    """Checks kind, layer and head of a tap or an edit, and stores plain ints. Negative layers and heads count from the last."""
    check_kind(request.kind, kinds)
    for name in ("layer", "head"):
        _check_number(request, name, "expected a whole number, or None for all")


def _check_number(request: Tap | Edit, name: str, expected: str) -> None:
    """Stores a number of another library as an int. Raises ValueError unless it is a whole number or None."""
    if (number := getattr(request, name)) is None:
        return
    if not _is_whole(number):
        raise ValueError(f"{name} is {shown(number)}, {expected}")
    object.__setattr__(request, name, int(number))


def check_kind(kind: object, kinds: Sequence[str] = get_args(Kind)) -> None:
    """Raises ValueError unless `kind` is a `Kind` of attention, or one of `kinds`."""
    if kind not in kinds:
        raise ValueError(f"unknown kind of attention {shown(kind)}; expected one of {', '.join(kinds)}")


def _is_whole(number: object) -> bool:
    return isinstance(number, Integral) and not isinstance(number, bool)


@dataclass(frozen=True)
class Tap:
    """Requests the attention weights of one layer and head, or another quantity (`what`). `None` means all.

    rows: the queries to capture: positions of a sequence (only these are computed), or hypotheses of a step.

    >>> tap = regard.Tap("encoder", layer=-1, what="norms")
    >>> regard.Look(taps=(tap,)).at("encoder", 1, 2).taps[0].layer  # the last of two layers is layer 1
    1
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
            object.__setattr__(self, "rows", tuple(map(int, self.rows)))
        if self.what not in get_args(What):
            raise ValueError(f"a tap cannot ask for {shown(self.what)}; expected one of {', '.join(get_args(What))}")


@dataclass(frozen=True)
class Edit:
    """Changes attention during the forward pass: switches heads off, forces or cuts a link, or removes a source position.

    There is one line for each change:

        Edit.off("cross", layer=2, head=5)  # this head adds nothing; without a head, the attention of the whole layer
        Edit.force(query=3, key=0)          # the step that writes token 3 attends to source position 0 only
        Edit.cut(query=3, key=0)            # it may not attend to position 0; the softmax is over the other keys
        Edit.remove(4)                      # nothing attends to source position 4, neither the encoder nor the decoder

    kind: a `Kind` of attention, or "source" for all attention to the source (`remove` only).
    layer, head: None means all; negative numbers count from the last.
    query, key: positions, from 0; a query of None means all. In cross- and decoder attention, query t is the step that writes
    token t of the output, and key j of decoder attention is the token that step j reads, <sos> first.
    masked: whether the key is masked before the softmax. If it is not, all weight goes to the key; without a key the weights
    become 0.

    A query that may not attend to the key (a later token, or one outside a window) keeps its weights, and so does everything
    if the output ends before the query. A source position that does not exist is an error. Edits that mask are applied first,
    then the others, in order.

    >>> model = regard.load("model")
    >>> result = model("cab", edits=[regard.Edit.force(query=0, key=2), regard.Edit.cut(query=1, key=1)])
    >>> result.text == model("cab").text, len(result.edits)
    (False, 2)
    """

    kind: Kind | Literal["source"] = "cross"
    layer: int | None = None
    head: int | None = None
    key: int | None = None
    query: int | None = None
    masked: bool = False

    def __post_init__(self) -> None:
        _check_target(self, (*get_args(Kind), "source"))
        check_flags(masked=self.masked)
        _check_number(self, "key", "expected a whole number, or None to switch heads off")
        _check_number(self, "query", "expected a whole number, or None for all")
        for name, names in (("key", "keys"), ("query", "queries")):
            if (number := getattr(self, name)) is not None and number < 0:
                raise ValueError(f"{name} is {number}; sentences differ in length, so {names} are counted from the first, 0")
        if self.masked and self.key is None:
            raise ValueError("masked is True, but there is no key to mask; give one, as in Edit.cut(query=3, key=0)")
        if self.kind == "source" and (not self.masked or (self.layer, self.head, self.query) != (None, None, None)):
            raise ValueError("an edit of the kind 'source' removes a position from all attention; write Edit.remove(position)")
        if self.kind == "decoder" and self.query is not None and self.key is not None and self.key > self.query:
            raise ValueError(
                f"query {self.query} cannot attend to key {self.key} in decoder attention, because that token is read later; "
                f"expected a key from 0 to {self.query}"
            )

    @classmethod
    def off(cls, kind: Kind = "cross", layer: int | None = None, head: int | None = None) -> Self:
        """Switches off one head, all heads of a layer, or all layers: their attention adds nothing.

        >>> model = regard.load("model")
        >>> model("cab", edits=regard.Edit.off()).text == model("cab").text  # this model needs its attention
        False
        """
        return cls(kind, layer, head)

    @classmethod
    def force(
        cls, query: int | None, key: int, kind: Kind = "cross", layer: int | None = None, head: int | None = None
    ) -> Self:
        """Gives one key all the weight of a query.

        >>> model = regard.load("model")
        >>> result = model("cab", edits=regard.Edit.force(query=0, key=2))
        >>> result.text[0], result.attention().mean_TS[0]  # the first step attends to "b"
        ('B', array([0., 0., 1., 0.], dtype=float32))
        """
        return cls(kind, layer, head, key, query)

    @classmethod
    def cut(cls, query: int | None, key: int, kind: Kind = "cross", layer: int | None = None, head: int | None = None) -> Self:
        """Cuts the link from a query to a key: the key is masked, and the weights of the others sum to 1.

        >>> model = regard.load("model")
        >>> cut = model.attention("cab", edits=regard.Edit.cut(query=0, key=0)).mean_TS[0]
        >>> float(cut[0]), round(float(cut.sum()), 4)
        (0.0, 1.0)
        """
        return cls(kind, layer, head, key, query, masked=True)

    @classmethod
    def remove(cls, position: int) -> Self:
        """Removes a source position: no query of the encoder or of the decoder attends to it.

        >>> regard.Edit.remove(4).kinds
        ('encoder', 'cross')
        """
        return cls("source", key=position, masked=True)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of attention that this edit changes."""
        return SOURCE_KINDS if self.kind == "source" else (self.kind,)

    def __str__(self) -> str:
        """Returns the edit as it is written in Python, without what is left at its default."""
        given = ", ".join(f"{name}={value!r}" for name, value in vars(self).items() if value is not None and value is not False)
        return f"Edit({given})"


def refused_edits(edits: Sequence[Edit], attention: Mapping[Kind, tuple[int, int]]) -> str:
    """Returns why a model cannot apply these edits: it has no such attention, layer or head. Returns "" if it can.

    attention: the model's kinds of attention, with the numbers of layers and heads.
    """
    for edit in edits:
        for kind in edit.kinds:
            if kind not in attention and edit.kind == "source" and "cross" in attention:
                return (
                    "the encoder of this model has no self-attention and mixes its positions in another way, so none of them "
                    f"can be removed; Edit.cut(None, {edit.key}) hides position {edit.key} from the decoder only"
                )
            if kind not in attention:
                return f"{edit} changes {kind} attention, but this model has {' and '.join(attention) or 'no'} attention"
            for name, number, size in zip(("layer", "head"), (edit.layer, edit.head), attention[kind], strict=True):
                if number is not None and not -size <= number < size:
                    return f"there is no {name} {number} in {kind} attention: {name}s are numbered 0 to {size - 1} here"
    return ""


def check_positions(edits: Sequence[Edit], num_sources: int, num_auxiliary: int = 0) -> None:
    """Raises UserError if an edit names a position that a source does not have. num_auxiliary: positions of its auxiliary text.

    Positions of the output are not checked: nobody knows its length before it is written.
    """
    for edit in edits:
        for kind in edit.kinds:
            named = {"query": edit.query if kind in ("encoder", "fusion") else None}
            named["key"] = edit.key if kind != "decoder" else None
            for name, position in named.items():
                text, size = ("auxiliary text", num_auxiliary) if (kind, name) == ("fusion", "key") else ("source", num_sources)
                if position is not None and position >= size:
                    raise UserError(f"{name} {position} does not exist: this {text} has {plural(size, 'position')}")


@dataclass(frozen=True)
class Look:
    """The taps and edits of one call, passed as an argument.

    With taps only, the output still comes from the same fused kernel, bit for bit; the requested weights are computed
    separately, before dropout, and detached. With edits or `grad=True` the plain formula is used, so that the output depends on
    the weights and gradients flow through them. With `grad`, weights are returned as the very tensor that the output was
    computed from, with all heads and rows: only that tensor has a gradient. Scores, norms and summaries are always detached
    and ignore edits.

    >>> look = regard.Look(taps=(regard.Tap("cross"),), edits=(regard.Edit("cross", head=0),))
    >>> [tap.kind for tap in look.taps], look.grad
    (['cross'], False)
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

        >>> look = regard.Look(taps=(regard.Tap("cross", layer=-1),))
        >>> look.at("cross", 0, 2) is None, look.at("cross", 1, 2).taps[0].layer
        (True, 1)
        """

        def matches(request: Tap | Edit) -> bool:
            if request.kind == kind and request.layer is not None and not -num_layers <= request.layer < num_layers:
                raise UserError(
                    f"there is no {kind} attention in layer {request.layer}: this model has layers 0 to {num_layers - 1}"
                )
            kinds = request.kinds if isinstance(request, Edit) else (request.kind,)
            return kind in kinds and request.layer in (None, layer, layer - num_layers)

        def with_layer(tap: Tap) -> Tap:
            needs_all = self.grad and tap.what == "weights"
            return replace(tap, layer=layer, head=None, rows=None) if needs_all else replace(tap, layer=layer)

        taps, edits = tuple(map(with_layer, filter(matches, self.taps))), tuple(filter(matches, self.edits))
        return replace(self, taps=tuple(dict.fromkeys(taps)), edits=edits) if taps or edits else None

    def at_row(self, row: int, num_rows: int) -> Look | None:
        """Returns the taps and edits for one query row, for models that run step by step, or None if there are none.

        >>> look = regard.Look(taps=(regard.Tap("cross", rows=(0,)),))
        >>> look.at_row(0, 3) is not None, look.at_row(1, 3)
        (True, None)
        """
        taps = dict.fromkeys(replace(tap, rows=None) for tap in self.taps if row in pick("row", tap.rows, num_rows))
        return replace(self, taps=tuple(taps)) if taps or self.edits or self.grad else None

    def at_any_row(self) -> Look:
        """Returns this Look with its taps extended to all query rows.

        >>> look = regard.Look(taps=(regard.Tap("cross", rows=(0,)),))
        >>> look.at_any_row() == regard.Look(taps=(regard.Tap("cross"),))
        True
        """
        return replace(self, taps=tuple(dict.fromkeys(replace(tap, rows=None) for tap in self.taps)))

    @classmethod
    def of(cls, look: Look | None, edits: Edit | Sequence[Edit]) -> Look | None:
        """Returns a Look with further edits; None if there is nothing to see and nothing to change. Raises TypeError for
        anything else.

        >>> regard.Look.of(regard.Look(taps=(regard.Tap("cross"),)), regard.Edit.off()).edits
        (Edit(kind='cross', layer=None, head=None, key=None, query=None, masked=False),)
        """
        if look is not None and not isinstance(look, Look):
            raise TypeError(f"look is {shown(look)}, expected a Look, as in Look(taps=Tap('cross'))")
        look = Look() if look is None else look
        look = replace(look, edits=look.edits + cls(edits=edits).edits)  # type: ignore[arg-type]  # checked there
        return look if look.taps or look.edits or look.grad else None


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

    >>> x = torch.zeros(4, 2)  # all keys get the same weight
    >>> summary = regard.summarise(x, x, top=2)
    >>> summary.top_weights[0]
    tensor([0.2500, 0.2500])
    >>> torch.allclose(summary.entropy, torch.tensor(4.0).log())
    True
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

    >>> layer, x = regard.MultiHeadAttention(8, 2), torch.randn(1, 3, 8)
    >>> look = regard.Look((regard.Tap("encoder", head=1),))
    >>> (seen,) = layer.attend(layer.queries(x), *layer.keys_values(x), None, look).seen
    >>> seen.heads, seen.weights_BHTS.shape
    ((1,), torch.Size([1, 1, 3, 3]))
    """

    kind: Kind
    layer: int
    heads: tuple[int, ...]
    rows: tuple[int, ...]
    weights_BHTS: Numbers
    what: What = "weights"
    summary: Summary[Numbers] | None = None
