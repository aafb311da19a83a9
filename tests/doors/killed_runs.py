"""Runs of `regard train` that are killed with SIGKILL, at random moments and in the middle of writing a file."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from commands import Command

from regard.cli.main import main


def begin(arguments: Sequence[str], folder: Path, program: Callable[[], object] | None = None) -> Command:
    """Starts `regard train` in the folder."""
    return Command(["train", *arguments, "--threads", "1"], folder, errors=False, program=program)


def finish(command: Command) -> str:
    """Waits for the command, which must succeed, and returns its output."""
    code, output, _ = command.wait()
    assert code == 0, output
    return output


def kill_at(arguments: Sequence[str], folder: Path, log: Path, updates: int) -> None:
    """Kills the run soon after it has logged this many more updates, unless it ends before."""
    process, before = begin(arguments, folder), num_lines(log)
    while process.poll() is None and num_lines(log) < before + updates:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()


def kill_during_a_write(arguments: Sequence[str], folder: Path, number: int) -> bool:
    """Kills the run at its fsync of this number. Returns whether it was killed; otherwise it ran to its end."""
    code, _, _ = begin(arguments, folder, partial(regard_killed_at_fsync, number)).wait()
    assert code in (0, -signal.SIGKILL)
    return code != 0


def regard_killed_at_fsync(number: int) -> None:
    """Runs `regard`, and kills its process when it is about to sync a file to the disk for the time of this number."""
    left, original = [number], os.fsync

    def fsync(descriptor: int) -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        original(descriptor)

    os.fsync = fsync  # type: ignore[assignment]
    main()


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
