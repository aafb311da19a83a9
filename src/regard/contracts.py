"""The types that several packages share. Read this file first.

Data flow: `encode` turns a `Source` into a `Memory`; `start` turns the Memory into a `State`; each `step` consumes a State and
returns a `Step` (logits, the next State, captured attention). Training reads the whole target at once: `decode` returns
`Decoded`. An `Engine` searches with `step` and reports its progress as `Event`s; the pipeline turns the last event of each
sentence into a `Result`.

Capital letters at the end of a tensor's name are its axes:

    B sentences   K hypotheses of one sentence   S source positions   T target positions   H heads
    V vocabulary  E width of the memory          D width of the decoder
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from html import escape
from math import inf, nan
from numbers import Integral, Real
from typing import Any, Literal, Protocol, Self, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.errors import UserError, check_flags, shown

Kind = Literal["encoder", "decoder", "cross", "fusion"]
"""Encoder self-attention, decoder self-attention, cross-attention from the decoder to the source, or fusion: attention from a
picture or a sound to its auxiliary text."""

What = Literal["weights", "scores", "norms", "summary"]
"""The quantity that a tap captures.

weights: after the softmax, before dropout.  scores: before the softmax, −∞ where a query may not attend.
norms: ‖α_ij v_j W_o‖, the size of what key j adds to the output of query i through this head, where W_o is the head's part of
the output projection (Kobayashi et al. 2020, without the bias); recurrent decoders have no such projection: ‖α_ij h_j‖.
summary: the largest weights, entropy, mass and block means, computed without holding the whole matrix.
"""


class ByValue:
    """Defines equality for dataclasses with tensor fields: tensors are equal if shape, dtype, device and values are equal."""

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(_same(mine, theirs) for mine, theirs in zip(_values(self), _values(other), strict=True))

    def __hash__(self) -> int:
        return hash((type(self), *(value for value in _values(self) if not isinstance(value, Tensor | dict))))


def _values(data: object) -> list[object]:
    return [getattr(data, field.name) for field in fields(data)]  # type: ignore[arg-type]


def _same(mine: object, theirs: object) -> bool:
    if isinstance(mine, dict) and isinstance(theirs, dict):
        return mine.keys() == theirs.keys() and all(_same(value, theirs[key]) for key, value in mine.items())
    if not (isinstance(mine, Tensor) and isinstance(theirs, Tensor)):
        return mine == theirs
    return (mine.shape, mine.dtype, mine.device) == (theirs.shape, theirs.dtype, theirs.device) and torch.equal(mine, theirs)


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


# --- inputs ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Source(ByValue):
    """A batch of inputs, padded to the same size, with its padding mask.

    values: token ids (B, S), sound frames (B, S, features) or pictures (B, channels, height, width).
    allow: key padding mask, False at padding, which is at the end: (B, S); for pictures (B, height, width).
    auxiliary: token ids of a second source, a text that accompanies the first; its length is independent of the first.
    """

    values: Tensor
    allow: Tensor
    auxiliary: Source | None = None

    @property
    def num_sentences(self) -> int:
        """The number of sentences, B."""
        return self.values.shape[0]

    def to(self, device: torch.device | str) -> Source:
        """Returns this batch on another device."""
        auxiliary = None if self.auxiliary is None else self.auxiliary.to(device)
        return Source(self.values.to(device), self.allow.to(device), auxiliary)


@dataclass(frozen=True, eq=False)
class Memory(ByValue):
    """The output of the encoder, h_1 … h_S. It has the same form for text, pictures and sound.

    values_BSE: one vector for each source position.   allow_BS: False at padding.
    summary_BE: one vector for the whole source.       axes: (S,), or (rows, columns) where the positions form a grid.
    seen: the encoder attention that a Look requested.
    """

    values_BSE: Tensor
    allow_BS: Tensor
    summary_BE: Tensor
    axes: tuple[int, ...]
    seen: tuple[Seen, ...] = ()


# --- inspection --------------------------------------------------------------------------------------------------------------


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
    key j (padding, the future) attends to nothing.
    """

    kind: Kind = "cross"
    layer: int | None = None
    head: int | None = None
    key: int | None = None

    def __post_init__(self) -> None:
        _check_target(self)
        if self.key is not None and not _is_whole(self.key):
            raise ValueError(f"key is {shown(self.key)}, expected a whole number, or None to switch heads off")
        if self.key is not None and self.key < 0:
            raise ValueError(f"key is {self.key}; sentences differ in length, so keys are counted from the first, 0")


@dataclass(frozen=True)
class Look:
    """The taps and edits of one call, passed as an argument.

    With taps only, the output still comes from the same fused kernel, bit for bit; the requested weights are computed
    separately, before dropout, and detached. With edits or `grad=True` the plain formula is used, so that the output depends on
    the weights and gradients flow through them. With `grad`, weights are returned as the very tensor that the output was
    computed from, with all heads and rows: only that tensor has a gradient. Scores, norms and summaries are always detached
    and ignore edits.
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
class Summary(ByValue):
    """Statistics of an attention matrix: the largest weights and the entropy of each query, the total weight on each key.

    top_weights, top_keys (..., Lq, k): the k largest weights of each query, the largest first, and their keys.
    entropy (..., Lq): −Σ w ln w; 0 where one key has all the weight, ln Lk where all keys have the same. (Weights that do not
    sum to 1 are first divided by the sum of their magnitudes.)
    mass (..., Lk): the sum of all weights on this key. Each query that may attend to any key contributes 1 in total.
    blocks (..., ≤ 128, ≤ 128), on request: the mean weight in rectangles of ⌈Lq/128⌉ queries and ⌈Lk/128⌉ keys.
    distance (..., Lq), on request, for self-attention: Σ_j w_ij |i − j|.
    """

    top_weights: Tensor
    top_keys: Tensor
    entropy: Tensor
    mass: Tensor
    blocks: Tensor | None = None
    distance: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Seen(ByValue):
    """The result of one tap in one attention layer: by default the exact weights of each query on each key.

    heads, rows: the indices of the heads and queries on axes H and T of weights_BHTS. In a step, T counts hypotheses.
    what: the quantity in weights_BHTS: weights, scores or norms. For a summary it holds the largest weights of each query,
    (B, H, T, k), and `summary` the rest.
    """

    kind: Kind
    layer: int
    heads: tuple[int, ...]
    rows: tuple[int, ...]
    weights_BHTS: Tensor
    what: What = "weights"
    summary: Summary | None = None


# --- attention ---------------------------------------------------------------------------------------------------------------


class Score:
    """A score function (alignment model, Bahdanau et al. 2015): how well a query fits a key, before any mask or softmax.

    Subclasses define `scores`; the rest has defaults.

    `scores` must compute each query row independently of the others, so that long inputs can be processed in tiles.
    """

    name: str
    """The name of the score in model settings and model folders."""

    numbers_per_pair: int = 1
    """The most numbers that `scores` holds at a time per (query, key) pair; it determines the size of a tile."""

    by_content: bool = True
    """Whether the score depends on the content of the keys."""

    by_position: bool = False
    """Whether `prepare` requires the positions of the keys."""

    rotary: bool = False
    """Whether the score is unchanged when query and prepared key are rotated by the same angle, as rotary positions require."""

    def scores(self, query: Tensor, prepared: Tensor) -> Tensor:
        """Returns the scores (..., Lq, Lk) of queries (..., Lq, dq) and the keys as `prepare` returned them."""
        raise NotImplementedError(f"{type(self).__name__} needs a method scores(query, prepared)")

    def prepare(self, key: Tensor, positions: Tensor | None = None) -> Tensor:
        """Computes what depends on the keys alone, once per source: (..., Lk, dk) -> (..., Lk, any width).

        positions (..., Lk): the positions of the keys; given only if `by_position` is set.
        """
        return key

    def known(self, prepared: Tensor) -> Tensor | None:
        """Returns a mask (..., Lk), False for keys whose score is undefined, which get no weight; None if all are defined."""
        return None

    def as_dot(self, query: Tensor, prepared: Tensor) -> tuple[Tensor, Tensor, float] | None:
        """Returns (query', key', scale) for the fused kernel, or None if the score is not a dot product.

        scores = scale · query'·key', up to a constant per query, which does not change the softmax.
        """
        return None


# --- models ------------------------------------------------------------------------------------------------------------------


class State(Protocol):
    """Everything a decoder carries from one target position to the next, for B sentences with K hypotheses each.

    It holds recurrent states or a key-value cache (KV cache). A step *spends* its State: it may write into the cache in place,
    so using a spent State raises RuntimeError; call `copy()` first to continue from it twice.
    """

    lengths_B: Tensor
    """The number of tokens read for each sentence. Rows may differ, because sentences can join a running batch."""

    def spend(self) -> None:
        """Marks this State as used; raises RuntimeError the second time."""

    def select(self, parents_BK: Tensor) -> Self:
        """Returns the surviving hypotheses: new hypothesis k of sentence b continues old hypothesis parents[b, k]."""
        ...

    def keep(self, rows_N: Tensor) -> Self:
        """Returns these sentences only, in this order."""
        ...

    def join(self, *others: Self) -> Self:
        """Returns the sentences of all States, those of this one first."""
        ...

    def copy(self) -> Self:
        """Returns an independent State that can be continued separately."""
        ...

    @property
    def nbytes(self) -> int:
        """The size of all tensors in bytes."""
        ...


@dataclass(frozen=True)
class Step:
    """The result of one decoder step: a logit for every token of the vocabulary, the next State, and what a Look requested."""

    logits_BKV: Tensor
    state: State
    seen: tuple[Seen, ...] = ()


@dataclass(frozen=True, eq=False)
class Decoded(ByValue):
    """The result of decoding whole target sequences (teacher forcing): logits = states · weightᵀ + bias, computed on first use.

    The logits are by far the largest tensor; core.losses.projected_loss computes the loss without them.
    attention_log_prob, attention_entropy (B, T): of the choices of hard or gated attention; None for other types.
    affects_later_steps: whether such a choice also affects later tokens, not only the token of its own step.
    """

    states_BTD: Tensor
    weight_VD: Tensor
    bias_V: Tensor
    attention_log_prob_BT: Tensor | None = None
    attention_entropy_BT: Tensor | None = None
    affects_later_steps: bool = True
    seen: tuple[Seen, ...] = ()

    @cached_property
    def logits_BTV(self) -> Tensor:
        """states · weightᵀ + bias."""
        return F.linear(*self.projection)

    @property
    def projection(self) -> tuple[Tensor, Tensor, Tensor]:
        """(states, weight, bias), the arguments of F.linear and core.losses.projected_loss."""
        return self.states_BTD, self.weight_VD, self.bias_V


class Seq2Seq(Protocol):
    """The interface of every model. Search, training and inspection use nothing else."""

    def encode(self, source: Source, look: Look | None = None) -> Memory:
        """Runs the encoder."""
        ...

    def start(self, memory: Memory, prefix_BP: Tensor | None = None) -> State:
        """Returns the first State, with one hypothesis per sentence, after reading the prefix, if any, in one pass.

        Computes once what depends on the source only.
        """
        ...

    def step(self, ids_BK: Tensor, state: State, look: Look | None = None) -> Step:
        """Reads one token per hypothesis and returns logits for the next one.

        The K hypotheses of a sentence are K query rows, so the source is not repeated for each of them.
        """
        ...

    def decode(self, ids_BT: Tensor, memory: Memory, look: Look | None = None) -> Decoded:
        """Reads whole target sequences that start with <sos> (teacher forcing); position t depends on the tokens up to t."""
        ...


# --- search ------------------------------------------------------------------------------------------------------------------

MAX_HYPOTHESES = 1000
"""The largest beam or number of samples per sentence. Each hypothesis has its own state."""
MAX_LENGTH = 100_000
"""The largest number of tokens in an output, not counting its prefix."""
MAX_TOKENS = 1_000_000
"""The largest product of hypotheses and tokens per sentence; a search may hold all of them until the sentence is finished."""
MIN_TEMPERATURE = 1e-6
"""At this temperature, sampling takes the most probable token unless two are equal; far below it, log-probabilities divided by
the temperature overflow."""
MAX_LENGTH_PENALTY = 10.0
"""With this penalty, an output twice as long ranks higher even if its log-probability is a thousand times lower."""
MAX_REPETITION_PENALTY = 1000.0


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Options of beam search, greedy search and sampling. Raises UserError for values out of range.

    An output of n tokens, <eos> included, is ranked by log_prob / ((5 + n)/6)^length_penalty (Wu et al. 2016, eq. 14), or, with
    "mean", by log_prob / n. Forbidden tokens (those that no target contains, banned, no_repeat, min_length) are excluded
    without renormalising the others, so log_prob remains the probability under the model.
    """

    beam: int = 1
    """The number of hypotheses kept per sentence. 1 is greedy search: the most probable token at each step, up to <eos>."""
    n_best: int = 1
    """The number of outputs per sentence: at most `beam`, or any number of samples."""
    length_penalty: float | Literal["mean"] = 0.6
    """Exponent of the length normalisation; 0 ranks by log_prob alone, "mean" by log_prob per token."""
    min_length: int = 0
    """The smallest number of tokens in an output; <eos> is forbidden until then."""
    max_length: int = 256
    """The largest number of tokens in an output, prefix included; a longer output is cut off, and its `finished` is False."""
    max_ratio: float | None = None
    """Also limits the length to this many tokens per source position, plus 10. A lower limit lets a beam stop earlier."""
    no_repeat: int = 0
    """No n-gram of this size occurs twice in an output; 0 allows repetitions."""
    repetition_penalty: float = 1.0
    """The search multiplies the log-probability of tokens already in the output by this; `log_prob` is not affected."""
    banned: tuple[tuple[int, ...], ...] = ()
    """Token sequences that no output contains."""
    prefix: tuple[int, ...] = ()
    """The tokens that every output starts with."""
    sample: bool = False
    """Samples tokens instead of taking the best; the n_best outputs of a sentence are sampled independently."""
    temperature: float = 1.0
    """Divides the log-probabilities before sampling; lower values favour probable tokens."""
    top_k: int = 0
    """Samples from the k most probable tokens only; 0 means from all."""
    top_p: float = 1.0
    """Samples from the smallest set of tokens whose probabilities sum to at least this."""
    seed: int = 0
    """Random seed. A sample depends on the seed and the number of its sentence, not on the rest of the batch."""
    stream: bool = False
    """Reports tokens as soon as they are certain. A Look requires it: `seen` is reported with the tokens."""

    def __post_init__(self) -> None:
        for name, value in _checked(vars(self)).items():
            object.__setattr__(self, name, value)
        if self.min_length > self.max_length:
            raise UserError(f"min_length {self.min_length} is more than max_length {self.max_length}")
        if self.sample and self.beam > 1:
            raise UserError(f"sample=True cannot be combined with a beam, but beam is {self.beam}; leave out one of the two")
        if not self.sample and self.n_best > self.beam:
            raise UserError(f"n_best is {self.n_best}, but beam is only {self.beam}; set beam={self.n_best}")
        if not self.sample and (self.temperature, self.top_k, self.top_p) != (1.0, 0, 1.0):
            raise UserError("temperature, top_k and top_p apply to sampling only; set sample=True")
        if not all(self.banned):
            raise UserError("banned holds an empty sequence, which every output contains; leave it out")
        if len(self.prefix) >= self.max_length:
            raise UserError(f"the prefix has {len(self.prefix)} tokens, but max_length is {self.max_length}; raise max_length")
        if (tokens := self.num_hypotheses * (self.max_length - len(self.prefix))) > MAX_TOKENS:
            name = "n_best" if self.sample else "beam"
            raise UserError(
                f"{name} is {self.num_hypotheses} and max_length {self.max_length:,}, together {tokens:,} tokens; "
                f"lower one of them: hypotheses times tokens must not exceed {MAX_TOKENS:,}"
            )

    @property
    def num_hypotheses(self) -> int:
        """The number of hypotheses per sentence in a step."""
        return self.n_best if self.sample else self.beam

    def norm(self, length: int) -> float:
        """Returns the divisor of the log-probability of an output of `length` tokens, <eos> included; it never decreases."""
        return float(length) if self.length_penalty == "mean" else ((5 + length) / 6) ** self.length_penalty


_WHOLE = {
    "beam": (1, MAX_HYPOTHESES),
    "n_best": (1, MAX_HYPOTHESES),
    "min_length": (0, MAX_LENGTH),
    "max_length": (1, MAX_LENGTH),
    "no_repeat": (0, MAX_LENGTH),
    "top_k": (0, 2**31 - 1),
    "seed": (0, 2**63 - 1),
}
"""Integer option -> its smallest and largest value. The length of the prefix is added to the largest lengths."""

_NUMBERS: dict[str, tuple[Callable[[float], bool], str]] = {
    "temperature": (lambda number: MIN_TEMPERATURE <= number < inf, f"a number, {MIN_TEMPERATURE:g} or more"),
    "top_p": (lambda number: 0 < number <= 1, "a number above 0 and up to 1"),
    "max_ratio": (lambda number: 0 < number < inf, "a number above 0, or None"),
    "repetition_penalty": (
        lambda number: 1 <= number <= MAX_REPETITION_PENALTY,
        f"a number from 1 to {MAX_REPETITION_PENALTY:g}; below 1 it would reward repetitions",
    ),
    "length_penalty": (
        lambda number: 0 <= number <= MAX_LENGTH_PENALTY,
        f'a number from 0 to {MAX_LENGTH_PENALTY:g}, or "mean"',
    ),
}
"""Float option -> whether a value is in range, and the expected range in words. NaN is in no range."""


def _checked(given: dict[str, Any]) -> dict[str, Any]:
    """Returns the options as plain Python data: numbers of other libraries become int and float, lists become tuples.

    Raises UserError for the first invalid option.
    """
    prefix = _ids(given["prefix"])
    try:
        banned = [_ids(sequence) for sequence in given["banned"]]
    except TypeError:
        banned = [None]
    if prefix is None:
        raise _invalid("prefix", given["prefix"], "a list of token ids")
    if None in banned:
        raise _invalid("banned", given["banned"], "a list of lists of token ids")
    plain: dict[str, Any] = {"prefix": prefix, "banned": tuple(banned)}
    for name, (smallest, largest) in _WHOLE.items():
        value = given[name]
        largest += len(prefix) if name in ("min_length", "max_length") else 0
        if isinstance(value, bool) or not isinstance(value, Integral) or not smallest <= int(value) <= largest:
            raise _invalid(name, value, f"a whole number from {smallest} to {largest:,}")
        plain[name] = int(value)
    for name, (in_range, expected) in _NUMBERS.items():
        value = given[name]
        if (value is None and name == "max_ratio") or (isinstance(value, str) and (name, value) == ("length_penalty", "mean")):
            continue
        plain[name] = _number(value)
        if not in_range(plain[name]):
            raise _invalid(name, value, expected)
    for name in ("sample", "stream"):
        if not isinstance(given[name], bool):
            raise _invalid(name, given[name], "True or False")
    return plain


def _ids(given: object) -> tuple[int, ...] | None:
    """Returns a tuple of token ids, or None if these are not token ids."""
    try:
        values = tuple(cast(Iterable[object], given))
    except TypeError:
        return None
    integers = [value for value in values if isinstance(value, Integral) and not isinstance(value, bool)]
    ids = tuple(int(number) for number in integers if 0 <= int(number) < 2**31)
    return ids if len(ids) == len(values) else None


def _number(value: object) -> float:
    """Returns the value as a float: NaN if it is not a number, infinity if it is an integer too large for a float."""
    try:
        return float(value) if isinstance(value, Real) and not isinstance(value, bool) else nan
    except OverflowError:
        return inf


def _invalid(name: str, value: object, expected: str) -> UserError:
    return UserError(f"{name} is {shown(value, 60)}, expected {expected}")


@dataclass(frozen=True)
class Hypothesis:
    """One output of a search.

    ids: its tokens, without <eos>.  log_prob: the sum of their log-probabilities, <eos> included.
    rank_score: the score by which the search ranked it.  finished: False if it was cut off before <eos>.
    token_log_probs: the log-probability of each token, and of <eos> if the output is finished.
    """

    ids: tuple[int, ...]
    log_prob: float
    rank_score: float
    finished: bool
    token_log_probs: tuple[float, ...] = ()


@dataclass(frozen=True)
class Event:
    """Progress of one sentence; sentences are numbered in the order of the input.

    ids: tokens that are now certain, following those of earlier events.  tail: tokens that may still change.
    hypotheses: empty until the search of the sentence ends; then the outputs, the best first. The `ids` of all events of a
    sentence, joined, are the tokens of the best output.
    seen: the results of a Look's taps for each of `ids` in turn; axes B and T have size 1.
    """

    sentence: int
    ids: tuple[int, ...] = ()
    tail: tuple[int, ...] = ()
    hypotheses: tuple[Hypothesis, ...] = ()
    seen: tuple[Seen, ...] = ()


class Engine(Protocol):
    """Runs a search. The torch engine is the reference; a faster one must return the same results or raise an error."""

    def generate(
        self,
        sources: Sequence[Source],
        options: SearchOptions,
        look: Look | None = None,
        *,
        numbers: Sequence[int] | None = None,
        room: int = 0,
    ) -> Iterator[Event]:
        """Searches batches of sentences and yields their events.

        numbers: the numbers of the sentences; by default they are counted through all batches.
        room: the largest number of sentences searched at a time; a waiting batch joins the running ones as soon as it fits. 0
        searches one batch after the other.
        """
        ...


# --- outputs -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class AttentionMap(ByValue):
    """Exact attention weights of one sentence and one layer, with the tokens of both axes.

    target, source: the tokens of the rows (queries) and of the columns (keys), whatever the kind of attention.

    axes: (rows, columns) if the source is a picture or a grid, whose cells, row by row, are the columns of the weights.
    seconds: the duration of one source position if the source is a sound; 0 if no axis is time. The time axis is the columns;
    for `encoder` also the rows, for `fusion` the rows only.
    """

    weights_HTS: Tensor
    source: tuple[str, ...]
    target: tuple[str, ...]
    kind: Kind
    layer: int
    axes: tuple[int, ...] = ()
    seconds: float = 0.0

    @property
    def mean_TS(self) -> Tensor:
        """The mean over the heads."""
        return self.weights_HTS.mean(0)

    @property
    def maps_TRC(self) -> Tensor:
        """The mean over the heads as one map (rows, columns) over the picture or grid for each target token.

        Raises UserError if the source is not a picture or a grid.
        """
        if len(self.axes) != 2:
            raise UserError(f"{self.kind} attention of this model has no maps: its source is not a picture or a grid")
        maps_TRC: Tensor = self.mean_TS.unflatten(-1, self.axes)
        return maps_TRC

    def _repr_html_(self) -> str:
        """Returns the mean as an HTML table for notebooks, at most 64 x 64 cells; translucent, for light and dark pages."""
        weights, source, target = self.mean_TS[:64, :64].tolist(), self.source[:64], self.target[:64]
        header = "".join(f'<th style="font-weight:normal">{escape(token)}</th>' for token in source)
        rows = "".join(
            f'<tr><th style="font-weight:normal;text-align:right">{escape(token)}</th>'
            + "".join(
                f'<td title="{escape(token)} ← {escape(key)}: {weight:.4f}" '
                f'style="background:rgba(43,111,143,{min(1.0, abs(weight)):.3f});min-width:1.6em">&nbsp;</td>'
                for key, weight in zip(source, row, strict=True)
            )
            + "</tr>"
            for token, row in zip(target, weights, strict=True)
        )
        note = "" if max(self.weights_HTS.shape[1:]) <= 64 else "<p>The first 64 positions; regard inspect shows all.</p>"
        title = f"{self.kind} attention, layer {self.layer}, average of {len(self.weights_HTS)} heads"
        return f'<table style="border-collapse:collapse" title="{title}"><tr><th></th>{header}</tr>{rows}</table>{note}'


@dataclass(frozen=True)
class Alternative:
    """One output of an n-best list. token_log_probs includes that of <eos> if the output is finished."""

    text: str
    tokens: tuple[str, ...]
    log_prob: float
    rank_score: float
    finished: bool
    token_log_probs: tuple[float, ...]


@dataclass(frozen=True)
class AlignmentHead:
    """Which attention gives the alignment: one head, the mean over a layer (head None), or over all layers (layer None too).

    shifted: takes a token's weights from the step that reads it, not from the step that writes it. The deep layers of a
    Transformer already represent the next token, the layers near the input still the last one (Chen et al. 2020).
    """

    layer: int | None = -1
    head: int | None = None
    shifted: bool = False

    def weights_TS(self, layers_HTS: Sequence[Tensor], num_targets: int, num_sources: int) -> Tensor:
        """Returns one row per target token and one column per source token, without <eos>.

        layers_HTS: the weights of all layers, or of the chosen one only; their last row is the step that has read all tokens.
        """
        chosen = layers_HTS if self.layer is None or len(layers_HTS) == 1 else [layers_HTS[self.layer]]
        heads_NTS = torch.cat(list(chosen))
        weights_TS = heads_NTS.mean(0) if self.head is None else heads_NTS[self.head]
        first = 1 if self.shifted else 0
        return weights_TS[first : first + num_targets, :num_sources]


@dataclass(frozen=True)
class Result:
    """One translated text.

    log_prob: the sum of the log-probabilities of the tokens and <eos>.  rank_score: the score by which the search ranked it.
    finished: False if max_length cut it off.  n_best: the outputs, the best first.
    unknown: source symbols that are not in the model's vocabulary.
    parts: one Result per sentence if the text was too long and was split.
    """

    text: str
    tokens: tuple[str, ...]
    source_tokens: tuple[str, ...]
    log_prob: float
    rank_score: float
    finished: bool
    n_best: tuple[Alternative, ...]
    unknown: tuple[str, ...]
    map_attention: Callable[[Kind, int], AttentionMap] = field(repr=False, compare=False)
    align: Callable[[], tuple[int, ...]] = field(repr=False, compare=False)
    parts: tuple[Result, ...] = ()
    ids: tuple[int, ...] = field(default=(), repr=False)

    def attention(self, kind: Kind = "cross", layer: int = -1) -> AttentionMap:
        """Computes the exact weights in one forward pass with this output as the target (teacher forcing)."""
        return self.map_attention(kind, layer)

    def alignment(self) -> tuple[tuple[int, int], ...]:
        """Returns pairs (i, j): target token j attends most to source token i; counted from 0, without <eos>.

        If the source has no tokens, i is a source position; in a picture that is a grid cell, row by row. The weights are those
        of the alignment head that `regard align` found for this model, else the mean over the heads of the last layer. If the
        text was split, tokens are counted through all parts.
        """
        if not self.parts:
            return tuple((i, j) for j, i in enumerate(self.align())) if self.tokens else ()
        links: list[tuple[int, int]] = []
        sources = targets = 0
        for part in self.parts:
            links += [(sources + i, targets + j) for i, j in part.alignment()]
            sources, targets = sources + len(part.source_tokens), targets + len(part.tokens)
        return tuple(links)

    def _repr_html_(self) -> str:
        """Returns the text and, if the model has attention, its weights as HTML for notebooks."""
        try:
            picture = self.attention()._repr_html_()
        except UserError:
            picture = ""
        return f"<p>{escape(' '.join(self.source_tokens))} → <b>{escape(self.text)}</b></p>{picture}"
