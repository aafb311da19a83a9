"""Runs any number of requests: packs those of similar length into batches that fit into memory, and runs the batches here or in
worker processes. Which requests share a batch depends on the requests alone, never on the time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from math import ceil

from regard.contracts import Engine, Event, Request
from regard.decoding.workers import Workers, search_batch

BATCH_HYPOTHESES = 320
"""Maximum number of rows of a decoder step: sentences times hypotheses. More rows are no faster on a CPU."""

BUDGET = 1 << 30
"""Maximum memory, in bytes, of the states of all batches that run at the same time, with outputs of maximum length."""

MIN_REQUESTS_PER_WORKER = 64
"""With fewer requests, this process searches with all threads, since a worker takes some hundredths of a second to start."""

WINDOW = 2048
"""How many requests are sorted by length and packed at a time. The next ones are read while these are searched."""


def run(
    engine: Engine, requests: Iterable[Request | None], workers: Workers | None = None, *, window: int = WINDOW
) -> Iterator[Event | None]:
    """Yields the last event of each request, in any order, and None if all that was read before a pause is finished.

    requests: read as needed, at most about two windows ahead of the results. None stands for a pause of unknown length: what
    was read before it is finished before more is read.
    workers: processes to share the work with, if there is enough of it.
    """
    windows = _windows(requests, window)
    waiting: deque[list[Request]] = deque()
    is_paused = is_exhausted = False
    while True:
        if workers is not None and waiting:
            workers.dispatch(waiting)
        is_busy = workers is not None and workers.is_busy
        has_room = workers is None or len(waiting) < workers.number
        if has_room and not is_exhausted and not (is_busy and is_paused):
            chunk, is_paused = next(windows, ([], False))
            is_exhausted = not chunk and not is_paused
            if workers is not None and (is_busy or len(chunk) >= 2 * MIN_REQUESTS_PER_WORKER):
                waiting.extend(pack(engine, chunk, workers.number))
            else:
                for batch in pack(engine, chunk):
                    yield from search_batch(engine, batch)
                yield None
        elif workers is not None and is_busy:
            yield from workers.events()
        elif is_exhausted:
            return


def _windows(requests: Iterable[Request | None], size: int) -> Iterator[tuple[list[Request], bool]]:
    """Yields (requests, whether the input pauses after them)."""
    chunk: list[Request] = []
    for request in requests:
        if request is not None:
            chunk.append(request)
        if request is None or len(chunk) == size:
            yield chunk, request is None
            chunk = []
    if chunk:
        yield chunk, False


def pack(engine: Engine, requests: Sequence[Request], workers: int = 1) -> list[list[Request]]:
    """Groups requests of similar length into batches, the longest first. A batch is as large as the memory budget and
    BATCH_HYPOTHESES allow, but no larger than an equal share for every worker."""
    if len(requests) < 2:
        return [list(requests)] if requests else []
    order = sorted(requests, key=lambda request: request.num_positions, reverse=True)
    most = max(1, BATCH_HYPOTHESES // max(request.options.num_hypotheses for request in requests))
    rounds = max(1 if workers == 1 else 2, ceil(len(order) / (most * workers)))
    most = ceil(len(order) / (rounds * workers))
    batches: list[list[Request]] = []
    while order:
        fitting = max(1, min(most, BUDGET // workers // max(1, engine.nbytes(order[0]))))
        batches.append(order[:fitting])
        order = order[fitting:]
    return batches
