"""One writer at a time: a lock that the system releases when its holder ends, however it ends."""

from __future__ import annotations

import errno
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from regard.checkpoint.files import resolved, writing
from regard.errors import UserError

_HELD: set[int] = set()
"""Handles of this process's locks. A forked child closes its copies, so that it cannot outlive its parent with a lock."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Raises if another process writes to this model folder. The lock is a hidden file in the same parent folder, which says
    who holds it; a file that a killed process left behind locks nothing."""
    real = resolved(folder)  # a link and what it points to have one lock
    path = real.with_name(f".{real.name}.lock")
    made = [parent for parent in real.parents if not parent.exists()]
    with writing(folder, "choose another folder with --out"):
        if not real.parent.exists():
            real.parent.mkdir(parents=True, exist_ok=True)
        handle = _acquire(folder, path)
    _HELD.add(handle)
    try:
        yield
    finally:
        _HELD.discard(handle)
        with suppress(OSError):  # Windows keeps a file that is open
            path.unlink()
        os.close(handle)
        for parent in made:
            with suppress(OSError):  # something was written into it
                parent.rmdir()


def _acquire(folder: Path, path: Path) -> int:
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        free = _lock(handle)
        os.lseek(handle, 0, os.SEEK_SET)
        if not free:
            holder = os.read(handle, 1000).decode(errors="replace") or "another process"
            os.close(handle)
            raise UserError(f"{folder} is being written by {holder}; wait until it has ended, or choose another --out")
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), path.stat()):
                break
        os.close(handle)  # its last holder removed it after it had been opened here
    os.ftruncate(handle, 0)
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    os.write(handle, f"process {os.getpid()} on {socket.gethostname()} since {since}".encode())
    return handle


def _lock(handle: int) -> bool:
    """Whether nobody else holds it. Where the file system knows no locks, nobody does."""
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(handle, 1 << 30, os.SEEK_SET)  # far from the text, which others read
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK)
    return True


def _let_go() -> None:
    for handle in _HELD:
        os.close(handle)
    _HELD.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)
