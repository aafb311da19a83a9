"""Tokens on disk: encoded once, in one safetensors file, and read from there without being loaded.

source_ids, target_ids            all tokens of a side, one sentence after the other, in the smallest integers that hold them
source_offsets, target_offsets    int64, one more than there are examples: example i is ids[offsets[i]:offsets[i + 1]]
source_shapes                     int64, only where sources are pictures or frames: the axes of each, one after the other;
                                  their numbers stand in source_ids
beside_ids, beside_offsets        only where texts stand beside the files: their tokens

The header also holds the sha256 of the whole file, in which the 64 letters of the digest itself count as zeros.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import tempfile
from array import array
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple, overload

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from regard.data.arrays import raw
from regard.data.batch import Example
from regard.data.sources import FileAndText, num_positions_of_shapes
from regard.errors import UserError

_SIDES = ("source", "target")
_AUXILIARY = "auxiliary"
_FORMAT = {"regard.store": "1"}
_DTYPES = {"B": "U8", "H": "U16", "h": "I16", "i": "I32", "q": "I64", "f": "F32"}
"""Type codes of array and their names in safetensors, both little-endian."""
_CODES = {torch.uint8: "B", torch.int16: "h", torch.float32: "f"}
_BUFFER = 1 << 16
_AGAIN = "delete it; it is made again from the text"
_DIGEST = "regard.sha256"
_ZEROS = "0" * 64
_DIGEST_IN_HEADER = re.compile(rf'"{_DIGEST}": "(.{{64}})"'.encode(), re.DOTALL)


class Store(Sequence[Example]):
    """Examples that stay on disk: the file is mapped into memory, and what is read may be dropped again by the system."""

    def __init__(self, path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
        self.path = path
        self.metadata = dict(metadata)
        sides = (*_SIDES, *((_AUXILIARY,) if f"{_AUXILIARY}_ids" in tensors else ()))
        self._ids = [tensors[f"{side}_ids"] for side in sides]
        self._offsets = [tensors[f"{side}_offsets"] for side in sides]
        self._shapes_ND = tensors["source_shapes"].view(len(self), -1) if "source_shapes" in tensors and len(self) else None

    @classmethod
    def open(cls, path: Path, names: Mapping[str, str] | None = None) -> Store:
        """Checks that the file is what was written. Whether it is the wanted one, its `metadata` tells."""
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {(names or {}).get(name, name): file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 it is no dict
            _check_digest(path)
        except FileNotFoundError:
            raise UserError(f"{path}: no such file") from None
        except (SafetensorError, OSError) as error:
            raise UserError(f"{path} is damaged or no token store: {error}; {_AGAIN}") from None
        if not _FORMAT.items() <= metadata.items():
            raise UserError(
                f"{path} is no token store of this version: expected {_FORMAT} in its header, got {metadata}; {_AGAIN}"
            )
        _check(path, tensors)
        return cls(path, tensors, {key: value for key, value in metadata.items() if key not in (*_FORMAT, _DIGEST)})

    def __len__(self) -> int:
        return len(self._offsets[0]) - 1

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> list[Example]: ...
    def __getitem__(self, index: int | slice) -> Example | list[Example]:
        where = range(len(self))[index]
        if isinstance(where, range):
            return [self[one] for one in where]
        borders = (offsets[where : where + 2].tolist() for offsets in self._offsets)
        source, target, *auxiliary = (ids[start:end] for ids, (start, end) in zip(self._ids, borders, strict=True))
        if self._shapes_ND is None:
            return Example(source.tolist(), target.tolist())
        file = source.view(self._shapes_ND[where].tolist())
        return Example(FileAndText(file, auxiliary[0].tolist()) if auxiliary else file, target.tolist())

    def sizes(self) -> tuple[Tensor, Tensor]:
        """How many places each source and each target has, int64."""
        source, target, *auxiliary = (offsets.diff() for offsets in self._offsets)
        if min(int(lengths.min()) if len(lengths) else 0 for lengths in (source, target, *auxiliary)) < 0:
            raise UserError(f"{self.path} is damaged: its offsets do not rise; {_AGAIN}")
        if self._shapes_ND is not None:
            if not torch.equal(self._shapes_ND.prod(1), source):
                raise UserError(f"{self.path} is damaged: its shapes do not fit its offsets; {_AGAIN}")
            source = num_positions_of_shapes(self._shapes_ND, self._ids[0].dtype)
        return sum(auxiliary, source), target


def write_store(
    path: Path, examples: Iterable[Example], source_size: int, target_size: int, metadata: Mapping[str, str] | None = None
) -> int:
    """Writes all examples, in one pass and in little memory, and returns how many. The file is there whole or not at all.

    source_size, target_size: of the vocabularies (the first says nothing where sources are tensors). metadata: whatever tells
    whether this store is still the right one (see `file_fingerprint`).
    """
    sizes = (source_size, target_size)
    examples = iter(examples)
    first = next(examples, None)
    model = None if first is None else first.source
    auxiliary = isinstance(model, FileAndText)
    model = model.file if isinstance(model, FileAndText) else model if isinstance(model, Tensor) else None
    examples = examples if first is None else chain((first,), examples)
    fresh = path.with_name(f".{path.name}-new-{secrets.token_hex(4)}")
    try:
        with ExitStack() as stack:

            def part(name: str, code: str) -> _Part:
                return _Part(name, code, stack.enter_context(tempfile.TemporaryFile(dir=path.parent, buffering=_BUFFER)))

            codes = [_code(source_size) if model is None else _CODES[model.dtype], _code(target_size)]
            ids = [part(f"{side}_ids", code) for side, code in zip(_SIDES, codes, strict=True)]
            offsets = [part(f"{side}_offsets", "q") for side in _SIDES]
            if auxiliary:
                ids.append(part(f"{_AUXILIARY}_ids", "i"))
                offsets.append(part(f"{_AUXILIARY}_offsets", "q"))
            shapes = None if model is None else part("source_shapes", "q")
            count = _spill(examples, ids, offsets, (*sizes, 1 << 31), shapes)
            with open(fresh, "xb") as file:
                _assemble(file, [*ids, *offsets, *([shapes] if shapes else [])], {**(metadata or {}), **_FORMAT})
                file.flush()
                os.fsync(file.fileno())
        fresh.replace(path)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}; make room there, or choose another folder") from None
    finally:
        with suppress(OSError):
            fresh.unlink()
    return count


def file_fingerprint(*parts: Path | str) -> str:
    """Changes when a file's content (Path) or a text (str: settings, a tokenizer's JSON) changes."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            one = hashlib.sha256(part.encode())
        else:
            with open(part, "rb") as file:
                one = hashlib.file_digest(file, "sha256")
        digest.update(one.digest())
    return digest.hexdigest()


class _Part(NamedTuple):
    """One tensor on its way into the file."""

    name: str
    code: str
    file: IO[bytes]

    def write(self, numbers: Iterable[int]) -> None:
        self.file.write(array(self.code, numbers).tobytes())

    def write_tensor(self, numbers: Tensor) -> None:
        if _CODES.get(numbers.dtype) != self.code:
            raise ValueError(f"a source of type {numbers.dtype} does not fit those before it")
        self.file.write(raw(numbers))


def _code(size: int) -> str:
    """The smallest integers that tell so many ids apart."""
    return "B" if size <= 1 << 8 else "H" if size <= 1 << 16 else "i"


def _spill(
    examples: Iterable[Example], ids: Sequence[_Part], offsets: Sequence[_Part], sizes: Sequence[int], shapes: _Part | None
) -> int:
    ends = [0] * len(ids)
    count = 0
    for part in offsets:
        part.write((0,))
    for count, example in enumerate(examples, start=1):
        for at, tokens in enumerate(_sides(example)):
            if isinstance(tokens, Tensor):
                assert shapes is not None
                shapes.write(tokens.shape)
                ends[at] += tokens.numel()
                ids[at].write_tensor(tokens)
                offsets[at].write((ends[at],))
                continue
            if tokens and not 0 <= min(tokens) <= max(tokens) < sizes[at]:
                raise ValueError(
                    f"example {count - 1} has {_SIDES[at]} ids from {min(tokens)} to {max(tokens)}, but the vocabulary has "
                    f"{sizes[at]:,} entries; was the text encoded with another tokenizer?"
                )
            ends[at] += len(tokens)
            ids[at].write(tokens)
            offsets[at].write((ends[at],))
    return count


def _sides(example: Example) -> tuple[list[int] | Tensor, ...]:
    source, target = example
    return (source.file, target, source.text) if isinstance(source, FileAndText) else (source, target)


def _assemble(file: IO[bytes], parts: Iterable[_Part], metadata: Mapping[str, str]) -> None:
    """The header of safetensors (its length, then JSON, filled up to a multiple of 8), then the numbers, the widest first, so
    that each stands at a multiple of its width."""
    header: dict[str, Any] = {"__metadata__": {**metadata, _DIGEST: _ZEROS}}
    order = sorted(parts, key=lambda part: -array(part.code).itemsize)
    start = 0
    for part in order:
        end = start + part.file.tell()
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
        while some := part.file.read(_BUFFER):
            digest.update(some)
            file.write(some)
    found = _DIGEST_IN_HEADER.search(head)
    assert found
    file.seek(found.start(1))
    file.write(digest.hexdigest().encode())


def _check_digest(path: Path) -> None:
    """Raises if the file is not what was written. Stores of earlier versions do not say what was."""
    with open(path, "rb") as file:
        head = file.read(8)
        head += file.read(min(int.from_bytes(head, "little"), path.stat().st_size))
        found = _DIGEST_IN_HEADER.search(head)
        if not found:
            return
        digest = hashlib.sha256(head[: found.start(1)] + _ZEROS.encode() + head[found.end(1) :])
        if hashlib.file_digest(file, lambda: digest).hexdigest().encode() != found[1]:
            raise UserError(f"{path} is damaged: its sha256 is not the one in its header; {_AGAIN}")


def _check(path: Path, tensors: Mapping[str, Tensor]) -> None:
    sides = (*_SIDES, *((_AUXILIARY,) if f"{_AUXILIARY}_ids" in tensors else ()))
    wanted = {f"{side}_{what}" for side in sides for what in ("ids", "offsets")}
    if wanted != tensors.keys() - {"source_shapes"}:
        raise UserError(
            f"{path} is damaged: expected {', '.join(sorted(wanted))}, found {', '.join(sorted(tensors))}; {_AGAIN}"
        )
    lengths = set()
    for side in sides:
        ids, offsets = tensors[f"{side}_ids"], tensors[f"{side}_offsets"]
        lengths.add(len(offsets))
        if offsets.dtype != torch.int64 or not len(offsets) or [int(offsets[0]), int(offsets[-1])] != [0, len(ids)]:
            raise UserError(f"{path} is damaged: the {side} offsets do not fit {len(ids):,} ids; {_AGAIN}")
    shapes = tensors.get("source_shapes")
    if shapes is not None and (shapes.dtype != torch.int64 or len(shapes) % max(1, min(lengths) - 1)):
        raise UserError(f"{path} is damaged: {len(shapes):,} numbers are no shapes of {min(lengths) - 1:,} sources; {_AGAIN}")
    if len(lengths) > 1:
        raise UserError(
            f"{path} is damaged: {' and '.join(map(str, sorted(lengths)))} offsets, expected equally many; {_AGAIN}"
        )
