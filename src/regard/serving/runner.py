"""One thread runs the searches of all models. Requests of all clients with equal options share a running batch.

    submit ▶ waiting ─ admitted ▶ Search of the model ─ events ▶ Job, whose client awaits them in the asyncio loop
                └ one sentence of each client in turn, as long as the predicted memory of all suffices

What waits is bounded: a client is refused at once rather than served late. A client that goes away, or whose time is over,
frees its rows.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from math import ceil
from time import monotonic
from typing import TypeVar

from regard.contracts import Engine, Event, Request, Search
from regard.decoding.torch_search import BATCH_HYPOTHESES
from regard.serving.limits import MEGABYTE, Limits
from regard.serving.refusal import Refusal

T = TypeVar("T")

MOST_CALLS = 1_000
"""How many calls may wait for the thread."""

LOGGER = logging.getLogger("regard.serve")

Delivery = tuple["Job", Event | Refusal]


class Lane:
    """A model that is served: its engine, its running search, and whose requests are in it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.search: Search = engine.open()
        self.running: dict[int, Running] = {}


@dataclass(frozen=True)
class Running:
    """A request in a search. job, index: whose it is, and its index there.  nbytes, rows: its predicted size."""

    job: Job
    index: int
    nbytes: int
    rows: int


@dataclass(eq=False)
class Job:
    """The requests of one client for one model. Iterating yields their events; the id of an event is the index of its request.

    deadline: when it is given up, in seconds of the monotonic clock.  waiting: what has not entered the search yet.
    num_left: how many requests have not ended.
    """

    lane: Lane
    waiting: deque[Running]
    requests: Sequence[Request]
    deadline: float
    num_left: int
    events: asyncio.Queue[Event | Refusal] = field(default_factory=asyncio.Queue)
    is_cancelled: bool = False

    async def __aiter__(self) -> AsyncIterator[Event]:
        left = len(self.requests)
        while left:
            event = await self.events.get()
            if isinstance(event, Refusal):
                raise event
            left -= event.is_last
            yield event


class Runner:
    """Runs jobs in a thread of its own, for clients of one asyncio loop.

    finished: how many requests have ended.  nbytes: the predicted memory of all requests that run.
    num_waiting, num_running: how many requests wait for a search, and how many are in one.
    """

    def __init__(self, limits: Limits, loop: asyncio.AbstractEventLoop) -> None:
        self.limits, self.loop = limits, loop
        self.finished = self.nbytes = self.num_waiting = self.num_running = 0
        self._changed = threading.Condition()
        self._jobs: deque[Job] = deque()
        """Jobs with requests that wait. The thread takes one request from each in turn."""
        self._calls: deque[tuple[Callable[[], object], Future[object]]] = deque()
        self._live: set[Job] = set()
        self._lanes: set[Lane] = set()
        self._rows = self._next_id = 0
        self._is_closed = False
        self._started = monotonic()
        self._thread = threading.Thread(target=self._run, name="search", daemon=True)
        self._thread.start()

    # --- called from the loop ---

    def submit(self, lane: Lane, requests: Sequence[Request]) -> Job:
        """Queues requests. Raises Refusal if one of them needs more memory than there is, or if too many wait already."""
        job = Job(lane, deque(), requests, monotonic() + self.limits.seconds, len(requests))
        for index, request in enumerate(requests):
            nbytes, rows = lane.engine.nbytes(request), request.options.num_hypotheses
            if nbytes > self.limits.memory:
                raise Refusal(
                    413,
                    f"a sentence of this request may need {nbytes / MEGABYTE:,.2f} MB with a beam of {rows}, but the limit is "
                    f"{self.limits.memory / MEGABYTE:,.2f} MB; send shorter sentences, or ask for a smaller beam",
                )
            job.waiting.append(Running(job, index, nbytes, rows))
        with self._changed:
            if self._is_closed:
                raise Refusal(503, "the server is shutting down", retry_after=1)
            if self.num_waiting and self.num_waiting + len(requests) > self.limits.waiting:
                raise self._busy()
            if requests:
                self.num_waiting += len(requests)
                self._jobs.append(job)
                self._live.add(job)
                self._changed.notify()
        return job

    def cancel(self, job: Job) -> None:
        """Frees what a job uses. It has no further events."""
        with self._changed:
            job.is_cancelled = True
            self._changed.notify()

    async def call(self, function: Callable[[], T]) -> T:
        """Runs a function in the thread, between two steps of the searches."""
        future: Future[T] = Future()
        with self._changed:
            if self._is_closed:
                raise Refusal(503, "the server is shutting down", retry_after=1)
            if len(self._calls) >= MOST_CALLS:
                raise self._busy()
            self._calls.append((function, future))  # type: ignore[arg-type]
            self._changed.notify()
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Ends the thread. Jobs that still run are refused."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _busy(self) -> Refusal:
        rate = self.finished / max(1.0, monotonic() - self._started)
        seconds = min(60, max(1, ceil(self.num_waiting / rate))) if rate else 5
        return Refusal(
            503, f"the server is busy: {self.num_waiting:,} sentences wait; try again in {seconds} s", retry_after=seconds
        )

    # --- the thread ---

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._live or self._lanes or self._calls or self._is_closed):
                    self._changed.wait()
                if self._is_closed:
                    break
                calls, self._calls = self._calls, deque()
            for function, future in calls:
                _run_call(function, future)
            self._drop_ended()
            self._admit()
            self._deliver([item for lane in list(self._lanes) for item in self._step(lane)])
        closed = Refusal(503, "the server is shutting down", retry_after=1)
        for _, future in self._calls:
            future.set_exception(closed)
        self._deliver([(job, closed) for job in self._live])
        for lane in self._lanes:
            lane.search.close()

    def _drop_ended(self) -> None:
        """Frees the rows of clients that went away, and of those whose time is over."""
        now = monotonic()
        with self._changed:
            ended = {job for job in self._live if job.is_cancelled or job.deadline < now}
            if not ended:
                return
            self.num_waiting -= sum(len(job.waiting) for job in ended)
            self._jobs = deque(job for job in self._jobs if job not in ended)
            self._live -= ended
        for lane in self._lanes:
            for id, running in lane.running.items():
                if running.job in ended:
                    lane.search.cancel(id)
        late = Refusal(
            503,
            f"this request took longer than {self.limits.seconds:g} s and was stopped; send a shorter text, or try again later",
            retry_after=5,
        )
        self._deliver([(job, late) for job in ended if not job.is_cancelled])

    def _admit(self) -> None:
        """Moves requests that wait into searches: one of each job in turn, as long as there is room for all of them."""
        with self._changed:
            while self._jobs:
                job = self._jobs[0]
                one = job.waiting[0]
                is_full = self.nbytes + one.nbytes > self.limits.memory or self._rows + one.rows > BATCH_HYPOTHESES
                if is_full and self.num_running:
                    return
                job.waiting.popleft()
                self._jobs.rotate(-1)
                if not job.waiting:
                    self._jobs.pop()
                self._next_id += 1
                self._count(one, 1)
                self.num_waiting -= 1
                self._lanes.add(job.lane)
                job.lane.running[self._next_id] = one
                job.lane.search.submit(replace(job.requests[one.index], id=self._next_id))

    def _step(self, lane: Lane) -> Iterator[Delivery]:
        """Takes a step with the search of a model, and yields what happened."""
        try:
            events = lane.search.events(timeout=0)
        except Exception:
            LOGGER.exception("a search failed; its requests are refused")
            yield from self._abandon(lane)
            events = []
        for event in events:
            one = lane.running[event.id]
            if event.is_last:
                del lane.running[event.id]
                self._count(one, -1)
                self.finished += 1
            if one.job in self._live:
                yield one.job, replace(event, id=one.index)
                self._end(one.job, event.is_last)
        if not lane.running:
            self._lanes.discard(lane)

    def _abandon(self, lane: Lane) -> Iterator[Delivery]:
        """Opens another search for a model, and refuses all that ran in the old one."""
        for one in lane.running.values():
            self._count(one, -1)
        jobs = {one.job for one in lane.running.values()} & self._live
        lane.running, lane.search = {}, lane.engine.open()
        with self._changed:
            self.num_waiting -= sum(len(job.waiting) for job in jobs)
            self._jobs = deque(job for job in self._jobs if job not in jobs)
            self._live -= jobs
        for job in jobs:
            yield job, Refusal(500, "the search failed; the log of the server says why")

    def _count(self, one: Running, by: int) -> None:
        self.nbytes += by * one.nbytes
        self._rows += by * one.rows
        self.num_running += by

    def _end(self, job: Job, number: int) -> None:
        job.num_left -= number
        if not job.num_left:
            with self._changed:
                self._live.discard(job)

    def _deliver(self, items: Iterable[Delivery]) -> None:
        """Wakes the loop once for everything that happened in a step."""
        if items:
            self.loop.call_soon_threadsafe(_put, items)


def _put(items: Iterable[Delivery]) -> None:
    for job, event in items:
        job.events.put_nowait(event)


def _run_call(function: Callable[[], object], future: Future[object]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(function())
    except Exception as error:
        future.set_exception(error)
