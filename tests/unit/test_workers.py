"""Searches in several worker processes at a time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from searching import assert_same_hypotheses, last_outputs, make_engine, make_requests, rows_of
from table import make_model, make_source

from regard.contracts import Engine, Event, FileAndText, Hypothesis, Request, SourceRow
from regard.decoding import schedule
from regard.decoding.workers import Workers, from_bytes, search_batch, to_bytes
from regard.errors import UserError
from regard.look import Edit, Look, Tap
from regard.options import SearchOptions

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="workers are forked, which only Linux does safely"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),  # pytest-xdist has threads
]


class ActingEngine:
    """Calls `act` for each request in turn; the output is what it returns."""

    def __init__(self, act: Callable[[Request], tuple[int, ...]]) -> None:
        self.act = act

    def nbytes(self, request: Request) -> int:
        return 1

    def open(self) -> ActingSearch:
        return ActingSearch(self.act)


class ActingSearch:
    def __init__(self, act: Callable[[Request], tuple[int, ...]]) -> None:
        self.act, self.submitted = act, deque[Request]()

    def submit(self, request: Request) -> None:
        self.submitted.append(request)

    def events(self, timeout: float | None = None) -> list[Event]:
        request = self.submitted.popleft()
        ids = self.act(request)
        return [Event(request.id, ids, hypotheses=(Hypothesis(ids, 1 / 3, -1 / (request.id + 1), True, (0.1, 0.2)),))]

    def close(self) -> None:
        pass


def endless(request: Request) -> tuple[int, ...]:
    if request.id:
        time.sleep(100)
    return ()


@pytest.fixture
def working() -> Iterator[Callable[[Engine | Callable[[Request], tuple[int, ...]]], Workers]]:
    """Returns a function that makes two workers; they are closed after the test, and no process is left."""
    made = []

    def make(engine: Any) -> Workers:
        made.append(Workers(engine if hasattr(engine, "open") else ActingEngine(engine), 2))
        made[-1].start()
        return made[-1]

    yield make
    for workers in made:
        workers.close()
    assert not active_children()


def results(workers: Workers, batches: list[list[Request]]) -> list[Event]:
    waiting, events = deque(batches), []
    while waiting or workers.is_busy:
        workers.dispatch(waiting)
        events += workers.events()
    return events


def batches_of(*sizes: int) -> list[list[Request]]:
    requests = deque(make_requests([[4]] * sum(sizes)))
    return [[requests.popleft() for _ in range(size)] for size in sizes]


# --- workers -----------------------------------------------------------------------------------------------------------------


def test_workers_do_all_batches_with_one_thread_each(working: Callable[..., Workers]) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        events = results(working(lambda request: (os.getpid(), torch.get_num_threads(), request.id)), batches_of(*[10] * 6))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert sorted(event.id for event in events) == list(range(60))
    for event in events:
        (best,) = event.hypotheses
        assert event.ids == best.ids
        assert best.ids[1:] == (1, event.id)
        assert (best.log_prob, best.rank_score, best.token_log_probs) == (1 / 3, -1 / (event.id + 1), (0.1, 0.2))  # every bit
    processes = {event.ids[0] for event in events}
    assert len(processes) == 2
    assert os.getpid() not in processes


def test_workers_are_forked_once(working: Callable[..., Workers]) -> None:
    workers = working(lambda request: (os.getpid(),))
    workers.start()
    processes = {process.pid for process in active_children()}
    for _ in range(3):
        assert {event.ids[0] for event in results(workers, batches_of(1, 1, 1, 1))} == processes
    assert {process.pid for process in active_children()} == processes


def test_workers_find_what_one_process_finds(working: Callable[..., Workers]) -> None:
    engine = make_engine(make_model("transformer scaled_dot", torch.float32))
    rows = rows_of(make_source(*(1 + number % 9 for number in range(300))))
    for given in ({"beam": 2, "n_best": 2}, {"sample": True, "n_best": 2}, {"look": Look(edits=(Edit("cross", key=0),))}):
        requests = make_requests(rows, max_length=7, **given)
        shared = [event for event in schedule.run(engine, requests, working(engine), window=200) if event is not None]
        alone = last_outputs(event for event in schedule.run(engine, requests) if event is not None)
        assert len(shared) == 300
        for event in shared:
            assert_same_hypotheses(event.hypotheses, alone[event.id], 1e-4)
            assert event.ids == event.hypotheses[0].ids


def test_workers_return_what_taps_captured(working: Callable[..., Workers]) -> None:
    engine = make_engine(make_model("transformer scaled_dot"))
    look = Look((Tap("cross", 1), Tap("encoder", 0, 1), Tap("decoder", what="scores")), (Edit.cut(None, 0),))
    requests = make_requests(rows_of(make_source(7, 3, 5)), max_length=4, beam=2, look=look)
    here, there = list(search_batch(engine, requests)), results(working(engine), [requests])
    assert sorted(there, key=lambda event: event.id) == sorted(here, key=lambda event: event.id)  # the numbers, too
    assert all(event.seen for event in there)
    assert all(isinstance(seen.weights_BHTS, np.ndarray) for event in there for seen in event.seen)


def test_a_request_that_fails_is_an_error_of_that_request(working: Callable[..., Workers]) -> None:
    engine = make_engine(make_model("rnn location"))  # it has 11 source positions
    requests = make_requests([[4, 5], [4] * 12, [6]], max_length=3)
    here, there = list(search_batch(engine, requests)), results(working(engine), [requests])
    assert sorted(there, key=lambda event: event.id) == sorted(here, key=lambda event: event.id)
    assert [event.id for event in there if event.error] == [1]


def test_a_mistake_in_a_program_reaches_the_caller(working: Callable[..., Workers]) -> None:
    def fail(request: Request) -> tuple[int, ...]:
        if request.id == 1:
            raise ValueError("no\nmore")
        return ()

    with pytest.raises(RuntimeError, match="a search failed in a worker process: ValueError: no more"):
        results(working(fail), batches_of(3, 1))


def test_a_worker_that_is_killed_by_the_system_is_reported(working: Callable[..., Workers]) -> None:
    """As when memory runs out: no result may be lost without an error."""

    def vanish(request: Request) -> tuple[int, ...]:
        if request.id == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return ()

    words = r"exited unexpectedly \(exit code -9\).*--threads 1"
    with pytest.raises(UserError, match=words):
        results(working(vanish), batches_of(3, 1))
    idle = working(lambda request: ())
    idle.start()
    for process in active_children():
        process.kill()
        process.join()
    with pytest.raises(UserError, match=words):
        results(idle, batches_of(1))


def test_closing_stops_workers_that_search(working: Callable[..., Workers]) -> None:
    workers = working(endless)
    workers.dispatch(deque(batches_of(2, 2)))
    assert [event.id for event in workers.events()] == [0]
    assert workers.is_busy
    workers.close()
    assert not active_children()
    assert not workers.is_busy


def test_workers_stop_although_their_parent_ignores_sigterm(working: Callable[..., Workers]) -> None:
    """On SIGTERM, training writes a checkpoint before it stops; its workers go on until it closes them."""
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        workers = working(lambda request: (request.id,))
        workers.start()
        for process in active_children():
            process.terminate()  # as when the whole process group gets the signal
        assert len(results(workers, batches_of(2, 2))) == 4
        workers.close()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not active_children()


def test_results_that_nobody_wants_any_more_do_not_reach_the_next_caller(working: Callable[..., Workers]) -> None:
    workers = working(lambda request: (request.id,))
    requests = make_requests([[4]] * 400)
    running = schedule.run(workers.engine, requests[:200], workers)
    assert next(event for event in running if event is not None)
    running.close()  # type: ignore[attr-defined]
    events = [event for event in schedule.run(workers.engine, requests[200:], workers) if event is not None]
    assert sorted(event.id for event in events) == list(range(200, 400))


# --- processes ---------------------------------------------------------------------------------------------------------------


def in_a_process(script: str, timeout: float = 60) -> str:
    """Runs a script in a process without other threads, and returns what it prints."""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=timeout)
    assert not done.returncode, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_process_forks_only_if_it_is_alone() -> None:
    """Processes of a multiprocessing.Pool may have no children; a thread that holds a lock would not be forked."""
    assert in_a_process(CAN_FORK).split() == ["True", "False", "False", "True"]


CAN_FORK = """
from multiprocessing import get_context
from threading import Event, Thread
from regard.decoding.workers import can_fork

if __name__ == "__main__":
    print(can_fork())
    done = Event()
    thread = Thread(target=done.wait)
    thread.start()
    print(can_fork())
    done.set()
    thread.join()
    pool = get_context("fork").Pool(1)
    print(pool.apply(can_fork))
    pool.close()
    pool.join()
    print(can_fork())
"""

PARENT = """
import os, time
from collections import deque
from regard.contracts import Event, Hypothesis, Request
from regard.decoding.workers import Workers

class Slow:
    def open(self):
        self.submitted = []
        return self

    def submit(self, request):
        self.submitted.append(request)

    def events(self):
        time.sleep(0.001)
        return [Event(self.submitted.pop().id, (os.getpid(),), hypotheses=(Hypothesis((), 0.0, 0.0, True),))]

    def close(self):
        pass

workers = Workers(Slow(), 2)
workers.start()
workers.dispatch(deque([[Request(id, [4]) for id in range(50_000)] for _ in range(2)]))
printed = set()
while len(printed) < 2:
    for event in workers.events():
        if event.ids[0] not in printed:
            printed.add(event.ids[0])
            print(event.ids[0], flush=True)
"""


def assert_gone(processes: set[int]) -> None:
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{process}").exists() for process in processes) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [process for process in processes if Path(f"/proc/{process}").exists()]


@pytest.mark.slow
def test_workers_do_not_outlive_their_parent() -> None:
    """The parent is killed without warning; its workers notice when they next send a result."""
    with subprocess.Popen([sys.executable, "-c", PARENT + "time.sleep(100)"], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        workers = {int(parent.stdout.readline()) for _ in range(2)}
        parent.kill()
    assert_gone(workers)


@pytest.mark.slow
def test_a_process_that_forgets_its_workers_ends_them() -> None:
    """Even if they inherited that SIGTERM is ignored: Python would wait for them for ever."""
    printed = in_a_process("import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + PARENT)
    assert_gone(set(map(int, printed.split())))


# --- requests as bytes -------------------------------------------------------------------------------------------------------

SOURCES: dict[str, SourceRow] = {
    "text": [4, 5, 6],
    "empty text": [],
    "picture": np.arange(3 * 2 * 4, dtype=np.uint8).reshape(3, 2, 4),
    "sound": np.arange(-80, 80, dtype=np.int16).reshape(2, 80),
    "frames": np.random.default_rng(1).normal(size=(5, 3)).astype(np.float32),
    "view": np.arange(24, dtype=np.float32).reshape(4, 6)[:, ::2],
    "missing picture and text": FileAndText(np.zeros((3, 0, 0), dtype=np.uint8), [7, 8]),
    "sound without text": FileAndText(np.ones((3, 80), dtype=np.int16), []),
}
OPTIONS = SearchOptions(beam=4, n_best=2, length_penalty="mean", max_ratio=0.1, banned=((4, 6), (7,)), repetition_penalty=1.1)
LOOK = Look((Tap("cross", rows=(0, 2), what="norms"),), (Edit("cross", -1, 0, 3), Edit("encoder"), Edit.remove(4)), grad=True)


def test_requests_are_packed_without_loss() -> None:
    requests = [
        Request(
            id=2**40 + number,
            source=source,
            options=OPTIONS if number % 2 else SearchOptions(sample=True, temperature=1 / 3),
            num_positions=number,
            prefix=(5, 7)[: number % 3],
            limit=7 + number,
            seed=2**64 - 1 - number,
            look=(None, LOOK, Look())[number % 3],
            stream=bool(number % 2),
        )
        for number, source in enumerate(SOURCES.values())
    ]
    for found, expected in zip(from_bytes(to_bytes(requests)), requests, strict=True):
        for name in (name for name in vars(expected) if name != "source"):
            assert getattr(found, name) == getattr(expected, name), name
            assert type(getattr(found, name)) is type(getattr(expected, name)), name
        assert type(found.source) is type(expected.source)
        if isinstance(found.source, list):
            assert found.source == expected.source
            continue
        (ours, text), (theirs, other) = (
            row if isinstance(row, FileAndText) else (row, None) for row in (found.source, expected.source)
        )
        assert text == other
        assert (ours.dtype, ours.shape, ours.flags.writeable) == (theirs.dtype, theirs.shape, True)
        assert ours.tobytes() == theirs.tobytes()
    assert from_bytes(to_bytes([])) == []
