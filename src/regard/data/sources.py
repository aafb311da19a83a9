"""Sources that are not text. A source stays a string everywhere: the name of a file; what it means is the matter of its codec.

A text becomes a list of ids; a file becomes a tensor, whose axes tell what it is:

    (channels, height, width)    a picture, in bytes; or a grid of features, in floating-point numbers, a channel for each
    (frames, features)           a sequence of frames, in floating-point numbers: sound, or features of any other origin
    (frames, samples)            a sound, in samples of 16 bits, 10 ms in a row; a batch holds its log-mel frames

A text may stand beside the file, after a TAB: "a.wav<TAB>every second". Either of the two may be missing.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import torch
from pydantic import ConfigDict
from torch import Tensor

from regard.contracts import Source
from regard.core import masks
from regard.core.spectrum import STRIDE
from regard.data.documents import few, validated
from regard.data.sound import to_frames
from regard.data.tokenizers.codec import Codec
from regard.errors import UserError

T = TypeVar("T")


class FileAndText(NamedTuple):
    """A file, and the tokens of the text beside it. A missing file has no places, a missing text no tokens."""

    file: Tensor
    text: list[int]


SourceRow = list[int] | Tensor | FileAndText
"""One source as numbers."""

CELL = 8
"""Height and width of what becomes one place of the memory, in pixels."""


def num_positions(row: SourceRow) -> int:
    """How long a source is: its tokens, its frames (of a sound: every fourth), or the cells of its grid."""
    if isinstance(row, FileAndText):
        return num_positions(row.file) + len(row.text)
    return len(row) if isinstance(row, list) else int(num_positions_of_shapes(torch.tensor([row.shape]), row.dtype))


def num_positions_of_shapes(shapes_ND: Tensor, dtype: torch.dtype) -> Tensor:
    """The same for the shapes of many tensors."""
    if shapes_ND.shape[1] == 2:
        return -(-shapes_ND[:, 0] // (STRIDE if dtype == torch.int16 else 1))
    cell = CELL if dtype == torch.uint8 else 1
    return (-(-shapes_ND[:, 1:] // cell)).prod(1)


def split_source(source: str) -> tuple[str, str]:
    """(the name of a file, the text beside it), either of which may be empty."""
    name, _, text = source.partition("\t")
    return name, " ".join(text.split())


def tensor_batch(rows: Sequence[Tensor]) -> Source:
    """Pictures padded at the right and at the bottom, frames at the end. Bytes become numbers from −1 to 1, samples of a sound
    log-mel frames; padding is 0."""
    rows = [to_frames(row) if row.dtype == torch.int16 else row for row in rows]
    sizes_B2 = torch.tensor([row.shape[1:] if row.dim() == 3 else row.shape[:1] for row in rows])
    axes = sizes_B2.max(0).values.clamp(min=1).tolist()  # 0: a file that is missing
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


def read_sample(names: Iterable[str], number: int, read: Callable[[str], T], nouns: str) -> list[T]:
    """What can be read of the first few files. Those that cannot be are passed over; where none can, the first says why."""
    found, errors = list[T](), list[UserError]()
    for name in islice(names, number):
        try:
            found.append(read(name))
        except UserError as error:
            errors.append(error)
    if not found and errors:
        raise UserError(
            f"none of the first {len(errors):,} {nouns} can be read; the first: {errors[0]}. Are names right as seen from the "
            "folder of the file that lists them?"
        )
    if not found:
        raise UserError(f"there are no {nouns} to learn from")
    return found


@dataclass(frozen=True)
class FileCodec(ABC):
    """Reads the files of one kind. Subclass it, say how, and enter it in data/codecs.py. Its fields are what source.json holds.

    root: the folder from which names are seen; it is not part of a model. beside: the vocabulary of texts beside the files, if
    there are any.
    """

    __pydantic_config__: ClassVar = ConfigDict(arbitrary_types_allowed=True)

    root: Path = field(default=Path(), kw_only=True, compare=False)
    auxiliary: Codec | None = field(default=None, kw_only=True, compare=False)

    unit: ClassVar[str]
    """What settings and source.json call it."""
    nouns: ClassVar[str]
    """What people call several of them."""
    suffixes: ClassVar[frozenset[str]]
    """How the names of such files end."""
    seconds: ClassVar[float] = 0.0
    """How long one place of the memory lasts; 0 where places have nothing to do with time."""
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
    def missing(self) -> Tensor:
        """What stands for a file that is missing: as `read` gives it, but without any places."""

    @abstractmethod
    def __len__(self) -> int:
        """Numbers in one pixel, cell or frame: what a model wants to know instead of the size of a vocabulary."""

    @abstractmethod
    def about(self) -> str:
        """For people: what becomes of the files."""

    def varied(self, row: Tensor, amount: float, chance: Random) -> Tensor:
        """The same a little different, for training; a function of (row, amount, the state of `chance`) alone."""
        return row

    @property
    def normalises(self) -> bool:
        """Whether texts beside the files are read in one Unicode spelling. Names of files stay as they are on disk."""
        return self.auxiliary is not None and self.auxiliary.normalises

    def normalised(self, source: str) -> str:
        name, tab, text = source.partition("\t")
        return name + tab + (self.auxiliary.normalised(text) if self.auxiliary else text)

    def encode(self, source: str) -> Tensor | FileAndText:
        """The file of this name; with a text beside it, both."""
        if self.auxiliary is None:
            return self.read(self.root / source)
        name, text = split_source(source)
        return FileAndText(self.read(self.root / name) if name else self.missing(), self.auxiliary.encode(text))

    def encode_batch(self, sources: Sequence[str]) -> list[Tensor | FileAndText]:
        return [self.encode(source) for source in sources]

    def words(self, source: str) -> tuple[str, ...]:
        """The tokens of the text beside the file, and <eos>; nothing where there are no such texts."""
        return () if self.auxiliary is None else self.auxiliary.labels(split_source(source)[1])

    def pieces(self, name: str) -> tuple[str, ...]:
        """A file has no tokens."""
        return ()

    def unknown(self, source: str) -> tuple[str, ...]:
        """Of a text beside the file."""
        return () if self.auxiliary is None else self.auxiliary.unknown(split_source(source)[1])

    def has_file(self, source: str) -> bool:
        """Whether there is more than a text beside a file that is missing."""
        return self.auxiliary is None or bool(split_source(source)[0])

    def title(self, source: str) -> str:
        """For people: the file, and the text beside it."""
        if self.auxiliary is None:
            return source
        name, text = split_source(source)
        return " + ".join(filter(None, (name or f"no {self.unit}", text)))

    def labels(self, source: str, axes: tuple[int, ...]) -> tuple[str, ...]:
        """One for every place of the memory, which has one for a file that is missing."""
        if not self.has_file(source):
            return (f"no {self.unit}",)
        if self.seconds:
            return tuple(f"{position * self.seconds:.2f} s" for position in range(axes[0]))
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
        auxiliary = {} if self.auxiliary is None else {"auxiliary": json.loads(self.auxiliary.to_json())}
        return json.dumps({"unit": self.unit, **self._fields(), **auxiliary}, indent=2, ensure_ascii=False)

    @classmethod
    def from_dict(cls, given: dict[str, Any]) -> Self:
        """Strict: nothing missing, nothing left over."""
        known = {one.name for one in fields(cls)} - {"root", "auxiliary"}
        if known != given.keys():
            wrong = few(sorted(known ^ given.keys()))
            raise UserError(f"expected {', '.join(sorted(known)) or 'nothing'}; missing or unknown: {wrong}")
        return validated(cls, given, f"a source of the unit {cls.unit}")

    def _fields(self) -> dict[str, Any]:
        return {
            name: value for name, value in asdict(replace(self, auxiliary=None)).items() if name not in ("root", "auxiliary")
        }


SourceCodec = Codec | FileCodec


def auxiliary_vocabulary_size(codec: SourceCodec) -> int:
    """How many tokens the texts have that stand beside the sources; 0 where there are none."""
    return len(codec.auxiliary) if isinstance(codec, FileCodec) and codec.auxiliary is not None else 0
