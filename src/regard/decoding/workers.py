"""Parallel search: several worker processes, each with its own batches, on one core each.

A decoder step consists of many small operations. A second thread speeds these up very little, and Python threads would wait for
each other between any two of them, since only one runs at a time. Forked processes share the model with their parent and start
at once. They send their results back as JSON. Only Linux forks safely.
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
"""Yields values that JSON can hold: numbers, strings, and lists and dictionaries of them."""


def can_fork() -> bool:
    """Returns whether this process can start workers: only on Linux, and not in the worker of a pool, which may have no
    children."""
    return sys.platform == "linux" and not current_process().daemon


def run_in_workers(jobs: Sequence[Job], workers: int) -> Iterator[Any]:
    """Runs the jobs in worker processes and yields their results as they arrive, in any order.

    Of every 2 · workers jobs, the first and the last go to the same worker, and so on: if jobs are sorted by size, all workers
    have about the same amount of work. An error in one job stops all workers, and so does closing the iterator.

    Raises UserError if a job raises one or if a worker exits unexpectedly, and RuntimeError if a job fails with another error.
    """
    fork = get_context("fork")
    running: dict[Connection, BaseProcess] = {}
    with ExitStack() as stack:
        for worker in range(workers):
            ours, theirs = fork.Pipe(duplex=False)
            assigned = [job for number, job in enumerate(jobs) if worker == _worker_of(number, workers)]
            process = fork.Process(target=_work, args=(assigned, theirs, (*running, ours)), daemon=True)
            process.start()
            theirs.close()
            stack.callback(_stop, process, ours)
            running[ours] = process
        while running:
            for connection in wait(list(running)):
                assert isinstance(connection, Connection)
                try:
                    message = json.loads(connection.recv_bytes())
                except EOFError:
                    _check_exit_code(running.pop(connection))
                    continue
                if "user_error" in message:
                    raise UserError(message["user_error"])
                if "error" in message:
                    raise RuntimeError(f"a search failed in a worker process: {message['error']}")
                yield message["result"]


def _stop(process: BaseProcess, ours: Connection) -> None:
    process.kill()  # not SIGTERM: the worker inherited the parent's signal handlers
    process.join()
    ours.close()


def _check_exit_code(process: BaseProcess) -> None:
    process.join()
    if process.exitcode:
        raise UserError(
            f"a worker process exited unexpectedly (exit code {process.exitcode}); it probably ran out of memory: "
            "try --threads 1, or translate fewer texts at a time"
        )


def _worker_of(number: int, workers: int) -> int:
    """Returns which worker gets a job: 0, 1, 1, 0, 0, 1, 1, 0, … for two workers."""
    index = number % (2 * workers)
    return min(index, 2 * workers - 1 - index)


def _work(jobs: Sequence[Job], connection: Connection, inherited: Sequence[Connection]) -> None:
    """Runs jobs in a worker process and sends their results to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent receives it too and stops the workers
    for reading_end in inherited:
        reading_end.close()  # only the parent reads, so that writing fails once it is gone
    torch.set_num_threads(1)  # the threads of the parent were not forked
    try:
        for job in jobs:
            for result in job():
                _send(connection, result=result)
    except BrokenPipeError:
        pass  # the parent is gone
    except UserError as error:
        _send(connection, user_error=str(error))
    except Exception as error:  # the parent raises it
        _send(connection, error=f"{type(error).__name__}: {error}")
    connection.close()


def _send(connection: Connection, **message: Any) -> None:
    connection.send_bytes(json.dumps(message).encode())
