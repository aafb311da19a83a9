"""What stands before an encoder whose source is no text: pictures, grids and frames become vectors that know their place.

Padding never leaks into what is real: it is zeroed before every convolution, as the world beyond the edges is zero, and every
norm is of one place alone. Batch norm and group norm would mix in neighbours, or padding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.contracts import Source
from regard.core import masks
from regard.core.positions import sinusoidal

# B sources  S places  D width  C channels  H height  W width of a picture  F features

FrontName = Literal["picture", "patches", "grid", "frames"]
"""What a model reads instead of tokens.

picture: a residual network makes a grid of features of a picture, a cell for 8 x 8 pixels. patches: the cells themselves are
projected (Dosovitskiy et al. 2021). grid: features of your own that stand in a grid. frames: features in a sequence.
"""


@dataclass(frozen=True)
class Placed:
    """A vector for every place. allow_BS: which are real. axes: (S,) or (rows, columns)."""

    x_BSD: Tensor
    allow_BS: Tensor
    axes: tuple[int, ...]


class Front(nn.Module):
    """Source in, places out."""

    def forward(self, source: Source) -> Placed:
        raise NotImplementedError


class Frames(Front):
    """A projection of every frame; positions: whether sinusoids are added, for encoders that do not see the order."""

    def __init__(self, features: int, width: int, *, positions: bool) -> None:
        super().__init__()
        self.project = nn.Linear(features, width)
        self.positions = positions

    def forward(self, source: Source) -> Placed:
        x_BSD = self.project(source.values.to(self.project.weight.dtype))
        if self.positions:
            places_S = torch.arange(x_BSD.shape[1], device=x_BSD.device)
            x_BSD = x_BSD + sinusoidal(places_S, x_BSD.shape[2], dtype=x_BSD.dtype)
        return Placed(x_BSD, source.allow, (x_BSD.shape[1],))


class InGrid(nn.Module):
    """W₂ relu(W₁ LN(x) + φ(row, column)) + b₂: what a cell shows is bound to where it stands, so that a mean over all cells,
    which is all that a decoder without attention gets, still tells what stood where."""

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.project = nn.Linear(features, width)
        self.output = nn.Linear(width, width)

    def forward(self, x_BHWF: Tensor, allow_BHW: Tensor) -> Placed:
        x_BHWD = self.project(self.norm(x_BHWF))
        x_BHWD = x_BHWD + grid_positions(x_BHWD)
        x_BSD = self.output(x_BHWD.relu()).flatten(1, 2)
        return Placed(x_BSD, allow_BHW.flatten(1), tuple(allow_BHW.shape[1:]))


def grid_positions(x_BHWD: Tensor) -> Tensor:
    """(H, W, D): sinusoids of the row in the first half of the width, of the column in the second."""
    _, rows, columns, width = x_BHWD.shape
    down, across = (
        sinusoidal(torch.arange(size, device=x_BHWD.device), width // 2, dtype=x_BHWD.dtype) for size in (rows, columns)
    )
    return torch.cat((down[:, None].expand(-1, columns, -1), across.expand(rows, -1, -1)), dim=-1)


class Grid(Front):
    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.placed = InGrid(features, width)

    def forward(self, source: Source) -> Placed:
        placed: Placed = self.placed(source.values.movedim(1, -1).to(self.placed.project.weight.dtype), source.allow)
        return placed


class Patches(Front):
    """x W + φ(row, column) for every cell of 8 x 8 pixels; an encoder of attention layers is to follow."""

    def __init__(self, channels: int, width: int, cell: int = 8) -> None:
        super().__init__()
        self.cell = cell
        self.project = nn.Conv2d(channels, width, cell, stride=cell)

    def forward(self, source: Source) -> Placed:
        pixels = real_pixels(source.values.to(self.project.weight.dtype), source.allow)
        allow_BHW = masks.every(source.allow, self.cell)
        missing = (-pixels.shape[3] % self.cell, -pixels.shape[2] % self.cell)
        x_BHWD = self.project(F.pad(pixels, (0, missing[0], 0, missing[1]))).movedim(1, -1)
        x_BHWD = x_BHWD + grid_positions(x_BHWD)
        return Placed(x_BHWD.flatten(1, 2), allow_BHW.flatten(1), tuple(allow_BHW.shape[1:]))


class Residual(nn.Module):
    """x + conv(relu(LN(conv(relu(LN(x)))))) with kernels of 3 x 3 (He et al. 2016, 4), LN over the channels of each pixel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(channels) for _ in range(2))
        self.convolutions = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))

    def forward(self, x_BCHW: Tensor, allow_BHW: Tensor) -> Tensor:
        y_BCHW = x_BCHW
        for norm, convolution in zip(self.norms, self.convolutions, strict=True):
            y_BCHW = convolution(real_pixels(over_channels(norm, y_BCHW).relu(), allow_BHW))
        return x_BCHW + y_BCHW


class Network(Front):
    """Three stages, each of which halves both sides and, from a quarter of `channels` on, doubles the channels."""

    def __init__(self, channels_in: int, width: int, channels: int) -> None:
        super().__init__()
        sizes = (channels_in, channels // 4, channels // 2, channels)
        self.halve = nn.ModuleList(nn.Conv2d(a, b, 3, stride=2, padding=1) for a, b in pairwise(sizes))
        self.blocks = nn.ModuleList(Residual(size) for size in sizes[1:])
        self.placed = InGrid(channels, width)

    def forward(self, source: Source) -> Placed:
        allow_BHW = source.allow
        x_BCHW = source.values.to(self.placed.project.weight.dtype).contiguous(memory_format=torch.channels_last)
        for halve, block in zip(self.halve, self.blocks, strict=True):
            x_BCHW = halve(real_pixels(x_BCHW, allow_BHW))
            allow_BHW = masks.every(allow_BHW, 2)
            x_BCHW = block(x_BCHW, allow_BHW)
        placed: Placed = self.placed(x_BCHW.movedim(1, -1), allow_BHW)
        return placed


def real_pixels(x_BCHW: Tensor, allow_BHW: Tensor) -> Tensor:
    """x with zeros at its padding, whatever stood there."""
    return x_BCHW.masked_fill(~allow_BHW.unsqueeze(1), 0.0)


def over_channels(norm: nn.Module, x_BCHW: Tensor) -> Tensor:
    normal: Tensor = norm(x_BCHW.movedim(1, -1)).movedim(-1, 1)
    return normal


FRONTS: dict[FrontName, Callable[[int, int, int, bool], Front]] = {
    "picture": lambda size, width, channels, positions: Network(size, width, channels),
    "patches": lambda size, width, channels, positions: Patches(size, width),
    "grid": lambda size, width, channels, positions: Grid(size, width),
    "frames": lambda size, width, channels, positions: Frames(size, width, positions=positions),
}
"""name -> (numbers in a pixel, cell or frame; width; channels of the network; whether frames need positions) -> front."""

GRIDS = ("picture", "patches", "grid")
"""Those whose places form a grid."""


def check_front(name: str, width: int, channels: int) -> None:
    """Raises if such a front cannot be built."""
    if name in GRIDS and width % 4:
        raise ValueError(f"width {width} does not split into sines and cosines of rows and columns; make it a multiple of 4")
    if name == "picture" and channels % 4:
        raise ValueError(
            f"the network has {channels} channels in its last stage and a quarter in its first; try a multiple of 4"
        )
