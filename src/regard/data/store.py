"""A token store: encoded examples in one safetensors file, which is memory-mapped and not loaded. Its tensors:

source_ids, target_ids               the tokens of all sentences of a side, concatenated, in the smallest integer type that fits
source_offsets, target_offsets       int64, one more than there are examples: example i is ids[offsets[i]:offsets[i + 1]]
source_shapes                        int64, only if the sources are files: the shapes of their tensors, concatenated; the
                                     numbers themselves are in source_ids
auxiliary_ids, auxiliary_offsets     only if the files have auxiliary texts: the tokens of these texts

The header also contains the sha256 of the whole file, computed with zeros as the 64 digits of the digest itself.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple, overload

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from regard.contracts import Array, FileAndText
from regard.data.batch import Example
from regard.data.lengths import BLOCK, Block, Lengths
from regard.data.sources import num_positions_of_shapes
from regard.errors import UserError

_SIDES = ("source", "target")
_AUXILIARY = "auxiliary"
_FORMAT = {"regard.store": "1"}
_DTYPES = {"B": "U8", "H": "U16", "h": "I16", "i": "I32", "q": "I64", "f": "F32"}
"""Type codes of `array` -> type names of safetensors, both little-endian."""
_CODES = {np.dtype(np.uint8): "B", np.dtype(np.int16): "h", np.dtype(np.float32): "f"}
_BUFFER = 1 << 16
_REMEDY = "delete it; it will be rebuilt from the data"
_DIGEST = "regard.sha256"
_ZEROS = "0" * 64
_DIGEST_IN_HEADER = re.compile(rf'"{_DIGEST}": "(.{{64}})"'.encode(), re.DOTALL)


class Store(Sequence[Example]):
    """A sequence of examples in a memory-mapped file; the operating system may drop pages that were read."""

    def __init__(
        self, path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str], starts: Mapping[str, int]
    ) -> None:
        """starts: where each tensor begins in the file."""
        self.path, self._starts = path, starts
        self.metadata = dict(metadata)
        self._sides = (*_SIDES, *((_AUXILIARY,) if f"{_AUXILIARY}_ids" in tensors else ()))
        self._ids = [tensors[f"{side}_ids"] for side in self._sides]
        self._offsets = [tensors[f"{side}_offsets"] for side in self._sides]
        self._shapes_ND = tensors["source_shapes"].view(len(self), -1) if "source_shapes" in tensors and len(self) else None

    @classmethod
    def open(cls, path: Path, names: Mapping[str, str] | None = None) -> Store:
        """Opens a store. Raises UserError if the file is damaged or not a store. The caller compares `metadata` to find out
        whether the store was built from the same data.

        names: old tensor name -> current tensor name.
        """
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {(names or {}).get(name, name): file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 it is not a dict
            _check_digest(path)
        except FileNotFoundError:
            raise UserError(f"{path}: no such file") from None
        except (SafetensorError, OSError) as error:
            raise UserError(f"{path} is damaged or not a token store: {error}; {_REMEDY}") from None
        if not _FORMAT.items() <= metadata.items():
            raise UserError(
                f"{path} is not a token store of this version: expected {_FORMAT} in its header, got {metadata}; {_REMEDY}"
            )
        _check(path, tensors)
        others = {key: value for key, value in metadata.items() if key not in (*_FORMAT, _DIGEST)}
        return cls(path, tensors, others, {(names or {}).get(name, name): start for name, start in _starts(path).items()})

    def __len__(self) -> int:
        return len(self._offsets[0]) - 1

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> list[Example]: ...
    def __getitem__(self, index: int | slice) -> Example | list[Example]:
        number = range(len(self))[index]
        if isinstance(number, range):
            return [self[item] for item in number]
        bounds = (offsets[number : number + 2].tolist() for offsets in self._offsets)
        source, target, *auxiliary = (ids[start:end] for ids, (start, end) in zip(self._ids, bounds, strict=True))
        if self._shapes_ND is None:
            return Example(source.tolist(), target.tolist())
        file = source.view(self._shapes_ND[number].tolist()).numpy()
        return Example(FileAndText(file, auxiliary[0].tolist()) if auxiliary else file, target.tolist())

    def lengths(self) -> Lengths:
        """Returns the number of positions of each source and of each target. Reading them raises UserError if offsets or shapes
        are inconsistent."""
        return Lengths(len(self), self._blocks, self.path.parent)

    def _blocks(self) -> Iterator[Block]:
        """Yields the lengths. They are read from the file, because the memory of a process includes pages that are mapped."""
        for start in range(0, max(1, len(self)), BLOCK):
            end = min(len(self), start + BLOCK)
            source, target, *auxiliary = (
                torch.from_numpy(self._read(f"{side}_offsets", start, end + 1)).diff() for side in self._sides
            )
            if any(len(lengths) and int(lengths.min()) < 0 for lengths in (source, target, *auxiliary)):
                raise UserError(f"{self.path} is damaged: its offsets decrease; {_REMEDY}")
            if self._shapes_ND is not None:
                source = self._positions(source, start, end)
            yield sum(auxiliary, source), target

    def _positions(self, sizes: Tensor, start: int, end: int) -> Tensor:
        """Returns the number of positions of sources that are files. sizes: how many numbers each of them has."""
        assert self._shapes_ND is not None
        width = self._shapes_ND.shape[1]
        shapes = self._read("source_shapes", start * width, end * width).reshape(-1, width)
        if not np.array_equal(shapes.prod(1), sizes.numpy()):
            raise UserError(f"{self.path} is damaged: its shapes do not match its offsets; {_REMEDY}")
        return torch.from_numpy(num_positions_of_shapes(shapes, self._ids[0].numpy().dtype))

    def _read(self, name: str, start: int, end: int) -> Array:
        """Reads a part of a tensor of int64."""
        return np.fromfile(self.path, np.int64, end - start, offset=self._starts[name] + 8 * start)


def write_store(
    path: Path, examples: Iterable[Example], source_size: int, target_size: int, metadata: Mapping[str, str] | None = None
) -> int:
    """Writes all examples in one pass, in bounded memory, and returns their number. The file is written atomically:
    a failed write leaves no partial file, and keeps the old one.

    source_size, target_size: vocabulary sizes (source_size has no effect if the sources are files). metadata: values by which
    the caller recognises whether this store is still up to date (see `signatures.file_fingerprint`).
    """
    sizes = (source_size, target_size)
    examples = iter(examples)
    first = next(examples, None)
    source = None if first is None else first.source
    auxiliary = isinstance(source, FileAndText)
    file = source.file if isinstance(source, FileAndText) else source if isinstance(source, np.ndarray) else None
    examples = examples if first is None else chain((first,), examples)
    temporary = path.with_name(f".{path.name}-new-{secrets.token_hex(4)}")
    try:
        with ExitStack() as stack:

            def part(name: str, code: str) -> _Part:
                return _Part(name, code, stack.enter_context(tempfile.TemporaryFile(dir=path.parent, buffering=_BUFFER)))

            codes = [_code(source_size) if file is None else _CODES[file.dtype], _code(target_size)]
            ids = [part(f"{side}_ids", code) for side, code in zip(_SIDES, codes, strict=True)]
            offsets = [part(f"{side}_offsets", "q") for side in _SIDES]
            if auxiliary:
                ids.append(part(f"{_AUXILIARY}_ids", "i"))
                offsets.append(part(f"{_AUXILIARY}_offsets", "q"))
            shapes = None if file is None else part("source_shapes", "q")
            count = _write_parts(examples, ids, offsets, (*sizes, 1 << 31), shapes)
            with open(temporary, "xb") as whole:
                _assemble(whole, [*ids, *offsets, *([shapes] if shapes else [])], {**(metadata or {}), **_FORMAT})
                whole.flush()
                os.fsync(whole.fileno())
        temporary.replace(path)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}; free some disk space, or choose another folder") from None
    finally:
        with suppress(OSError):
            temporary.unlink()
    return count


class _Part(NamedTuple):
    """A tensor that is written to a temporary file first, because its length is not known yet."""

    name: str
    code: str
    file: IO[bytes]

    def write(self, numbers: Iterable[int]) -> None:
        self.file.write(array(self.code, numbers).tobytes())

    def write_array(self, numbers: Array) -> None:
        if _CODES.get(numbers.dtype) != self.code:
            raise ValueError(f"a source has type {numbers.dtype}, unlike those before it")
        self.file.write(numbers.tobytes())


def _code(size: int) -> str:
    """Returns the type code of the smallest integers that can hold `size` different ids."""
    return "B" if size <= 1 << 8 else "H" if size <= 1 << 16 else "i"


def _write_parts(
    examples: Iterable[Example], ids: Sequence[_Part], offsets: Sequence[_Part], sizes: Sequence[int], shapes: _Part | None
) -> int:
    """Writes all examples to their parts and returns their number. Raises ValueError for an id outside its vocabulary."""
    ends = [0] * len(ids)
    count = 0
    for part in offsets:
        part.write((0,))
    for count, example in enumerate(examples, start=1):
        for side, tokens in enumerate(_sides(example)):
            if isinstance(tokens, np.ndarray):
                assert shapes is not None
                shapes.write(tokens.shape)
                ends[side] += tokens.size
                ids[side].write_array(tokens)
                offsets[side].write((ends[side],))
                continue
            if tokens and not 0 <= min(tokens) <= max(tokens) < sizes[side]:
                raise ValueError(
                    f"example {count - 1} has {_SIDES[side]} ids from {min(tokens)} to {max(tokens)}, but the vocabulary has "
                    f"{sizes[side]:,} entries; was the text encoded with another tokenizer?"
                )
            ends[side] += len(tokens)
            ids[side].write(tokens)
            offsets[side].write((ends[side],))
    return count


def _sides(example: Example) -> tuple[list[int] | Array, ...]:
    """Returns (source, target), and the auxiliary text if there is one."""
    source, target = example
    return (source.file, target, source.text) if isinstance(source, FileAndText) else (source, target)


def _assemble(file: IO[bytes], parts: Iterable[_Part], metadata: Mapping[str, str]) -> None:
    """Writes the header of safetensors (its length, then JSON, padded to a multiple of 8), then the tensors, widest type first,
    so that each is aligned to the width of its type."""
    header: dict[str, Any] = {"__metadata__": {**metadata, _DIGEST: _ZEROS}}
    order = sorted(parts, key=lambda part: -array(part.code).itemsize)
    start = 0
    for part in order:
        end = start + part.file.seek(0, os.SEEK_END)
        shape = [(end - start) // array(part.code).itemsize]
        header[part.name] = {"dtype": _DTYPES[part.code], "shape": shape, "data_offsets": [start, end]}
        start = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    head = len(text).to_bytes(8, "little") + text
    file.write(head)
    digest = hashlib.sha256(head)
    for part in order:
        part.file.seek(0)
        while block := part.file.read(_BUFFER):
            digest.update(block)
            file.write(block)
    match = _DIGEST_IN_HEADER.search(head)
    assert match
    file.seek(match.start(1))
    file.write(digest.hexdigest().encode())


def _starts(path: Path) -> dict[str, int]:
    """Returns where each tensor begins in a safetensors file."""
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    return {name: 8 + size + entry["data_offsets"][0] for name, entry in header.items() if name != "__metadata__"}


def _check_digest(path: Path) -> None:
    """Raises UserError if the sha256 of the file differs from the one in its header. Stores of earlier versions have none."""
    with open(path, "rb") as file:
        head = file.read(8)
        head += file.read(min(int.from_bytes(head, "little"), path.stat().st_size))
        match = _DIGEST_IN_HEADER.search(head)
        if not match:
            return
        digest = hashlib.sha256(head[: match.start(1)] + _ZEROS.encode() + head[match.end(1) :])
        if hashlib.file_digest(file, lambda: digest).hexdigest().encode() != match[1]:
            raise UserError(f"{path} is damaged: its sha256 is not the one in its header; {_REMEDY}")


def _check(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Raises UserError if tensors are missing or unknown, or if their sizes are inconsistent."""
    sides = (*_SIDES, *((_AUXILIARY,) if f"{_AUXILIARY}_ids" in tensors else ()))
    expected = {f"{side}_{part}" for side in sides for part in ("ids", "offsets")}
    if expected != tensors.keys() - {"source_shapes"}:
        raise UserError(
            f"{path} is damaged: expected {', '.join(sorted(expected))}, found {', '.join(sorted(tensors))}; {_REMEDY}"
        )
    lengths = set()
    for side in sides:
        ids, offsets = tensors[f"{side}_ids"], tensors[f"{side}_offsets"]
        lengths.add(len(offsets))
        if offsets.dtype != torch.int64 or not len(offsets) or [int(offsets[0]), int(offsets[-1])] != [0, len(ids)]:
            raise UserError(f"{path} is damaged: the {side} offsets do not match its {len(ids):,} ids; {_REMEDY}")
    shapes = tensors.get("source_shapes")
    if shapes is not None and (shapes.dtype != torch.int64 or len(shapes) % max(1, min(lengths) - 1)):
        raise UserError(
            f"{path} is damaged: {len(shapes):,} numbers cannot be the shapes of {min(lengths) - 1:,} sources; {_REMEDY}"
        )
    if len(lengths) > 1:
        raise UserError(
            f"{path} is damaged: its sides have {' and '.join(map(str, sorted(lengths)))} offsets, expected equal numbers; "
            f"{_REMEDY}"
        )
