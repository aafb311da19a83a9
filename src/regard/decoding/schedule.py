"""Runs any number of requests: packs those of similar length into batches that fit into memory, and runs the batches here or in
worker processes. Which requests share a batch depends on the requests alone, never on the time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from math import ceil

from regard.contracts import Engine, Event, FileAndText, Request, SourceRow
from regard.decoding.torch_search import BATCH_HYPOTHESES
from regard.decoding.workers import Workers, search_batch

BUDGET = 1 << 30
"""Maximum memory, in bytes, of the states of all batches that run at the same time, with outputs of maximum length."""

MIN_REQUESTS_PER_WORKER = 64
"""With fewer requests, this process searches with all threads, since a worker takes some hundredths of a second to start."""

WINDOW = 2048
"""How many requests are sorted by length and packed at a time. If there are workers, the next ones are read meanwhile."""
MOST_REQUESTS, MOST_BYTES = 1 << 14, 1 << 28
"""A window ends at this many requests, or bytes of files, whatever was asked for."""


def run(
    engine: Engine, requests: Iterable[Request | None], workers: Workers | None = None, *, window: int = WINDOW
) -> Iterator[Event | None]:
    """Yields the last event of each request, in any order, and None each time before it reads on.

    A batch is searched to its end before the next one starts, so that its numbers do not depend on the time.
    requests: read as needed, at most about two windows ahead of the results. None stands for a pause of unknown length: what
    was read before it is finished before more is read.
    workers: processes to share the work with. They are used once a window has enough requests.
    """
    waiting: deque[list[Request]] = deque()
    shared = False
    try:
        for chunk, is_paused in _windows(requests, min(window, MOST_REQUESTS)):
            is_large = len(chunk) >= 2 * MIN_REQUESTS_PER_WORKER
            if workers is not None and (shared or (is_large and workers.can_start)):
                if not shared:
                    workers.claim()
                    shared = True
                waiting.extend(pack(engine, chunk, workers.number if is_large else 1, BUDGET // workers.number))
                yield from _share(workers, waiting, 0 if is_paused else workers.number)
            else:
                for batch in pack(engine, chunk):
                    yield from search_batch(engine, batch)
            yield None
        if workers is not None and shared:
            yield from _share(workers, waiting, 0)
    finally:
        if workers is not None and shared:
            workers.release()


def _share(workers: Workers, waiting: deque[list[Request]], num_left: int) -> Iterator[Event]:
    """Gives batches to workers, and yields results until fewer than `num_left` batches wait; if it is 0, until all are done."""
    workers.dispatch(waiting)
    while len(waiting) >= num_left and workers.is_busy:
        yield from workers.events()
        workers.dispatch(waiting)


def _windows(requests: Iterable[Request | None], size: int) -> Iterator[tuple[list[Request], bool]]:
    """Yields (requests, whether the input pauses after them)."""
    chunk: list[Request] = []
    nbytes = 0
    for request in requests:
        if request is not None:
            chunk.append(request)
            nbytes += _source_bytes(request.source)
        if request is None or len(chunk) == size or nbytes >= MOST_BYTES:
            yield chunk, request is None
            chunk, nbytes = [], 0
    if chunk:
        yield chunk, False


def _source_bytes(source: SourceRow) -> int:
    """Returns the size of the file of a source; the tokens of a text do not count."""
    if isinstance(source, list):
        return 0
    return int(source.file.nbytes if isinstance(source, FileAndText) else source.nbytes)


def pack(engine: Engine, requests: Sequence[Request], workers: int = 1, budget: int | None = None) -> list[list[Request]]:
    """Groups requests of similar length into batches, the longest first. A batch is as large as the memory budget and
    BATCH_HYPOTHESES allow, but no larger than an equal share for every worker. budget: of a batch, in bytes."""
    budget = BUDGET // workers if budget is None else budget
    if len(requests) < 2:
        return [list(requests)] if requests else []
    order = sorted(requests, key=lambda request: request.num_positions, reverse=True)
    most = max(1, BATCH_HYPOTHESES // max(request.options.num_hypotheses for request in requests))
    rounds = max(1 if workers == 1 else 2, ceil(len(order) / (most * workers)))
    most = ceil(len(order) / (rounds * workers))
    batches: list[list[Request]] = []
    while order:
        largest = max(engine.nbytes(request) for request in order[:most])
        fitting = max(1, min(most, budget // max(1, largest)))
        batches.append(order[:fitting])
        order = order[fitting:]
    return batches
