"""Reads arrays from .npy and .safetensors files; nothing in a file is executed."""

from __future__ import annotations

import io
import math
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib import format as npy
from safetensors import SafetensorError, safe_open
from torch import Tensor

from regard.contracts import Array
from regard.core.arrays import as_array
from regard.data.documents import few
from regard.data.files import read_bytes, reading
from regard.errors import UserError, one_line, shown

READ_HEADER = {"1.0": npy.read_array_header_1_0, "2.0": npy.read_array_header_2_0}
"""By version of the .npy format. Version 3.0 differs in names of fields only, and arrays with fields are not read."""
LONGEST_HEADER = 10_000
"""Limit in bytes, as in NumPy; plain arrays need about a hundred. A header is parsed as a Python literal, which takes time and
memory."""
MOST_AXES = 32
NUMBERS = frozenset("F64 F32 F16 BF16 I64 I32 I16 I8 U8 BOOL".split())
"""Types of safetensors that can be read as features."""


def read_array(path: Path) -> Tensor:
    """Reads a .npy file, or a .safetensors file with one tensor. Raises UserError with the file's name if it cannot be read."""
    return _read_safetensors(path) if path.suffix == ".safetensors" else _read_npy(path)


def open_array(path: Path) -> Array:
    """Like `read_array`, but the numbers of a .npy file are mapped into memory, not read. Raises UserError if it is empty."""
    return as_array(_read_safetensors(path)) if path.suffix == ".safetensors" else map_npy(path)


def _read_safetensors(path: Path) -> Tensor:
    try:
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            if len(names) != 1:
                raise UserError(f"{path} contains {len(names)} tensors ({few(names)}), expected one: the features")
            tensor_slice = file.get_slice(names[0])
            kind, shape = tensor_slice.get_dtype(), tensor_slice.get_shape()
            _check_axes(path, shape)
            if kind not in NUMBERS:
                raise UserError(f"{path} contains numbers of type {kind}, expected one of {', '.join(sorted(NUMBERS))}")
            tensor: Tensor = file.get_tensor(names[0])
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is damaged or not a safetensors file: {one_line(error)}") from None
    return tensor


def _check_axes(path: Path, shape: Sequence[int]) -> None:
    """Raises UserError if a shape is too large. Must run before the array is created: the product of large sizes overflows even
    if another size is 0."""
    if len(shape) > MOST_AXES or math.prod(size or 1 for size in shape) >= 2**48:
        raise UserError(f"{path} has {len(shape)} axes of sizes {shown(shape)}, expected two to four axes of moderate size")


def map_npy(path: Path) -> Array:
    """Maps the numbers of a .npy file into memory without reading them; checks the file as `read_array` does. Raises UserError
    if an axis is empty."""
    with reading(path), open(path, "rb") as file:
        shape, fortran, dtype, start = _checked_header(path, file.read(LONGEST_HEADER), os.fstat(file.fileno()).st_size)
        if not math.prod(shape):
            raise UserError(f"{path} has shape {shape}, which holds no numbers")
        return np.memmap(file, dtype, "r", start, shape, order="F" if fortran else "C")


def _read_npy(path: Path) -> Tensor:
    """Reads real numbers of every type that torch has."""
    content = read_bytes(path)
    shape, fortran, dtype, start = _checked_header(path, content[:LONGEST_HEADER], len(content))
    stored = np.ndarray(shape, dtype, content, start, order="F" if fortran else "C")
    return torch.from_numpy(stored.astype(dtype.newbyteorder("="), order="C"))  # a copy, which can be written to


def _checked_header(path: Path, head: bytes, size: int) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Returns what `_npy_header` does. Raises UserError unless the file contains numbers and has exactly the size that its
    header implies. head: the start of the file. size: that of the file in bytes."""
    if not head.startswith(npy.MAGIC_PREFIX):
        raise UserError(
            f"{path} is not a .npy file: it starts with {head[:6]!r}, expected {npy.MAGIC_PREFIX!r}; write it with numpy.save"
        )
    shape, fortran, dtype, start = _npy_header(path, head)
    if dtype.kind not in "fiub" or dtype.itemsize > 8:
        raise UserError(
            f"{path} contains numbers of type {shown(npy.dtype_to_descr(dtype))}, expected floating-point numbers, integers or "
            "booleans of at most 64 bits; write it again with numpy.save(path, x.astype('float32'))"
        )
    _check_axes(path, shape)
    expected, found = math.prod(shape) * dtype.itemsize, size - start
    if found != expected:
        raise UserError(
            f"{path} is damaged: its header declares the shape {shape}, which takes {expected:,} bytes, but {found:,} follow"
        )
    return shape, fortran, dtype, start


def _npy_header(path: Path, head: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Returns (shape, whether the numbers are in Fortran order, their type, where they start)."""
    version = ".".join(map(str, head[6:8]))
    if version not in READ_HEADER:
        raise UserError(
            f"{path} has version {version!r} of the .npy format, expected {' or '.join(READ_HEADER)}; write it with numpy.save"
        )
    file = io.BytesIO(head)
    file.seek(npy.MAGIC_LEN)
    try:
        with warnings.catch_warnings(action="ignore"):  # about headers that Python 2 wrote
            shape, fortran, dtype = READ_HEADER[version](file)
        if all(type(size) is int and size >= 0 for size in shape):
            return shape, fortran, dtype, file.tell()
    except Exception:  # numpy raises many types for damaged headers
        pass
    raise UserError(f"{path} is damaged: its header cannot be read; write it again with numpy.save")
