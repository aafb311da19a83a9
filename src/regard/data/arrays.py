"""Tensors in files, without numpy: NumPy's own format, read and written by hand, and safetensors."""

from __future__ import annotations

import ast
import ctypes
import io
import math
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from regard.data.files import read_bytes
from regard.errors import UserError

WRITTEN = {torch.float32: "<f4", torch.float64: "<f8", torch.int64: "<i8", torch.uint8: "|u1", torch.uint16: "<u2"}
READ = {"<f2": torch.float16, "<f4": torch.float32, "<f8": torch.float64, "|u1": torch.uint8}
MAGIC = b"\x93NUMPY"


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
                raise UserError(f"{path} holds {len(names)} tensors ({', '.join(names[:5])}), expected one: the features")
            tensor: Tensor = file.get_tensor(names[0])
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is damaged or no safetensors file: {error}") from None
    return tensor


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
    try:
        header = ast.literal_eval(content[8 + wide : start].decode("latin-1"))
        descr, fortran, shape = (header[name] for name in ("descr", "fortran_order", "shape"))
        sizes = tuple(int(size) for size in shape)
        assert min(sizes, default=0) >= 0
    except (ValueError, SyntaxError, KeyError, TypeError, AssertionError, MemoryError, RecursionError):
        raise UserError(f"{path} is damaged: its header cannot be read; write it again with numpy.save") from None
    if descr not in READ or fortran:
        order = "Fortran" if fortran else "C"
        raise UserError(
            f"{path} holds numbers of the type {descr!r} in {order} order, expected one of {', '.join(READ)} in C order; "
            "write it again with numpy.save(path, numpy.ascontiguousarray(x, dtype='float32'))"
        )
    dtype = READ[descr]
    expected = math.prod(sizes) * dtype.itemsize
    if len(content) - start != expected:
        raise UserError(
            f"{path} is damaged: its header says {sizes}, which takes {expected:,} bytes, but {len(content) - start:,} follow"
        )
    if not expected:
        return torch.zeros(sizes, dtype=dtype)
    return torch.frombuffer(bytearray(content[start:]), dtype=dtype).view(sizes)
