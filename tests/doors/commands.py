"""Runs `regard` in processes of their own. They are forked from one that has imported torch, because that takes seconds.

The first process has done nothing but import, so a command finds what it finds in a new interpreter: arguments, environment,
folder and streams are its own, and it ends with its own exit code. tests/doors/test_readme.py, the examples and some tests of
pipes and terminals start an interpreter for each command, as a user does.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

SERVER = get_context("forkserver")
SERVER.set_forkserver_preload(["torch", "regard.cli.main", "regard.evaluation", "regard.pipeline", "regard.training.train"])


class Command:
    """A running `regard`. Its standard input is a pipe. errors: whether standard error is kept apart from standard output.

    program: what to run instead.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        folder: Path | None = None,
        *,
        input: bytes = b"",
        errors: bool = True,
        environment: Mapping[str, str] | None = None,
        program: Callable[[], object] | None = None,
    ) -> None:
        self._streams = tempfile.TemporaryDirectory()
        self._paths = [os.path.join(self._streams.name, name) for name in ("output", "errors" if errors else "output")]
        reader, writer = SERVER.Pipe(duplex=False)
        environment = {**os.environ, "COLUMNS": "100", **(environment or {})}
        given = arguments, folder or Path.cwd(), environment, reader, self._paths, program
        self._process = SERVER.Process(target=_run, args=given)
        self._process.start()
        reader.close()
        assert self._process.pid is not None
        self.pid = self._process.pid
        threading.Thread(target=_write, args=(writer, input)).start()

    def poll(self) -> int | None:
        """Returns the exit code, or None while the command runs."""
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def wait(self) -> tuple[int, str, str]:
        """Waits for the end of the command; returns its exit code, which is negative if a signal killed it, its standard output
        and its standard error."""
        self._process.join()
        code = self._process.exitcode
        assert code is not None
        with self._streams:
            files = map(Path, self._paths)  # a process that was killed early has not opened them
            output, errors = (file.read_text() if file.exists() else "" for file in files)
        return code, output, errors


def _write(writer: Connection, input: bytes) -> None:
    with suppress(BrokenPipeError), writer, open(writer.fileno(), "wb", closefd=False) as file:
        file.write(input)


def _run(
    arguments: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    reader: Connection,
    paths: Sequence[str],
    program: Callable[[], object] | None,
) -> None:
    """Runs in the new process."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(reader.fileno(), 0)
    reader.close()
    for number, path in enumerate(paths, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 open until the process ends
    sys.argv = ["regard", *arguments]
    measured = _measured()
    from regard.cli.main import main

    try:
        (program or main)()
    finally:
        measured()


def _measured() -> Callable[[], None]:
    """Measures the coverage of this process if that of the tests is measured; returns a function that saves it."""
    if "COVERAGE_PROCESS_CONFIG" not in os.environ:
        return lambda: None
    import coverage
    from coverage.control import process_startup

    if current := coverage.Coverage.current():
        current.stop()
    mine = process_startup(force=True)
    assert mine is not None

    def save() -> None:
        mine.stop()
        mine.save()

    return save
