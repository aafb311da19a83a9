"""Searches in several worker processes at a time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from multiprocessing import active_children, get_context
from pathlib import Path

import pytest
import torch

from regard.decoding.workers import can_fork, run_in_workers
from regard.errors import UserError

pytestmark = pytest.mark.skipif(not can_fork(), reason="workers are forked, which only Linux does safely")


def count(first: int, number: int = 10) -> Iterator[tuple[int, int, int, float]]:
    for at in range(first, first + number):
        yield at, os.getpid(), torch.get_num_threads(), 1 / (at + 1)


def test_workers_do_all_jobs_with_one_thread_each() -> None:
    before = torch.get_num_threads()
    found = list(run_in_workers([partial(count, first) for first in range(0, 120, 10)], 3))
    assert sorted(at for at, *_ in found) == list(range(120))
    assert all(number == 1 / (at + 1) for at, _, _, number in found)
    assert {threads for _, _, threads, _ in found} == {1}
    assert torch.get_num_threads() == before
    owners: dict[int, set[int]] = {}
    for at, process, *_ in found:
        owners.setdefault(process, set()).add(at // 10)
    assert sorted(map(sorted, owners.values())) == [[0, 5, 6, 11], [1, 4, 7, 10], [2, 3, 8, 9]]  # large and small jobs
    assert os.getpid() not in owners
    assert not active_children()


def test_an_error_reaches_the_caller_and_ends_the_others() -> None:
    def fail() -> Iterator[int]:
        yield 1
        raise ValueError("no more")

    with pytest.raises(RuntimeError, match="a search failed in a worker process: ValueError: no more"):
        list(run_in_workers([fail, *(partial(count, 0, 10**9) for _ in range(3))], 2))
    assert not active_children()


def test_a_user_error_stays_a_user_error() -> None:
    def refuse() -> Iterator[int]:
        yield 1
        raise UserError("too long by 7")

    with pytest.raises(UserError, match=r"^too long by 7$"):
        list(run_in_workers([refuse, partial(count, 0)], 2))
    assert not active_children()


def test_a_worker_that_is_killed_by_the_system_is_reported() -> None:
    """As when memory runs out: no result may be lost without an error."""

    def vanish() -> Iterator[int]:
        yield 1
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(UserError, match=r"exited unexpectedly \(exit code -9\).*--threads 1"):
        list(run_in_workers([vanish, partial(count, 0)], 2))
    assert not active_children()


def test_workers_stop_although_their_parent_ignores_sigterm() -> None:
    """On SIGTERM, training writes a checkpoint before it stops; its workers must not handle the signal like that."""
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        running = run_in_workers([partial(count, 0, 10**9) for _ in range(2)], 2)
        next(running)
        running.close()  # type: ignore[attr-defined]
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not active_children()


def test_a_worker_of_a_pool_does_not_fork() -> None:
    """Processes of a multiprocessing.Pool may have no children, so there the search runs in the process itself."""
    with get_context("fork").Pool(1) as pool:
        assert pool.apply(can_fork) is False
    assert can_fork()


def test_closing_the_iterator_stops_the_workers() -> None:
    running = run_in_workers([partial(count, 0, 10**9) for _ in range(4)], 2)
    assert next(running)[0] == 0
    running.close()  # type: ignore[attr-defined]
    assert not active_children()


def test_workers_do_not_outlive_their_parent(tmp_path: Path) -> None:
    """The parent is killed without warning; its workers notice when they next send a result."""
    script = tmp_path / "parent.py"
    script.write_text(ORPHANS)
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        workers = {int(parent.stdout.readline()) for _ in range(2)}
        parent.kill()
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{worker}").exists() for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [worker for worker in workers if Path(f"/proc/{worker}").exists()]


ORPHANS = """
import os, time
from itertools import count
from regard.decoding.workers import run_in_workers

def job():
    for number in count():
        yield os.getpid(), number
        time.sleep(0.001)

printed = set()
for worker, _ in run_in_workers([job, job], 2):
    if worker not in printed:
        printed.add(worker)
        print(worker, flush=True)
    if len(printed) == 2:
        time.sleep(100)
"""
