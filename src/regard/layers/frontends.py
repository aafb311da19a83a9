"""Frontends turn sources other than text (pictures, videos, grids, frames, sound) into vectors for the encoder.

Padding never affects real positions: it is set to zero before every convolution, as convolutions pad the edges with zeros, and
norms use the real pixels of one picture only (batch norm would mix the pictures of a batch).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.core import masks
from regard.core.positions import sinusoidal, tensor2tensor
from regard.core.score import Score
from regard.core.source import Source
from regard.errors import UserError
from regard.layers.attention import MultiHeadAttention
from regard.layers.recurrent import RecurrentEncoder
from regard.layers.subsample import Subsampling
from regard.look import Look, Seen

# B sources  S positions  U tokens of the auxiliary text  D width  C channels  H height  W width of a picture  F features
# T frames of a video  N frames of all videos of a batch

FrontendName = Literal["picture", "patches", "grid", "frames", "sound", "whisper", "video", "video_grid"]
"""The kinds of source that a model can read instead of tokens.

picture: a picture, which a residual network turns into a grid of features, one cell per 8 x 8 pixels.
patches: a picture, whose patches of 8 x 8 pixels are projected (Dosovitskiy et al. 2021).
grid: your own features, arranged in a grid. frames: your own features, in a sequence.
sound: frames of sound; four frames become one position.
whisper: frames of sound through the convolutions of Whisper; two frames become one position.
video: pictures over time; the network of `picture` reads each frame, with convolutions over three frames between its stages.
video_grid: your own features, arranged in a grid for each frame.
"""


WHISPER_POSITIONS = 1500
"""The number of positions of Whisper: 30 seconds."""
MakeScore = Callable[[int], Score]
"""(width of queries and keys) -> a new score function."""


@dataclass(frozen=True)
class FrontendOutput:
    """The output of a frontend: one vector per position.

    allow_BS: True at real positions. axes: (S,), (rows, columns) of a grid, or (time, rows, columns) of a video.
    seen: what a look requested.
    """

    x_BSD: Tensor
    allow_BS: Tensor
    axes: tuple[int, ...]
    seen: tuple[Seen[Tensor], ...] = ()


class Frontend(nn.Module):
    """Base class of all frontends."""

    def forward(self, source: Source, look: Look | None = None) -> FrontendOutput:
        """Returns one vector per position of the source, padding included."""
        raise NotImplementedError


class FusionFrontend(Frontend):
    """Fuses a source with its auxiliary text: x + Attention(LN(x), K, V), so every position of the source attends to the text.

    Keys and values are the states of a bidirectional GRU over the text. The two lengths are independent. A missing source
    becomes one position with a learned vector; a missing text still has its <eos>.

    frontend: frontend of the source. width: width of the vectors. vocab: vocabulary size of the auxiliary texts.
    make_score: returns the score function for queries and keys of this width; by default scaled dot product.
    """

    def __init__(self, frontend: Frontend, width: int, vocab: int, make_score: MakeScore | None = None) -> None:
        super().__init__()
        self.frontend = frontend
        self.words = nn.Embedding(vocab, width)
        self.reader = RecurrentEncoder("gru", width, width, bidirectional=width % 2 == 0)
        self.norm = nn.LayerNorm(width)
        heads = next(heads for heads in (4, 2, 1) if width % heads == 0)
        self.attention = MultiHeadAttention(width, heads, score=make_score and make_score(width // heads))
        self.nothing = nn.Parameter(torch.randn(width))

    def forward(self, source: Source, look: Look | None = None) -> FrontendOutput:
        if source.auxiliary is None:
            raise ValueError("this model reads an auxiliary text with every source, but Source.auxiliary is None")
        output = self.frontend(source)
        allow_BS = masks.at_least_first(output.allow_BS)
        x_BSD = torch.where((allow_BS & ~output.allow_BS).unsqueeze(-1), self.nothing, output.x_BSD)
        text_BUD, _ = self.reader(self.words(source.auxiliary.values), source.auxiliary.allow)
        keys, values = self.attention.keys_values(text_BUD, masks.positions(source.auxiliary.allow))
        fusion_look = look.at("fusion", 0, 1) if look else None
        queries, allow = self.attention.queries(self.norm(x_BSD)), source.auxiliary.allow[:, None, None]
        attended = self.attention.attend(queries, keys, values, allow, fusion_look)
        return FrontendOutput(x_BSD + attended.context, allow_BS, output.axes, attended.seen)


class FrameFrontend(Frontend):
    """Projects every frame.

    positions: whether to add sinusoidal positions, for encoders that do not depend on order otherwise.
    """

    def __init__(self, features: int, width: int, *, positions: bool) -> None:
        super().__init__()
        self.project = nn.Linear(features, width)
        self.positions = positions

    def forward(self, source: Source, look: Look | None = None) -> FrontendOutput:
        x_BSD = self.project(source.values.to(self.project.weight.dtype))
        return _sequence_output(x_BSD, source.allow, positions=self.positions)


class SoundFrontend(Frontend):
    """Convolutions over time and frequency bands, which shorten the sequence. positions: as in `FrameFrontend`."""

    def __init__(self, bands: int, width: int, channels: int, *, positions: bool) -> None:
        super().__init__()
        self.subsampling = Subsampling(bands, width, channels)
        self.positions = positions

    def forward(self, source: Source, look: Look | None = None) -> FrontendOutput:
        frames_BSF = source.values.to(self.subsampling.project.weight.dtype)
        return _sequence_output(*self.subsampling(frames_BSF, source.allow), positions=self.positions)


class WhisperFrontend(Frontend):
    """The convolutions of Whisper (Radford et al. 2022, 2.2): gelu(conv(x)) twice with kernels of three frames, the second with
    stride 2; and the sinusoids of tensor2tensor. Each row of a source holds two frames. positions: as in `FrameFrontend`.

    The sinusoids do not learn, but belong to the weights: models that are stored in half precision learned with rounded ones.
    """

    sinusoids: Tensor

    def __init__(self, size: int, width: int, *, positions: bool) -> None:
        super().__init__()
        self.first = nn.Conv1d(size // 2, width, 3, padding=1)
        self.second = nn.Conv1d(width, width, 3, stride=2, padding=1)
        self.positions = positions
        if positions:
            self.register_buffer("sinusoids", tensor2tensor(WHISPER_POSITIONS, width))

    def forward(self, source: Source, look: Look | None = None) -> FrontendOutput:
        frames_BNF = source.values.to(self.first.weight.dtype).unflatten(2, (2, -1)).flatten(1, 2)
        allow_B1N = source.allow.repeat_interleave(2, dim=1)[:, None]
        x_BDN = F.gelu(self.first(frames_BNF.transpose(1, 2) * allow_B1N)) * allow_B1N
        x_BSD = F.gelu(self.second(x_BDN)).transpose(1, 2)
        if self.positions:
            if (length := x_BSD.shape[1]) > WHISPER_POSITIONS:
                raise UserError(
                    f"the sound has {length:,} positions, but Whisper has {WHISPER_POSITIONS:,}, 30 seconds; split it"
                )
            x_BSD = x_BSD + self.sinusoids[:length]
        return FrontendOutput(x_BSD, source.allow, (x_BSD.shape[1],))


def _sequence_output(x_BSD: Tensor, allow_BS: Tensor, *, positions: bool) -> FrontendOutput:
    if positions:
        positions_S = torch.arange(x_BSD.shape[1], device=x_BSD.device)
        x_BSD = x_BSD + sinusoidal(positions_S, x_BSD.shape[2], dtype=x_BSD.dtype)
    return FrontendOutput(x_BSD, allow_BS, (x_BSD.shape[1],))


class GridProjection(nn.Module):
    """Projects grid cells: A x + W₂ relu(W₁ x + φ(row, column)) + b; in a video, φ(time, row, column).

    The nonlinearity combines the content of a cell with its position, so that a mean over all cells, which is all a decoder
    without attention receives, still shows which content was where.

    positions: whether to add φ once more, for encoders with self-attention.
    """

    def __init__(self, features: int, width: int, *, positions: bool) -> None:
        super().__init__()
        self.positions = positions
        self.direct = nn.Linear(features, width, bias=False)
        self.project = nn.Linear(features, width)
        self.output = nn.Linear(width, width)

    def forward(self, x_BHWF: Tensor, allow_BHW: Tensor) -> FrontendOutput:
        """x_BHWF: may have an axis of time before the rows; so may allow_BHW."""
        bound_BHWD = self.project(x_BHWF)
        bound_BHWD = bound_BHWD + grid_positions(bound_BHWD)
        x_BHWD = self.direct(x_BHWF) + self.output(bound_BHWD.relu())
        if self.positions:
            x_BHWD = x_BHWD + grid_positions(x_BHWD)
        return FrontendOutput(x_BHWD.flatten(1, -2), allow_BHW.flatten(1), tuple(allow_BHW.shape[1:]))


def grid_positions(x_BHWD: Tensor) -> Tensor:
    """Returns (H, W, D): sinusoidal positions of the row in the first half of the width, of the column in the second. Those of
    a video, (T, H, W, D), have the time in the first half, and the row and the column in a quarter each."""
    _, *axes, width = x_BHWD.shape
    shares = (2, 2) if len(axes) == 2 else (2, 4, 4)
    waves = []
    for axis, (size, share) in enumerate(zip(axes, shares, strict=True)):
        along = sinusoidal(torch.arange(size, device=x_BHWD.device), width // share, dtype=x_BHWD.dtype)
        along = along.view(*(size if other == axis else 1 for other in range(len(axes))), -1)
        waves.append(along.expand(*axes, -1))
    return torch.cat(waves, dim=-1)


class GridFrontend(Frontend):
    """Projects your own features (B, features, H, W), or (B, features, T, H, W) of a video, one vector per grid cell.
    positions: as in `GridProjection`."""

    def __init__(self, features: int, width: int, *, positions: bool) -> None:
        super().__init__()
        self.projection = GridProjection(features, width, positions=positions)

    def forward(self, source: Source, look: Look | None = None) -> FrontendOutput:
        output: FrontendOutput = self.projection(
            source.values.movedim(1, -1).to(self.projection.project.weight.dtype), source.allow
        )
        return output


class PatchFrontend(Frontend):
    """Projects patches of 8 x 8 pixels: x W + φ(row, column). Meant for encoders with self-attention.

    cell: height and width of a patch.
    """

    def __init__(self, channels: int, width: int, cell: int = 8) -> None:
        super().__init__()
        self.cell = cell
        self.project = nn.Conv2d(channels, width, cell, stride=cell)

    def forward(self, source: Source, look: Look | None = None) -> FrontendOutput:
        pixels = real_pixels(source.values.to(self.project.weight.dtype), source.allow)
        allow_BHW = masks.downsample(source.allow, self.cell)
        missing = (-pixels.shape[3] % self.cell, -pixels.shape[2] % self.cell)
        x_BHWD = self.project(F.pad(pixels, (0, missing[0], 0, missing[1]))).movedim(1, -1)
        x_BHWD = x_BHWD + grid_positions(x_BHWD)
        return FrontendOutput(x_BHWD.flatten(1, 2), allow_BHW.flatten(1), tuple(allow_BHW.shape[1:]))


class PictureNorm(nn.Module):
    """Normalises a picture: γ (x − μ)/σ + β, with μ per channel and σ over all channels, of the real pixels of one picture.

    Without it, what all pixels have in common, such as the background of a drawing, outweighs their differences (docs/LOG.md).
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))

    def forward(self, x_BCHW: Tensor, allow_BHW: Tensor) -> Tensor:
        normal_BCHW = standardised(x_BCHW, allow_BHW)
        return normal_BCHW * self.weight[:, None, None] + self.bias[:, None, None]


def standardised(x_BCHW: Tensor, allow_BHW: Tensor) -> Tensor:
    """Returns (x − μ)/σ with μ per channel and σ over all channels, of the real pixels of each picture; 0 at padding."""
    num_pixels = allow_BHW.sum((1, 2)).clamp(min=1)[:, None, None, None]
    mean = real_pixels(x_BCHW, allow_BHW).sum((2, 3), keepdim=True) / num_pixels
    centred = real_pixels(x_BCHW - mean, allow_BHW)
    variance = centred.square().sum((1, 2, 3), keepdim=True) / (num_pixels * x_BCHW.shape[1])
    return centred * torch.rsqrt(variance + 1e-5)


class ResidualBlock(nn.Module):
    """Pre-activation residual block x + conv(relu(norm(conv(relu(norm(x)))))) with 3 x 3 kernels (He et al. 2016b, fig. 1b)."""

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
    """Residual network of three stages, with channels/4, channels/2 and `channels` channels. Each halves height and width.

    Both its input and its output contain raw and standardised values: a picture of a single colour keeps its colour.

    channels_in: channels of the picture. positions: as in `GridProjection`.
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
        x_BCHW = _with_standardised(pixels, allow_BHW).contiguous(memory_format=torch.channels_last)
        for halve, block in zip(self.halve, self.blocks, strict=True):
            x_BCHW = halve(real_pixels(x_BCHW, allow_BHW))
            allow_BHW = masks.downsample(allow_BHW, 2)
            x_BCHW = block(x_BCHW, allow_BHW)
        output: FrontendOutput = self.projection(_with_standardised(x_BCHW, allow_BHW).movedim(1, -1), allow_BHW)
        return output


class TimeBlock(nn.Module):
    """Residual convolution over time, x + conv(relu(norm(x))), with a kernel of three frames by 1 x 1 (Tran et al. 2018)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = PictureNorm(channels)
        self.convolution = nn.Conv3d(channels, channels, (3, 1, 1), padding=(1, 0, 0))

    def forward(self, x_NCHW: Tensor, allow_BTHW: Tensor) -> Tensor:
        """x_NCHW: the frames of all videos. allow_BTHW: False at padding, which is at the end of each axis."""
        allow_NHW = allow_BTHW.flatten(0, 1)
        y_NCHW = real_pixels(self.norm(x_NCHW, allow_NHW).relu(), allow_NHW)
        y_BCTHW = y_NCHW.unflatten(0, allow_BTHW.shape[:2]).transpose(1, 2)
        change_BCTHW: Tensor = self.convolution(y_BCTHW)
        return x_NCHW + change_BCTHW.transpose(1, 2).flatten(0, 1)


class VideoFrontend(Frontend):
    """The network of `ResNetFrontend` over each frame; after each of its stages, a convolution over time.

    channels_in, positions: as in `ResNetFrontend`.
    """

    def __init__(self, channels_in: int, width: int, channels: int, *, positions: bool) -> None:
        super().__init__()
        self.frames = ResNetFrontend(channels_in, width, channels, positions=positions)
        self.over_time = nn.ModuleList(TimeBlock(size) for size in (channels // 4, channels // 2, channels))

    def forward(self, source: Source, look: Look | None = None) -> FrontendOutput:
        allow_BTHW, network = source.allow, self.frames
        pixels_BCTHW = source.values.to(network.projection.project.weight.dtype)
        x_NCHW = _with_standardised(pixels_BCTHW.transpose(1, 2).flatten(0, 1), allow_BTHW.flatten(0, 1))
        for halve, block, over_time in zip(network.halve, network.blocks, self.over_time, strict=True):
            x_NCHW = halve(real_pixels(x_NCHW, allow_BTHW.flatten(0, 1)))
            allow_BTHW = masks.downsample(allow_BTHW, 2)
            x_NCHW = over_time(block(x_NCHW, allow_BTHW.flatten(0, 1)), allow_BTHW)
        x_NCHW = _with_standardised(x_NCHW, allow_BTHW.flatten(0, 1))
        output: FrontendOutput = network.projection(x_NCHW.movedim(1, -1).unflatten(0, allow_BTHW.shape[:2]), allow_BTHW)
        return output


def _with_standardised(x_BCHW: Tensor, allow_BHW: Tensor) -> Tensor:
    """Returns standardised and raw values (B, 2C, H, W)."""
    return torch.cat((standardised(x_BCHW, allow_BHW), x_BCHW), dim=1)


def real_pixels(x_BCHW: Tensor, allow_BHW: Tensor) -> Tensor:
    """Returns x with zeros at padding, which must be finite (a product takes a fifth of the time of masked_fill)."""
    return x_BCHW * allow_BHW.unsqueeze(1).to(x_BCHW.dtype)


FRONTENDS: dict[FrontendName, Callable[[int, int, int, bool], Frontend]] = {
    "picture": lambda size, width, channels, positions: ResNetFrontend(size, width, channels, positions=positions),
    "patches": lambda size, width, channels, positions: PatchFrontend(size, width),
    "grid": lambda size, width, channels, positions: GridFrontend(size, width, positions=positions),
    "frames": lambda size, width, channels, positions: FrameFrontend(size, width, positions=positions),
    "sound": lambda size, width, channels, positions: SoundFrontend(size, width, channels, positions=positions),
    "whisper": lambda size, width, channels, positions: WhisperFrontend(size, width, positions=positions),
    "video": lambda size, width, channels, positions: VideoFrontend(size, width, channels, positions=positions),
    "video_grid": lambda size, width, channels, positions: GridFrontend(size, width, positions=positions),
}
"""Name -> function of (numbers per pixel, cell or frame; width; channels of convolutions; whether to add positions)."""


def make_frontend(
    name: FrontendName,
    size: int,
    width: int,
    channels: int,
    *,
    positions: bool,
    auxiliary: int = 0,
    make_score: MakeScore | None = None,
) -> Frontend:
    """Returns the frontend of this name; with auxiliary texts, a `FusionFrontend` around it.

    size: numbers per pixel, cell or frame.
    width: width of the output vectors.
    channels: channels of the convolutions.
    positions: whether to add positions, for encoders that do not depend on order otherwise.
    auxiliary: vocabulary size of the auxiliary texts; 0 if there are none. make_score: as in `FusionFrontend`.
    """
    frontend = FRONTENDS[name](size, width, channels, positions)
    return FusionFrontend(frontend, width, auxiliary, make_score) if auxiliary else frontend


VIDEOS = ("video", "video_grid")
"""Frontends whose positions form a grid for each frame."""
GRIDS = ("picture", "patches", "grid", *VIDEOS)
"""Frontends whose positions form a grid."""


def check_frontend(name: str, width: int, channels: int) -> None:
    """Raises ValueError if a frontend of this name cannot have these sizes."""
    if name == "whisper" and (width < 4 or width % 2):
        raise ValueError(f"width {width} cannot hold the sines and cosines of Whisper; make it an even number from 4 on")
    if name in GRIDS and width % 4:
        raise ValueError(f"width {width} cannot hold sines and cosines of both rows and columns; make it a multiple of 4")
    if name in VIDEOS and width % 8:
        raise ValueError(f"width {width} cannot hold sines and cosines of time, rows and columns; make it a multiple of 8")
    if name in ("picture", "video") and channels % 4:
        raise ValueError(
            f"channels is {channels}, but the first stage of the network has a quarter of them; make it a multiple of 4"
        )
