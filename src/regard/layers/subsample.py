"""Convolutional subsampling of sound, whose hundred frames per second would be too many positions for attention."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.core.spectrum import STRIDE

# B sources  S frames  s = ⌈S/4⌉ positions  F features of a frame  C channels  D width


class Subsampling(nn.Module):
    """Two 3 x 3 convolutions of stride 2 over time and frequency bands (as in Dong et al. 2018), a projection and a norm:
    (B, S, F) -> (B, ⌈S/4⌉, D).

    Without the norm, in an experiment on tones, the vectors grew ninetyfold in a hundred updates, but what fusion with the
    auxiliary text adds to them did not (docs/LOG.md).

    Padding is set to zero before each convolution, as convolutions pad the edges with zeros. The output of a row therefore does
    not depend on the lengths of the other rows.
    """

    def __init__(self, features: int, width: int, channels: int = 32) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, channels, 3, stride=2, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, stride=2, padding=1)
        self.project = nn.Linear(channels * -(-features // STRIDE), width)
        self.norm = nn.LayerNorm(width)

    def forward(self, frames_BSF: Tensor, allow_BS: Tensor) -> tuple[Tensor, Tensor]:
        """Returns (vectors (B, s, D), a mask (B, s) that is True at real positions)."""
        x_BCSF = frames_BSF.unsqueeze(1).contiguous(memory_format=torch.channels_last)  # twice as fast on a CPU
        for convolution in (self.first, self.second):
            x_BCSF = F.relu(convolution(x_BCSF.masked_fill(~allow_BS[:, None, :, None], 0)))
            allow_BS = allow_BS[:, ::2]  # position j is centred on frame 2j
        positions_BsD: Tensor = self.norm(self.project(x_BCSF.transpose(1, 2).flatten(2)))
        return positions_BsD, allow_BS
