"""A Transformer encoder with an output layer: a label for a whole source (classifier), a tag for every token (tagger), or the
tokens that are missing in a text (masked).

Each is a `Seq2Seq`: its output is the sequence of labels, and then <eos>. No label depends on another, so the output of step t
is read from the memory, whatever was written before; search, scores, training and inspection work as for other models.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Literal, cast

import torch
from torch import Tensor, nn

from regard.contracts import Traits
from regard.core import masks
from regard.core.precision import log_softmax
from regard.core.source import Source
from regard.layers.blocks import Activation
from regard.layers.frontends import FrontendName, check_frontend, make_frontend
from regard.look import Look
from regard.models.contract import Decoded, Memory, Model, ModelSettings, State, Step
from regard.models.encoder import SourceEncoder, with_fusion
from regard.models.stack import Scores, StackSettings, score_of_width
from regard.models.state import BatchState, per_hypothesis, per_sentence

# B sources  K hypotheses  S source positions  T output positions  E width of the memory  V vocabulary of the labels

Pooling = Literal["mean", "max", "first"]

UNSEEN = -30.0
"""The log-probability of <unk>, the label that did not occur in training: too small to matter, but the loss stays finite."""


@dataclass(frozen=True, kw_only=True)
class EncoderSettings(StackSettings):
    """Settings that all models without a decoder share."""

    layers: int = 4
    """Number of layers."""
    activation: Activation = "gelu"

    @property
    def traits(self) -> Traits:
        return Traits(max_positions=self.counted_positions, attention={"encoder": (self.layers, self.heads)}, score=self.score)


@dataclass(frozen=True, kw_only=True)
class EncoderOnlySettings(EncoderSettings):
    """Settings of `EncoderOnly`."""

    pooling: Pooling = "mean"
    """How the vectors of a source are combined into one for classification: mean, max, or first (the first position)."""


@dataclass(frozen=True, kw_only=True)
class ClassifierSettings(EncoderOnlySettings):
    """Settings of `Classifier`."""

    kind: Literal["classifier"] = "classifier"
    fusion_score: str | None = None
    """Name of the score function by which a file attends to its auxiliary text; by default the same as score."""
    frontend: Literal["tokens", FrontendName] = "tokens"
    """What the model reads: tokens, picture (by a residual network), patches (of a picture), grid, frames, or sound."""
    channels: int = 64
    """Channels of the last stage of the picture network, and of the convolutions over sound."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_frontend(self.frontend, self.width, self.channels)

    @property
    def traits(self) -> Traits:
        return replace(super().traits, learns_from="labels", frontend=self.frontend)


@dataclass(frozen=True, kw_only=True)
class TaggerSettings(EncoderSettings):
    """Settings of `Tagger`."""

    kind: Literal["tagger"] = "tagger"

    @property
    def traits(self) -> Traits:
        return replace(super().traits, learns_from="tags")


@dataclass(frozen=True, kw_only=True)
class MaskedSettings(EncoderSettings):
    """Settings of `Masked`."""

    kind: Literal["masked"] = "masked"
    mask: float = 0.15
    """Fraction of the tokens of a text that are masked in training (Devlin et al. 2019 mask 0.15)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.mask < 1:
            raise ValueError(f"mask is {self.mask}, expected a fraction of the tokens between 0 and 1, such as 0.15")

    @property
    def traits(self) -> Traits:
        return replace(super().traits, learns_from="texts", mask=self.mask)


# --- what they share -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Labelled(Decoded):
    """The result of a model without a decoder: logits of the labels; −∞ for what cannot be a label."""

    logits_BTV: Tensor

    def distribution(self) -> Tensor:
        return log_softmax(self.logits_BTV)

    def loss(self, targets_BT: Tensor, *, pad: int, smoothing: float = 0.0) -> Tensor:
        """Label smoothing spreads probability over what can be a label only."""
        loss = super().loss(targets_BT, pad=pad)
        if not smoothing:
            return loss
        log_probs_BTV = self.distribution()
        possible_BTV = log_probs_BTV > float("-inf")
        even_BT = -log_probs_BTV.masked_fill(~possible_BTV, 0.0).sum(-1) / possible_BTV.sum(-1)
        return (1 - smoothing) * loss + smoothing * even_BT[masks.not_padding(targets_BT, pad)].sum()


@dataclass(kw_only=True)
class LabelState(BatchState):
    """The vectors from which labels are read, the number of labels of each source, and the last token of each hypothesis.

    copied_BS: the ids that the output copies from the source; that of <unk> where it does not.
    """

    states_BSE: Tensor = per_sentence(grows=1)
    number_B: Tensor = per_sentence()
    copied_BS: Tensor = per_sentence(grows=1)
    last_BK: Tensor = per_hypothesis()


class LabelModel(Model):
    """The base class of models without a decoder: an encoder and an output layer.

    <unk> stands for a missing token, so a word that the model does not know is filled in, too. <pad>, <sos> and <eos> are no
    labels.
    """

    encoder: SourceEncoder
    head: nn.Linear

    def __init__(self, settings: ModelSettings, num_labels: int) -> None:
        super().__init__(settings)
        self.head = nn.Linear(settings.width, num_labels)

    @abstractmethod
    def first(self, memory: Memory) -> LabelState:
        """Returns the State before the first label."""

    def start(self, memory: Memory, prefix_BP: Tensor | None = None) -> LabelState:
        state = self.first(memory)
        return state if prefix_BP is None else replace(state, lengths_B=state.lengths_B + prefix_BP.shape[1])

    def step(self, ids_BK: Tensor, state: State, look: Look | None = None) -> Step:
        state = cast(LabelState, state)
        state.check_ids(ids_BK)
        state.spend()
        logits_B1V = self._logits(state, state.lengths_B.unsqueeze(1))
        following = replace(state, spent=False, lengths_B=state.lengths_B + 1, last_BK=ids_BK)
        return Step(logits_B1V.expand(-1, ids_BK.shape[1], -1).clone(), following)

    def decode(self, ids_BT: Tensor, memory: Memory, look: Look | None = None) -> Labelled:
        positions_BT = torch.arange(ids_BT.shape[1], device=ids_BT.device).expand_as(ids_BT)
        return Labelled(self._logits(self.first(memory), positions_BT))

    def _logits(self, state: LabelState, positions_BT: Tensor) -> Tensor:
        """Returns the logits of the labels at these positions of the output; <eos> is certain after the last label."""
        inside_BT = positions_BT.clamp(max=state.states_BSE.shape[1] - 1)
        states_BTE = state.states_BSE.gather(1, inside_BT.unsqueeze(-1).expand(-1, -1, state.states_BSE.shape[-1]))
        unk, eos = self.specials.unk, self.specials.eos
        logits_BTV = self.head(states_BTE).index_fill(-1, self._ids(tuple(self.specials.ids)), float("-inf"))
        unseen_BT1 = logits_BTV.detach().logsumexp(-1, keepdim=True) + UNSEEN
        logits_BTV = torch.cat((logits_BTV[..., :unk], unseen_BT1, logits_BTV[..., unk + 1 :]), dim=-1)
        copied_BT = state.copied_BS.gather(1, inside_BT)
        copied_BT = torch.where(positions_BT < state.number_B.unsqueeze(1), copied_BT, eos)
        certain_BTV = torch.full_like(logits_BTV, float("-inf")).scatter(-1, copied_BT.unsqueeze(-1), 0.0)
        return torch.where((copied_BT == unk).unsqueeze(-1), logits_BTV, certain_BTV)

    def _nothing(self, states_BSE: Tensor) -> Tensor:
        """Returns `copied_BS` for an output that copies nothing."""
        return torch.full(states_BSE.shape[:2], self.specials.unk, device=states_BSE.device)

    def _ids(self, ids: tuple[int, ...]) -> Tensor:
        return torch.tensor(ids, device=self.head.weight.device)


def _first(states_BSE: Tensor, number_B: Tensor, copied_BS: Tensor) -> LabelState:
    zeros_B = torch.zeros_like(number_B)
    return LabelState(
        lengths_B=zeros_B,
        states_BSE=states_BSE,
        number_B=number_B,
        copied_BS=copied_BS,
        last_BK=zeros_B.unsqueeze(1),
    )


# --- the models ------------------------------------------------------------------------------------------------------------


class EncoderOnly(nn.Module):
    """A Transformer encoder for tagging (`encode`, `tag`) and classification (`encode`, `classify`) in a loop of one's own.

    vocab: number of source tokens. num_labels: number of labels. scores: the user's own score functions by name.
    """

    def __init__(self, settings: EncoderOnlySettings, vocab: int, num_labels: int, scores: Scores = None) -> None:
        super().__init__()
        self.pooling = settings.pooling
        self.encoder = SourceEncoder(settings, settings.layers, vocab, scores)
        self.head = nn.Linear(settings.width, num_labels)

    def encode(self, source: Source, look: Look | None = None) -> Memory:
        """Returns the Memory, whose summary is the pooled vector of each text."""
        memory = self.encoder.encode(source, look)
        return replace(memory, summary_BE=pool(memory, self.pooling))

    def tag(self, memory: Memory) -> Tensor:
        """Returns logits for every position, (B, S, A)."""
        logits: Tensor = self.head(memory.values_BSE)
        return logits

    def classify(self, memory: Memory) -> Tensor:
        """Returns logits for every text, (B, A)."""
        logits: Tensor = self.head(memory.summary_BE)
        return logits


class Classifier(LabelModel):
    """Gives one label to a text, picture or sound: softmax(W pool(h_1 … h_S) + b)."""

    def __init__(
        self, settings: ClassifierSettings, source_vocab: int, target_vocab: int, scores: Scores = None, auxiliary: int = 0
    ) -> None:
        super().__init__(settings, target_vocab)
        self.pooling, frontend = settings.pooling, None
        if settings.frontend != "tokens":
            frontend = make_frontend(
                settings.frontend,
                source_vocab,
                settings.width,
                settings.channels,
                positions=True,
                auxiliary=auxiliary,
                make_score=lambda width: score_of_width(settings, settings.fusion_score or settings.score, scores, width),
            )
            self.traits = with_fusion(self.traits, frontend)
        self.encoder = SourceEncoder(settings, settings.layers, None if frontend else source_vocab, scores, frontend)

    def encode(self, source: Source, look: Look | None = None) -> Memory:
        memory = self.encoder.encode(source, look)
        return replace(memory, summary_BE=pool(memory, self.pooling))

    def first(self, memory: Memory) -> LabelState:
        states_B1E = memory.summary_BE.unsqueeze(1)
        return _first(states_B1E, memory.allow_BS.new_ones(len(memory.allow_BS), dtype=torch.long), self._nothing(states_B1E))


class Tagger(LabelModel):
    """Gives a tag to every token of a text: softmax(W h_t + b)."""

    def __init__(
        self, settings: TaggerSettings, source_vocab: int, target_vocab: int, scores: Scores = None, auxiliary: int = 0
    ) -> None:
        super().__init__(settings, target_vocab)
        self.encoder = SourceEncoder(settings, settings.layers, source_vocab, scores)

    def encode(self, source: Source, look: Look | None = None) -> Memory:
        return self.encoder.encode(source, look)

    def first(self, memory: Memory) -> LabelState:
        number_B = memory.allow_BS.sum(1) - 1  # without <eos>
        return _first(memory.values_BSE, number_B, self._nothing(memory.values_BSE))


@dataclass(frozen=True, eq=False, kw_only=True)
class TextMemory(Memory):
    """A Memory that also holds the ids of the text."""

    ids_BS: Tensor


class Masked(LabelModel):
    """Fills in the missing tokens of a text, softmax(W h_t + b), and copies all others (BERT, Devlin et al. 2019)."""

    def __init__(
        self, settings: MaskedSettings, source_vocab: int, target_vocab: int, scores: Scores = None, auxiliary: int = 0
    ) -> None:
        super().__init__(settings, target_vocab)
        self.encoder = SourceEncoder(settings, settings.layers, source_vocab, scores)

    def encode(self, source: Source, look: Look | None = None) -> TextMemory:
        memory = self.encoder.encode(source, look)
        return TextMemory(memory.values_BSE, memory.allow_BS, memory.summary_BE, memory.axes, memory.seen, ids_BS=source.values)

    def first(self, memory: Memory) -> LabelState:
        return _first(memory.values_BSE, memory.allow_BS.sum(1) - 1, cast(TextMemory, memory).ids_BS)


def pool(memory: Memory, how: Pooling) -> Tensor:
    """Returns one vector per text, computed from its real positions only; zeros if there are none."""
    if how == "mean":
        return memory.summary_BE
    if how == "first":
        first_B = memory.allow_BS.to(torch.uint8).argmax(1)
        chosen = memory.values_BSE[torch.arange(len(first_B), device=first_B.device), first_B]
    else:
        lowest = torch.finfo(memory.values_BSE.dtype).min
        chosen = memory.values_BSE.masked_fill(~memory.allow_BS.unsqueeze(-1), lowest).amax(1)
    return chosen.masked_fill(~memory.allow_BS.any(1, keepdim=True), 0.0)
