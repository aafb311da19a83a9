"""Runs of `regard train` that are killed with SIGKILL, at random moments and in the middle of writing a file."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

KILLER = """
import os, signal
left, plain = [int(os.environ["KILL_AT_FSYNC"])], os.fsync

def fsync(descriptor):
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    plain(descriptor)

os.fsync = fsync
"""
"""A sitecustomize.py: the process dies where it is about to put a file on the disk."""


def begin(arguments: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "regard", "train", *arguments, "--threads", "1"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "COLUMNS": "100", **(environment or {})},
    )


def finish(process: subprocess.Popen[bytes]) -> str:
    said, _ = process.communicate()
    assert process.returncode == 0, said.decode()
    return said.decode()


def kill_at(arguments: Sequence[str], folder: Path, log: Path, updates: int) -> None:
    """Kills the run soon after so many updates more have been logged than there were, or when it is over."""
    process, before = begin(arguments, folder), num_lines(log)
    while process.poll() is None and num_lines(log) < before + updates:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()


def kill_in_a_write(arguments: Sequence[str], folder: Path, number: int) -> bool:
    """Whether the run was killed at the fsync of this number; otherwise it came to its end."""
    (folder / "killer").mkdir(exist_ok=True)
    (folder / "killer" / "sitecustomize.py").write_text(KILLER)
    path = os.pathsep.join((str(folder / "killer"), os.environ.get("PYTHONPATH", "")))
    process = begin(arguments, folder, {"PYTHONPATH": path, "KILL_AT_FSYNC": str(number)})
    process.communicate()
    assert process.returncode in (0, -signal.SIGKILL)
    return process.returncode != 0


def num_lines(log: Path) -> int:
    return log.read_bytes().count(b"\n") if log.exists() else 0


def random_kills(arguments: Sequence[str], folder: Path, log: Path, number: int, seed: int) -> None:
    """Every other one in the middle of a write."""
    chance = random.Random(seed)
    for kill in range(number):
        if kill % 2:
            kill_at(arguments, folder, log, chance.randint(1, 25))
        else:
            kill_in_a_write(arguments, folder, chance.randint(1, 30))
