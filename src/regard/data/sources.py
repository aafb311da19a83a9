"""Sources that are not text. A source stays a string everywhere: the name of a file; what it means is the matter of its codec.

A text becomes a list of ids; a file becomes a tensor, whose axes tell what it is:

    (channels, height, width)    a picture, in bytes; or a grid of features, in floating-point numbers, a channel for each
    (frames, features)           a sequence of frames, in floating-point numbers: sound, or features of any other origin
    (frames, samples)            a sound, in samples of 16 bits, 10 ms in a row; a batch holds its log-mel frames
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Self

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from regard.contracts import Source
from regard.core import masks
from regard.core.spectrum import STRIDE
from regard.data.sound import to_frames
from regard.data.tokenizers.codec import Codec
from regard.errors import UserError

Row = list[int] | Tensor
"""One source as numbers."""

CELL = 8
"""Height and width of what becomes one place of the memory, in pixels."""


def num_places(row: Row) -> int:
    """How long a source is: its tokens, its frames (of a sound: every fourth), or the cells of its grid."""
    return len(row) if isinstance(row, list) else int(num_places_of_shapes(torch.tensor([row.shape]), row.dtype))


def num_places_of_shapes(shapes_ND: Tensor, dtype: torch.dtype) -> Tensor:
    """The same for the shapes of many tensors."""
    if shapes_ND.shape[1] == 2:
        return -(-shapes_ND[:, 0] // (STRIDE if dtype == torch.int16 else 1))
    cell = CELL if dtype == torch.uint8 else 1
    return (-(-shapes_ND[:, 1:] // cell)).prod(1)


def tensor_batch(rows: Sequence[Tensor]) -> Source:
    """Pictures padded at the right and at the bottom, frames at the end. Bytes become numbers from −1 to 1, samples of a sound
    log-mel frames; padding is 0."""
    rows = [to_frames(row) if row.dtype == torch.int16 else row for row in rows]
    sizes_B2 = torch.tensor([row.shape[1:] if row.dim() == 3 else row.shape[:1] for row in rows])
    axes = sizes_B2.max(0).values.tolist()
    shape = (rows[0].shape[0], *axes) if rows[0].dim() == 3 else (*axes, rows[0].shape[1])
    values = torch.zeros(len(rows), *shape)
    for number, row in enumerate(rows):
        numbers = row / 127.5 - 1 if row.dtype == torch.uint8 else row
        if row.dim() == 3:
            values[number, :, : row.shape[1], : row.shape[2]] = numbers
        else:
            values[number, : len(row)] = numbers
    allow = masks.first(sizes_B2[:, 0], axes[0])
    if len(axes) == 2:
        allow = masks.both(allow.unsqueeze(-1), masks.first(sizes_B2[:, 1], axes[1]).unsqueeze(-2))
    return Source(values, allow)


@dataclass(frozen=True)
class FileCodec(ABC):
    """Reads the files of one kind. Subclass it, say how, and enter it in data/codecs.py. Its fields are what source.json holds.

    root: the folder from which names are seen; it is not part of a model.
    """

    root: Path = field(default=Path(), kw_only=True, compare=False)

    unit: ClassVar[str]
    """What settings and source.json call it."""
    nouns: ClassVar[str]
    """What people call several of them."""
    suffixes: ClassVar[frozenset[str]]
    """How the names of such files end."""
    has_features = has_merges = False
    """Only text has these."""

    @classmethod
    @abstractmethod
    def learn(cls, names: Iterable[str], root: Path, *, picture_size: int) -> Self:
        """What there is to know about these files. Those that cannot be read are passed over, unless there are no others."""

    @abstractmethod
    def read(self, path: Path) -> Tensor:
        """One file as numbers; UserError with its name if that cannot be."""

    @abstractmethod
    def __len__(self) -> int:
        """Numbers in one pixel, cell or frame: what a model wants to know instead of the size of a vocabulary."""

    @abstractmethod
    def about(self) -> str:
        """For people: what becomes of the files."""

    def varied(self, row: Tensor, amount: float, chance: Random) -> Tensor:
        """The same a little different, for training; a function of (row, amount, the state of `chance`) alone."""
        return row

    def encode(self, name: str) -> Tensor:
        return self.read(self.root / name)

    def encode_batch(self, names: Sequence[str]) -> list[Tensor]:
        return [self.encode(name) for name in names]

    def pieces(self, name: str) -> tuple[str, ...]:
        """A file has no tokens."""
        return ()

    def unknown(self, name: str) -> tuple[str, ...]:
        return ()

    def labels(self, name: str, axes: tuple[int, ...]) -> tuple[str, ...]:
        """One for every place of the memory."""
        if len(axes) == 1:
            return tuple(map(str, range(axes[0])))
        return tuple(f"{row},{column}" for row in range(axes[0]) for column in range(axes[1]))

    def preview(self, name: str) -> str:
        """What a page shows under the maps: a picture as a data URI, or nothing."""
        return ""

    def at(self, folder: Path) -> Self:
        """The same for names that are seen from another folder."""
        return replace(self, root=folder)

    def to_json(self) -> str:
        return json.dumps({"unit": self.unit, **self._fields()}, indent=2)

    @classmethod
    def from_dict(cls, given: dict[str, Any]) -> Self:
        """Strict: nothing missing, nothing left over."""
        known = {one.name for one in fields(cls)} - {"root"}
        if known != given.keys():
            wrong = sorted(known ^ given.keys())
            raise UserError(f"expected {', '.join(sorted(known)) or 'nothing'}; missing or unknown: {', '.join(wrong)}")
        try:
            codec: Self = TypeAdapter(cls).validate_json(json.dumps(given), strict=True)
        except ValidationError as error:
            raise UserError(str(error)) from None
        return codec

    def _fields(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "root"}


SourceCodec = Codec | FileCodec
