"""Tensors in files, without numpy: NumPy's own format, read and written by hand, and safetensors."""

from __future__ import annotations

import ast
import ctypes
import io
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from regard.data.documents import few
from regard.data.files import read_bytes
from regard.errors import UserError, one_line, shown

WRITTEN = {torch.float32: "<f4", torch.float64: "<f8", torch.int64: "<i8", torch.uint8: "|u1", torch.uint16: "<u2"}
READ = {"<f2": torch.float16, "<f4": torch.float32, "<f8": torch.float64, "|u1": torch.uint8}
MAGIC = b"\x93NUMPY"
MOST_AXES = 32
LONGEST_HEADER = 10_000
"""Bytes; those of plain arrays have some hundred. It is parsed as Python's literals, which takes time and memory."""
NUMBERS = frozenset("F64 F32 F16 BF16 I64 I32 I16 I8 U8 BOOL".split())
"""Types of safetensors that are features."""


def raw(numbers: Tensor) -> bytes:
    """The numbers one after another, without numpy."""
    held = numbers.detach().cpu().contiguous()
    return ctypes.string_at(held.data_ptr(), held.nbytes) if held.numel() else b""


def npy(numbers: Tensor) -> bytes:
    """NumPy's own format (version 1.0), by hand: numpy is only an extra."""
    numbers = numbers if numbers.dtype in WRITTEN else numbers.float()
    header = {"descr": WRITTEN[numbers.dtype], "fortran_order": False, "shape": tuple(numbers.shape)}
    text = repr(header)
    text += " " * (63 - (10 + len(text)) % 64) + "\n"
    out = io.BytesIO()
    out.write(MAGIC + b"\x01\x00" + len(text).to_bytes(2, "little") + text.encode("latin-1"))
    out.write(raw(numbers))
    return out.getvalue()


def read_array(path: Path) -> Tensor:
    """The numbers of a .npy file, or of a .safetensors file that holds one tensor. Nothing in it is executed."""
    return _read_safetensors(path) if path.suffix == ".safetensors" else _read_npy(path)


def _read_safetensors(path: Path) -> Tensor:
    try:
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            if len(names) != 1:
                raise UserError(f"{path} holds {len(names)} tensors ({few(names)}), expected one: the features")
            described = file.get_slice(names[0])
            kind, shape = described.get_dtype(), described.get_shape()
            _check_axes(path, shape)
            if kind not in NUMBERS:
                raise UserError(f"{path} holds numbers of the type {kind}, expected one of {', '.join(sorted(NUMBERS))}")
            tensor: Tensor = file.get_tensor(names[0])
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is damaged or not a safetensors file: {one_line(error)}") from None
    return tensor


def _check_axes(path: Path, shape: Sequence[int]) -> None:
    """Before torch makes a tensor of them: the product of large sizes overflows even where another size is 0."""
    if len(shape) > MOST_AXES or math.prod(size or 1 for size in shape) >= 2**48:
        raise UserError(f"{path} has {len(shape)} axes of the sizes {shown(shape)}, expected two or three of moderate size")


def _read_npy(path: Path) -> Tensor:
    """Versions 1 and 2, C order, little-endian floating-point numbers or bytes; the header must fit the file to the byte."""
    content = read_bytes(path)
    if not content.startswith(MAGIC):
        raise UserError(f"{path} is no .npy file: it begins with {content[:6]!r}, expected {MAGIC!r}; write it with numpy.save")
    version = content[6:7]
    wide = {b"\x01": 2, b"\x02": 4}.get(version)
    if wide is None:
        raise UserError(f"{path} has version {version.hex()} of the .npy format, expected 1 or 2; write it with numpy.save")
    start = 8 + wide + int.from_bytes(content[8 : 8 + wide], "little")
    descr, fortran, sizes = _npy_header(path, content[8 + wide : min(start, 8 + wide + LONGEST_HEADER + 1)])
    dtype = READ.get(descr) if isinstance(descr, str) else None
    if dtype is None or fortran:
        order = "Fortran" if fortran else "C"
        raise UserError(
            f"{path} holds numbers of the type {shown(descr)} in {order} order, expected one of {', '.join(READ)} in C order; "
            "write it again with numpy.save(path, numpy.ascontiguousarray(x, dtype='float32'))"
        )
    _check_axes(path, sizes)
    expected = math.prod(sizes) * dtype.itemsize
    if len(content) - start != expected:
        raise UserError(
            f"{path} is damaged: its header says {sizes}, which takes {expected:,} bytes, but {len(content) - start:,} follow"
        )
    if not expected:
        return torch.zeros(sizes, dtype=dtype)
    return torch.frombuffer(bytearray(content[start:]), dtype=dtype).view(sizes)


def _npy_header(path: Path, text: bytes) -> tuple[object, bool, tuple[int, ...]]:
    """(type of the numbers, whether in Fortran order, shape)."""
    try:
        if len(text) > LONGEST_HEADER:
            raise ValueError
        match ast.literal_eval(text.decode("latin-1")):
            case {"descr": descr, "fortran_order": bool(fortran), "shape": tuple(shape)} if all(
                type(size) is int and size >= 0 for size in shape
            ):
                return descr, fortran, shape
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        pass
    raise UserError(f"{path} is damaged: its header cannot be read; write it again with numpy.save")
