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
left, original = [int(os.environ["KILL_AT_FSYNC"])], os.fsync

def fsync(descriptor):
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    original(descriptor)

os.fsync = fsync
"""
"""A sitecustomize.py that kills the process when it is about to sync a file to the disk."""


def begin(arguments: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Starts `regard train` in the folder and returns its process."""
    return subprocess.Popen(
        [sys.executable, "-m", "regard", "train", *arguments, "--threads", "1"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "COLUMNS": "100", **(environment or {})},
    )


def finish(process: subprocess.Popen[bytes]) -> str:
    """Waits for the process, which must succeed, and returns its output."""
    output, _ = process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode()


def kill_at(arguments: Sequence[str], folder: Path, log: Path, updates: int) -> None:
    """Kills the run soon after it has logged this many more updates, unless it ends before."""
    process, before = begin(arguments, folder), num_lines(log)
    while process.poll() is None and num_lines(log) < before + updates:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()


def kill_during_a_write(arguments: Sequence[str], folder: Path, number: int) -> bool:
    """Kills the run at its fsync of this number. Returns whether it was killed; otherwise it ran to its end."""
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
    """Kills the run this many times: in turn in the middle of a write and after a random number of updates."""
    rng = random.Random(seed)
    for kill in range(number):
        if kill % 2:
            kill_at(arguments, folder, log, rng.randint(1, 25))
        else:
            kill_during_a_write(arguments, folder, rng.randint(1, 30))
