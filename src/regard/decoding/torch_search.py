"""A running search with a torch model: requests enter its batches, fail or end alone, and leave.

Batching is continuous. Requests of equal (options, look) share a batch; they join it when they arrive and leave it when they
are done. A request that fails is an error of that request: the others are searched again without it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from threading import Condition
from typing import TYPE_CHECKING

import torch

from regard.contracts import CANCELLED, Event, Request
from regard.decoding.search import Running
from regard.errors import UserError, one_line
from regard.look import Look
from regard.options import SearchOptions

if TYPE_CHECKING:
    from regard.decoding.torch_engine import TorchEngine

BATCH_HYPOTHESES = 320
"""Maximum number of rows of a decoder step: sentences times hypotheses. More rows are no faster on a CPU."""

ENCODED_POSITIONS = 1024
"""Number of source positions that are encoded in one pass. Fewer are slow; more need more padding."""

LOGGER = logging.getLogger("regard")


class TorchSearch:
    """A search with a torch model. `events` takes one step with every batch."""

    def __init__(self, engine: TorchEngine) -> None:
        self._engine = engine
        self._changed = Condition()
        self._live: set[int] = set()
        self._submitted: list[Request] = []
        self._cancelled: set[int] = set()
        self._closed = False
        self._batches: dict[tuple[SearchOptions, Look | None], SharedBatch] = {}

    def submit(self, request: Request) -> None:
        with self._changed:
            if self._closed:
                raise RuntimeError(f"request {request.id} was submitted to a search that is closed; open another one")
            if request.id in self._live:
                raise ValueError(f"request {request.id} is running already; give each request another id")
            self._live.add(request.id)
            self._submitted.append(request)
            self._changed.notify()

    def cancel(self, id: int) -> None:
        with self._changed:
            if id in self._live:
                self._cancelled.add(id)
                self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            for container in (self._live, self._submitted, self._cancelled, self._batches):
                container.clear()
            self._changed.notify()

    @property
    def nbytes(self) -> int:
        """The size of the States and hypotheses of all requests that run."""
        return sum(batch.nbytes for batch in list(self._batches.values()))

    @torch.inference_mode()
    def events(self, timeout: float | None = None) -> list[Event]:
        submitted, cancelled = self._take(timeout)
        events: list[Event] = []
        for request in submitted:
            if reason := CANCELLED if request.id in cancelled else self._engine.declines(request):
                events.append(Event(request.id, error=reason))
            else:
                key = (request.options, request.look)
                if key not in self._batches:
                    self._batches[key] = SharedBatch(self._engine, *key)
                self._batches[key].waiting.append(request)
        for key, batch in list(self._batches.items()):
            if cancelled:
                events += [Event(id, error=CANCELLED) for id in batch.drop(cancelled)]
            batch.step(events)
            if batch.is_empty:
                self._batches.pop(key, None)
        with self._changed:
            if self._closed:
                self._batches.clear()  # it was closed while this method added one
                return []
            ended = {event.id for event in events if event.is_last}
            self._live -= ended
            self._cancelled -= ended  # it ended first
        return events

    def _take(self, timeout: float | None) -> tuple[list[Request], set[int]]:
        """Returns the requests that were submitted and cancelled since the last call; waits if there is nothing to do."""
        with self._changed:
            if not (self._batches or self._submitted or self._cancelled or self._closed):
                self._changed.wait(timeout)
            taken = self._submitted, self._cancelled
            self._submitted, self._cancelled = [], set()
            return taken


class SharedBatch:
    """The requests of equal (options, look) that run together.

    waiting: requests that join with the next step, as far as there is room for their hypotheses.
    suspects: if a step fails, any request of the batch may be the reason. So the batch is searched again in two halves, one
    after the other, and so on until a request fails alone; meanwhile, others wait.
    reported: the number of tokens of each suspect that were streamed before.
    """

    def __init__(self, engine: TorchEngine, options: SearchOptions, look: Look | None) -> None:
        self.engine, self.options, self.look = engine.stepping(look), options, look
        self.waiting: list[Request] = []
        self.suspects: deque[list[Request]] = deque()
        self.reported: dict[int, int] = {}
        self.running: Running | None = None

    @property
    def is_empty(self) -> bool:
        return not (self.running or self.waiting or self.suspects)

    @property
    def nbytes(self) -> int:
        return self.running.nbytes if self.running else 0

    def step(self, events: list[Event]) -> None:
        """Takes one step with all requests and adds what happened to `events`."""
        if self.running is None and self.suspects:
            self._join(self.suspects.popleft(), events)
        elif self.running is None:
            self.reported = {}
        if self.waiting and not self.reported:
            room = self._room()
            entering, self.waiting = self.waiting[:room], self.waiting[room:]
            self._join(entering, events)
        if (running := self.running) is None:
            return
        try:
            self.running = self.engine.step(running, self.options, self.look, events)
        except Exception as error:
            self._suspect([running], error, events)

    def drop(self, ids: set[int]) -> list[int]:
        """Removes requests, and returns the ids of those that were still running."""
        dropped = [request.id for group in (self.waiting, *self.suspects) for request in group if request.id in ids]
        self.waiting = [request for request in self.waiting if request.id not in ids]
        self.suspects = deque([request for request in group if request.id not in ids] for group in self.suspects)
        if self.running is None:
            return dropped
        sentences = self.running.beams.sentences
        alive = [row for row, sentence in enumerate(sentences) if not sentence.done]
        rows = [row for row in alive if sentences[row].request.id not in ids]
        dropped += [sentences[row].request.id for row in alive if sentences[row].request.id in ids]
        if not rows:
            self.running = None
        elif len(rows) < len(alive):
            self.running = self.running.keep(torch.tensor(rows, device=self.running.ids_BK.device))
        return dropped

    def _room(self) -> int:
        """Returns how many requests may join: at least one if none is running."""
        num_alive = self.running.num_sentences - len(self.running.free_rows) if self.running else 0
        return max(0 if num_alive else 1, BATCH_HYPOTHESES // self.options.num_hypotheses - num_alive)

    def _join(self, requests: Sequence[Request], events: list[Event]) -> None:
        """Starts requests. They take the rows of sentences that are done, and the others join the running ones."""
        started = [running for group in _similar_sources(requests) for running in self._start(group, events)]
        if not started:
            return
        pad, everything = self.engine.specials.pad, [*started] if self.running is None else [self.running, *started]
        try:
            new = started[0].join(started[1:], pad)
            self.running = new if self.running is None else _joined(self.running, new, pad)
        except Exception as error:
            self._suspect(everything, error, events)

    def _start(self, requests: Sequence[Request], events: list[Event]) -> list[Running]:
        """Starts requests together; if that fails, one by one, so that only those fail that cannot start."""
        try:
            return [self.engine.start(requests, self.reported)]
        except Exception as error:
            if len(requests) > 1:
                return [running for request in requests for running in self._start([request], events)]
            events.append(Event(requests[0].id, error=describe(error)))
            return []

    def _suspect(self, failed: Sequence[Running], error: Exception, events: list[Event]) -> None:
        """Ends the only request that failed with an error, or lets several run again, in two halves."""
        alive = [sentence for running in failed for sentence in running.beams.sentences if not sentence.done]
        self.running = None
        if len(alive) == 1:
            events.append(Event(alive[0].request.id, error=describe(error)))
            return
        self.reported |= {sentence.request.id: sentence.num_reported for sentence in alive}
        requests, half = [sentence.request for sentence in alive], len(alive) // 2
        self.suspects.extendleft((requests[half:], requests[:half]))


def _joined(running: Running, new: Running, pad: int) -> Running:
    """Returns running sentences and new ones, which first take the rows of those that are done: that copies less."""
    rows_N = torch.tensor(running.free_rows[: new.num_sentences], dtype=torch.long, device=running.ids_BK.device)
    if not len(rows_N):
        return running.join([new], pad)
    order_B = torch.arange(new.num_sentences, device=rows_N.device)
    first, rest = order_B[: len(rows_N)], order_B[len(rows_N) :]
    if not len(rest):
        return running.put(rows_N, new, pad)
    return running.put(rows_N, new.keep(first), pad).join([new.keep(rest)], pad)


def _similar_sources(requests: Sequence[Request]) -> Iterator[Sequence[Request]]:
    """Splits requests into groups that are encoded together: prefixes have one length, and sources about ENCODED_POSITIONS
    positions, few of them padding."""
    order = sorted(requests, key=lambda request: (len(request.prefix), request.num_positions), reverse=True)
    while order:
        size, prefix = max(1, ENCODED_POSITIONS // (order[0].num_positions + 1)), len(order[0].prefix)
        if is_edited_alone(order[0]):
            size = 1
        group = [request for request in order[:size] if len(request.prefix) == prefix]
        yield group
        order = order[len(group) :]


def is_edited_alone(request: Request) -> bool:
    """Whether the Look changes numbered positions of a file: in a padded batch, the cells of a grid have other numbers."""
    return request.look is not None and bool(request.look.edits) and not isinstance(request.source, list)


def describe(error: Exception) -> str:
    """Returns the error of a request that failed. What is not an error of the user is logged with its traceback, too."""
    if isinstance(error, UserError):
        return str(error)
    LOGGER.debug("a request failed", exc_info=error)
    return f"{type(error).__name__}: {one_line(error)}"
