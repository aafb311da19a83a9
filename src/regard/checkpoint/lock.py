"""Locks that allow one writer at a time. The operating system releases a lock when its process exits, for whatever reason."""

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
"""File handles of the locks of this process. A forked child closes its copies, so that it cannot hold a lock after its parent
exits."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Locks a model folder for writing. Raises UserError if another process holds the lock, or if it cannot be created.

    The lock is a hidden file in the parent folder, which names its holder. A lock file left by a killed process locks nothing.
    """
    real = resolved(folder)  # a symbolic link and its target share one lock
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
        with suppress(OSError):  # Windows does not delete open files
            path.unlink()
        os.close(handle)
        for parent in made:
            with suppress(OSError):  # it is not empty
                parent.rmdir()


def _acquire(folder: Path, path: Path) -> int:
    """Takes the lock and returns its file handle. Raises UserError if another process holds it."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        free = _lock(handle)
        os.lseek(handle, 0, os.SEEK_SET)
        if not free:
            holder = os.read(handle, 1000).decode(errors="replace") or "another process"
            os.close(handle)
            raise UserError(f"{folder} is being written by {holder}; wait until it finishes, or choose another --out")
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), path.stat()):
                break
        os.close(handle)  # the last holder deleted the file after it was opened here
    os.ftruncate(handle, 0)
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    os.write(handle, f"process {os.getpid()} on {socket.gethostname()} since {since}".encode())
    return handle


def _lock(handle: int) -> bool:
    """Tries to take the lock. Returns False if another process holds it, and True if the file system does not support locks."""
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(handle, 1 << 30, os.SEEK_SET)  # beyond the text, which other processes read
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK)
    return True


def _close_inherited() -> None:
    """Closes the handles that a child process inherited."""
    for handle in _HELD:
        os.close(handle)
    _HELD.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_inherited)
