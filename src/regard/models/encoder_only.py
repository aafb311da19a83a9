"""A Transformer encoder with an output layer: one label per position (tagging), or one per text (classification)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from regard.contracts import Traits
from regard.core.source import Source
from regard.layers.blocks import Activation
from regard.look import Look
from regard.models.contract import Memory
from regard.models.encoder import SourceEncoder
from regard.models.stack import Scores, StackSettings

# B texts  S positions  A labels

Pooling = Literal["mean", "max", "first"]


@dataclass(frozen=True, kw_only=True)
class EncoderOnlySettings(StackSettings):
    """Settings of `EncoderOnly`."""

    kind: Literal["encoder_only"] = "encoder_only"
    layers: int = 4
    """Number of layers."""
    activation: Activation = "gelu"
    pooling: Pooling = "mean"
    """How the vectors of a text are combined into one for classification: mean, max, or first (the first position)."""

    @property
    def traits(self) -> Traits:
        return Traits(max_positions=self.counted_positions, attention={"encoder": (self.layers, self.heads)}, score=self.score)


class EncoderOnly(nn.Module):
    """A Transformer encoder for tagging (`encode`, `tag`) and classification (`encode`, `classify`).

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
        return Memory(memory.values_BSE, memory.allow_BS, pool(memory, self.pooling), memory.axes, memory.seen)

    def tag(self, memory: Memory) -> Tensor:
        """Returns logits for every position, (B, S, A)."""
        logits: Tensor = self.head(memory.values_BSE)
        return logits

    def classify(self, memory: Memory) -> Tensor:
        """Returns logits for every text, (B, A)."""
        logits: Tensor = self.head(memory.summary_BE)
        return logits


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
