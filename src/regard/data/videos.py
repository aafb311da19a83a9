"""Videos as sources: sequences of pictures, or of grids of features."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, ClassVar, Self

import torch
from torch import Tensor

from regard.contracts import Array
from regard.data.arrays import open_array
from regard.data.features import Features
from regard.data.frames import ANIMATED, ARRAY, num_frames, read_frames, spaced
from regard.data.pictures import GREY, SIDES, check_pillow, data_uri, moved, pixels_CHW
from regard.data.sources import MAX_FRAMES, FileCodec, read_sample
from regard.errors import WrongNumbers

if TYPE_CHECKING:
    from PIL.Image import Image

SAMPLE = 50
"""How many videos are read to find out whether they have colours."""
FRAMES = range(1, 4097)
"""Allowed values of `most_frames`."""
THUMBNAIL, SHEET = 160, 1280
"""Largest side of a frame in a preview, and of the whole preview, in pixels."""


@dataclass(frozen=True)
class Videos(FileCodec):
    """Reads videos: animated GIF, WebP or PNG files, folders of frames, or .npy files (time, rows, columns, features) of bytes.

    channels: 1 (grey) or 3 (RGB). longest: largest side in pixels; larger frames are scaled down, as pictures are.
    most_frames: the maximum number of frames; of a longer video, evenly spaced frames are read. How long a frame is shown has
    no effect.
    """

    channels: int
    longest: int
    most_frames: int

    unit: ClassVar[str] = "video"
    nouns: ClassVar[str] = "videos"
    suffixes: ClassVar[frozenset[str]] = ANIMATED | {ARRAY}

    def __post_init__(self) -> None:
        if self.channels not in (1, 3):
            raise WrongNumbers({"channels": (self.channels, "1 (grey) or 3 (colours)")})
        if self.longest not in SIDES:
            raise WrongNumbers({"longest": (self.longest, f"{SIDES[0]} to {SIDES[-1]:,} pixels")})
        check_frames(self.most_frames)

    @classmethod
    def fit(cls, names: Iterable[str], root: Path, *, picture_size: int, max_frames: int = MAX_FRAMES) -> Self:
        check_pillow()
        modes = read_sample(names, SAMPLE, lambda name: read_frames(root / name, 1, lambda frame: frame.mode), cls.nouns)
        return cls(1 if all(mode in GREY for (mode,) in modes) else 3, picture_size, max_frames, root=root)

    def read(self, path: Path) -> Tensor:
        """Returns the pixels as uint8 (channels, time, height, width)."""
        frames = read_frames(path, self.most_frames, lambda frame: pixels_CHW(frame, self.channels, self.longest))
        return torch.stack(frames, dim=1)

    def left_out(self, name: str) -> str:
        return shortened(name, num_frames(self.root / name), self.most_frames)

    def preview(self, name: str) -> str:
        """Returns the frames that are read, side by side, as a data URI."""
        frames = read_frames(self.root / name, self.most_frames, _thumbnail)
        return data_uri(contact_sheet(frames))

    def missing(self) -> Tensor:
        return torch.zeros(self.channels, 0, 0, 0, dtype=torch.uint8)

    def __len__(self) -> int:
        return self.channels

    def about(self) -> str:
        kind = "grey" if self.channels == 1 else "colour"
        return f"{kind} videos of at most {self.most_frames} frames and {self.longest} pixels"

    def varied(self, row: Tensor, amount: float, rng: Random) -> Tensor:
        """Shifts and scales all frames by the same amount, as `Pictures.varied` does with one."""
        return moved(row.flatten(0, 1), amount, rng).view_as(row)


@dataclass(frozen=True)
class VideoGrids(Features):
    """Reads grids of features over time, (time, rows, columns, features). most_frames: as in `Videos`."""

    most_frames: int = MAX_FRAMES

    unit: ClassVar[str] = "video_grid"
    nouns: ClassVar[str] = "videos of features"
    num_axes: ClassVar[int] = 4
    axes: ClassVar[str] = "(time, rows, columns, features)"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_frames(self.most_frames)

    @classmethod
    def fit(cls, names: Iterable[str], root: Path, *, picture_size: int, max_frames: int = MAX_FRAMES) -> Self:
        fitted = super().fit(names, root, picture_size=picture_size)
        return cls(fitted.mean, fitted.deviation, max_frames, root=root)

    def read(self, path: Path) -> Tensor:
        """Returns the standardised features as float32 (features, time, rows, columns)."""
        array = self._mapped(path)
        chosen = array[spaced(len(array), self.most_frames)]
        numbers = torch.from_numpy(chosen.astype(chosen.dtype.newbyteorder("=")))
        return self._standardised(path, self._checked(path, numbers))

    def left_out(self, name: str) -> str:
        return shortened(name, len(self._mapped(self.root / name)), self.most_frames)

    def _mapped(self, path: Path) -> Array:
        """Returns the array of a file, of which only the chosen frames are read."""
        array = open_array(path)
        self._check_shape(path, array.shape)
        return array


def check_frames(most: int) -> None:
    """Raises WrongNumbers if a codec cannot read so many frames."""
    if most not in FRAMES:
        raise WrongNumbers({"most_frames": (most, f"{FRAMES[0]} to {FRAMES[-1]:,} frames")})


def shortened(name: str, number: int, most: int) -> str:
    """Says that frames of a video are left out; empty if they are not."""
    if number <= most:
        return ""
    return f"{name} has {number:,} frames, of which {most:,} are read, evenly spaced (data.max_frames)"


def sheet_columns(number: int) -> int:
    """Returns how many frames stand side by side in a contact sheet of this number of frames."""
    return math.ceil(math.sqrt(number))


def contact_sheet(frames: list[Image]) -> Image:
    """Returns frames of one size as one picture, row by row from the top left. The rest of the last row is white."""
    from PIL import Image

    columns = sheet_columns(len(frames))
    width, height = frames[0].size
    sheet = Image.new(frames[0].mode, (columns * width, math.ceil(len(frames) / columns) * height), "white")
    for index, frame in enumerate(frames):
        sheet.paste(frame, (index % columns * width, index // columns * height))
    sheet.thumbnail((SHEET, SHEET))
    return sheet


def _thumbnail(frame: Image) -> Image:
    frame.thumbnail((THUMBNAIL, THUMBNAIL))
    return frame
