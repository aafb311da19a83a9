"""The process of one model of an ensemble: `python -m regard.training.member`, started by `training.members`.

It reads a pickled `Task` from standard input, after its size in eight bytes, and trains. On standard output it reports events,
one JSON object per line: a text, an update, the result, or an error. One more byte on standard input asks it to stop with a
checkpoint, as Ctrl-C does. The end of standard input means that the parent is gone, and ends the process at once.
"""

from __future__ import annotations

import _thread
import json
import os
import pickle
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import IO, Any

import torch

from regard.core.devices import keep_freed_memory
from regard.errors import UserError
from regard.layers.scores import ScoreMaker
from regard.training.config import read_config
from regard.training.console import RunConsole
from regard.training.loop import Update
from regard.training.order import Order
from regard.training.run_folder import RunFolder
from regard.training.session import train_model

PERIOD = 0.2
"""Minimum number of seconds between two reports of updates."""


@dataclass(frozen=True)
class Task:
    """A model to train in a process of its own.

    order: without score functions, which `scores` returns. threads: the number of CPU threads; None for the default.
    """

    order: Order
    scores: Callable[[], Mapping[str, ScoreMaker]]
    device: torch.device
    threads: int | None


class Events:
    """Reports events as lines of JSON."""

    def __init__(self, file: IO[str]) -> None:
        self.file = file

    def send(self, **event: Any) -> None:
        self.file.write(json.dumps(event) + "\n")
        self.file.flush()


class EventConsole(RunConsole):
    """A console whose texts are events."""

    def __init__(self, events: Events) -> None:
        super().__init__(quiet=True)
        self.events = events

    def print(self, *objects: Any, **options: Any) -> None:
        if objects and isinstance(objects[0], str):
            self.events.send(line=objects[0])


class UpdateEvents:
    """Reports updates: the first, the last, and others a few times a second."""

    def __init__(self, events: Events, order: Order) -> None:
        self.events, self.order, self.steps, self.sent = events, order, 0, 0.0

    def __call__(self, update: Update) -> None:
        if not self.steps:
            self.steps = read_config(RunFolder.for_model(self.order.out).config, self.order.scores).train.steps
        if time.monotonic() - self.sent >= PERIOD or update.number + 1 == self.steps:
            self.sent = time.monotonic()
            self.events.send(update=update.number + 1, steps=self.steps, loss=update.loss)


def read(size: int) -> bytes:
    """Reads standard input; fewer bytes if it ends. It is not buffered, so that no lock is held when the process ends."""
    parts = b""
    while len(parts) < size and (part := os.read(0, size - len(parts))):
        parts += part
    return parts


def obey() -> None:
    """Follows what the parent says on standard input, until it ends."""
    while read(1):
        _thread.interrupt_main()
    os._exit(1)


def train(task: Task, events: Events) -> None:
    """Trains the model of a task, and reports its error rates."""
    try:
        trained = train_model(task.order, EventConsole(events), task.device, UpdateEvents(events, task.order))
        events.send(result=str(trained.rates))
    except UserError as error:
        events.send(error=str(error))


def serve(work: Callable[[Any, Events], None]) -> None:
    """Does the work of the task that standard input describes, as the whole process, and ends it."""
    with suppress(KeyboardInterrupt):  # before training, or while an error is reported
        _serve(work)
    os._exit(0)  # a request to stop that comes now must not disturb the end


def _serve(work: Callable[[Any, Events], None]) -> None:
    events = Events(os.fdopen(os.dup(1), "w", encoding="utf-8"))
    os.dup2(2, 1)  # what a library prints is no event
    try:
        task: Task = pickle.loads(read(int.from_bytes(read(8))))
        task = replace(task, order=replace(task.order, scores=task.scores()))
    except (pickle.UnpicklingError, AttributeError, ImportError) as error:
        events.send(error=f"a score function cannot be imported by another process ({error}); define it in a file of its own")
        return
    threading.Thread(target=obey, daemon=True).start()
    keep_freed_memory()
    if task.threads is not None:
        torch.set_num_threads(task.threads)
    try:
        work(task, events)
    except KeyboardInterrupt:
        events.send(error="it was stopped before its first update; run the same command to start it again")


if __name__ == "__main__":
    serve(train)
