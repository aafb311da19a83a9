"""Atomic writes, which leave a complete file or none, and digests that detect damaged files."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import TensorSpec, serialize

from regard.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor


def sha256(content: bytes) -> str:
    """Returns the SHA-256 digest in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def tensor_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """Returns tensors in the safetensors format. Unlike `safetensors.torch.save`, it accepts tensors that share memory."""
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
    """Writes a new file and flushes it to the disk. Raises FileExistsError if it exists."""
    with open(path, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, content: bytes) -> None:
    """Writes a file atomically: readers find either the old file or the complete new one. Raises UserError if it cannot be
    written."""
    fresh = sibling(path, "new")
    with writing(path):
        try:
            write(fresh, content)
            fresh.replace(path)
            sync_folder(path.parent)
        finally:
            fresh.unlink(missing_ok=True)


@contextmanager
def writing(path: Path, advice: str = "free some disk space, or choose another folder") -> Iterator[None]:
    """Turns an OSError into a UserError that names `path`, the reason, and what to do (`advice`)."""
    try:
        yield
    except OSError as error:
        reason = "its folder is a file" if isinstance(error, FileExistsError) else error.strerror or error
        raise UserError(f"{path} cannot be written: {reason}; {advice}") from None


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yields a temporary path to write a file that the user named; renames it to `path` at the end, so that the file is
    complete or absent. Creates the folder if necessary. Raises UserError if the file cannot be written."""
    if os.path.isdir(path):
        raise UserError(f"{path} is a folder; expected the name of a file to write")
    fresh = path.with_name(f".{path.stem[:40]}-{secrets.token_hex(4)}{path.suffix}")
    with writing(path, "choose another file"):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield fresh
            fresh.replace(path)
        finally:
            fresh.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Flushes a folder to the disk, without which a rename in it may not survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def resolved(folder: Path) -> Path:
    """Returns the absolute path of a folder, without symbolic links. Raises UserError if the links form a loop or the path has
    no name, from which the names of siblings are derived."""
    try:
        path = folder.resolve()
    except RuntimeError:  # before Python 3.13
        raise UserError(f"{folder} is a symbolic link that points back to itself; choose another folder") from None
    if not path.name:
        raise UserError(f"got {folder} as a model folder, expected one with a name, such as {folder / 'model'}")
    return path


def sibling(path: Path, what: str) -> Path:
    """Returns a unique hidden path in the same folder, from which a file can be renamed to `path`.

    what: the purpose, which becomes part of the name: "new", "old", "gone", "damaged".
    """
    return path.with_name(f".{path.name}-{what}-{secrets.token_hex(4)}")


def discard(path: Path, of: Path | None = None) -> None:
    """Removes a file or folder atomically: if the process is killed, it is complete or gone. Does nothing if it is missing.

    of: the path that `path` is a hidden sibling of, if it is one.
    """
    gone = sibling(of or path, "gone")
    try:
        path.rename(gone)
    except FileNotFoundError:
        return
    _remove(gone)


def leftovers(path: Path, *what: str) -> list[Path]:
    """Returns the files and folders that killed processes left under the names that `sibling` returns for this path."""
    name = re.compile(rf"\.{re.escape(path.name)}-({'|'.join(what)})-[0-9a-f]{{8}}")
    try:
        return sorted(left for left in path.parent.iterdir() if name.fullmatch(left.name))
    except OSError:  # the folder cannot be read
        return []


def clean(folder: Path) -> None:
    """Removes the files that killed processes left in a folder. No other process may be writing to it."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if re.fullmatch(r"\..+-(new|gone)-[0-9a-f]{8}", path.name):
            _remove(path)


def _remove(path: Path) -> None:
    """Removes a hidden file or folder. Ignores errors, since nothing reads hidden files."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
        return
    with suppress(OSError):
        path.unlink()
