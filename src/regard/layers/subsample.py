"""Fewer, richer places: what comes a hundred times a second is more than attention wants to look at."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.core.spectrum import STRIDE

# B sentences  S frames  s = ⌈S/4⌉ places  F features of a frame  C channels  D width


class Subsampling(nn.Module):
    """Two convolutions over time and bands, 3 x 3 and stride 2 each (as in Dong et al. 2018), then a projection
    and its norm: (B, S, F) -> (B, ⌈S/4⌉, D). Without the norm the places of a language of tones grew ninetyfold in a
    hundred updates, while what a text beside them adds did not (docs/LOG.md).

    Padding is zeroed before each of them, so that it looks like the silence of the edges: what comes out of a row does not
    depend on how long its neighbours are.
    """

    def __init__(self, features: int, width: int, channels: int = 32) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, channels, 3, stride=2, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, stride=2, padding=1)
        self.project = nn.Linear(channels * -(-features // STRIDE), width)
        self.norm = nn.LayerNorm(width)

    def forward(self, frames_BSF: Tensor, allow_BS: Tensor) -> tuple[Tensor, Tensor]:
        """(places (B, s, D), which of them are real)."""
        x_BCSF = frames_BSF.unsqueeze(1).contiguous(memory_format=torch.channels_last)  # twice as fast on a CPU
        for convolution in (self.first, self.second):
            x_BCSF = F.relu(convolution(x_BCSF.masked_fill(~allow_BS[:, None, :, None], 0)))
            allow_BS = allow_BS[:, ::2]  # place j has frame 2j in its middle
        positions_BsD: Tensor = self.norm(self.project(x_BCSF.transpose(1, 2).flatten(2)))
        return positions_BsD, allow_BS
