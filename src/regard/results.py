"""What a user receives: plain data, which can be stored as JSON, pickled and sent elsewhere. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar, Protocol, cast

import numpy as np

from regard.contracts import Array, SourceText
from regard.equality import ByValue
from regard.errors import UserError
from regard.look import Edit, Kind, Seen


@dataclass(frozen=True, eq=False)
class AttentionMap(ByValue):
    """Exact attention weights of one sentence and one layer, with the tokens of both axes.

    weights_HTS: a numpy array: heads, queries, keys.
    target, source: the tokens of the rows (queries) and of the columns (keys), whatever the kind of attention.

    axes: (rows, columns) if the source is a picture or a grid, whose cells, row by row, are the columns of the weights; (time,
    rows, columns) if it is a video.
    seconds: the duration of one source position if the source is a sound; 0 if no axis is time. The time axis is the columns;
    for `encoder` also the rows, for `fusion` the rows only.
    heads: the indices of the heads in the layer, if they are known.

    >>> attention = regard.load("model")("cab").attention()
    >>> attention.target, attention.source
    (('C', 'A', 'B', '<eos>'), ('c', 'a', 'b', '<eos>'))
    >>> attention.weights_HTS.shape  # heads, queries, keys
    (1, 4, 4)
    >>> attention.mean_TS.argmax(-1)  # each letter attends to itself
    array([0, 1, 2, 3])
    """

    weights_HTS: Array
    source: tuple[str, ...]
    target: tuple[str, ...]
    kind: Kind
    layer: int
    axes: tuple[int, ...] = ()
    seconds: float = 0.0
    heads: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights_HTS", np.asarray(self.weights_HTS))  # a tensor is accepted, too

    @property
    def mean_TS(self) -> Array:
        """The mean over the heads."""
        mean_TS: Array = self.weights_HTS.mean(0)
        return mean_TS

    @property
    def maps_TRC(self) -> Array:
        """The mean over the heads as one map (rows, columns) over the picture or grid for each target token.

        Raises UserError if the source is not a picture or a grid.

        >>> weights = torch.full((1, 2, 6), 1 / 6).numpy()
        >>> attention = regard.AttentionMap(weights, tuple("abcdef"), ("two", "words"), "cross", 0, axes=(2, 3))
        >>> attention.maps_TRC.shape  # target tokens, rows and columns of the picture
        (2, 2, 3)
        """
        if len(self.axes) != 2:
            raise UserError(f"{self.kind} attention of this model has no maps: its source is not a picture or a grid")
        return self.mean_TS.reshape(-1, *self.axes)

    @property
    def maps_TFRC(self) -> Array:
        """The mean over the heads as one map (rows, columns) over each frame of a video, for each target token.

        Raises UserError if the source is not a video.

        >>> weights = torch.full((1, 2, 12), 1 / 12).numpy()
        >>> attention = regard.AttentionMap(weights, tuple("abcdefghijkl"), ("two", "words"), "cross", 0, axes=(2, 2, 3))
        >>> attention.maps_TFRC.shape  # target tokens, frames, rows and columns of a frame
        (2, 2, 2, 3)
        """
        if len(self.axes) != 3:
            raise UserError(f"{self.kind} attention of this model has no maps over frames: its source is not a video")
        frames, rows, columns = self.axes
        return self.mean_TS.reshape(-1, frames, rows, columns)

    def _repr_html_(self) -> str:
        """Returns the mean as an HTML table, for notebooks."""
        from regard.inspection.notebook import attention_html

        return attention_html(self)


@dataclass(frozen=True)
class Alternative:
    """One output of an n-best list.

    token_log_probs: the log-probability of each token, and of <eos> if the output is finished.
    ids: its token ids; results that were stored by older versions have none.

    >>> result = regard.load("model")("cab", beam=2, n_best=2)
    >>> best, second = result.n_best
    >>> best.text, best.log_prob > second.log_prob
    ('C A B', True)
    """

    text: str
    tokens: tuple[str, ...]
    log_prob: float
    rank_score: float
    finished: bool
    token_log_probs: tuple[float, ...]
    ids: tuple[int, ...] = field(default=(), repr=False)


class Inspector(Protocol):
    """Computes what a Result does not hold: the Translator that made it."""

    def attention(
        self,
        result: Result,
        /,
        kind: Kind = "cross",
        layer: int = -1,
        head: int | None = None,
        *,
        alternative: int = 0,
        edits: Edit | Sequence[Edit] | None = None,
    ) -> AttentionMap:
        """Computes the exact weights of a result."""
        ...

    def alignment(self, result: Result, *, pieces: bool | None = None) -> tuple[tuple[int, int], ...]:
        """Returns the links (source word, target word) of a result."""
        ...


@dataclass(frozen=True)
class Result:
    """One translated text, with its tokens, scores and alternatives.

    A Result is plain data: `as_dict` returns it for JSON, and it can be pickled.

    source: what was translated; normalised, if the model normalises.
    log_prob: the sum of the log-probabilities of the tokens and <eos>.  rank_score: the score by which the search ranked it.
    finished: False if max_length cut it off.  n_best: the outputs, the best first.
    unknown: source symbols that are not in the model's vocabulary.
    parts: one Result per sentence if the text was too long and was split.  ids: the token ids of the output.
    edits: the changes of attention with which it was translated.

    >>> result = regard.load("model")("cab")
    >>> result.text, result.tokens, result.finished
    ('C A B', ('C', 'A', 'B'), True)
    >>> result.alignment()  # source token 0 is written as target token 0, and so on
    ((0, 0), (1, 1), (2, 2))
    >>> regard.Result.from_dict(result.as_dict()) == result
    True
    """

    text: str
    tokens: tuple[str, ...]
    source: SourceText
    source_tokens: tuple[str, ...]
    log_prob: float
    rank_score: float
    finished: bool
    n_best: tuple[Alternative, ...]
    unknown: tuple[str, ...]
    parts: tuple[Result, ...] = ()
    ids: tuple[int, ...] = field(default=(), repr=False)
    edits: tuple[Edit, ...] = field(default=(), repr=False)
    _inspector = None  # these two are not fields: they are not stored
    _seen: ClassVar[tuple[Seen[Array], ...]] = ()

    def made_by(self, inspector: Inspector, seen: tuple[Seen[Array], ...] = ()) -> Result:
        """Remembers who computes what this Result does not hold, and what was seen; returns the Result."""
        object.__setattr__(self, "_inspector", inspector)
        object.__setattr__(self, "_seen", seen)
        return self

    @property
    def seen(self) -> tuple[Seen[Array], ...]:
        """What the taps of `look` captured while this output was written: one `Seen` per tap and layer, with one row for each
        token and <eos>. It is not stored with the Result; `attention` computes it again.

        >>> result = regard.load("model")("cab", look=regard.Look(taps=(regard.Tap("cross"),)))
        >>> [(seen.kind, seen.weights_BHTS.shape) for seen in result.seen]  # batch, heads, queries, keys
        [('cross', (1, 1, 4, 4))]
        """
        return self._seen

    def attention(
        self,
        kind: Kind = "cross",
        layer: int = -1,
        head: int | None = None,
        *,
        alternative: int = 0,
        edits: Edit | Sequence[Edit] | None = None,
    ) -> AttentionMap:
        """Computes the exact weights in one forward pass with this output as the target: `translator.attention(result)`.

        For many results, `translator.attention(results)` is much faster.

        kind, layer, head: which attention; by default all heads.  alternative: the index of an output in `n_best`.
        edits: changes of attention; by default those with which the text was translated.

        Raises UserError if the model has no such attention, the text was split or is empty, or this Result was unpickled.

        >>> regard.load("model")("cab").attention("cross", layer=-1).mean_TS.shape
        (4, 4)
        """
        inspector = self._known_inspector("attention")
        return inspector.attention(self, kind, layer, head, alternative=alternative, edits=edits)

    def alignment(self, *, pieces: bool | None = None) -> tuple[tuple[int, int], ...]:
        """Returns links (i, j), sorted: target word j comes from source word i, the one that it attends to most.

        Words are separated by white space and counted from 0, also through the parts of a text that was split; features follow
        the words of their text. The weights of the tokens of a word are added up. A word whose weights are all 0 has no link.
        A side whose unit is characters counts characters instead. If the source is a file, i is a position; in a picture that
        is a grid cell, row by row. The weights are those of the alignment head that `regard align` found for this model, else
        the mean over the heads of the last layer.

        pieces: True links tokens, without <eos>; False links words, even if the unit is characters.
        """
        return self._known_inspector("alignment").alignment(self, pieces=pieces)

    def _known_inspector(self, name: str) -> Inspector:
        if self._inspector is None:
            raise UserError(
                f"this result was stored and no longer knows its model; load the model and call translator.{name}(result)"
            )
        return self._inspector

    def as_dict(self) -> dict[str, Any]:
        """Returns the result as dictionaries, lists, texts and numbers, for JSON."""
        return cast(dict[str, Any], _lists(asdict(self)))

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Result:
        """Returns the result that `as_dict` or `dataclasses.asdict` described."""
        values = _tuples({name: value for name, value in plain.items() if name not in ("parts", "n_best", "edits")})
        n_best = tuple(Alternative(**_tuples(output)) for output in plain["n_best"])
        edits = tuple(Edit(**edit) for edit in plain.get("edits", ()))
        return cls(**values, n_best=n_best, parts=tuple(map(cls.from_dict, plain["parts"])), edits=edits)

    def __getstate__(self) -> dict[str, Any]:
        return {item.name: getattr(self, item.name) for item in fields(self)}

    def __copy__(self) -> Result:
        return self  # nothing in it can change

    def __deepcopy__(self, memo: dict[int, Any]) -> Result:
        return self

    def _repr_html_(self) -> str:
        """Returns the text and, if the model has attention, its weights as HTML, for notebooks."""
        from regard.inspection.notebook import result_html

        return result_html(self)


def _lists(value: Any) -> Any:
    """Returns the value with lists in place of tuples."""
    if isinstance(value, dict):
        return {name: _lists(item) for name, item in value.items()}
    return [_lists(item) for item in value] if isinstance(value, list | tuple) else value


def _tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values with tuples in place of lists."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


@dataclass(frozen=True)
class Refused:
    """The result for a text that cannot be translated or scored.

    reason: why, and what to do.

    >>> (refused,) = regard.load("model").score_each(["a" * 2000], ["A"])
    >>> refused
    Refused(reason='it has 2,000 source and 1 target tokens, the maximum is 1,024 each; shorten it')
    """

    reason: str


@dataclass(frozen=True)
class Partial:
    """An intermediate result of `Translator.stream`.

    text: the beginning of the output, which will not change.  tail: the rest of the best hypothesis, which may still change.
    result: the complete result, in the last item only.
    seen: what the taps of `look` captured since the last item; `Seen.rows` holds the positions of the tokens.

    >>> *_, before, last = regard.load("model").stream("cab")
    >>> before.text, before.tail
    ('C A B', '')
    >>> last.result.text
    'C A B'
    """

    text: str
    tail: str
    result: Result | None = None
    seen: tuple[Seen[Array], ...] = ()


@dataclass(frozen=True, eq=False)
class Encoded(ByValue):
    """What the encoder of a model makes of a source: a vector for each position, and one for the whole source.

    states: an array (positions, width).  tokens: a label for each position: the tokens and <eos>; times or cells of a file.
    vector: an array (width,): the mean of the states in Transformers, the final states of both directions in recurrent models,
    and in a classifier what its labels are computed from.
    axes: (positions,); (rows, columns) if the source is a picture or a grid, whose cells are the positions, row by row; or
    (time, rows, columns) if it is a video.

    >>> encoded = regard.load("model").encode("cab")
    >>> encoded.tokens, encoded.states.shape[0], encoded.vector.ndim
    (('c', 'a', 'b', '<eos>'), 4, 1)
    """

    states: Array
    tokens: tuple[str, ...]
    vector: Array
    axes: tuple[int, ...]


@dataclass(frozen=True)
class Scored:
    """The log-probability of a given output.

    log_prob: the sum over all tokens and <eos>, not normalised by length.  tokens: the tokens of the output.
    token_log_probs: the log-probability of each token and, last, of <eos>.
    unknown: symbols of the output that have no token.

    >>> (scored,) = regard.load("model").score(["cab"], ["C A B"])
    >>> scored.tokens, len(scored.token_log_probs)
    (('C', 'A', 'B'), 4)
    """

    log_prob: float
    tokens: tuple[str, ...]
    token_log_probs: tuple[float, ...]
    unknown: tuple[str, ...]
