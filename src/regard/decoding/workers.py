"""Several searches at a time, each on one core.

A step is made of many small operations, of which a second thread can take little; so threads are better used side by side, one
for each batch, than together on one batch. They share the model. (torch lets go of Python's lock while it computes.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from threading import Event, Thread
from typing import TypeVar

import torch

T = TypeVar("T")
Job = Callable[[], Iterator[T]]


class _Over:
    """A worker has nothing more to do; or it has met an error."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


def side_by_side(jobs: Sequence[Job[T]], threads: int) -> Iterator[T]:
    """What all jobs give, as it comes. An error in one of them ends all; so does the caller who wants no more."""
    if threads == 1 or len(jobs) == 1:
        for job in jobs:
            yield from job()
        return
    waiting, found, stop = SimpleQueue[Job[T] | None](), SimpleQueue[T | _Over](), Event()
    workers = [Thread(target=_work, args=(waiting, found, stop), daemon=True) for _ in jobs[:threads]]
    for one_or_none in (*jobs, *(None for _ in workers)):
        waiting.put(one_or_none)
    for worker in workers:
        worker.start()
    try:
        num_working = len(workers)
        while num_working:
            one = found.get()
            if not isinstance(one, _Over):
                yield one
            elif one.error is None:
                num_working -= 1
            else:
                raise one.error
    finally:
        stop.set()
        for worker in workers:
            worker.join()
        torch.set_num_threads(threads)


def _work(waiting: SimpleQueue[Job[T] | None], found: SimpleQueue[T | _Over], stop: Event) -> None:
    torch.set_num_threads(1)  # of this thread, and of those that begin later
    try:
        while (job := waiting.get()) is not None and not stop.is_set():
            for one in job():
                found.put(one)
                if stop.is_set():
                    break
        found.put(_Over())
    except BaseException as error:  # the caller raises it
        found.put(_Over(error))
