"""The types that cross folders on the road from what a user gives to what a user receives. Read this file first.

    text, file, row of columns ─ data.reader ▶ Request ─ Engine.open ▶ Search ─ Event ▶ pipeline ▶ Result
                                                └────── Engine.force ▶ Forced ▶ scores, attention, alignments

A `Request` is made once, by the Reader. An `Engine` runs it: the torch engine (decoding/torch_engine.py) is the reference, and
any other engine gives the same results or declines. Nothing here needs torch: numbers are numpy arrays. The types that carry
tensors between the models and the torch engine are in models/contract.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from regard.look import Kind, Look, Seen, Tap
from regard.options import SearchOptions

Array = NDArray[Any]


@dataclass(frozen=True)
class Specials:
    """The ids of the special tokens of a vocabulary. The vocabularies that regard trains have the defaults; those of models
    that were converted have others. Everything reads them from the codec (`TextCodec.specials`).

    pad: fills the shorter rows of a batch; a target with this id is not learned.  unk: what an unknown symbol becomes.
    start: what a decoder reads before the first token, <sos>.  eos: ends every output, and every source if `source_eos`.
    prefix: the tokens that every output starts with, such as the language and the task of Whisper.
    never: the tokens that no output may contain.  never_first: those that may not come first, after the prefix.
    """

    pad: int = 0
    unk: int = 1
    start: int = 2
    eos: int = 3
    prefix: tuple[int, ...] = ()
    never: tuple[int, ...] = (0, 1, 2)
    source_eos: bool = True
    never_first: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.pad in (self.eos, self.unk):
            raise ValueError(
                f"padding has the id {self.pad}, which is also that of <eos> or <unk>, so it would hide them from training; "
                "choose another token that no text contains"
            )

    @property
    def source_end(self) -> tuple[int, ...]:
        """What follows the tokens of a source."""
        return (self.eos,) if self.source_eos else ()

    @property
    def ids(self) -> frozenset[int]:
        """The ids of <pad>, <unk>, <sos> and <eos>."""
        return frozenset((self.pad, self.unk, self.start, self.eos))


OWN = Specials()
"""The special tokens of the vocabularies that regard trains."""

# --- what goes in ------------------------------------------------------------------------------------------------------------


SourceText = str | tuple[str, ...]
"""A source as a user gives it: a text or the name of a file; or, if the model reads several columns, a tuple with the text of
each, such as ("walk", "V;PST") or ("a.wav", "every second")."""


class FileAndText(NamedTuple):
    """A file and the tokens of its auxiliary text. A missing file has no positions, a missing text no tokens."""

    file: Array
    text: list[int]


SourceRow = list[int] | Array | FileAndText
"""One encoded source: the ids of a text, the array of a file (see data/sources.py), or both."""


@dataclass(frozen=True)
class Request:
    """One sentence to translate or to score.

    id: identifies the request among those of its search.  source: the encoded source; a language model has no source.
    num_positions: the length of the source, for packing requests of similar length.
    prefix: the tokens that the output starts with; also the prompt of a language model.
    limit: the largest number of tokens of the output, prefix included.
    seed: of its samples. The Reader derives it from the user's seed and the number of the line, so that samples do not depend
    on the rest of the batch.
    look: the attention to capture, and changes of it.  stream: whether to report tokens as soon as they are certain.
    """

    id: int
    source: SourceRow
    options: SearchOptions = SearchOptions()
    num_positions: int = 0
    prefix: tuple[int, ...] = ()
    limit: int = SearchOptions.max_length
    seed: int = 0
    look: Look | None = None
    stream: bool = False


# --- what comes out ----------------------------------------------------------------------------------------------------------


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
    """Progress of one request. Its last event has `hypotheses` or an `error`, never both.

    ids: tokens that are now certain, following those of earlier events.  tail: tokens that may still change.
    seen: what the taps of the Look captured since the last event, without padding; axis B has size 1. First the attention of
    the encoder and of the prefix, then, step by step, that of each of `ids`, and of <eos> in the last event. `Seen.rows` holds
    the positions of its queries.
    hypotheses: the outputs, the best first. The `ids` of all events of a request, joined, are the tokens of the best output.
    error: why this request failed or ended early; the others go on.
    """

    id: int
    ids: tuple[int, ...] = ()
    tail: tuple[int, ...] = ()
    seen: tuple[Seen[Array], ...] = ()
    hypotheses: tuple[Hypothesis, ...] = ()
    error: str = ""

    @property
    def is_last(self) -> bool:
        """Whether the request ends with this event."""
        return bool(self.hypotheses or self.error)


CANCELLED = "it was cancelled"
"""The error of a request that was cancelled."""


@dataclass(frozen=True)
class Forced:
    """The result of one forward pass over a given output (teacher forcing).

    token_log_probs: the log-probability of each token of the output, if it was asked for.
    seen: what the taps of the Look captured, without padding; axis B has size 1.
    axes: (positions,); (rows, columns) if the source is a picture or a grid, (time, rows, columns) if it is a video.
    log_probs_TV: the log-probability of every token of the vocabulary at every step, if it was asked for.
    error: why this request failed; the others go on.
    """

    id: int
    token_log_probs: tuple[float, ...] = ()
    seen: tuple[Seen[Array], ...] = ()
    axes: tuple[int, ...] = ()
    log_probs_TV: Array | None = None
    error: str = ""


# --- who does it -------------------------------------------------------------------------------------------------------------


class Search(Protocol):
    """A running search. Requests enter while others run, and leave when they are done or cancelled."""

    def submit(self, request: Request) -> None:
        """Adds a request, from any thread. Raises ValueError if one with this id is running, and RuntimeError after `close`."""

    def cancel(self, id: int) -> None:
        """Stops a request, from any thread. Its last event has the error CANCELLED, unless it had ended before."""

    def events(self, timeout: float | None = None) -> list[Event]:
        """Goes on with the search and returns what happened; for the owner of the search only, who calls it in a loop.

        Waits for a request if there is none: at most `timeout` seconds, None for as long as it takes. Returns an empty list
        after the timeout, after `close`, or if there is nothing to report yet.
        """
        ...

    def close(self) -> None:
        """Ends the search and frees its memory, from any thread. Requests that still run have no further events."""


class Engine(Protocol):
    """Runs requests. The torch engine is the reference; another one must give the same results, or decline."""

    def declines(self, request: Request) -> str | None:
        """Returns why this engine cannot run a request; None if it can."""
        ...

    def nbytes(self, request: Request) -> int:
        """Returns the memory that a request may need, in bytes: for packing, and for refusing."""
        ...

    def open(self) -> Search:
        """Starts a search without requests."""
        ...

    def force(
        self,
        requests: Sequence[Request],
        outputs: Sequence[Sequence[int]],
        *,
        log_probs: bool = True,
        distributions: bool = False,
    ) -> Iterator[Forced]:
        """Runs the model over given outputs instead of searching, and yields the results in any order.

        outputs: the tokens of each output; the prefix comes first, and <eos> last if the output ends.
        log_probs: whether to compute the log-probabilities of the outputs. What the Look captures needs none of them, and takes
        half the time without.
        distributions: whether to return the log-probability of every token of the vocabulary at every step, too.
        """
        ...


@dataclass(frozen=True)
class Traits:
    """What a model says of itself: whether it continues a text, how many positions it can count, its kinds of attention.

    continues_text: whether it is a language model: it has no source, and its source text is the beginning of its output.
    learns_from: what it is trained on: pairs of a source and a target; pairs whose target is one label, or one tag for each
    token of the source; or texts alone.  mask: the fraction of the tokens of a text that it learns to fill in, if it does.
    max_positions: the number of positions that it can count, in source and output, <eos> included; None if it is unlimited.
    attention: its kinds of attention, with the number of layers and the number of heads in each.
    soft_cross_attention: whether the weights of its cross-attention are probabilities that have a gradient.
    sampled_attention: whether training samples where its cross-attention attends (hard and gated attention).
    frontend: what it reads, "tokens" or the name of a frontend.  score: the name of its score function, if it has one.
    looks_ahead: whether its decoder has no look-ahead mask: in training a position sees the tokens that it is to write, and a
    pass over a given output says nothing about what the model writes step by step.
    shares_vocabulary: whether its source and its target must share one vocabulary: they share one embedding, or it copies.
    features_as_set: whether it reads the features of a text without an order; its memory has no positions for them.

    >>> traits = regard.load("model").model.traits
    >>> traits.attention, traits.continues_text
    ({'cross': (1, 1)}, False)
    """

    continues_text: bool = False
    learns_from: Literal["pairs", "labels", "tags", "texts"] = "pairs"
    mask: float = 0.0
    max_positions: int | None = None
    attention: Mapping[Kind, tuple[int, int]] = field(default_factory=dict)
    soft_cross_attention: bool = False
    sampled_attention: bool = False
    frontend: str = "tokens"
    score: str | None = None
    looks_ahead: bool = False
    shares_vocabulary: bool = False
    features_as_set: bool = False


@dataclass(frozen=True)
class AlignmentHead:
    """Which attention gives the alignment: one head, the mean over a layer (head None), or over all layers (layer None too).

    shifted: takes a token's weights from the step that reads it, not from the step that writes it. The deep layers of a
    Transformer already represent the next token, the layers near the input still the last one (Chen et al. 2020).
    norms: takes ‖α v W_o‖ instead of the weights α (Kobayashi et al. 2020).
    """

    layer: int | None = -1
    head: int | None = None
    shifted: bool = False
    norms: bool = False

    @property
    def tap(self) -> Tap:
        """The tap that captures what `weights_TS` reads."""
        return Tap("cross", self.layer, what="norms" if self.norms else "posterior")

    def weights_TS(self, layers_HTS: Sequence[Array], num_targets: int, num_sources: int) -> Array:
        """Returns one row per target token and one column per source token, without <eos>.

        layers_HTS: the weights (or norms) of all layers, or of the chosen one only; their last row is the step that has read
        all tokens.
        """
        chosen = layers_HTS if self.layer is None or len(layers_HTS) == 1 else [layers_HTS[self.layer]]
        heads_NTS = np.concatenate(list(chosen))
        weights_TS: Array = heads_NTS.mean(0) if self.head is None else heads_NTS[self.head]
        first = 1 if self.shifted else 0
        return weights_TS[first : first + num_targets, :num_sources]
