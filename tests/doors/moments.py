"""Every state of the disk at which a process can be killed, and what the same command makes of each of them.

A kill with SIGKILL leaves behind what the process has given to the system. So one run is recorded: after every call that can
change a file, the files are copied as another process would find them. Nothing has to be killed, and no moment is missed.
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
    return {str(path.relative_to(folder)): None if path.is_dir() else path.read_bytes() for path in sorted(folder.rglob("*"))}


def plant(state: Tree, folder: Path) -> None:
    folder.mkdir()
    for name, content in state.items():
        if content is None:
            (folder / name).mkdir()
        else:
            (folder / name).write_bytes(content)


@contextmanager
def recorded(folder: Path) -> Iterator[list[Tree]]:
    """The states that a kill could leave behind, in their order; no state comes twice in a row."""
    states, last = [tree(folder)], [_marks(folder)]

    def look(frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_return" and getattr(argument, "__name__", "") in CALLS:
            marks = _marks(folder)
            if marks != last[0]:
                last[0] = marks
                states.append(tree(folder))

    sys.setprofile(look)
    try:
        yield states
    finally:
        sys.setprofile(None)


def _marks(folder: Path | str) -> list[tuple[str, int, int]]:
    """Changes when a file appears, goes, moves or grows."""
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            status = entry.stat()
            found.append((entry.path, status.st_ino, status.st_size))
            if entry.is_dir():
                found += _marks(entry.path)
    return found


def outcome(folder: Path) -> Tree:
    """What a run leaves behind, without the times in its log."""
    found = tree(folder)
    for name in [name for name in found if name.endswith("log.jsonl")]:
        lines = [json.loads(line) for line in (found[name] or b"").splitlines()]
        found[name] = "\n".join(json.dumps({key: one[key] for key in one if key != "time"}) for one in lines).encode()
    return found


def typed(arguments: Sequence[str], folder: Path) -> str:
    """What `regard` prints when this is typed in this folder; in this process, because importing torch takes seconds."""
    said = io.StringIO()
    with chdir(folder), redirect_stdout(said):
        app([*arguments, "--threads", "1"], standalone_mode=False)
    return said.getvalue()


def differences(one: Tree, other: Tree) -> list[str]:
    return sorted(name for name in {**one, **other} if one.get(name, b"missing") != other.get(name, b"missing"))
