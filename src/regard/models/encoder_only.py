"""An encoder with a head: one answer for every place (tags), or one for the whole text (a class)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from regard.contracts import Look, Memory, Source
from regard.layers.blocks import Activation
from regard.models.encoder import TransformerEncoder
from regard.models.stack import Scores, StackSettings

Pooling = Literal["mean", "max", "first"]


@dataclass(frozen=True, kw_only=True)
class EncoderOnlySettings(StackSettings):
    kind: Literal["encoder_only"] = "encoder_only"
    layers: int = 4
    activation: Activation = "gelu"
    pooling: Pooling = "mean"
    """How the places of a text become one vector, from which `classify` answers."""


class EncoderOnly(nn.Module):
    def __init__(self, settings: EncoderOnlySettings, vocab: int, num_answers: int, scores: Scores = None) -> None:
        super().__init__()
        self.pooling = settings.pooling
        self.encoder = TransformerEncoder(settings, settings.layers, vocab, scores)
        self.head = nn.Linear(settings.width, num_answers)

    def encode(self, source: Source, look: Look | None = None) -> Memory:
        """Its summary is the pooled vector."""
        memory = self.encoder.encode(source, look)
        return Memory(memory.values_BSE, memory.allow_BS, pool(memory, self.pooling), memory.axes, memory.seen)

    def tag(self, memory: Memory) -> Tensor:
        """Logits for every place, (B, S, answers)."""
        logits: Tensor = self.head(memory.values_BSE)
        return logits

    def classify(self, memory: Memory) -> Tensor:
        """Logits for every text, (B, answers)."""
        logits: Tensor = self.head(memory.summary_BE)
        return logits


def pool(memory: Memory, how: Pooling) -> Tensor:
    """One vector per text, from its real places only. A text without any gives zeros."""
    if how == "mean":
        return memory.summary_BE
    if how == "first":
        first_B = memory.allow_BS.to(torch.uint8).argmax(1)
        chosen = memory.values_BSE[torch.arange(len(first_B), device=first_B.device), first_B]
    else:
        lowest = torch.finfo(memory.values_BSE.dtype).min
        chosen = memory.values_BSE.masked_fill(~memory.allow_BS.unsqueeze(-1), lowest).amax(1)
    return chosen.masked_fill(~memory.allow_BS.any(1, keepdim=True), 0.0)
