"""Several searches at a time, each in a process of its own on one core.

A step is made of many small operations, of which a second thread can take little; and threads side by side wait for each other
between any two of them, because Python lets only one run. Processes that are forked off share the model with their parent and
begin at once. What they find comes back as lines of JSON. Only Linux forks safely.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

Job = Callable[[], Iterator[Any]]
"""What it gives is numbers, texts, lists and dictionaries of them."""

CAN_FORK = sys.platform == "linux"


def side_by_side(jobs: Sequence[Job], workers: int) -> Iterator[Any]:
    """What all jobs give, as it comes. The first and the last of 2 · workers jobs go to the same worker, and so on: where jobs
    are sorted by size, all have about as much to do. An error in one of them ends all; so does the caller who wants no more."""
    fork = get_context("fork")
    processes, ends = [], []
    for worker in range(workers):
        ours, theirs = fork.Pipe(duplex=False)
        own = [job for number, job in enumerate(jobs) if worker == _turn(number, workers)]
        ends.append(ours)
        process = fork.Process(target=_work, args=(own, theirs, tuple(ends)), daemon=True)
        process.start()
        theirs.close()
        processes.append(process)
    try:
        while ends:
            for end in wait(ends):
                assert isinstance(end, Connection)
                try:
                    found = json.loads(end.recv_bytes())
                except EOFError:
                    ends.remove(end)
                    continue
                if "error" in found:
                    raise RuntimeError(f"a search failed in a process of its own: {found['error']}")
                yield found["found"]
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _turn(number: int, workers: int) -> int:
    """Whose a job is: 0, 1, 1, 0, 0, 1, 1, 0, … for two."""
    place = number % (2 * workers)
    return min(place, 2 * workers - 1 - place)


def _work(jobs: Sequence[Job], end: Connection, inherited: Sequence[Connection]) -> None:
    for one in inherited:
        one.close()  # only the parent reads: when it is gone, writing fails
    torch.set_num_threads(1)  # the threads of the parent were not forked
    try:
        for job in jobs:
            for found in job():
                end.send_bytes(json.dumps({"found": found}).encode())
    except (KeyboardInterrupt, BrokenPipeError):
        pass  # the parent has heard it too, or is gone
    except Exception as error:  # the parent raises it
        end.send_bytes(json.dumps({"error": f"{type(error).__name__}: {error}"}).encode())
    end.close()
