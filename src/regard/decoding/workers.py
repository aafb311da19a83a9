"""Several searches at a time, each in a process of its own on one core.

A step is made of many small operations, of which a second thread can take little; and threads side by side wait for each other
between any two of them, because Python lets only one run. Processes that are forked off share the model with their parent and
begin at once. What they find comes back as JSON. Only Linux forks safely.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from multiprocessing import current_process, get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from regard.errors import UserError

Job = Callable[[], Iterator[Any]]
"""What it gives is numbers, texts, lists and dictionaries of them."""


def can_fork() -> bool:
    """Not where we are ourselves the worker of a pool, which may have no children."""
    return sys.platform == "linux" and not current_process().daemon


def side_by_side(jobs: Sequence[Job], workers: int) -> Iterator[Any]:
    """What all jobs give, as it comes. The first and the last of 2 · workers jobs go to the same worker, and so on: where jobs
    are sorted by size, all have about as much to do. An error in one of them ends all; so does the caller who wants no more."""
    fork = get_context("fork")
    running: dict[Connection, BaseProcess] = {}
    with ExitStack() as stack:
        for worker in range(workers):
            ours, theirs = fork.Pipe(duplex=False)
            own = [job for number, job in enumerate(jobs) if worker == _turn(number, workers)]
            process = fork.Process(target=_work, args=(own, theirs, (*running, ours)), daemon=True)
            process.start()
            theirs.close()
            stack.callback(_end, process, ours)
            running[ours] = process
        while running:
            for end in wait(list(running)):
                assert isinstance(end, Connection)
                try:
                    found = json.loads(end.recv_bytes())
                except EOFError:
                    _check_end(running.pop(end))
                    continue
                if "mistake" in found:
                    raise UserError(found["mistake"])
                if "error" in found:
                    raise RuntimeError(f"a search failed in a process of its own: {found['error']}")
                yield found["found"]


def _end(process: BaseProcess, ours: Connection) -> None:
    process.kill()  # SIGTERM may mean something else to it: it has inherited the parent's handlers
    process.join()
    ours.close()


def _check_end(process: BaseProcess) -> None:
    process.join()
    if process.exitcode:
        raise UserError(
            f"a search in a process of its own ended without a word (exit code {process.exitcode}); most often memory ran out, "
            "and the system ended it: try --threads 1, or give it fewer texts at a time"
        )


def _turn(number: int, workers: int) -> int:
    """Whose a job is: 0, 1, 1, 0, 0, 1, 1, 0, … for two."""
    index = number % (2 * workers)
    return min(index, 2 * workers - 1 - index)


def _work(jobs: Sequence[Job], end: Connection, inherited: Sequence[Connection]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it too, and ends us
    for one in inherited:
        one.close()  # only the parent reads: when it is gone, writing fails
    torch.set_num_threads(1)  # the threads of the parent were not forked
    try:
        for job in jobs:
            for found in job():
                _say(end, found=found)
    except BrokenPipeError:
        pass  # the parent is gone
    except UserError as error:
        _say(end, mistake=str(error))
    except Exception as error:  # the parent raises it
        _say(end, error=f"{type(error).__name__}: {error}")
    end.close()


def _say(end: Connection, **what: Any) -> None:
    end.send_bytes(json.dumps(what).encode())
