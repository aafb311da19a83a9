"""Files that are there whole or not at all, and bytes that are what they were."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from safetensors import TensorSpec, serialize
from torch import Tensor


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def tensor_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """The safetensors format, without the detour through numpy that safetensors.torch takes."""
    held = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    specs = {
        name: TensorSpec(
            dtype=str(tensor.dtype).removeprefix("torch."),
            shape=tensor.shape,
            data_ptr=tensor.data_ptr(),
            data_len=tensor.nbytes,
        )
        for name, tensor in held.items()
    }
    content: bytes = serialize(specs, {"format": "pt"})
    return content


def write(path: Path, content: bytes) -> None:
    """A new file, on the disk before this returns."""
    with open(path, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, content: bytes) -> None:
    """Writes under another name first: whoever reads finds the old file or the new one."""
    fresh = beside(path, "new")
    try:
        write(fresh, content)
        fresh.replace(path)
        sync_folder(path.parent)
    finally:
        fresh.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """A rename survives a power cut only when the folder that it happened in is on the disk, too."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def beside(path: Path, what: str) -> Path:
    """A name of its own in the same place, so that a rename is enough."""
    return path.with_name(f".{path.name}-{what}-{secrets.token_hex(4)}")
