"""What stands before an encoder whose source is no text: pictures, grids and frames become vectors that know their place.

Padding never leaks into what is real: it is zeroed before every convolution, as the world beyond the edges is zero, and norms
count real pixels only, of one picture only (batch norm would mix in the neighbours).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.contracts import Look, Seen, Source
from regard.core import masks
from regard.core.positions import sinusoidal
from regard.layers.attention import MultiHeadAttention
from regard.layers.recurrent import RecurrentEncoder
from regard.layers.subsample import Subsampling

# B sources  S places  D width  C channels  H height  W width of a picture  F features

FrontendName = Literal["picture", "patches", "grid", "frames", "sound"]
"""What a model reads instead of tokens.

picture: a residual network makes a grid of features of a picture, a cell for 8 x 8 pixels. patches: the cells themselves are
projected (Dosovitskiy et al. 2021). grid: features of your own that stand in a grid. frames: features in a sequence.
sound: frames of sound, four of which become one place.
"""


@dataclass(frozen=True)
class FrontendOutput:
    """A vector for every place. allow_BS: which are real. axes: (S,) or (rows, columns). seen: what a look asked for."""

    x_BSD: Tensor
    allow_BS: Tensor
    axes: tuple[int, ...]
    seen: tuple[Seen, ...] = ()


class Frontend(nn.Module):
    """Source in, places out."""

    def forward(self, source: Source, look: Look | None = None) -> FrontendOutput:
        raise NotImplementedError


class FusionFrontend(Frontend):
    """A source and a text beside it, of any two lengths: every place x looks at the words, x + Attention(LN(x), K, V), where
    keys and values come from the text, read in both directions by a GRU.

    A source that is missing is one place with a learned vector; of a text that is missing there is still its <eos>.
    """

    def __init__(self, frontend: Frontend, width: int, vocab: int) -> None:
        super().__init__()
        self.frontend = frontend
        self.words = nn.Embedding(vocab, width)
        self.reader = RecurrentEncoder("gru", width, width, bidirectional=width % 2 == 0)
        self.norm = nn.LayerNorm(width)
        self.attention = MultiHeadAttention(width, next(heads for heads in (4, 2, 1) if width % heads == 0))
        self.nothing = nn.Parameter(torch.randn(width))

    def forward(self, source: Source, look: Look | None = None) -> FrontendOutput:
        if source.auxiliary is None:
            raise ValueError("this model reads a text beside its source, but Source.auxiliary is None")
        output = self.frontend(source)
        allow_BS = masks.at_least_first(output.allow_BS)
        x_BSD = torch.where((allow_BS & ~output.allow_BS).unsqueeze(-1), self.nothing, output.x_BSD)
        text_BUD, _ = self.reader(self.words(source.auxiliary.values), source.auxiliary.allow)
        queries, (keys, values) = self.attention.queries(self.norm(x_BSD)), self.attention.keys_values(text_BUD)
        here = look.at("fusion", 0, 1) if look else None
        attended = self.attention.attend(queries, keys, values, source.auxiliary.allow[:, None, None], here)
        return FrontendOutput(x_BSD + attended.context, allow_BS, output.axes, attended.seen)


class FrameFrontend(Frontend):
    """A projection of every frame; positions: whether sinusoids are added, for encoders that do not see the order."""

    def __init__(self, features: int, width: int, *, positions: bool) -> None:
        super().__init__()
        self.project = nn.Linear(features, width)
        self.positions = positions

    def forward(self, source: Source, look: Look | None = None) -> FrontendOutput:
        x_BSD = self.project(source.values.to(self.project.weight.dtype))
        return in_order(x_BSD, source.allow, positions=self.positions)


class SoundFrontend(Frontend):
    """Convolutions over time and bands; positions as in `Frames`."""

    def __init__(self, bands: int, width: int, channels: int, *, positions: bool) -> None:
        super().__init__()
        self.subsampling = Subsampling(bands, width, channels)
        self.positions = positions

    def forward(self, source: Source, look: Look | None = None) -> FrontendOutput:
        frames_BSF = source.values.to(self.subsampling.project.weight.dtype)
        return in_order(*self.subsampling(frames_BSF, source.allow), positions=self.positions)


def in_order(x_BSD: Tensor, allow_BS: Tensor, *, positions: bool) -> FrontendOutput:
    if positions:
        positions_S = torch.arange(x_BSD.shape[1], device=x_BSD.device)
        x_BSD = x_BSD + sinusoidal(positions_S, x_BSD.shape[2], dtype=x_BSD.dtype)
    return FrontendOutput(x_BSD, allow_BS, (x_BSD.shape[1],))


class GridProjection(nn.Module):
    """A x + W₂ relu(W₁ x + φ(row, column)) + b: what a cell shows is bound to where it stands, so that a mean over all cells,
    which is all that a decoder without attention gets, still tells what stood where. positions: whether φ is added once more,
    for encoders that look from cell to cell."""

    def __init__(self, features: int, width: int, *, positions: bool) -> None:
        super().__init__()
        self.positions = positions
        self.direct = nn.Linear(features, width, bias=False)
        self.project = nn.Linear(features, width)
        self.output = nn.Linear(width, width)

    def forward(self, x_BHWF: Tensor, allow_BHW: Tensor) -> FrontendOutput:
        bound_BHWD = self.project(x_BHWF)
        bound_BHWD = bound_BHWD + grid_positions(bound_BHWD)
        x_BHWD = self.direct(x_BHWF) + self.output(bound_BHWD.relu())
        if self.positions:
            x_BHWD = x_BHWD + grid_positions(x_BHWD)
        return FrontendOutput(x_BHWD.flatten(1, 2), allow_BHW.flatten(1), tuple(allow_BHW.shape[1:]))


def grid_positions(x_BHWD: Tensor) -> Tensor:
    """(H, W, D): sinusoids of the row in the first half of the width, of the column in the second."""
    _, rows, columns, width = x_BHWD.shape
    down, across = (
        sinusoidal(torch.arange(size, device=x_BHWD.device), width // 2, dtype=x_BHWD.dtype) for size in (rows, columns)
    )
    return torch.cat((down[:, None].expand(-1, columns, -1), across.expand(rows, -1, -1)), dim=-1)


class GridFrontend(Frontend):
    def __init__(self, features: int, width: int, *, positions: bool) -> None:
        super().__init__()
        self.projection = GridProjection(features, width, positions=positions)

    def forward(self, source: Source, look: Look | None = None) -> FrontendOutput:
        output: FrontendOutput = self.projection(
            source.values.movedim(1, -1).to(self.projection.project.weight.dtype), source.allow
        )
        return output


class PatchFrontend(Frontend):
    """x W + φ(row, column) for every cell of 8 x 8 pixels; an encoder of attention layers is to follow."""

    def __init__(self, channels: int, width: int, cell: int = 8) -> None:
        super().__init__()
        self.cell = cell
        self.project = nn.Conv2d(channels, width, cell, stride=cell)

    def forward(self, source: Source, look: Look | None = None) -> FrontendOutput:
        pixels = real_pixels(source.values.to(self.project.weight.dtype), source.allow)
        allow_BHW = masks.every(source.allow, self.cell)
        missing = (-pixels.shape[3] % self.cell, -pixels.shape[2] % self.cell)
        x_BHWD = self.project(F.pad(pixels, (0, missing[0], 0, missing[1]))).movedim(1, -1)
        x_BHWD = x_BHWD + grid_positions(x_BHWD)
        return FrontendOutput(x_BHWD.flatten(1, 2), allow_BHW.flatten(1), tuple(allow_BHW.shape[1:]))


class PictureNorm(nn.Module):
    """γ (x − μ)/σ + β: μ of each channel, σ of all, over the real pixels of one picture. What all pixels have in common, such
    as the ground of a drawing, would else outweigh what tells them apart (docs/LOG.md)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))

    def forward(self, x_BCHW: Tensor, allow_BHW: Tensor) -> Tensor:
        normal_BCHW = standardised(x_BCHW, allow_BHW)
        return normal_BCHW * self.weight[:, None, None] + self.bias[:, None, None]


def standardised(x_BCHW: Tensor, allow_BHW: Tensor) -> Tensor:
    num_pixels = allow_BHW.sum((1, 2)).clamp(min=1)[:, None, None, None]
    mean = real_pixels(x_BCHW, allow_BHW).sum((2, 3), keepdim=True) / num_pixels
    centred = real_pixels(x_BCHW - mean, allow_BHW)
    variance = centred.square().sum((1, 2, 3), keepdim=True) / (num_pixels * x_BCHW.shape[1])
    return centred * torch.rsqrt(variance + 1e-5)


class ResidualBlock(nn.Module):
    """x + conv(relu(norm(conv(relu(norm(x)))))) with kernels of 3 x 3 (He et al. 2016b, fig. 1b)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(PictureNorm(channels) for _ in range(2))
        self.convolutions = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))

    def forward(self, x_BCHW: Tensor, allow_BHW: Tensor) -> Tensor:
        y_BCHW = x_BCHW
        for norm, convolution in zip(self.norms, self.convolutions, strict=True):
            y_BCHW = convolution(real_pixels(norm(y_BCHW, allow_BHW).relu(), allow_BHW))
        return x_BCHW + y_BCHW


class ResNetFrontend(Frontend):
    """Three stages, each of which halves both sides and, from a quarter of `channels` on, doubles the channels.

    Pixels go in, and features come out, both as they are and standardised: a picture of one colour is still of that colour.
    """

    def __init__(self, channels_in: int, width: int, channels: int, *, positions: bool) -> None:
        super().__init__()
        sizes = (2 * channels_in, channels // 4, channels // 2, channels)
        self.halve = nn.ModuleList(nn.Conv2d(a, b, 3, stride=2, padding=1) for a, b in pairwise(sizes))
        self.blocks = nn.ModuleList(ResidualBlock(size) for size in sizes[1:])
        self.projection = GridProjection(2 * channels, width, positions=positions)

    def forward(self, source: Source, look: Look | None = None) -> FrontendOutput:
        allow_BHW = source.allow
        pixels = source.values.to(self.projection.project.weight.dtype)
        x_BCHW = both_ways(pixels, allow_BHW).contiguous(memory_format=torch.channels_last)
        for halve, block in zip(self.halve, self.blocks, strict=True):
            x_BCHW = halve(real_pixels(x_BCHW, allow_BHW))
            allow_BHW = masks.every(allow_BHW, 2)
            x_BCHW = block(x_BCHW, allow_BHW)
        output: FrontendOutput = self.projection(both_ways(x_BCHW, allow_BHW).movedim(1, -1), allow_BHW)
        return output


def both_ways(x_BCHW: Tensor, allow_BHW: Tensor) -> Tensor:
    return torch.cat((standardised(x_BCHW, allow_BHW), x_BCHW), dim=1)


def real_pixels(x_BCHW: Tensor, allow_BHW: Tensor) -> Tensor:
    """x with zeros at its padding, whatever finite numbers stood there (a product takes a fifth of the time of masked_fill)."""
    return x_BCHW * allow_BHW.unsqueeze(1).to(x_BCHW.dtype)


FRONTENDS: dict[FrontendName, Callable[[int, int, int, bool], Frontend]] = {
    "picture": lambda size, width, channels, positions: ResNetFrontend(size, width, channels, positions=positions),
    "patches": lambda size, width, channels, positions: PatchFrontend(size, width),
    "grid": lambda size, width, channels, positions: GridFrontend(size, width, positions=positions),
    "frames": lambda size, width, channels, positions: FrameFrontend(size, width, positions=positions),
    "sound": lambda size, width, channels, positions: SoundFrontend(size, width, channels, positions=positions),
}
"""name -> (numbers in a pixel, cell or frame; width; channels of convolutions; whether places need positions) -> front."""


def make_frontend(name: FrontendName, size: int, width: int, channels: int, *, positions: bool, auxiliary: int = 0) -> Frontend:
    """size: numbers in a pixel, cell or frame. positions: whether places need them. beside: how many tokens the texts have that
    stand beside the sources; 0: there are none."""
    frontend = FRONTENDS[name](size, width, channels, positions)
    return FusionFrontend(frontend, width, auxiliary) if auxiliary else frontend


GRIDS = ("picture", "patches", "grid")
"""Those whose places form a grid."""


def check_frontend(name: str, width: int, channels: int) -> None:
    """Raises if such a front cannot be built."""
    if name in GRIDS and width % 4:
        raise ValueError(f"width {width} does not split into sines and cosines of rows and columns; make it a multiple of 4")
    if name == "picture" and channels % 4:
        raise ValueError(
            f"the network has {channels} channels in its last stage and a quarter in its first; try a multiple of 4"
        )
