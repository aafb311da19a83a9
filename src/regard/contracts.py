"""The nouns that cross folders. Read this file first.

The road: a `Source` is encoded into a `Memory`; `start` turns the Memory into a `State`; each `step` spends a State and gives a
`Step` (logits, the next State, what was seen). Training takes the whole target at once: `decode` gives `Decoded`. An `Engine`
searches over `step` and tells what it finds as `Event`s; the pipeline turns the last one of each sentence into a `Result`.

Letters in the names of tensors are their axes:

    B sentences   K hypotheses of one sentence   S source places   T target places   H heads
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
"""Where attention happens: encoder self-attention, decoder self-attention, decoder to source, or from the source to the text
beside it."""

What = Literal["weights", "scores", "norms", "summary"]
"""What can be seen there.

weights: after softmax, before dropout.  scores: before softmax, −∞ where a query may not look.
norms: ‖α_ij v_j W_o‖, how much key j adds to the output of query i through this head, W_o being the head's part of the output
projection (Kobayashi et al. 2020, without the bias); a recurrent decoder projects nothing: ‖α_ij h_j‖.
summary: the strongest links, entropy, mass and block means, without ever holding the matrix.
"""


class ByValue:
    """Equality of data that holds tensors: two tensors are equal if they have the same shape, dtype and numbers."""

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(_same(one, another) for one, another in zip(_values(self), _values(other), strict=True))

    def __hash__(self) -> int:
        return hash((type(self), *(one for one in _values(self) if not isinstance(one, Tensor | dict))))


def _values(data: object) -> list[object]:
    return [getattr(data, one.name) for one in fields(data)]  # type: ignore[arg-type]


def _same(one: object, other: object) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(value, other[key]) for key, value in one.items())
    if not (isinstance(one, Tensor) and isinstance(other, Tensor)):
        return one == other
    return (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device) and torch.equal(one, other)


def _check_target(mark: Tap | Edit) -> None:
    """Where a tap or an edit stands. Negative layers and heads count from the last."""
    check_kind(mark.kind)
    for name in ("layer", "head"):
        if (number := getattr(mark, name)) is not None and not _is_whole(number):
            raise ValueError(f"{name} is {shown(number)}, expected one whole number, or None for all")


def check_kind(kind: object) -> None:
    if kind not in get_args(Kind):
        raise ValueError(f"unknown kind of attention {shown(kind)}; expected one of {', '.join(get_args(Kind))}")


def _is_whole(number: object) -> bool:
    return isinstance(number, Integral) and not isinstance(number, bool)


# --- what goes in ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Source(ByValue):
    """A batch of inputs, padded to one size, and which of their places are real.

    values: token ids (B, S), sound frames (B, S, features) or pictures (B, channels, height, width).
    allow: True where a place is real, (B, S); for pictures (B, height, width). Padding stands at the end.
    beside: token ids of a second source, a text that says more about the first; its length has nothing to do with the other.
    """

    values: Tensor
    allow: Tensor
    auxiliary: Source | None = None

    @property
    def num_sentences(self) -> int:
        return self.values.shape[0]

    def to(self, device: torch.device | str) -> Source:
        auxiliary = None if self.auxiliary is None else self.auxiliary.to(device)
        return Source(self.values.to(device), self.allow.to(device), auxiliary)


@dataclass(frozen=True, eq=False)
class Memory(ByValue):
    """What the encoder hands over. Nothing behind it knows whether the source was text, a picture or sound.

    values_BSE: one vector for every source place.   allow_BS: True where that place is real.
    summary_BE: one vector for the whole source.     axes: (S,), or (rows, columns) where the places form a grid.
    seen: the encoder attention that a Look asked for.
    """

    values_BSE: Tensor
    allow_BS: Tensor
    summary_BE: Tensor
    axes: tuple[int, ...]
    seen: tuple[Seen, ...] = ()


# --- looking inside ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tap:
    """Asks for the attention weights of one place in a model, or for what else there is. `None` means all of them.

    rows: which queries: places of a sequence, of which only these are computed, or hypotheses of a step.
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
    """Changes attention where it happens: switches heads off, or makes them look at one place only.

    place=None: the weights become 0, so the head adds nothing. place=j: all weight goes to key j; a query that may not see
    key j (padding, the future) attends to nothing.
    """

    kind: Kind = "cross"
    layer: int | None = None
    head: int | None = None
    key: int | None = None

    def __post_init__(self) -> None:
        _check_target(self)
        if self.key is not None and not _is_whole(self.key):
            raise ValueError(f"place is {shown(self.key)}, expected one whole number, or None to switch heads off")
        if self.key is not None and self.key < 0:
            raise ValueError(f"place is {self.key}; sentences differ in length, so places count from the first, 0")


@dataclass(frozen=True)
class Look:
    """What a caller wants to see, passed in the hand.

    With taps only, the output still comes from the same fused kernel, bit for bit; the wanted weights are computed beside it,
    before dropout and detached. With edits or `grad=True` the plain formula is used, so that the weights act on the output and
    gradients flow through them. Under `grad` weights come as the one tensor that the output was computed from, all heads and
    rows: only that one has a gradient. Scores, norms and summaries are always detached, and know nothing of edits.
    """

    taps: tuple[Tap, ...] = ()
    edits: tuple[Edit, ...] = ()
    grad: bool = False

    def __post_init__(self) -> None:
        check_flags(grad=self.grad)
        for name, kind in (("taps", Tap), ("edits", Edit)):
            given = getattr(self, name)
            marks = (given,) if isinstance(given, kind) else given
            if not isinstance(marks, Sequence) or not all(isinstance(one, kind) for one in marks):
                raise TypeError(f"{name} is {shown(given)}, expected {kind.__name__}s, as in Look({name}=({kind.__name__}(),))")
            object.__setattr__(self, name, tuple(marks))

    def at(self, kind: Kind, layer: int, num_layers: int) -> Look | None:
        """The part of this look that concerns one layer, or None. Negative layers count from the last; its taps say which."""

        def here(mark: Tap | Edit) -> bool:
            if mark.kind == kind and mark.layer is not None and not -num_layers <= mark.layer < num_layers:
                raise UserError(
                    f"there is no {kind} attention in layer {mark.layer}: this model has layers 0 to {num_layers - 1}"
                )
            return mark.kind == kind and mark.layer in (None, layer, layer - num_layers)

        def named(tap: Tap) -> Tap:
            whole = self.grad and tap.what == "weights"
            return replace(tap, layer=layer, head=None, rows=None) if whole else replace(tap, layer=layer)

        taps, edits = tuple(map(named, filter(here, self.taps))), tuple(filter(here, self.edits))
        return replace(self, taps=tuple(dict.fromkeys(taps)), edits=edits) if taps or edits else None

    def at_row(self, row: int, num_rows: int) -> Look | None:
        """The part that concerns one query of many, for models whose queries come one at a time; None if there is none."""
        taps = dict.fromkeys(replace(tap, rows=None) for tap in self.taps if row in pick("row", tap.rows, num_rows))
        return replace(self, taps=tuple(taps)) if taps or self.edits or self.grad else None

    def at_any_row(self) -> Look:
        """The same for all queries."""
        return replace(self, taps=tuple(dict.fromkeys(replace(tap, rows=None) for tap in self.taps)))


def pick(name: str, wanted: Sequence[int] | None, size: int) -> tuple[int, ...]:
    """The numbers of the rows or heads that are wanted; negative ones count from the last."""
    for number in wanted or ():
        if not _is_whole(number) or not -size <= number < size:
            raise UserError(f"there is no {name} {shown(number)}: {name}s are numbered 0 to {size - 1} here")
    return tuple(range(size)) if wanted is None else tuple(number % size for number in wanted)


@dataclass(frozen=True, eq=False)
class Summary(ByValue):
    """Per query its strongest links and how spread out it is; per key how much it receives.

    top_weights, top_keys (..., Lq, k): the k largest weights of each query, the largest first, and the keys they belong to.
    entropy (..., Lq): −Σ w ln w; 0 where one key has all the weight, ln Lk where all keys have the same. (Weights that do not
    sum to 1 are first divided by the sum of their magnitudes.)
    mass (..., Lk): the sum of all weights on this key. All queries that may see anything add up to 1 each.
    blocks (..., ≤ 128, ≤ 128), on request: the mean weight in rectangles of ⌈Lq/128⌉ queries and ⌈Lk/128⌉ keys.
    distance (..., Lq), on request, for attention within one sequence: Σ_j w_ij |i − j|.
    """

    top_weights: Tensor
    top_keys: Tensor
    entropy: Tensor
    mass: Tensor
    blocks: Tensor | None = None
    distance: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Seen(ByValue):
    """What a tap asked for in one attention layer; mostly the exact weights: how much each query looks at each key.

    heads, rows: what stands on axes H and T of weights_BHTS. In a step, T counts hypotheses.
    what: which numbers weights_BHTS holds: weights, scores or norms. With a summary it holds the strongest weights of each
    query, (B, H, T, k), and `summary` the rest.
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
    """How well a query fits a key, before any mask or softmax. Subclass it and write `scores`; the rest has defaults.

    `scores` must treat every query row alone, so that long inputs can be worked off in tiles.
    """

    name: str
    """What a model folder calls it."""

    numbers_per_pair: int = 1
    """How many numbers `scores` holds per (query, key) pair at its widest; it sets the size of a tile."""

    by_content: bool = True
    """Whether the score looks at the keys themselves."""

    by_position: bool = False
    """Whether `prepare` wants to know the places of the keys."""

    rotary: bool = False
    """Whether the score stays the same when query and prepared key are turned alike, so that rotary positions make sense."""

    def scores(self, query: Tensor, prepared: Tensor) -> Tensor:
        """(..., Lq, dq) and what `prepare` made of the keys -> (..., Lq, Lk)."""
        raise NotImplementedError(f"{type(self).__name__} needs a method scores(query, prepared)")

    def prepare(self, key: Tensor, positions: Tensor | None = None) -> Tensor:
        """What depends on the keys alone, (..., Lk, dk) -> (..., Lk, any width): done once per source.

        places (..., Lk), the numbers of the keys, are given where `by_position` is set.
        """
        return key

    def known(self, prepared: Tensor) -> Tensor | None:
        """(..., Lk): False for keys that this score cannot judge, so that they get no weight. None: it knows them all."""
        return None

    def as_dot(self, query: Tensor, prepared: Tensor) -> tuple[Tensor, Tensor, float] | None:
        """(query', key', scale) for the fused kernel; None if there is no such form.

        scores = scale · query'·key', up to a constant per query, which softmax does not see.
        """
        return None


# --- one step at a time ------------------------------------------------------------------------------------------------------


class State(Protocol):
    """Everything a model carries from one target place to the next, for B sentences with K hypotheses each.

    A step *spends* its State: caches may be written in place, so using a spent one raises. `copy()` forks.
    """

    lengths_B: Tensor
    """How many tokens each sentence has consumed. Rows may differ: they can join a running batch."""

    def spend(self) -> None:
        """Marks this State as used; raises RuntimeError the second time."""

    def select(self, parents_BK: Tensor) -> Self:
        """The hypotheses that live on: new hypothesis k of sentence b continues old hypothesis parents[b, k]."""
        ...

    def keep(self, rows_N: Tensor) -> Self:
        """Only these sentences, in this order."""
        ...

    def join(self, *others: Self) -> Self:
        """The sentences of all, ours first."""
        ...

    def copy(self) -> Self: ...

    @property
    def nbytes(self) -> int: ...


@dataclass(frozen=True)
class Step:
    """One target place further: a logit for every word of the vocabulary, the next State, and what a Look asked for."""

    logits_BKV: Tensor
    state: State
    seen: tuple[Seen, ...] = ()


@dataclass(frozen=True, eq=False)
class Decoded(ByValue):
    """A whole target sequence at once, as training wants it: logits = states · weightᵀ + bias, computed when asked for.

    The loss is better off without them (core.losses.projected_loss): they are the largest tensor of all by far.
    attention_log_prob, attention_entropy (B, T): of the places that hard attention chose; None where attention is soft.
    affects_later_steps: whether a choice bears on later tokens too, not on its own alone.
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
        return F.linear(*self.projection)

    @property
    def projection(self) -> tuple[Tensor, Tensor, Tensor]:
        """(states, weight, bias), as F.linear and core.losses.projected_loss take them."""
        return self.states_BTD, self.weight_VD, self.bias_V


class Seq2Seq(Protocol):
    """What every model can do. Search, training and inspection know nothing else about it."""

    def encode(self, source: Source, look: Look | None = None) -> Memory: ...

    def start(self, memory: Memory, prefix_BP: Tensor | None = None) -> State:
        """One hypothesis per sentence. What depends only on the source is computed here, once; a prefix is read in one pass."""
        ...

    def step(self, ids_BK: Tensor, state: State, look: Look | None = None) -> Step:
        """Reads one token per hypothesis. The K hypotheses are K query rows: the source is never repeated for them."""
        ...

    def decode(self, ids_BT: Tensor, memory: Memory, look: Look | None = None) -> Decoded:
        """Reads whole target sequences, starting with <sos>; place t sees the tokens up to t."""
        ...


# --- search ------------------------------------------------------------------------------------------------------------------

MAX_HYPOTHESES = 1000
"""Of one sentence: the widest beam, and the most samples. Each holds a state of its own."""
MAX_LENGTH = 100_000
"""Tokens that an output may have after its prefix."""
MAX_TOKENS = 1_000_000
"""Hypotheses times tokens of one sentence, which may all have to be kept until it is done."""
MIN_TEMPERATURE = 1e-6
"""A sample is then the most probable token unless two are equal; far below, log-probabilities divided by it overflow."""
MAX_LENGTH_PENALTY = 10.0
"""An output twice as long then ranks higher even if its log-probability is a thousand times lower."""
MAX_REPETITION_PENALTY = 1000.0


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How to look for the best output. Plain data, so that it can be printed, compared and sent to any engine.

    An output of n tokens, <eos> included, is ranked by log_prob / ((5 + n)/6)^length_penalty (Wu et al. 2016, eq. 14), or, with
    "mean", by log_prob / n. What is forbidden (never, banned, no_repeat, min_length) is left out and does not raise the
    probability of the rest: log_prob stays the model's own.
    """

    beam: int = 1
    """How many hypotheses of a sentence live side by side. 1 is greedy search: the best token each time, up to <eos>."""
    n_best: int = 1
    """How many outputs to give of each sentence: at most `beam`, or any number of samples."""
    length_penalty: float | Literal["mean"] = 0.6
    min_length: int = 0
    """Tokens before <eos> is allowed."""
    max_length: int = 256
    """Tokens after which an output is stopped; it is then marked as not `finished`."""
    max_ratio: float | None = None
    """The same as tokens per source place, plus 10; the smaller limit holds. A near limit lets a beam stop earlier."""
    no_repeat: int = 0
    """No n tokens in a row come twice in an output; 0 allows it."""
    repetition_penalty: float = 1.0
    """The search multiplies the log-probability of tokens that the output already holds by this; `log_prob` stays as it is."""
    banned: tuple[tuple[int, ...], ...] = ()
    """Sequences of tokens that no output contains."""
    prefix: tuple[int, ...] = ()
    """Tokens with which every output begins."""
    sample: bool = False
    """Draw tokens instead of taking the best; n_best outputs of each sentence are drawn independently."""
    temperature: float = 1.0
    top_k: int = 0
    """Draw from the k most probable tokens only; 0 from all."""
    top_p: float = 1.0
    """Draw from the fewest tokens that together have this probability."""
    seed: int = 0
    """A sample depends on (seed, number of the sentence) and not on its neighbours."""
    stream: bool = False
    """Tell of tokens as soon as they are certain. A Look needs it: `seen` comes with the tokens."""

    def __post_init__(self) -> None:
        for name, value in _checked(vars(self)).items():
            object.__setattr__(self, name, value)
        if self.min_length > self.max_length:
            raise UserError(f"min_length {self.min_length} is more than max_length {self.max_length}")
        if self.sample and self.beam > 1:
            raise UserError(f"sample draws outputs one by one, but beam is {self.beam}; leave out one of the two")
        if not self.sample and self.n_best > self.beam:
            raise UserError(f"n_best is {self.n_best}, but a beam of {self.beam} finds {self.beam}; set beam={self.n_best}")
        if not self.sample and (self.temperature, self.top_k, self.top_p) != (1.0, 0, 1.0):
            raise UserError("temperature, top_k and top_p are for drawing; say sample=True too")
        if not all(self.banned):
            raise UserError("banned holds an empty sequence, which every output contains; leave it out")
        if len(self.prefix) >= self.max_length:
            raise UserError(f"the prefix has {len(self.prefix)} tokens, but max_length is {self.max_length}; raise max_length")
        if (tokens := self.num_hypotheses * (self.max_length - len(self.prefix))) > MAX_TOKENS:
            name = "n_best" if self.sample else "beam"
            raise UserError(
                f"{name} is {self.num_hypotheses} and max_length {self.max_length:,}, together {tokens:,} tokens; "
                f"lower one of them: hypotheses times tokens may come to {MAX_TOKENS:,}"
            )

    @property
    def num_hypotheses(self) -> int:
        """How many rows of a step a sentence takes."""
        return self.n_best if self.sample else self.beam

    def norm(self, length: int) -> float:
        """What the log-probability of an output of this many tokens, <eos> included, is divided by; it never falls."""
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
"""The least and the most that a whole number may be. Lengths are counted after the prefix."""

_NUMBERS: dict[str, tuple[Callable[[float], bool], str]] = {
    "temperature": (lambda number: MIN_TEMPERATURE <= number < inf, f"a number from {MIN_TEMPERATURE:g} up"),
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
"""Which numbers an option may be, and how that is said. NaN is in no range."""


def _checked(given: dict[str, Any]) -> dict[str, Any]:
    """Options as plain data: numbers of other libraries become Python's own, lists become tuples. An error names the first
    that is not what it should be."""
    prefix = _ids(given["prefix"])
    try:
        banned = [_ids(one) for one in given["banned"]]
    except TypeError:
        banned = [None]
    if prefix is None:
        raise _wrong("prefix", given["prefix"], "a list of token ids")
    if None in banned:
        raise _wrong("banned", given["banned"], "a list of lists of token ids")
    plain: dict[str, Any] = {"prefix": prefix, "banned": tuple(banned)}
    for name, (least, most) in _WHOLE.items():
        value = given[name]
        most += len(prefix) if name in ("min_length", "max_length") else 0
        if isinstance(value, bool) or not isinstance(value, Integral) or not least <= int(value) <= most:
            raise _wrong(name, value, f"a whole number from {least} to {most:,}")
        plain[name] = int(value)
    for name, (inside, expected) in _NUMBERS.items():
        value = given[name]
        if (value is None and name == "max_ratio") or (isinstance(value, str) and (name, value) == ("length_penalty", "mean")):
            continue
        plain[name] = _number(value)
        if not inside(plain[name]):
            raise _wrong(name, value, expected)
    for name in ("sample", "stream"):
        if not isinstance(given[name], bool):
            raise _wrong(name, given[name], "True or False")
    return plain


def _ids(given: object) -> tuple[int, ...] | None:
    """Numbers of tokens; None where these are none."""
    try:
        found = tuple(cast(Iterable[object], given))
    except TypeError:
        return None
    ids = tuple(int(one) for one in found if isinstance(one, Integral) and not isinstance(one, bool) and 0 <= int(one) < 2**31)
    return ids if len(ids) == len(found) else None


def _number(value: object) -> float:
    """NaN for what is no number, infinity for a whole number that is too large for one with a point."""
    try:
        return float(value) if isinstance(value, Real) and not isinstance(value, bool) else nan
    except OverflowError:
        return inf


def _wrong(name: str, value: object, expected: str) -> UserError:
    return UserError(f"{name} is {shown(value, 60)}, expected {expected}")


@dataclass(frozen=True)
class Hypothesis:
    """One output: its tokens without <eos>, their log-probability (raw sum, <eos> included), and what the search sorted by.

    token_log_probs: of each token, and of <eos> where the output is finished.
    """

    ids: tuple[int, ...]
    log_prob: float
    rank_score: float
    finished: bool
    token_log_probs: tuple[float, ...] = ()


@dataclass(frozen=True)
class Event:
    """News of one sentence, numbered in the order of the input.

    ids: tokens that are now certain, after those of earlier events.  tail: tokens that may still change.
    hypotheses: empty while the search goes on; at the end the outputs, the best first. All `ids` of a sentence together
    are the tokens of the best one.
    seen: what the taps of a Look saw while `ids` were written, one after the other; axes B and T have size 1.
    """

    sentence: int
    ids: tuple[int, ...] = ()
    tail: tuple[int, ...] = ()
    hypotheses: tuple[Hypothesis, ...] = ()
    seen: tuple[Seen, ...] = ()


class Engine(Protocol):
    """Runs a model. The torch engine is the reference; a faster one must equal it or decline by name."""

    def generate(
        self,
        sources: Sequence[Source],
        options: SearchOptions,
        look: Look | None = None,
        *,
        numbers: Sequence[int] | None = None,
        room: int = 0,
    ) -> Iterator[Event]:
        """Batches of sentences in, events out. Sentences are numbered through all batches, or as `numbers` says.

        room: how many sentences there may be at a time; a batch joins those before it as soon as it fits. Without room, one
        batch is searched after the other.
        """
        ...


# --- what comes out ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class AttentionMap(ByValue):
    """Exact attention weights with the words on both axes, for one sentence and one layer. Rows are target, columns source.

    axes: (rows, columns) where the source is a picture or a grid, whose cells are the columns here, row by row.
    seconds: how long each place of the source lasts where that is a sound; these are the columns, of `encoder` the rows too, of
    `fusion` the rows alone. 0 where no axis is time.
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
        """The average over the heads."""
        return self.weights_HTS.mean(0)

    @property
    def maps_TRC(self) -> Tensor:
        """The same over a picture: a map of rows and columns for every word."""
        if len(self.axes) != 2:
            raise UserError(f"{self.kind} attention of this model has no maps: its source is no picture or grid")
        maps_TRC: Tensor = self.mean_TS.unflatten(-1, self.axes)
        return maps_TRC

    def _repr_html_(self) -> str:
        """For notebooks: the average as a table, at most 64 x 64 of it. Colours are see-through, for light and dark pages."""
        weights, source, target = self.mean_TS[:64, :64].tolist(), self.source[:64], self.target[:64]
        head = "".join(f'<th style="font-weight:normal">{escape(token)}</th>' for token in source)
        rows = "".join(
            f'<tr><th style="font-weight:normal;text-align:right">{escape(token)}</th>'
            + "".join(
                f'<td title="{escape(token)} ← {escape(other)}: {weight:.4f}" '
                f'style="background:rgba(43,111,143,{min(1.0, abs(weight)):.3f});min-width:1.6em">&nbsp;</td>'
                for other, weight in zip(source, row, strict=True)
            )
            + "</tr>"
            for token, row in zip(target, weights, strict=True)
        )
        more = "" if max(self.weights_HTS.shape[1:]) <= 64 else "<p>The first 64 places; regard inspect shows all.</p>"
        title = f"{self.kind} attention, layer {self.layer}, average of {len(self.weights_HTS)} heads"
        return f'<table style="border-collapse:collapse" title="{title}"><tr><th></th>{head}</tr>{rows}</table>{more}'


@dataclass(frozen=True)
class Alternative:
    """One of the outputs of an n-best list. token_log_probs holds that of <eos> too where the output is finished."""

    text: str
    tokens: tuple[str, ...]
    log_prob: float
    rank_score: float
    finished: bool
    token_log_probs: tuple[float, ...]


@dataclass(frozen=True)
class AlignmentHead:
    """Where an alignment is read: one head, or the mean of those of a layer (head None), or of all layers (layer None too).

    shifted: a token is aligned by the step that has read it, not by the one that writes it. Deep inside a Transformer a state
    already thinks of the next token, near its input still of the last one (Chen et al. 2020).
    """

    layer: int | None = -1
    head: int | None = None
    shifted: bool = False

    def weights_TS(self, layers_HTS: Sequence[Tensor], num_targets: int, num_sources: int) -> Tensor:
        """One row per target token and one column per source token, without <eos>. Given are the weights of all layers, or of
        the one that is wanted; their last row belongs to the step that has read all tokens."""
        chosen = layers_HTS if self.layer is None or len(layers_HTS) == 1 else [layers_HTS[self.layer]]
        heads_NTS = torch.cat(list(chosen))
        weights_TS = heads_NTS.mean(0) if self.head is None else heads_NTS[self.head]
        first = 1 if self.shifted else 0
        return weights_TS[first : first + num_targets, :num_sources]


@dataclass(frozen=True)
class Result:
    """One translated text.

    log_prob is the raw sum over the tokens and <eos>; rank_score is what the search sorted by; finished is False where
    max_length stopped it; n_best holds the outputs, the best first; unknown holds the source symbols that the model never met;
    parts holds one Result for each sentence where the text was too long and was split.
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
        """Exact weights, computed now by one forced pass over this output."""
        return self.map_attention(kind, layer)

    def alignment(self) -> tuple[tuple[int, int], ...]:
        """(i, j): target token j looked most at source token i; from 0, no <eos>. Where the source has no tokens, i is a place:
        of a picture the cell, row by row.

        It is read where `regard align` found that this model aligns best, else from the mean of the last layer. Of a text that
        was split, the tokens are counted through all its parts."""
        if not self.parts:
            return tuple((i, j) for j, i in enumerate(self.align())) if self.tokens else ()
        links: list[tuple[int, int]] = []
        sources = targets = 0
        for part in self.parts:
            links += [(sources + i, targets + j) for i, j in part.alignment()]
            sources, targets = sources + len(part.source_tokens), targets + len(part.tokens)
        return tuple(links)

    def _repr_html_(self) -> str:
        """For notebooks: the text, and where the model looked, if it does."""
        try:
            picture = self.attention()._repr_html_()
        except UserError:
            picture = ""
        return f"<p>{escape(' '.join(self.source_tokens))} → <b>{escape(self.text)}</b></p>{picture}"
