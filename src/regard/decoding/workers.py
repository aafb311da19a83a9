"""Parallel search: worker processes that are forked once, each with its own batches, on one core each.

A decoder step consists of many small operations. A second thread speeds these up very little, and Python threads would wait for
each other between any two of them, since only one runs at a time. Forked processes share the model with their parent and start
at once. Requests and events are sent as JSON and raw arrays. Only Linux forks safely, and only while no other thread runs:
a thread that holds a lock is not forked, and the lock is never released.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from math import prod
from multiprocessing import current_process, get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from typing import Any, NoReturn

import numpy as np
import torch

from regard.contracts import Array, Engine, Event, FileAndText, Hypothesis, Request, SourceRow
from regard.errors import UserError, one_line
from regard.look import Edit, Look, Seen, Tap
from regard.options import SearchOptions


def can_fork() -> bool:
    """Returns whether this process can fork workers: only on Linux, not in the worker of a pool, which may have no children,
    and not if other threads run, as in a server or a notebook."""
    return sys.platform == "linux" and not current_process().daemon and threading.active_count() == 1


def search_batch(engine: Engine, requests: Sequence[Request]) -> Iterator[Event]:
    """Searches for the outputs of some requests together, in this process, and yields the last event of each."""
    search = engine.open()
    try:
        for request in requests:
            search.submit(request)
        left = len(requests)
        while left:
            for event in search.events():
                if event.is_last:
                    left -= 1
                    yield event
    finally:
        search.close()


class Workers:
    """Worker processes that search with one engine. `start` forks them; no other thread may run then. `close` ends them, and so
    does the end of this process. One run at a time uses them: it claims them first, and releases them in the end."""

    def __init__(self, engine: Engine, number: int) -> None:
        self.engine, self.number = engine, number
        self._processes: dict[Connection, BaseProcess] = {}
        self._idle: list[Connection] = []
        self._abandoned: set[Connection] = set()
        self._is_claimed = False
        Finalize(self, _end, (self._processes,), exitpriority=0)  # in this process only, not in those forked from it

    @property
    def can_start(self) -> bool:
        """Whether the workers run already, or can be forked now."""
        return bool(self._processes) or can_fork()

    @property
    def is_busy(self) -> bool:
        """Whether any worker has a batch."""
        return len(self._idle) < len(self._processes)

    def claim(self) -> None:
        """Starts the workers and reserves them for one run. Raises RuntimeError if another run uses them."""
        if self._is_claimed:
            raise RuntimeError("these workers are in use by another run; finish or close it first, or use workers of its own")
        self._is_claimed = True
        self.start()

    def release(self) -> None:
        """Ends a run: ignores all further results of the batches that the workers have now."""
        self._is_claimed = False
        self._abandoned.update(connection for connection in self._processes if connection not in self._idle)

    def start(self) -> None:
        """Forks the workers, unless they run already."""
        fork = get_context("fork")
        for _ in range(self.number - len(self._processes)):
            ours, theirs = fork.Pipe()
            process = fork.Process(target=_work, args=(self.engine, theirs, (*self._processes, ours)), daemon=True)
            process.start()
            theirs.close()
            self._processes[ours] = process
            self._idle.append(ours)

    def dispatch(self, batches: deque[list[Request]]) -> None:
        """Gives a batch to each worker that has none, as long as there are batches."""
        while batches and self._idle:
            connection = self._idle.pop(0)
            try:
                connection.send_bytes(to_bytes(batches.popleft()))
            except OSError:
                self._raise_exit(connection)

    def events(self) -> list[Event]:
        """Waits until some workers have results, and returns the last events of their requests.

        Raises UserError if a worker exits unexpectedly, and RuntimeError if it fails because of a mistake in a program.
        """
        events = []
        busy = [connection for connection in self._processes if connection not in self._idle]
        for connection in wait(busy):
            assert isinstance(connection, Connection)
            try:
                message = json.loads(connection.recv_bytes())
            except (EOFError, OSError):
                self._raise_exit(connection)
            if "failure" in message:
                self.close()
                raise RuntimeError(f"a search failed in a worker process: {message['failure']}")
            if "done" in message:
                self._idle.append(connection)
                self._abandoned.discard(connection)
            elif connection not in self._abandoned:
                events.append(_event(**message))
        return events

    def close(self) -> None:
        """Ends all workers at once, whatever they are doing."""
        _end(self._processes)
        self._idle.clear()
        self._abandoned.clear()

    def _raise_exit(self, connection: Connection) -> NoReturn:
        process = self._processes[connection]
        process.join()
        self.close()
        raise UserError(
            f"a worker process exited unexpectedly (exit code {process.exitcode}); it probably ran out of memory: "
            "try --threads 1, or translate fewer texts at a time"
        )


def _end(processes: dict[Connection, BaseProcess]) -> None:
    """Ends worker processes and forgets them."""
    for connection, process in processes.items():
        process.kill()  # not SIGTERM: the worker inherited the parent's signal handlers
        process.join()
        connection.close()
    processes.clear()


def _work(engine: Engine, connection: Connection, inherited: Sequence[Connection]) -> None:
    """Searches batch after batch in a worker process, until the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent receives it too and stops the workers
    for other in inherited:
        other.close()  # so that reading and writing fail once the parent is gone
    torch.set_num_threads(1)  # the threads of the parent were not forked
    try:
        while True:
            for event in search_batch(engine, from_bytes(connection.recv_bytes())):
                outputs, seen = [vars(output) for output in event.hypotheses], [_plain_seen(seen) for seen in event.seen]
                _send(connection, id=event.id, ids=event.ids, error=event.error, hypotheses=outputs, seen=seen)
            _send(connection, done=True)
    except (EOFError, OSError):
        pass  # the parent is gone
    except Exception as error:  # the parent raises it
        _send(connection, failure=f"{type(error).__name__}: {one_line(error)}")
    connection.close()


def _send(connection: Connection, **message: Any) -> None:
    connection.send_bytes(json.dumps(message).encode())


def _plain_seen(seen: Seen[Array]) -> dict[str, Any]:
    """Returns what a tap captured for JSON; the numbers become Base64."""
    numbers = seen.weights_BHTS
    encoded = {"dtype": numbers.dtype.str, "shape": numbers.shape, "data": b64encode(numbers.tobytes()).decode()}
    return {**vars(seen), "weights_BHTS": encoded}


def _seen(heads: list[int], rows: list[int], weights_BHTS: dict[str, Any], **others: Any) -> Seen[Array]:
    """Returns what `_plain_seen` described."""
    numbers = np.frombuffer(bytearray(b64decode(weights_BHTS["data"])), np.dtype(weights_BHTS["dtype"]))
    return Seen(heads=tuple(heads), rows=tuple(rows), weights_BHTS=numbers.reshape(tuple(weights_BHTS["shape"])), **others)


def _event(id: int, ids: list[int], error: str, hypotheses: list[dict[str, Any]], seen: list[dict[str, Any]]) -> Event:
    """Returns an event from JSON data, in which tuples became lists."""

    def hypothesis(ids: list[int], token_log_probs: list[float], **others: Any) -> Hypothesis:
        return Hypothesis(ids=tuple(ids), token_log_probs=tuple(token_log_probs), **others)

    captured = tuple(_seen(**one) for one in seen)
    return Event(id, tuple(ids), seen=captured, hypotheses=tuple(hypothesis(**output) for output in hypotheses), error=error)


# --- requests as bytes -------------------------------------------------------------------------------------------------------


def to_bytes(requests: Sequence[Request]) -> bytes:
    """Returns requests as bytes: the length of a JSON text in 8 bytes, the JSON text, and the arrays of files, one after the
    other."""
    arrays: list[Array] = []
    options: dict[SearchOptions, int] = {}
    looks: dict[Look | None, int] = {}

    def plain(source: SourceRow) -> Any:
        if isinstance(source, list):
            return source
        file, text = source if isinstance(source, FileAndText) else (source, None)
        arrays.append(np.ascontiguousarray(file))
        return {"dtype": file.dtype.str, "shape": file.shape, "text": text}

    rows = [
        {
            **{name: value for name, value in vars(request).items() if name not in ("source", "options", "look")},
            "source": plain(request.source),
            "options": options.setdefault(request.options, len(options)),
            "look": looks.setdefault(request.look, len(looks)),
        }
        for request in requests
    ]
    shared = {"options": list(map(asdict, options)), "looks": [None if look is None else asdict(look) for look in looks]}
    header = json.dumps({"requests": rows, **shared}).encode()
    return b"".join((len(header).to_bytes(8, "little"), header, *(array.tobytes() for array in arrays)))


def from_bytes(content: bytes) -> list[Request]:
    """Returns the requests that `to_bytes` wrote."""
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])

    def look_of(taps: list[dict[str, Any]], edits: list[dict[str, Any]], grad: bool) -> Look:
        return Look(tuple(Tap(**tap) for tap in taps), tuple(Edit(**edit) for edit in edits), grad)

    options = [SearchOptions(**option) for option in header["options"]]
    looks = [None if look is None else look_of(**look) for look in header["looks"]]

    def source_of(plain: Any) -> SourceRow:
        nonlocal start
        if isinstance(plain, list):
            return plain
        dtype, shape = np.dtype(plain["dtype"]), tuple(plain["shape"])
        size = prod(shape) * dtype.itemsize
        file = np.frombuffer(bytearray(content[start : start + size]), dtype).reshape(shape)  # torch wants to own it
        start += size
        return file if plain["text"] is None else FileAndText(file, plain["text"])

    return [
        Request(
            **{
                **row,
                "source": source_of(row["source"]),
                "options": options[row["options"]],
                "look": looks[row["look"]],
                "prefix": tuple(row["prefix"]),
            }
        )
        for row in header["requests"]
    ]
