"""Sources that are files: a codec reads the file that a source names, and its auxiliary text.

A text becomes a list of ids; a file becomes an array, whose axes and dtype show its kind:

    (channels, height, width)          uint8: a picture; float32: a grid of features, one channel per feature
    (channels, time, height, width)    uint8: a video; float32: a grid of features for each frame
    (frames, features)                 float32: a sequence of frames: features of any origin, or the log-mel frames of a sound
    (frames, samples)                  int16: a sound, 10 ms of samples per row; a batch contains its log-mel frames

A source is the name of a file, or ("a.wav", "every second") if the file has an auxiliary text. Either may be empty.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import islice, product
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import torch
from pydantic import ConfigDict
from torch import Tensor

from regard.contracts import OWN, Array, FileAndText, SourceRow, SourceText, Specials
from regard.core import masks
from regard.core.source import Source
from regard.core.spectrum import STRIDE
from regard.data.documents import few, validated
from regard.data.sound import to_frames
from regard.data.source_text import file_and_text
from regard.data.tokenizers.contract import TextCodec
from regard.errors import UserError

T = TypeVar("T")


CELL = 8
"""Height and width in pixels of one grid cell, which becomes one position of the memory."""
MAX_FRAMES = 32
"""Default maximum number of frames of a video."""


def num_positions(row: SourceRow) -> int:
    """Returns the length of a source: its number of tokens, frames (every fourth frame of a sound) or grid cells; in a video,
    those of all frames."""
    if isinstance(row, FileAndText):
        return num_positions(row.file) + len(row.text)
    return len(row) if isinstance(row, list) else int(num_positions_of_shapes(np.array([row.shape]), row.dtype)[0])


def num_positions_of_shapes(shapes_ND: Array, dtype: np.dtype[Any]) -> Array:
    """Like `num_positions`, for the shapes of many arrays of one dtype."""
    if shapes_ND.shape[1] == 2:
        return -(-shapes_ND[:, 0] // (STRIDE if dtype == np.int16 else 1))
    cell = CELL if dtype == np.uint8 else 1
    cells_N: Array = (-(-shapes_ND[:, -2:] // cell)).prod(1)
    num_frames_N: Array = shapes_ND[:, 1:-2].prod(1)  # 1 for a picture
    return num_frames_N * cells_N


def file_batch(arrays: Sequence[Array]) -> Source:
    """Returns a batch of files, padded with zeros at the ends of their axes: time, rows and columns, or frames. Bytes become
    numbers from −1 to 1; the samples of a sound become log-mel frames."""
    rows = [to_frames(row) if row.dtype == torch.int16 else row for row in map(torch.from_numpy, arrays)]
    channels_first = rows[0].dim() > 2
    sizes_BN = torch.tensor([row.shape[1:] if channels_first else row.shape[:1] for row in rows])
    axes = sizes_BN.max(0).values.clamp(min=1).tolist()  # a missing file has size 0
    shape = (rows[0].shape[0], *axes) if channels_first else (*axes, rows[0].shape[1])
    values = torch.zeros(len(rows), *shape)
    for number, row in enumerate(rows):
        numbers = row / 127.5 - 1 if row.dtype == torch.uint8 else row
        values[number][tuple(map(slice, row.shape))] = numbers
    allow = masks.first(sizes_BN[:, 0], axes[0])
    for axis, size in enumerate(axes[1:], start=1):
        along = masks.first(sizes_BN[:, axis], size)
        allow = masks.both(allow.unsqueeze(-1), along.view(len(rows), *[1] * axis, size))
    return Source(values, allow)


def read_sample(names: Iterable[str], number: int, read: Callable[[str], T], nouns: str) -> list[T]:
    """Returns `read(name)` for those of the first `number` files that can be read. Raises UserError if none of them can."""
    results, errors = list[T](), list[UserError]()
    for name in islice(names, number):
        try:
            results.append(read(name))
        except UserError as error:
            errors.append(error)
    if not results and errors:
        raise UserError(
            f"none of the first {len(errors):,} {nouns} can be read; the first error: {errors[0]}. Are the file names "
            "relative to the folder of the file that lists them?"
        )
    if not results:
        raise UserError(f"there are no {nouns} in the training data")
    return results


@dataclass(frozen=True)
class FileCodec(ABC):
    """Base class of the codecs that read one kind of file. To add a kind, write a subclass and list it in data/codecs.py.
    The fields of the subclass are saved in source.json.

    root: the folder that file names are relative to; not saved with the model. auxiliary: the codec of the auxiliary texts, if
    there are any.
    """

    __pydantic_config__: ClassVar = ConfigDict(arbitrary_types_allowed=True)

    root: Path = field(default=Path(), kw_only=True, compare=False)
    auxiliary: TextCodec | None = field(default=None, kw_only=True, compare=False)

    unit: ClassVar[str]
    """Name of this kind of source in settings and in source.json."""
    nouns: ClassVar[str]
    """Plural noun for these files in messages."""
    suffixes: ClassVar[frozenset[str]]
    """File name suffixes, in lower case."""
    seconds: ClassVar[float] = 0.0
    """Duration of one position of the memory, in seconds; 0 if positions are not points in time."""
    has_features = has_merges = False
    """Always False for files; see `TextCodec`."""

    @property
    def specials(self) -> Specials:
        """The special tokens of the auxiliary texts."""
        return OWN if self.auxiliary is None else self.auxiliary.specials

    @classmethod
    @abstractmethod
    def fit(cls, names: Iterable[str], root: Path, *, picture_size: int, max_frames: int = MAX_FRAMES) -> Self:
        """Returns a codec fitted to these files. Unreadable files are skipped; raises UserError if no file can be read."""

    @abstractmethod
    def read(self, path: Path) -> Tensor:
        """Returns a file as a tensor. Raises UserError with the file's name if it cannot be read."""

    @abstractmethod
    def missing(self) -> Tensor:
        """Returns the tensor of a missing file: as from `read`, but with no positions."""

    @abstractmethod
    def __len__(self) -> int:
        """Returns how many numbers a pixel, grid cell or frame has. A model is built with it instead of a vocabulary size."""

    @abstractmethod
    def about(self) -> str:
        """Returns a short description for messages: how the files are read."""

    def varied(self, row: Tensor, amount: float, rng: Random) -> Tensor:
        """Returns a randomly augmented copy for training. The result depends only on (row, amount, the state of `rng`)."""
        return row

    @property
    def normalises(self) -> bool:
        """Whether auxiliary texts are normalised to NFC. File names are never changed."""
        return self.auxiliary is not None and self.auxiliary.normalises

    def normalised(self, source: SourceText) -> SourceText:
        """Returns the source with its auxiliary text normalised, if `normalises`."""
        if isinstance(source, str) or self.auxiliary is None:
            return source
        name, *texts = source
        return (name, *map(self.auxiliary.normalised, texts))

    def encode(self, source: SourceText) -> Array | FileAndText:
        """Reads the file and encodes its auxiliary text, if the codec has one. Raises UserError if the file is unreadable."""
        name, text = file_and_text(source)
        file: Array = (self.read(self.root / name) if name or self.auxiliary is None else self.missing()).numpy()
        return file if self.auxiliary is None else FileAndText(file, self.auxiliary.encode(text))

    def auxiliary_labels(self, source: SourceText) -> tuple[str, ...]:
        """Returns the tokens of the auxiliary text and <eos>; empty if the codec has no auxiliary texts."""
        return () if self.auxiliary is None else self.auxiliary.labels(file_and_text(source)[1])

    def unknown(self, source: SourceText) -> tuple[str, ...]:
        """Returns the unknown tokens of the auxiliary text."""
        return () if self.auxiliary is None else self.auxiliary.unknown(file_and_text(source)[1])

    def has_file(self, source: SourceText) -> bool:
        """Whether the source names a file; False if it is an auxiliary text alone."""
        return self.auxiliary is None or bool(file_and_text(source)[0])

    def title(self, source: SourceText) -> str:
        """Returns a title for messages: the file name and the auxiliary text."""
        name, text = file_and_text(source)
        return name if self.auxiliary is None else " + ".join(filter(None, (name or f"no {self.unit}", text)))

    def labels(self, source: SourceText, axes: tuple[int, ...]) -> tuple[str, ...]:
        """Returns one label per position of the memory, which has one position even if the file is missing."""
        if not self.has_file(source):
            return (f"no {self.unit}",)
        if self.seconds:
            return tuple(f"{position * self.seconds:.2f} s" for position in range(axes[0]))
        if len(axes) == 1:
            return tuple(map(str, range(axes[0])))
        return tuple(",".join(map(str, cell)) for cell in product(*map(range, axes)))

    def preview(self, name: str) -> str:
        """Returns the picture to show under attention maps, as a data URI; empty if the file is not a picture or a video."""
        return ""

    def left_out(self, name: str) -> str:
        """Says which part of a file `read` leaves out; empty if it reads all. Raises UserError if the file is unreadable."""
        return ""

    def at(self, folder: Path) -> Self:
        """Returns a copy whose file names are relative to `folder`."""
        return replace(self, root=folder)

    def to_json(self) -> str:
        """Returns the content of source.json."""
        auxiliary = {} if self.auxiliary is None else {"auxiliary": json.loads(self.auxiliary.to_json())}
        return json.dumps({"unit": self.unit, **self._fields(), **auxiliary}, indent=2, ensure_ascii=False)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Returns a codec with these fields. Raises UserError if a field is missing, unknown or invalid."""
        known = {item.name for item in fields(cls)} - {"root", "auxiliary"}
        if known != values.keys():
            wrong = few(sorted(known ^ values.keys()))
            raise UserError(f"expected {', '.join(sorted(known)) or 'nothing'}; missing or unknown: {wrong}")
        return validated(cls, values, f"a source of the unit {cls.unit}")

    def _fields(self) -> dict[str, Any]:
        return {
            name: value for name, value in asdict(replace(self, auxiliary=None)).items() if name not in ("root", "auxiliary")
        }


SourceCodec = TextCodec | FileCodec


def auxiliary_vocabulary_size(codec: SourceCodec) -> int:
    """Returns the vocabulary size of what comes with a file or a text: of the auxiliary texts, or the number of features; 0 if
    there is nothing."""
    if isinstance(codec, FileCodec):
        return 0 if codec.auxiliary is None else len(codec.auxiliary)
    return codec.num_features
