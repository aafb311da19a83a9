"""Several searches at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial

import pytest
import torch

from regard.decoding.workers import side_by_side


@pytest.fixture(autouse=True)
def _three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def count(first: int, seen: list[tuple[str, int]]) -> Iterator[int]:
    for number in range(first, first + 10):
        seen.append((threading.current_thread().name, torch.get_num_threads()))
        yield number


def test_workers_do_all_jobs_with_one_thread_each() -> None:
    seen: list[tuple[str, int]] = []
    found = list(side_by_side([partial(count, first, seen) for first in range(0, 100, 10)], 3))
    assert sorted(found) == list(range(100))
    assert {threads for _, threads in seen} == {1}
    assert threading.main_thread().name not in {name for name, _ in seen}
    assert torch.get_num_threads() == 3


@pytest.mark.parametrize(("num_jobs", "threads"), [(1, 3), (4, 1)])
def test_one_job_or_one_thread_needs_no_worker(num_jobs: int, threads: int) -> None:
    seen: list[tuple[str, int]] = []
    found = list(side_by_side([partial(count, 10 * number, seen) for number in range(num_jobs)], threads))
    assert found == list(range(10 * num_jobs))
    assert {name for name, _ in seen} == {threading.main_thread().name}


def test_an_error_reaches_the_caller_and_ends_the_others() -> None:
    seen: list[tuple[str, int]] = []

    def fail() -> Iterator[int]:
        yield 1
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        list(side_by_side([fail, *(partial(count, 0, seen) for _ in range(1000))], 2))
    assert threading.active_count() == 1
    assert torch.get_num_threads() == 2


def test_who_wants_no_more_gets_no_more() -> None:
    seen: list[tuple[str, int]] = []
    running = side_by_side([partial(count, 0, seen) for _ in range(10_000)], 2)
    next(running)
    running.close()  # type: ignore[attr-defined]
    assert threading.active_count() == 1
    assert len(seen) < 100_000
