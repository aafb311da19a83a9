"""A batch of encoded sources, as the encoder of a model reads it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.equality import ByValue


@dataclass(frozen=True, eq=False)
class Source(ByValue):
    """A batch of inputs, padded to the same size, with its padding mask.

    values: token ids (B, S), sound frames (B, S, features), pictures (B, channels, height, width) or videos
    (B, channels, time, height, width).
    allow: key padding mask, False at padding, which is at the end: (B, S); for pictures (B, height, width), for videos
    (B, time, height, width).
    auxiliary: token ids of a second source, a text that accompanies the first; its length is independent of the first.

    >>> values = torch.tensor([[4, 5, 6], [7, 0, 0]])  # ids of two texts; 0 is padding
    >>> source = regard.Source(values, regard.masks.not_padding(values, pad=0))
    >>> source.to("cpu").num_sentences
    2
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
