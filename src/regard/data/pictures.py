"""Pictures as sources, read with pillow (the extra `plot`) and converted to 8 bits of grey or of RGB."""

from __future__ import annotations

import base64
import importlib.util
import io
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, ClassVar, Self, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.data.files import check_file
from regard.data.sources import CELL, MAX_FRAMES, FileCodec, read_sample
from regard.errors import UserError, WrongNumbers, one_line

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFile import ImageFile

PREVIEW = 640
"""Largest side of a preview, in pixels."""
SIDES = range(CELL, 4097)
"""Allowed values of `longest`, in pixels."""
SAMPLE = 100
"""How many pictures are read to find out whether they have colours."""
GREY = ("1", "L", "LA", "I", "F", "I;16", "I;16B", "I;16L", "I;16N")
"""Modes of pillow that have no colours."""


@dataclass(frozen=True)
class Pictures(FileCodec):
    """Reads picture files. channels: 1 (grey) or 3 (RGB). longest: largest side in pixels; larger pictures are scaled down.

    Height and width are rounded to multiples of 8, the size of a grid cell; otherwise proportions are kept. Small pictures are
    not scaled up.
    """

    channels: int
    longest: int

    unit: ClassVar[str] = "picture"
    nouns: ClassVar[str] = "pictures"
    suffixes: ClassVar[frozenset[str]] = frozenset(
        ".png .apng .jpg .jpeg .jpe .bmp .gif .webp .tif .tiff .ppm .pgm .pbm .pnm".split()
    )

    def __post_init__(self) -> None:
        if self.channels not in (1, 3):
            raise WrongNumbers({"channels": (self.channels, "1 (grey) or 3 (colours)")})
        if self.longest not in SIDES:
            raise WrongNumbers({"longest": (self.longest, f"{SIDES[0]} to {SIDES[-1]:,} pixels")})

    @classmethod
    def fit(cls, names: Iterable[str], root: Path, *, picture_size: int, max_frames: int = MAX_FRAMES) -> Self:
        check_pillow()
        modes = read_sample(names, SAMPLE, lambda name: open_picture(root / name).mode, cls.nouns)
        return cls(3 if "RGB" in modes else 1, picture_size, root=root)

    def read(self, path: Path) -> Tensor:
        """Returns the pixels as uint8 (channels, height, width)."""
        return pixels_CHW(open_picture(path, self.longest), self.channels, self.longest)

    def preview(self, name: str) -> str:
        """Returns the picture of the file as a data URI, at most 640 pixels wide and high. Grid cells divide it evenly."""
        picture = open_picture(self.root / name)
        picture.thumbnail((PREVIEW, PREVIEW))
        return data_uri(picture)

    def missing(self) -> Tensor:
        return torch.zeros(self.channels, 0, 0, dtype=torch.uint8)

    def __len__(self) -> int:
        return self.channels

    def about(self) -> str:
        return f"{'grey' if self.channels == 1 else 'colour'} pictures of at most {self.longest} pixels"

    def varied(self, row: Tensor, amount: float, rng: Random) -> Tensor:
        """Shifts and scales the picture by up to the fraction `amount` of its size; edge pixels fill the gaps. It never
        mirrors the picture, because text, left and right must keep their meaning."""
        return moved(row, amount, rng)


def pixels_CHW(picture: Image, channels: int, longest: int) -> Tensor:
    """Returns the pixels of a picture as uint8, scaled down to `longest` pixels and to sides that are multiples of a cell."""
    scale = min(1.0, longest / max(picture.size))
    width, height = (max(1, round(side * scale / CELL)) * CELL for side in picture.size)
    picture = picture.convert("L" if channels == 1 else "RGB")
    if (width, height) != picture.size:
        picture = picture.resize((width, height))
    pixels = torch.from_numpy(np.array(picture))
    return pixels.view(height, width, channels).permute(2, 0, 1).contiguous()


def moved(row_CHW: Tensor, amount: float, rng: Random) -> Tensor:
    """Returns a picture of any number of channels, shifted and scaled at random, as `Pictures.varied` describes."""
    x, y = (rng.uniform(-amount, amount) for _ in range(2))
    scale_x, scale_y = (1 + rng.uniform(-amount, amount) for _ in range(2))
    matrix = torch.tensor([[[scale_x, 0.0, 2 * x], [0.0, scale_y, 2 * y]]])
    grid = F.affine_grid(matrix, [1, *row_CHW.shape], align_corners=False)
    sampled = F.grid_sample(row_CHW[None].float(), grid, padding_mode="border", align_corners=False)
    return sampled[0].round().to(torch.uint8)


def data_uri(picture: Image) -> str:
    """Returns a picture as a data URI, in the format PNG."""
    content = io.BytesIO()
    picture.save(content, "PNG")
    return "data:image/png;base64," + base64.b64encode(content.getvalue()).decode()


def check_pillow() -> None:
    """Raises UserError if pillow is not installed."""
    if importlib.util.find_spec("PIL") is None:
        raise UserError('reading pictures needs pillow; type: pip install "regard[plot]"')


def open_picture(path: Path, longest: int | None = None) -> Image:
    """Reads a picture, upright, in the mode L or RGB: transparency becomes white, more than 8 bits become 8, and of several
    frames the first is read. Raises UserError with the file's name if it cannot be read.

    longest: size that the caller will scale the picture down to; a JPEG is then decoded at a lower resolution.
    """
    check_pillow()
    from PIL import ImageOps

    with opened(path) as file:
        if longest:
            file.draft(None, (2 * longest, 2 * longest))
        file.load()
        picture = ImageOps.exif_transpose(file)
        if not min(picture.size):
            raise UserError(f"{path} is an empty picture: {picture.width} x {picture.height} pixels")
        return in_grey_or_colours(picture)


@contextmanager
def opened(path: Path) -> Iterator[ImageFile]:
    """Opens a file with pillow, which reads its header. Whatever fails inside becomes a UserError with the file's name."""
    check_pillow()
    check_file(path)
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            warnings.filterwarnings("ignore", category=UserWarning)  # unusual metadata does not matter here
            with Image.open(path) as file:
                yield file
    except UserError:
        raise
    except UnidentifiedImageError:
        raise UserError(f"{path} is not a picture, or is in a format that pillow does not support") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise UserError(f"{path}: the picture is too large: {one_line(error)}; scale it down first") from None
    except Exception as error:  # pillow raises many types for damaged files
        raise UserError(
            f"{path} cannot be read as a picture: {getattr(error, 'strerror', None) or one_line(error) or type(error).__name__}"
        ) from None


def in_grey_or_colours(picture: Image) -> Image:
    """Converts a picture of any mode to L or RGB."""
    from PIL import Image

    if picture.mode.startswith("I;16"):
        return _scaled(picture, 65535.0)
    if picture.mode in ("I", "F"):  # 32 bits per pixel: the values decide the scale
        if not np.isfinite(np.asarray(picture)).all():
            raise ValueError("it contains numbers that are not finite")
        low, high = cast("tuple[float, float]", picture.getextrema())
        top = 65535.0 if picture.mode == "I" and high > 255 else 255.0 if high > 1 else 1.0
        return _scaled(picture, max(top, high)) if low >= 0 else _scaled(picture, high - low or 1.0, low)
    if picture.mode == "P" and "transparency" not in picture.info:
        picture = picture.convert("RGB")
    if picture.has_transparency_data:
        transparent = picture.convert("RGBA")
        white = Image.new("RGBA", transparent.size, "white")
        white.alpha_composite(transparent)
        picture = white.convert("L" if picture.mode in GREY else "RGB")
    return picture if picture.mode in ("L", "RGB") else picture.convert("L" if picture.mode in GREY else "RGB")


def _scaled(picture: Image, top: float, low: float = 0.0) -> Image:
    """Maps values from `low` to `low + top` to 8 bits, rounded."""
    numbers = picture.convert("F")
    return numbers.point(lambda value: value * (255 / top) + (0.5 - low * 255 / top)).convert("L")
