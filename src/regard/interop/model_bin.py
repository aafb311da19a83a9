"""Reads model.bin of CTranslate2, versions 2 to 6, without CTranslate2.

Little-endian: u32 version, the name of the specification, u32 revision, u32 number of variables; for each its name, u8 rank,
u32 sizes, u8 type (before version 4: bytes per item), u32 bytes (before version 4: items), the numbers; from version 3 on, u32
number of aliases, each a name and the name of its variable. A name is u16 length, UTF-8, and a NUL that counts.

Nothing is trusted: each size is compared with what is left of the file before anything is read or reserved.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from regard.errors import UserError, shown

VERSIONS = range(2, 7)
TYPES = (torch.float32, torch.int8, torch.int16, torch.int32, torch.float16, torch.bfloat16)
BY_SIZE = {4: torch.float32, 2: torch.int16, 1: torch.int8}
"""The types of versions 2 and 3, by the number of bytes."""
MAX_RANK = 4


@dataclass(frozen=True)
class ModelBin:
    """The content of model.bin. variables: arrays and scalars by name, aliases included."""

    version: int
    specification: str
    revision: int
    variables: dict[str, Tensor]

    def flag(self, name: str, default: float = 0) -> float:
        """Returns the value of a scalar, or the default if it is not in the file."""
        return default if name not in self.variables else float(self.variables[name].reshape(-1)[0])


class _Cursor:
    """A position in a file. Every method raises UserError if the file is too short."""

    def __init__(self, content: mmap.mmap) -> None:
        self.content, self.at = content, 0

    def take(self, size: int) -> int:
        """Moves over `size` bytes and returns where they start."""
        start = self.at
        if size > len(self.content) - start:
            raise UserError(f"byte {start:,}: {size:,} more bytes expected, but only {len(self.content) - start:,} are left")
        self.at += size
        return start

    def number(self, form: str) -> int:
        start = self.take(struct.calcsize(form))
        return int(struct.unpack_from(f"<{form}", self.content, start)[0])

    def text(self) -> str:
        length = self.number("H")
        start = self.take(length)
        raw = self.content[start : self.at]
        try:
            name = raw[:-1].decode()
        except UnicodeDecodeError:
            name = "\0"
        if raw[-1:] != b"\0" or "\0" in name or not name.isprintable():
            raise UserError(f"byte {start:,}: expected a name that ends with a zero byte, found {shown(raw)}")
        return name

    def count(self, least: int, noun: str) -> int:
        """Reads how many entries follow. least: the least number of bytes that an entry takes."""
        number = self.number("I")
        if number > (len(self.content) - self.at) // least:
            raise UserError(
                f"it announces {number:,} {noun}, more than the {len(self.content) - self.at:,} bytes that are left"
            )
        return number


def read_model_bin(path: Path) -> ModelBin:
    """Reads the file. Raises UserError that names it if it is damaged, or of another version."""
    try:
        with open(path, "rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)  # the pages stay shared until they are written to
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {getattr(error, 'strerror', None) or 'it is empty'}") from None
    try:
        return _read(_Cursor(content))
    except UserError as error:
        raise UserError(f"{path} is damaged, or no model.bin of CTranslate2: {error}; copy it again from its source") from None


def _read(cursor: _Cursor) -> ModelBin:
    version = cursor.number("I")
    if version not in VERSIONS:
        raise UserError(f"its version is {version:,}, expected {VERSIONS[0]} to {VERSIONS[-1]}")
    specification, revision = cursor.text(), cursor.number("I")
    variables: dict[str, Tensor] = {}
    for _ in range(cursor.count(9, "variables")):
        name = cursor.text()
        if name in variables:
            raise UserError(f"{name} occurs twice")
        variables[name] = _variable(cursor, name, version)
    if version >= 3:
        for _ in range(cursor.count(6, "aliases")):
            alias, name = cursor.text(), cursor.text()
            if name not in variables or alias in variables:
                raise UserError(f"the alias {shown(alias)} of {shown(name)} has no variable, or hides one")
            variables[alias] = variables[name]
            if (scale := f"{name}_scale") in variables:
                variables.setdefault(f"{alias}_scale", variables[scale])
    if cursor.at != len(cursor.content):
        raise UserError(f"{len(cursor.content) - cursor.at:,} bytes follow its end")
    return ModelBin(version, specification, revision, variables)


def _variable(cursor: _Cursor, name: str, version: int) -> Tensor:
    rank = cursor.number("B")
    if rank > MAX_RANK:
        raise UserError(f"{name} has {rank} axes, expected at most {MAX_RANK}")
    shape = [cursor.number("I") for _ in range(rank)]
    number = cursor.number("B")
    kind = BY_SIZE.get(number) if version < 4 else TYPES[number] if number < len(TYPES) else None
    if kind is None:
        raise UserError(f"{name} has the unknown type {number}")
    size, items = cursor.number("I") * (kind.itemsize if version < 4 else 1), math.prod(shape)
    if items * kind.itemsize != size or not items:
        raise UserError(f"{name} has the shape {shape}, which takes {items * kind.itemsize:,} bytes, but has {size:,}")
    start = cursor.take(size)
    mapped = torch.frombuffer(cursor.content, dtype=torch.uint8, count=size, offset=start)
    return mapped.clone().view(kind).reshape(shape)  # a copy: the file may change, and its numbers are not aligned


def dequantised(model: ModelBin) -> dict[str, Tensor]:
    """Returns the arrays in float32: whole numbers are divided by their scale, one per matrix (int16) or per row (int8).

    Raises UserError if a scale is missing or does not fit.
    """
    arrays: dict[str, Tensor] = {}
    converted: dict[int, Tensor] = {}
    for name, value in model.variables.items():
        if value.dim() == 0 or name.endswith("_scale") or value.dtype == torch.int32:
            continue
        if value.data_ptr() not in converted:
            converted[value.data_ptr()] = _to_float(name, value, model.variables.get(f"{name}_scale"))
        arrays[name] = converted[value.data_ptr()]
    return arrays


def _to_float(name: str, value: Tensor, scale: Tensor | None) -> Tensor:
    if value.dtype.is_floating_point:
        return value.float()
    if scale is None or scale.numel() not in (1, value.shape[0]) or not (scale.float() > 0).all():
        raise UserError(f"{name} is of whole numbers, but has no scale that fits; expected {name}_scale")
    return value.float() / scale.float().reshape(-1, *[1] * (value.dim() - 1))
