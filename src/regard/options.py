"""The options of a search, checked. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf, nan
from numbers import Integral, Real
from typing import Any, Literal, TypedDict, cast, get_args

from regard.errors import UserError, did_you_mean, shown

EngineName = Literal["auto", "native", "torch"]
"""auto takes the steps of searches natively where the native engine serves, native always; torch takes them all by torch."""


def engine_name(given: object) -> EngineName:
    """Returns the name of an engine. Raises UserError if there is none of this name."""
    names: tuple[EngineName, ...] = get_args(EngineName)
    for name in names:
        if name == given:
            return name
    raise UserError(f"engine is {shown(given)}, expected one of {', '.join(names)}{did_you_mean(str(given), list(names))}")


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

    >>> options = regard.SearchOptions(beam=5, n_best=3, length_penalty="mean")
    >>> options.max_length, options.num_hypotheses, options.norm(4)
    (256, 5, 4.0)
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
    sample: bool = False
    """Samples tokens instead of taking the best; the n_best outputs of a sentence are sampled independently."""
    temperature: float = 1.0
    """Divides the log-probabilities before sampling; lower values favour probable tokens."""
    top_k: int = 0
    """Samples from the k most probable tokens only; 0 means from all."""
    top_p: float = 1.0
    """Samples from the smallest set of tokens whose probabilities sum to at least this."""

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
        if (tokens := self.num_hypotheses * self.max_length) > MAX_TOKENS:
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


class SearchKeywords(TypedDict, total=False):
    """The keyword arguments of every function that translates: the fields of `SearchOptions`, a prefix and a seed.

    Use it to type a function of yours that passes them on:

    >>> from typing import Unpack
    >>> def spell(text: str, **options: Unpack[regard.SearchKeywords]) -> str:
    ...     return regard.load("model")(text, **options).text
    >>> spell("cab", beam=5, prefix="C")
    'C A B'
    """

    beam: int
    n_best: int
    length_penalty: float | Literal["mean"]
    min_length: int
    max_length: int
    max_ratio: float | None
    no_repeat: int
    repetition_penalty: float
    banned: Iterable[str | Sequence[int]]
    """Words that no output contains, or their token ids."""
    sample: bool
    temperature: float
    top_k: int
    top_p: float
    prefix: str | Iterable[int]
    """A text that every output starts with, or its token ids."""
    seed: int
    """The random seed of samples."""


_WHOLE = {
    "beam": (1, MAX_HYPOTHESES),
    "n_best": (1, MAX_HYPOTHESES),
    "min_length": (0, MAX_LENGTH),
    "max_length": (1, MAX_LENGTH),
    "no_repeat": (0, MAX_LENGTH),
    "top_k": (0, 2**31 - 1),
}
"""Integer option -> its smallest and largest value."""

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
    try:
        banned = [token_ids(sequence) for sequence in given["banned"]]
    except TypeError:
        banned = [None]
    if None in banned:
        raise invalid("banned", given["banned"], "a list of lists of token ids")
    plain: dict[str, Any] = {"banned": tuple(banned)}
    for name, (smallest, largest) in _WHOLE.items():
        plain[name] = whole_number(name, given[name], smallest, largest)
    for name, (in_range, expected) in _NUMBERS.items():
        value = given[name]
        if (value is None and name == "max_ratio") or (isinstance(value, str) and (name, value) == ("length_penalty", "mean")):
            continue
        plain[name] = _number(value)
        if not in_range(plain[name]):
            raise invalid(name, value, expected)
    if not isinstance(given["sample"], bool):
        raise invalid("sample", given["sample"], "True or False")
    return plain


def whole_number(name: str, value: object, smallest: int, largest: int) -> int:
    """Returns an integer option as an int. Raises UserError if it is out of range or not an integer."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not smallest <= int(value) <= largest:
        raise invalid(name, value, f"a whole number from {smallest} to {largest:,}")
    return int(value)


def token_ids(given: object) -> tuple[int, ...] | None:
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


def invalid(name: str, value: object, expected: str) -> UserError:
    """Returns the error for an option with an invalid value."""
    return UserError(f"{name} is {shown(value, 60)}, expected {expected}")
