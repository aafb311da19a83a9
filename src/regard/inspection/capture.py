"""Captures everything about one translation: all layers and heads, gates of recurrent cells, probabilities of tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from numbers import Integral
from operator import index
from typing import Any, Unpack, cast

import numpy as np
import torch
from torch import Tensor, nn

from regard.contracts import Array, FileAndText, SourceText
from regard.data.reader import Given, Segment
from regard.data.source_text import file_and_text, flat
from regard.data.sources import FileCodec
from regard.decoding.torch_engine import TorchEngine
from regard.equality import ByValue
from regard.errors import UserError, shown
from regard.layers.recurrent import GATES, cell_over_time
from regard.look import Edit, Kind, Look, Seen, Summary, Tap, What
from regard.models.contract import Memory
from regard.models.ensemble import Ensemble
from regard.models.rnn_seq2seq import RnnSeq2Seq, RnnState
from regard.options import SearchKeywords
from regard.pipeline import Translator
from regard.results import Result

# H heads  T rows  S columns  V vocabulary  W width of a recurrent cell

KINDS: tuple[Kind, ...] = ("cross", "fusion", "encoder", "decoder")
LONGEST = 1024
"""Texts with more tokens are captured as summaries: nobody can read a matrix of 4,096 x 4,096 weights per head."""


@dataclass(frozen=True, eq=False)
class CapturedLayer(ByValue):
    """One attention layer: its numbers (H, T, S) by name (weights, scores, norms), or a summary of its weights.

    >>> layer = regard.inspect(regard.load("model"), "cab").layer("cross", -1)
    >>> layer.kind, layer.num_heads, layer.numbers["weights"].shape
    ('cross', 1, torch.Size([1, 4, 4]))
    >>> layer.entropy_HT().shape, layer.mass_HS().shape, layer.distance_H()
    (torch.Size([1, 4]), torch.Size([1, 4]), None)
    """

    kind: Kind
    layer: int
    numbers: dict[What, Tensor]
    summary: Summary[Tensor] | None = None

    @property
    def num_heads(self) -> int:
        """The number of heads."""
        return len(next(iter(self.numbers.values())) if self.summary is None else self.summary.entropy)

    def entropy_HT(self) -> Tensor:
        """The entropy of each query's weights, in nats."""
        if self.summary is not None:
            return self.summary.entropy
        weights = self.numbers["weights"].abs()
        shares = weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
        entropy: Tensor = torch.special.entr(shares).sum(-1)
        return entropy

    def mass_HS(self) -> Tensor:
        """The total weight that each key receives."""
        return self.numbers["weights"].sum(-2) if self.summary is None else self.summary.mass

    def distance_H(self) -> Tensor | None:
        """Mean over the queries of Σ_j w_ij |i − j|: how far each head attends. None for attention between two sequences."""
        if self.kind in ("cross", "fusion"):
            return None
        if self.summary is not None:
            return None if self.summary.distance is None else self.summary.distance.mean(-1)
        return mean_distance(self.numbers["weights"])


def mean_distance(weights_HTS: Tensor) -> Tensor:
    """Returns (H,): the mean over the queries of Σ_j w_ij |i − j|, for attention within one sequence."""
    positions = torch.arange(weights_HTS.shape[-1], device=weights_HTS.device)
    return (weights_HTS * (positions[-weights_HTS.shape[-2] :, None] - positions).abs()).sum(-1).mean(-1)


@dataclass(frozen=True, eq=False)
class CapturedGates(ByValue):
    """The inside of one recurrent layer over time, (T, W) each, along the source (`encoder`) or the output (`decoder`).

    opened: the gates, from 0 to 1: input, forget and output of an LSTM, reset and update of a GRU.
    states: what flows through them: the candidate, the cell state of an LSTM (`cell`), and the state h (`state`).

    >>> gates = regard.inspect(regard.load("model"), "cab").gates[0]
    >>> gates.where, list(gates.opened), list(gates.states)
    ('encoder, layer 0, left to right', ['reset', 'update'], ['candidate', 'state'])
    """

    where: str
    along: Kind
    opened: dict[str, Tensor]
    states: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Inspection(ByValue):
    """Everything that was captured of one translation.

    source, target: the tokens of both sides, with <eos>.
    log_probs_TV: the log-probability of every token of the vocabulary at every step, without the constraints of a search.
    axes: (rows, columns) if the source is a picture or a grid, (time, rows, columns) if it is a video. picture: the picture, or
    the frames of a video side by side, as a data URI.
    sound: the samples of a sound, as returned by data.sound.to_row. auxiliary: the tokens of the auxiliary text, with <eos>.
    title: a readable name of the source, if that is not its text.  start: the token that the decoder reads first.

    >>> inspection = regard.inspect(regard.load("model"), "cab")
    >>> inspection.output, inspection.source
    ('C A B', ('c', 'a', 'b', '<eos>'))
    >>> inspection.log_probs_TV.shape == (len(inspection.target), len(inspection.vocabulary))
    True
    >>> inspection.rows("cross"), inspection.columns("decoder") == inspection.read
    (('C', 'A', 'B', '<eos>'), True)
    >>> inspection.layer("cross", -1).numbers["weights"].shape
    torch.Size([1, 4, 4])
    """

    text: str
    output: str
    finished: bool
    source: tuple[str, ...]
    target: tuple[str, ...]
    target_ids: tuple[int, ...]
    vocabulary: tuple[str, ...]
    log_probs_TV: Tensor
    layers: tuple[CapturedLayer, ...]
    gates: tuple[CapturedGates, ...]
    axes: tuple[int, ...] = ()
    picture: str = ""
    sound: Tensor | None = None
    auxiliary: tuple[str, ...] = ()
    title: str = ""
    start: str = "<sos>"

    @property
    def read(self) -> tuple[str, ...]:
        """The token that the decoder reads at each step, <sos> first."""
        return (self.start, *self.target[:-1])

    def rows(self, kind: Kind) -> tuple[str, ...]:
        """The tokens that attend (queries) in this kind of attention."""
        return self.source if kind in ("encoder", "fusion") else self.target

    def columns(self, kind: Kind) -> tuple[str, ...]:
        """The tokens that are attended to (keys) in this kind of attention."""
        return self.read if kind == "decoder" else self.auxiliary if kind == "fusion" else self.source

    def layer(self, kind: Kind, number: int) -> CapturedLayer:
        """Returns a layer by its index; -1 is the last. Raises UserError if there is none."""
        layers = {layer.layer: layer for layer in self.layers if layer.kind == kind}
        if not layers:
            raise UserError(f"this model has no {kind} attention")
        if not isinstance(number, Integral) or not -len(layers) <= number < len(layers):
            raise UserError(f"there is no {kind} attention in layer {number!r}: this model has layers 0 to {len(layers) - 1}")
        return layers[number % len(layers)]


@torch.no_grad()
def inspect(
    translator: Translator,
    text: Given,
    *,
    output: Sequence[int] | None = None,
    finished: bool = True,
    what: Sequence[What] = ("weights",),
    edits: Edit | Sequence[Edit] = (),
    **options: Unpack[SearchKeywords],
) -> Inspection:
    """Translates a text and captures one forward pass of the model over its output (teacher forcing).

    output: ids of a given output, without <eos>, instead of the model's own. finished: whether <eos> follows it.
    what: the numbers to capture, of weights, scores and norms; texts longer than 1,024 tokens are summarised instead, except
    for cross-attention to pictures and videos, which is drawn over them. The weights of marginal and monotone
    attention are the posterior: how probable each source position is, given the whole output.
    edits: changes of attention, both in the translation and in what is captured.
    options: options of the search, as for a translator.

    Raises UserError if the text is empty, or if the model computes NaN.

    >>> model = regard.load("model")
    >>> inspection = regard.inspect(model, "cab", what=("weights", "scores"))
    >>> inspection.target, inspection.layer("cross", -1).numbers["scores"].shape
    (('C', 'A', 'B', '<eos>'), torch.Size([1, 4, 4]))
    """
    reader = translator.reader
    segment = reader.segment(reader.accept(text, "inspect"))
    codec, row, size = reader.source, segment.request.source, segment.request.num_positions
    if not size:
        raise UserError("the text is empty, so there is no attention to show")
    if output is None:
        result = translate_whole(translator, segment.source, options, edits)
        output, finished = result.ids, result.finished
    written = read_ids(translator, output, finished=finished)
    captured: tuple[What, ...] = (cast(What, what),) if isinstance(what, str) or not isinstance(what, Sequence) else tuple(what)
    is_long = max(size + 1, len(written)) > LONGEST
    file, name = row.file if isinstance(row, FileAndText) else row, file_and_text(segment.source)[0]
    has_maps = isinstance(file, np.ndarray) and file.ndim > 2

    def quantities(kind: Kind) -> tuple[What, ...]:
        if is_long and not (has_maps and kind == "cross"):
            return ("summary",)
        return tuple("posterior" if quantity == "weights" else quantity for quantity in captured)

    look = Look(tuple(Tap(kind, what=quantity) for kind in KINDS for quantity in quantities(kind)), edits)  # type: ignore[arg-type]
    (forced,) = translator.engine.force([replace(segment.request, look=look)], [written], distributions=True)
    if forced.log_probs_TV is None:
        raise UserError(forced.error)
    is_file = isinstance(codec, FileCodec) and codec.has_file(segment.source)
    return Inspection(
        text=flat(segment.source),
        output=translator.target.decode(output),
        finished=finished,
        source=reader.labels(segment.source, forced.axes),
        target=translator.target.tokens(written),
        target_ids=written,
        vocabulary=translator.target.tokens(range(len(translator.target))),
        log_probs_TV=torch.from_numpy(forced.log_probs_TV),
        layers=tuple(_layers(forced.seen)),
        gates=tuple(_gates(translator, segment, written, Look(edits=look.edits))),
        axes=forced.axes if len(forced.axes) > 1 and is_file else (),
        picture=codec.preview(name) if isinstance(codec, FileCodec) and name else "",
        sound=torch.from_numpy(file) if isinstance(file, np.ndarray) and file.dtype == np.int16 and len(file) else None,
        auxiliary=codec.auxiliary_labels(segment.source) if isinstance(codec, FileCodec) else (),
        title=reader.title(segment.source) if isinstance(codec, FileCodec) else "",
        start=translator.target.tokens((translator.target.specials.start,))[0],
    )


def translate_whole(
    translator: Translator, source: SourceText, options: SearchKeywords, edits: Edit | Sequence[Edit] = ()
) -> Result:
    """Translates a source for inspection. Raises UserError if the text had to be split, as well as the errors of a call."""
    result = translator(source, edits=edits, **options)
    if result.parts:
        raise UserError(
            f"this text is too long and was translated in {len(result.parts)} parts; inspect one sentence at a time"
        )
    return result


def read_ids(translator: Translator, output: Sequence[int], *, finished: bool) -> tuple[int, ...]:
    """Returns the ids of a given output, with <eos> if it is finished. Raises unless they are ids of the target vocabulary."""
    try:
        ids = tuple(map(index, output))
    except TypeError:
        raise TypeError(f"output is {shown(output)}, expected token ids such as result.ids") from None
    if not all(0 <= token < len(translator.target) for token in ids):
        raise ValueError(f"output is {shown(output)}, expected token ids from 0 to {len(translator.target) - 1}")
    return (*ids, translator.target.specials.eos) if finished else ids


def _layers(seen: Sequence[Seen[Array]]) -> Iterator[CapturedLayer]:
    keys = dict.fromkeys((result.kind, result.layer) for result in seen)
    for kind, layer in sorted(keys, key=lambda key: (KINDS.index(key[0]), key[1])):
        in_layer = [result for result in seen if (result.kind, result.layer) == (kind, layer)]
        summary = next((result.summary for result in in_layer if result.summary is not None), None)
        numbers: dict[What, Tensor] = {
            "weights" if result.what == "posterior" else result.what: torch.from_numpy(result.weights_BHTS[0])
            for result in in_layer
            if result.summary is None
        }
        yield CapturedLayer(kind, layer, numbers, None if summary is None else _first_sentence(summary))


def _first_sentence(summary: Summary[Array]) -> Summary[Tensor]:
    """Returns the summary of the first, and only, sentence of the batch."""
    parts = (getattr(summary, field.name) for field in fields(summary))
    return Summary(*(None if part is None else torch.from_numpy(part[0]) for part in parts))  # type: ignore[arg-type]


# --- gates -------------------------------------------------------------------------------------------------------------------

Inputs = dict[str, tuple[nn.RNNBase, Tensor, Tensor]]


@contextmanager
def recurrent_inputs(model: nn.Module) -> Iterator[Inputs]:
    """Collects the inputs of all recurrent stacks that run over a whole sequence: name -> (stack, inputs, first states)."""
    collected: Inputs = {}

    def keep(name: str, stack: nn.Module, arguments: tuple[Any, ...]) -> None:
        state = arguments[1]
        collected[name] = (
            cast(nn.RNNBase, stack),
            arguments[0],
            torch.cat(state, dim=-1) if isinstance(state, tuple) else state,
        )

    stacks = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.RNNBase)]
    hooks = [
        stack.register_forward_pre_hook(lambda module, arguments, name=name: keep(name, module, arguments))
        for name, stack in stacks
    ]
    try:
        yield collected
    finally:
        for hook in hooks:
            hook.remove()


def _gates(translator: Translator, segment: Segment, written: Sequence[int], look: Look) -> Iterator[CapturedGates]:
    """Runs the torch model once more and yields the gates of its recurrent layers; none of an ensemble, whose models are to be
    inspected one by one, or if another engine runs the model."""
    if not isinstance(translator.engine, TorchEngine):
        return
    engine = translator.engine.evaluating()
    model = cast(nn.Module, engine.model)
    if isinstance(model, Ensemble) or not any(isinstance(module, nn.RNNBase) for module in model.modules()):
        return
    with recurrent_inputs(model) as inputs:
        memory = engine.model.encode(engine.collate([segment.request.source]), look)
        read = torch.tensor([[engine.specials.start, *written[:-1]]], device=engine.device)
        engine.model.decode(read, memory, look)
    if isinstance(model, RnnSeq2Seq) and model.settings.runs_stepwise:
        inputs = {**inputs, "decoder": (model.decoder, *_stepwise_inputs(model, memory, read, look))}
    for name, (stack, x_1TI, state_LNX) in inputs.items():
        if "embedding." in name:  # the auxiliary text has no axis in the charts of gates
            continue
        backwards = ".backwards." in name
        for number, inside in enumerate(cell_over_time(stack, x_1TI, state_LNX)):
            along: Kind = "encoder" if name.startswith("encoder") else "decoder"
            layer = int(name.rpartition(".")[2]) if along == "encoder" else number
            direction = ", right to left" if backwards else ", left to right" if along == "encoder" else ""
            in_order = {name: (values[0].flip(0) if backwards else values[0]).cpu() for name, values in inside.items()}
            opened = {name: in_order.pop(name) for name in GATES[stack.mode]}
            yield CapturedGates(f"{along}, layer {layer}{direction}", along, opened, in_order)


def _stepwise_inputs(model: RnnSeq2Seq, memory: Memory, read: Tensor, look: Look) -> tuple[Tensor, Tensor]:
    """Returns the inputs of a decoder that runs step by step, [c_t; y] or [s̃; y], and its first state."""
    state: RnnState = model.start(memory)
    first_LNX, inputs = state.hidden_BKLX[:, 0].transpose(0, 1), []
    for position in range(read.shape[1]):
        before = state
        step = model.step(read[:, position : position + 1], state, replace(look, taps=(Tap("cross"),)))
        feedback = (
            before.fed_BKD[:, 0]
            if model.settings.input_feeding
            else (step.seen[0].weights_BHTS[:, 0] @ before.values_BSE)[:, 0]
        )
        inputs.append(torch.cat((feedback, model.target_embedding(read[:, position])), dim=-1))
        state = cast(RnnState, step.state)
    return torch.stack(inputs, dim=1), first_LNX
