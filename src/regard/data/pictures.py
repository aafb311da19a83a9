"""Pictures as a source, through pillow (the extra `plot`): whatever a file holds becomes 8 bits of grey or of colours."""

from __future__ import annotations

import base64
import importlib.util
import io
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, ClassVar, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.data.files import check_file
from regard.data.sources import CELL, FileCodec, read_sample
from regard.errors import UserError, WrongNumbers, one_line

if TYPE_CHECKING:
    from PIL.Image import Image

PREVIEW = 640
SIDES = range(CELL, 4097)
"""What the longer side of a picture may be made."""
SAMPLE = 100
"""How many pictures are looked at to see whether they have colours."""
GREY = ("1", "L", "LA", "I", "F", "I;16", "I;16B", "I;16L", "I;16N")


@dataclass(frozen=True)
class Pictures(FileCodec):
    """channels: 1 (grey) or 3. longest: the longer side in pixels; larger pictures are made smaller, with their proportions.

    Both sides become multiples of 8, the size of a cell. Small pictures are not made larger.
    """

    channels: int
    longest: int

    unit: ClassVar[str] = "picture"
    nouns: ClassVar[str] = "pictures"
    suffixes: ClassVar[frozenset[str]] = frozenset(
        ".png .jpg .jpeg .jpe .bmp .gif .webp .tif .tiff .ppm .pgm .pbm .pnm".split()
    )

    def __post_init__(self) -> None:
        if self.channels not in (1, 3):
            raise WrongNumbers({"channels": (self.channels, "1 (grey) or 3 (colours)")})
        if self.longest not in SIDES:
            raise WrongNumbers({"longest": (self.longest, f"{SIDES[0]} to {SIDES[-1]:,} pixels")})

    @classmethod
    def learn(cls, names: Iterable[str], root: Path, *, picture_size: int) -> Self:
        check_pillow()
        modes = read_sample(names, SAMPLE, lambda name: open_picture(root / name).mode, cls.nouns)
        return cls(3 if "RGB" in modes else 1, picture_size, root=root)

    def read(self, path: Path) -> Tensor:
        picture = open_picture(path, self.longest).convert("L" if self.channels == 1 else "RGB")
        scale = min(1.0, self.longest / max(picture.size))
        width, height = (max(1, round(side * scale / CELL)) * CELL for side in picture.size)
        if (width, height) != picture.size:
            picture = picture.resize((width, height))
        pixels = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8)
        return pixels.view(height, width, self.channels).permute(2, 0, 1).contiguous()

    def preview(self, name: str) -> str:
        """As it stands in the file, at most 640 pixels wide or high: the cells of a map divide it evenly."""
        picture = open_picture(self.root / name)
        picture.thumbnail((PREVIEW, PREVIEW))
        content = io.BytesIO()
        picture.save(content, "PNG")
        return "data:image/png;base64," + base64.b64encode(content.getvalue()).decode()

    def missing(self) -> Tensor:
        return torch.zeros(self.channels, 0, 0, dtype=torch.uint8)

    def __len__(self) -> int:
        return self.channels

    def about(self) -> str:
        return f"{'grey' if self.channels == 1 else 'colour'} pictures of at most {self.longest} pixels"

    def varied(self, row: Tensor, amount: float, chance: Random) -> Tensor:
        """Moved and scaled by up to this share of the size; what comes in at the edges is the edge. Never mirrored: text in a
        picture, and left and right, must stay what they are."""
        x, y = (chance.uniform(-amount, amount) for _ in range(2))
        scale_x, scale_y = (1 + chance.uniform(-amount, amount) for _ in range(2))
        matrix = torch.tensor([[[scale_x, 0.0, 2 * x], [0.0, scale_y, 2 * y]]])
        grid = F.affine_grid(matrix, [1, *row.shape], align_corners=False)
        moved = F.grid_sample(row[None].float(), grid, padding_mode="border", align_corners=False)
        return moved[0].round().to(torch.uint8)


def check_pillow() -> None:
    if importlib.util.find_spec("PIL") is None:
        raise UserError('reading pictures needs pillow; type: pip install "regard[plot]"')


def open_picture(path: Path, longest: int | None = None) -> Image:
    """Whole and upright, in the mode L or RGB: see-through on white, 16 bits and more brought to 8, the first of several.

    longest: a photograph that is to be made that small need not be decoded in full.
    """
    check_pillow()
    check_file(path)
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            warnings.filterwarnings("ignore", category=UserWarning)  # odd metadata is not news
            with Image.open(path) as file:
                if longest:
                    file.draft(None, (2 * longest, 2 * longest))
                file.load()
                picture = ImageOps.exif_transpose(file)
            if not min(picture.size):
                raise UserError(f"{path} is an empty picture: {picture.width} x {picture.height} pixels")
            return _plain(picture)
    except UserError:
        raise
    except UnidentifiedImageError:
        raise UserError(f"{path} is not a picture, or of a kind that pillow does not know") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise UserError(f"{path} is too large a picture: {one_line(error)}; make it smaller first") from None
    except Exception as error:  # pillow has many for damaged files
        raise UserError(
            f"{path} cannot be read as a picture: {getattr(error, 'strerror', None) or one_line(error) or type(error).__name__}"
        ) from None


def _plain(picture: Image) -> Image:
    from PIL import Image

    if picture.mode.startswith("I;16"):
        return _scaled(picture, 65535.0)
    if picture.mode in ("I", "F"):  # 32 bits: by what is there
        numbers = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.float32 if picture.mode == "F" else torch.int32)
        if not numbers.isfinite().all():
            raise ValueError("it contains numbers that are not finite")
        low, high = cast("tuple[float, float]", picture.getextrema())
        top = 65535.0 if picture.mode == "I" and high > 255 else 255.0 if high > 1 else 1.0
        return _scaled(picture, max(top, high)) if low >= 0 else _scaled(picture, high - low or 1.0, low)
    if picture.mode == "P" and "transparency" not in picture.info:
        picture = picture.convert("RGB")
    if picture.has_transparency_data:
        seen = picture.convert("RGBA")
        white = Image.new("RGBA", seen.size, "white")
        white.alpha_composite(seen)
        picture = white.convert("L" if picture.mode in GREY else "RGB")
    return picture if picture.mode in ("L", "RGB") else picture.convert("L" if picture.mode in GREY else "RGB")


def _scaled(picture: Image, top: float, low: float = 0.0) -> Image:
    """To 8 bits, rounded."""
    numbers = picture.convert("F")
    return numbers.point(lambda value: value * (255 / top) + (0.5 - low * 255 / top)).convert("L")
