"""Records every state of the disk in which SIGKILL could leave a run, and runs commands from such a state.

A kill with SIGKILL leaves behind what the process has handed to the operating system. So one run is recorded: after every call
that can change a file, the files are copied as another process would find them. Nothing has to be killed; no state is missed.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager, redirect_stdout
from pathlib import Path
from types import FrameType
from typing import Any

from regard.cli.main import app

Tree = dict[str, bytes | None]
"""Relative path -> content; None for a folder."""
CALLS = frozenset(
    "open write writelines flush close fsync truncate rename replace unlink remove rmdir mkdir link symlink".split()
)


def tree(folder: Path) -> Tree:
    """Returns the content of the folder."""
    return {str(path.relative_to(folder)): None if path.is_dir() else path.read_bytes() for path in sorted(folder.rglob("*"))}


def plant(state: Tree, folder: Path) -> None:
    """Writes the recorded state to a new folder."""
    folder.mkdir()
    for name, content in state.items():
        if content is None:
            (folder / name).mkdir()
        else:
            (folder / name).write_bytes(content)


@contextmanager
def recorded(folder: Path) -> Iterator[list[Tree]]:
    """Yields the list of states that a kill could leave behind, in order; consecutive states differ."""
    states, last = [tree(folder)], [_fingerprint(folder)]

    def record(frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_return" and getattr(argument, "__name__", "") in CALLS:
            fingerprint = _fingerprint(folder)
            if fingerprint != last[0]:
                last[0] = fingerprint
                states.append(tree(folder))

    sys.setprofile(record)
    try:
        yield states
    finally:
        sys.setprofile(None)


def _fingerprint(folder: Path | str) -> list[tuple[str, int, int]]:
    """Returns a value that changes when a file appears, disappears, moves or grows."""
    fingerprint = []
    with os.scandir(folder) as entries:
        for entry in entries:
            status = entry.stat()
            fingerprint.append((entry.path, status.st_ino, status.st_size))
            if entry.is_dir():
                fingerprint += _fingerprint(entry.path)
    return fingerprint


def outcome(folder: Path) -> Tree:
    """Returns the files that a run leaves behind, without the times in its log."""
    files = tree(folder)
    for name in [name for name in files if name.endswith("log.jsonl")]:
        lines = [json.loads(line) for line in (files[name] or b"").splitlines()]
        files[name] = "\n".join(json.dumps({key: line[key] for key in line if key != "time"}) for line in lines).encode()
    return files


def typed(arguments: Sequence[str], folder: Path) -> str:
    """Runs `regard` in this folder and returns its output; runs it in this process, because importing torch takes seconds."""
    output = io.StringIO()
    with chdir(folder), redirect_stdout(output):
        app([*arguments, "--threads", "1"], standalone_mode=False)
    return output.getvalue()


def differences(one: Tree, other: Tree) -> list[str]:
    """Returns the paths whose content differs, or that only one of the two has."""
    return sorted(name for name in {**one, **other} if one.get(name, b"missing") != other.get(name, b"missing"))
