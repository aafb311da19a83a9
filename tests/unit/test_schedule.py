"""How many requests are run: packing, windows and pauses, in this process and in workers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from searching import alone_outputs, assert_same_hypotheses, last_outputs, make_engine, make_requests, rows_of, token_batch
from table import SOS, make_model, make_source
from test_search import table_engine
from test_torch_engine import BAD, FailsToEncode

from regard.contracts import Event, FileAndText, Hypothesis, Request
from regard.decoding import schedule
from regard.decoding.schedule import pack, run

# --- packing -----------------------------------------------------------------------------------------------------------------


def requests_of(number: int, **given: object) -> list[Request]:
    return make_requests([[4] * (1 + index % 13) for index in range(number)], **{"max_length": 9, **given})


@pytest.mark.parametrize("workers", [1, 2])
def test_batches_fit_the_budget(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(make_model("transformer scaled_dot"))
    requests = requests_of(50, beam=2)
    budget = 6 * engine.nbytes(requests[9])
    monkeypatch.setattr(schedule, "BUDGET", workers * budget)
    batches = pack(engine, requests, workers)
    assert sorted(request.id for batch in batches for request in batch) == list(range(50))
    for batch in batches:
        estimate = len(batch) * max(map(engine.nbytes, batch))
        assert estimate <= budget
        state = engine.model.start(
            engine.model.encode(token_batch([request.source for request in batch])), torch.full((len(batch), 10), SOS)
        )
        assert state.select(torch.zeros(len(batch), 2, dtype=torch.long)).nbytes <= estimate
    assert len(batches) > 8


def test_a_long_limit_counts_even_if_the_source_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(make_model("transformer scaled_dot"))
    requests = requests_of(50)
    requests[0] = replace(requests[0], limit=5000)  # its source has one token
    monkeypatch.setattr(schedule, "BUDGET", 2 * engine.nbytes(requests[0]))
    for batch in pack(engine, requests):
        assert len(batch) * max(map(engine.nbytes, batch)) <= schedule.BUDGET


def test_a_request_that_exceeds_the_budget_is_a_batch_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "BUDGET", 1)
    engine = make_engine(make_model("transformer scaled_dot"))
    assert [len(batch) for batch in pack(engine, requests_of(5))] == [1] * 5


@pytest.mark.parametrize(
    ("number", "workers", "sizes"),
    [(1000, 2, [250] * 4), (1000, 1, [250] * 4), (200, 2, [50] * 4), (5, 2, [2, 2, 1]), (1, 2, [1]), (0, 2, [])],
)
def test_workers_get_equal_shares_and_the_longest_first(number: int, workers: int, sizes: list[int]) -> None:
    batches = pack(make_engine(make_model("transformer scaled_dot")), requests_of(number), workers)
    assert [len(batch) for batch in batches] == sizes
    lengths = [request.num_positions for batch in batches for request in batch]
    assert lengths == sorted(lengths, reverse=True)


def test_a_batch_has_a_maximum_number_of_hypotheses() -> None:
    batches = pack(make_engine(make_model("rnn additive")), requests_of(100, beam=10))
    assert [len(batch) for batch in batches] == [25] * 4


def test_packing_depends_on_the_requests_alone() -> None:
    engine = make_engine(make_model("rnn additive"))
    requests = requests_of(90, beam=10)
    assert pack(engine, requests, 2) == pack(make_engine(make_model("rnn additive")), requests, 2)


def test_a_source_that_cannot_be_encoded_does_not_stop_the_others() -> None:
    engine = table_engine(FailsToEncode())
    requests = [
        Request(id, torch.tensor([table]).numpy(), num_positions=1, limit=3) for id, table in enumerate((101, BAD, 102))
    ]
    ends = {event.id: event.error for event in run(engine, requests) if event is not None}
    assert ends == {0: "", 1: "this source cannot be read", 2: ""}


# --- windows and pauses ------------------------------------------------------------------------------------------------------


class InstantEngine:
    """Answers each request at once."""

    def nbytes(self, request: Request) -> int:
        return 1

    def open(self) -> InstantSearch:
        return InstantSearch()


class InstantSearch:
    def __init__(self) -> None:
        self.submitted: list[Request] = []

    def submit(self, request: Request) -> None:
        self.submitted.append(request)

    def events(self, timeout: float | None = None) -> list[Event]:
        return answers(self.submitted)

    def close(self) -> None:
        pass


def answers(requests: Sequence[Request]) -> list[Event]:
    return [Event(request.id, hypotheses=(Hypothesis((), 0.0, 0.0, True),)) for request in requests]


class SlowWorkers:
    """Stands for two worker processes: a batch is ready after `events` was called `delay` times. sent: all batches."""

    def __init__(self, delay: int = 0, *, can_start: bool = True) -> None:
        self.number, self.delay, self.num_waits, self.can_start = 2, delay, 0, can_start
        self.running: deque[list[Request]] = deque()
        self.sent: list[list[int]] = []

    @property
    def is_busy(self) -> bool:
        return bool(self.running)

    def dispatch(self, waiting: deque[list[Request]]) -> None:
        while waiting and len(self.running) < self.number:
            self.running.append(waiting.popleft())
            self.sent.append([request.id for request in self.running[-1]])

    def events(self) -> list[Event]:
        self.num_waits += 1
        return [] if self.num_waits % (self.delay + 1) else answers(self.running.popleft())

    def claim(self) -> None:
        assert self.can_start

    def release(self) -> None:
        self.running.clear()


def log_of(items: Sequence[Request | None], workers: SlowWorkers | None = None) -> list[str]:
    """Returns what happened, in order: which request was read or answered, and when the input or the output paused."""
    log: list[str] = []

    def reading() -> Iterator[Request | None]:
        for item in items:
            log.append("pause" if item is None else f"read {item.id}")
            yield item

    for event in run(InstantEngine(), reading(), workers):
        log.append("reading on" if event is None else f"answered {event.id}")
    return log


def test_what_was_read_before_a_pause_is_answered_before_more_is_read() -> None:
    requests = requests_of(5)
    log = log_of([*requests[:2], None, requests[2], None, None, *requests[3:]])
    assert log == [
        *("read 0", "read 1", "pause", "answered 1", "answered 0", "reading on"),  # the longest is submitted first
        *("read 2", "pause", "answered 2", "reading on"),
        *("pause", "reading on"),
        *("read 3", "read 4", "answered 4", "answered 3", "reading on"),
    ]


@pytest.mark.parametrize("delay", [0, 2])
def test_workers_answer_before_a_pause_too(delay: int) -> None:
    """Then None says that all answers are there, before the input is awaited."""
    requests, workers = requests_of(300), SlowWorkers(delay)
    log = log_of([*requests[:200], None, *requests[200:]], workers)
    resumed = log.index("read 200")
    assert {f"answered {id}" for id in range(200)} <= set(log[:resumed])
    assert log[resumed - 1] == "reading on"
    assert {f"answered {id}" for id in range(300)} <= set(log)
    assert not workers.is_busy


def test_reading_ahead_is_bounded_and_has_no_barrier() -> None:
    """The next window is read while workers are busy, but never more than about two windows ahead of the results."""
    workers = SlowWorkers()
    num_answered, num_read, ahead, busy_while_reading = 0, 0, 0, False

    def requests() -> Iterator[Request]:
        nonlocal num_read, busy_while_reading
        for request in requests_of(2000):
            num_read += 1
            busy_while_reading |= num_read > 200 and workers.is_busy
            yield request

    for event in run(InstantEngine(), requests(), workers, window=200):
        num_answered += event is not None
        ahead = max(ahead, num_read - num_answered)
    assert num_answered == 2000
    assert busy_while_reading
    assert 200 < ahead <= 2 * 200


def test_an_endless_input_is_read_as_needed() -> None:
    def requests() -> Iterator[Request]:
        number = 0
        while True:
            yield replace(requests_of(1)[0], id=number)
            number += 1

    events = run(InstantEngine(), requests(), window=3)
    assert [next(events).id for _ in range(3)] == [0, 1, 2]
    assert next(events) is None
    assert next(events).id == 3


@pytest.mark.parametrize("delay", [0, 1, 3])
def test_which_requests_share_a_batch_does_not_depend_on_the_time(delay: int) -> None:
    """Workers may be fast or slow, and the last window is small: it is packed in the same way."""
    requests, workers = requests_of(430), SlowWorkers(delay)
    assert sum(event is not None for event in run(InstantEngine(), requests, workers, window=200)) == 430
    windows = (requests[:200], 2), (requests[200:400], 2), (requests[400:], 1)
    expected = [batch for window, number in windows for batch in pack(InstantEngine(), window, number)]
    assert workers.sent == [[request.id for request in batch] for batch in expected]


def test_workers_are_used_from_the_first_large_window_on() -> None:
    """Where a request is searched depends on the requests before it, not on whether workers happen to be busy."""
    requests, workers = requests_of(260), SlowWorkers()
    log_of([*requests[:30], None, *requests[30:230], None, *requests[230:]], workers)
    assert sorted(id for batch in workers.sent for id in batch) == list(range(30, 260))


def test_few_requests_are_searched_in_this_process() -> None:
    workers = SlowWorkers()
    assert sum(event is not None for event in run(InstantEngine(), requests_of(127), workers)) == 127
    assert not workers.sent


def test_requests_are_searched_in_this_process_if_it_cannot_fork() -> None:
    """As in a server: other threads may have started since the workers were made."""
    workers = SlowWorkers(can_start=False)
    assert sum(event is not None for event in run(InstantEngine(), requests_of(500), workers)) == 500
    assert not workers.sent


def test_a_window_ends_before_its_files_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "MOST_BYTES", 4000)
    file = np.zeros((10, 25), np.float32)  # 1,000 bytes
    sources = [file, FileAndText(file, [4]), file, file, file, [4] * 1000]
    windows = schedule._windows([Request(number, source) for number, source in enumerate(sources)], 100)
    assert [[request.id for request in chunk] for chunk, _ in windows] == [[0, 1, 2, 3], [4, 5]]


def test_an_iterator_that_is_left_leaves_nothing_behind() -> None:
    workers = SlowWorkers()
    running = run(InstantEngine(), requests_of(300), workers)
    next(running)
    assert workers.is_busy
    running.close()  # type: ignore[attr-defined]
    assert not workers.is_busy


def test_a_schedule_finds_what_single_searches_find() -> None:
    engine = make_engine(make_model("transformer scaled_dot"))
    rows = rows_of(make_source(*(1 + number % 7 for number in range(30))))
    requests = make_requests(rows, beam=2, n_best=2, max_length=5)
    found = last_outputs(event for event in run(engine, requests, window=13) if event is not None)
    alone = alone_outputs(engine, requests)
    assert sorted(found) == sorted(alone)
    for id, expected in alone.items():
        assert_same_hypotheses(found[id], expected)


def test_batches_that_run_at_the_same_time_share_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of a small window, which is not split for all workers, but runs while others do."""
    monkeypatch.setattr(InstantEngine, "nbytes", lambda engine, request: 10)
    monkeypatch.setattr(schedule, "BUDGET", 200)
    requests, workers = requests_of(240), SlowWorkers()
    log_of([*requests[:200], None, *requests[200:]], workers)
    assert sorted(id for batch in workers.sent for id in batch) == list(range(240))
    assert max(map(len, workers.sent)) == 10  # half of 200 bytes
