"""Runs a student's file in a child process (child.py), with limits on time and memory, and collects what it answers.

This protects the checker and the machine from accidents: endless loops, crashes, runaway memory. It is no protection against
malice: the code runs with the rights of the user.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, Queue
from typing import Any

START_SECONDS = 60
"""Time for Python to start in the child process, on a busy machine."""
IMPORT_SECONDS = 30
"""Additional time for the import of a file, which may import torch."""


@dataclass(frozen=True)
class Limits:
    """seconds: wall-clock time that each function may take.  memory: bytes of address space."""

    seconds: float = 10.0
    memory: int = 2 << 30


@dataclass
class Outcome:
    """What a file did. broken: why it could not be imported, if so.  answers: function -> answers to its cases, as child.py
    sends them.  ended: function -> why the process ended in it.  names: all functions that the file defines."""

    broken: dict[str, Any] | None = None
    names: list[str] = field(default_factory=list)
    answers: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    ended: dict[str, str] = field(default_factory=dict)


def run_file(file: Path, tasks: Sequence[Mapping[str, Any]], limits: Limits) -> Outcome:
    """Calls the functions of a file. If one of them ends the process, the remaining ones run in a new process.

    tasks: what to call, one record per function, as child.py reads them.
    """
    outcome = Outcome()
    left = list(tasks)
    while True:
        reached = _run(file, left, limits, outcome)
        if reached is None or outcome.broken:
            return outcome
        names = [task["function"] for task in left]
        left = left[names.index(reached) + 1 :]
        if not left:
            return outcome


def _run(file: Path, tasks: Sequence[Mapping[str, Any]], limits: Limits, outcome: Outcome) -> str | None:
    """Runs one child process. Returns the function in which it ended, or None if it ran to the end."""
    with tempfile.TemporaryDirectory(prefix="regard-check-") as folder:
        request = Path(folder) / "request.json"
        work = Path(folder) / "work"
        work.mkdir()
        request.write_text(json.dumps({"file": str(file), "memory": limits.memory, "tasks": tasks}), encoding="utf-8")
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "regard.checking.child", str(request)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=work,
            env={**os.environ, **threads, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONIOENCODING": "utf-8"},
            start_new_session=True,
        )
        events: Queue[dict[str, Any] | None] = Queue()
        reader = threading.Thread(target=_read, args=(child, events), daemon=True)
        reader.start()
        try:
            return _listen(child, events, limits, outcome)
        finally:
            _kill(child)
            reader.join(timeout=1)
            if child.stdout is not None and not reader.is_alive():  # else a process that left the group still holds it
                child.stdout.close()


def _listen(
    child: subprocess.Popen[bytes], events: Queue[dict[str, Any] | None], limits: Limits, outcome: Outcome
) -> str | None:
    """Collects the events of a child process until it ends or takes too long."""
    current, seconds, since = "", float(START_SECONDS), time.monotonic()
    while True:
        try:
            event = events.get(timeout=max(0.0, since + seconds - time.monotonic()))
        except Empty:
            return _ended(current, f"did not finish within {seconds:g} seconds; is there a loop that never ends?", outcome)
        if event is None:
            code = child.wait()
            return None if code == 0 and not current else _ended(current, _exit(code), outcome)
        match event["event"]:
            case "import":
                current, seconds, since = "import", limits.seconds + IMPORT_SECONDS, time.monotonic()
            case "broken":
                outcome.broken = event["error"]
                return None
            case "imported":
                outcome.names, current, seconds, since = event["names"], "", float(START_SECONDS), time.monotonic()
            case "start":
                current, seconds, since = event["function"], limits.seconds, time.monotonic()
                outcome.answers[current] = []
            case "answer":
                outcome.answers[current].append(event)
            case "end":
                current, seconds, since = "", float(START_SECONDS), time.monotonic()


def _read(child: subprocess.Popen[bytes], events: Queue[dict[str, Any] | None]) -> None:
    """Puts the events of a child process into a queue, and None at their end. Runs in a thread."""
    assert child.stdout is not None
    with suppress(ValueError):  # a line that was cut off when the process was killed
        for line in child.stdout:
            events.put(json.loads(line))
    events.put(None)


def _ended(current: str, why: str, outcome: Outcome) -> str | None:
    if current in ("", "import"):
        outcome.broken = {"type": "", "text": why, "line": None, "code": ""}
        return None
    outcome.ended[current] = why
    return current


def _exit(code: int) -> str:
    """Describes how a process ended."""
    if code >= 0:
        return f"ended the process with exit code {code}; remove os._exit"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    reason = {"SIGSEGV": "a segmentation fault; endless recursion or a broken library causes one", "SIGKILL": "out of memory?"}
    return f"crashed the process ({name}{': ' + reason[name] if name in reason else ''})"


def _kill(child: subprocess.Popen[bytes]) -> None:
    """Ends the child process, and on POSIX systems all processes that it started."""
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
    else:
        child.kill()
    child.wait()
