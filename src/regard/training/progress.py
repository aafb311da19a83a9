"""Shows progress: a bar on a terminal, plain lines otherwise."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from typing import Protocol, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from regard.training.loop import Update

T = TypeVar("T")
LINES = 20
"""The number of progress lines that a whole run prints where there is no terminal."""
PATIENCE = 10.0
"""Seconds between two progress lines where there is no terminal."""


class OnUpdate(Protocol):
    def __call__(self, update: Update) -> None: ...


class Pace:
    """Computes the smoothed loss, and the speed and time left over the last updates; the first, slow one is not counted."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.loss: float | None = None
        self.recent: deque[tuple[float, int]] = deque(maxlen=50)

    def add(self, update: Update) -> tuple[str, float]:
        """Returns (text, seconds left)."""
        self.loss = update.loss if self.loss is None else 0.95 * self.loss + 0.05 * update.loss
        self.recent.append((time.monotonic(), update.num_targets))
        if len(self.recent) == 1:
            return f"loss {self.loss:.3f}", math.nan
        (first, before), (last, _) = self.recent[0], self.recent[-1]
        seconds = max(1e-9, last - first)
        speed = (sum(targets for _, targets in self.recent) - before) / seconds
        left = seconds / (len(self.recent) - 1) * (self.steps - update.number - 1)
        return f"loss {self.loss:.3f}  {speed:,.0f} tokens/s", left


@contextmanager
def progress_bar(console: Console, steps: int, done: int = 0) -> Iterator[OnUpdate]:
    """Yields the function to call after every update. done: the number of updates before the run was resumed."""
    pace = Pace(steps)
    if not console.is_terminal:

        def line(update: Update) -> None:
            text, left = pace.add(update)
            if (update.number + 1) % math.ceil(steps / LINES) == 0 or update.number + 1 == steps:
                when = "" if math.isnan(left) else f"  {left:.0f} s left"
                console.print(f"update {update.number + 1}/{steps}  {text}{when}", highlight=False)

        yield line
        return

    columns = (
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[text]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("training", total=steps, completed=done, text="")
        yield lambda update: bar.update(task, advance=1, text=pace.add(update)[0])


def with_progress(items: Iterable[T], total: int, what: str, console: Console) -> Iterator[T]:
    """Yields the items and shows how many were processed.

    The first item is fetched before the bar starts its thread, because producing the items may fork a process.
    """
    items = iter(items)
    items = chain(list(islice(items, 1)), items)
    if console.is_terminal:
        columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True) as bar:
            yield from bar.track(items, total=total)
        return
    last = time.monotonic()
    for number, item in enumerate(items, start=1):
        yield item
        if time.monotonic() - last >= PATIENCE:
            last = time.monotonic()
            console.print(f"{what}: {number:,} of {total:,}", highlight=False)
