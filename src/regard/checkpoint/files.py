"""Files that are there whole or not at all, and bytes that are what they were."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import TensorSpec, serialize
from torch import Tensor

from regard.errors import UserError


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
    fresh = sibling(path, "new")
    with writing(path):
        try:
            write(fresh, content)
            fresh.replace(path)
            sync_folder(path.parent)
        finally:
            fresh.unlink(missing_ok=True)


@contextmanager
def writing(path: Path, advice: str = "make room there, or choose another folder") -> Iterator[None]:
    """What the system refuses becomes one line about `path`, with what to do."""
    try:
        yield
    except OSError as error:
        reason = "its folder is a file" if isinstance(error, FileExistsError) else error.strerror or error
        raise UserError(f"{path} cannot be written: {reason}; {advice}") from None


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """For a file that the user named: gives a hidden name in its folder, which is made if need be. What is written there gets
    the right name at the end, so that the file is there whole or not at all."""
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
    """A rename survives a power cut only when the folder that it happened in is on the disk, too."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def resolved(folder: Path) -> Path:
    """Without links, and with a name that others can be made of."""
    try:
        whole = folder.resolve()
    except RuntimeError:  # before Python 3.13
        raise UserError(f"{folder} is a link that leads back to itself; choose another folder") from None
    if not whole.name:
        raise UserError(f"got {folder} as a model folder, expected one with a name, such as {folder / 'model'}")
    return whole


def sibling(path: Path, what: str) -> Path:
    """A hidden name of its own in the same folder, so that a rename is enough."""
    return path.with_name(f".{path.name}-{what}-{secrets.token_hex(4)}")


def discard(path: Path, of: Path | None = None) -> None:
    """Removes a file or a folder; after a kill it is there whole or not at all. What is not there is no error.

    of: the path that this is a hidden name of."""
    gone = sibling(of or path, "gone")
    try:
        path.rename(gone)
    except FileNotFoundError:
        return
    _remove(gone)


def leftovers(path: Path, *what: str) -> list[Path]:
    """What killed processes left under the names that `beside` gives for this path."""
    name = re.compile(rf"\.{re.escape(path.name)}-({'|'.join(what)})-[0-9a-f]{{8}}")
    try:
        return sorted(one for one in path.parent.iterdir() if name.fullmatch(one.name))
    except OSError:  # a folder that cannot be read shows nothing
        return []


def clean(folder: Path) -> None:
    """Removes what killed processes left in a folder into which nobody else writes."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if re.fullmatch(r"\..+-(new|gone)-[0-9a-f]{8}", path.name):
            _remove(path)


def _remove(path: Path) -> None:
    """As far as the system lets us: nobody looks for what has a hidden name."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
        return
    with suppress(OSError):
        path.unlink()
