"""Reads and writes tensors without NumPy: the .npy format, implemented here, and safetensors."""

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
"""Types of .npy files that are written, and that are read."""
MAGIC = b"\x93NUMPY"
MOST_AXES = 32
LONGEST_HEADER = 10_000
"""Limit in bytes; plain arrays need about a hundred. A header is parsed as a Python literal, which takes time and memory."""
NUMBERS = frozenset("F64 F32 F16 BF16 I64 I32 I16 I8 U8 BOOL".split())
"""Types of safetensors that can be read as features."""


def raw(numbers: Tensor) -> bytes:
    """Returns the bytes of a tensor in C order, without NumPy."""
    contiguous = numbers.detach().cpu().contiguous()
    return ctypes.string_at(contiguous.data_ptr(), contiguous.nbytes) if contiguous.numel() else b""


def npy(numbers: Tensor) -> bytes:
    """Returns the content of a .npy file (version 1.0). It does not use NumPy, which is an optional dependency."""
    numbers = numbers if numbers.dtype in WRITTEN else numbers.float()
    header = {"descr": WRITTEN[numbers.dtype], "fortran_order": False, "shape": tuple(numbers.shape)}
    text = repr(header)
    text += " " * (63 - (10 + len(text)) % 64) + "\n"
    out = io.BytesIO()
    out.write(MAGIC + b"\x01\x00" + len(text).to_bytes(2, "little") + text.encode("latin-1"))
    out.write(raw(numbers))
    return out.getvalue()


def read_array(path: Path) -> Tensor:
    """Reads a .npy file, or a .safetensors file with one tensor; nothing in the file is executed. Raises UserError with the
    file's name if it cannot be read."""
    return _read_safetensors(path) if path.suffix == ".safetensors" else _read_npy(path)


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
    """Raises UserError if a shape is too large. Must run before torch creates the tensor: the product of large sizes overflows
    even if another size is 0."""
    if len(shape) > MOST_AXES or math.prod(size or 1 for size in shape) >= 2**48:
        raise UserError(f"{path} has {len(shape)} axes of sizes {shown(shape)}, expected two or three axes of moderate size")


def _read_npy(path: Path) -> Tensor:
    """Reads versions 1 and 2 in C order: little-endian floating-point numbers or bytes. The file must have exactly the size
    that its header implies."""
    content = read_bytes(path)
    if not content.startswith(MAGIC):
        raise UserError(
            f"{path} is not a .npy file: it starts with {content[:6]!r}, expected {MAGIC!r}; write it with numpy.save"
        )
    version = content[6:7]
    width = {b"\x01": 2, b"\x02": 4}.get(version)  # of the header's length field
    if width is None:
        raise UserError(f"{path} has version {version.hex()} of the .npy format, expected 1 or 2; write it with numpy.save")
    start = 8 + width + int.from_bytes(content[8 : 8 + width], "little")
    descr, fortran, sizes = _npy_header(path, content[8 + width : min(start, 8 + width + LONGEST_HEADER + 1)])
    dtype = READ.get(descr) if isinstance(descr, str) else None
    if dtype is None or fortran:
        order = "Fortran" if fortran else "C"
        raise UserError(
            f"{path} contains numbers of type {shown(descr)} in {order} order, expected one of {', '.join(READ)} in C order; "
            "write it again with numpy.save(path, numpy.ascontiguousarray(x, dtype='float32'))"
        )
    _check_axes(path, sizes)
    expected = math.prod(sizes) * dtype.itemsize
    if len(content) - start != expected:
        raise UserError(
            f"{path} is damaged: its header declares the shape {sizes}, which takes {expected:,} bytes, but "
            f"{len(content) - start:,} follow"
        )
    if not expected:
        return torch.zeros(sizes, dtype=dtype)
    return torch.frombuffer(bytearray(content[start:]), dtype=dtype).view(sizes)


def _npy_header(path: Path, text: bytes) -> tuple[object, bool, tuple[int, ...]]:
    """Returns (type of the numbers, whether they are in Fortran order, shape)."""
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
