"""Shows progress: a bar on a terminal, plain lines otherwise."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn

from regard.training.loop import Update

T = TypeVar("T")
LINES = 20
"""The number of progress lines that a whole run prints where there is no terminal."""
PATIENCE = 10.0
"""Seconds between two progress lines where there is no terminal."""
REFRESH = 0.1
"""Minimum number of seconds between two drawings of a bar."""


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


class Bar(Progress):
    """A bar on a terminal that shows how many of `total` steps are done.

    It starts no thread, because processes are forked while it is shown: the loop that takes the steps also draws the bar.
    """

    def __init__(
        self, console: Console, what: str, total: int, *columns: ProgressColumn, done: int = 0, transient: bool = False
    ) -> None:
        """columns: what to show between the number of steps and the time that remains."""
        every = (TextColumn(what), BarColumn(), MofNCompleteColumn(), *columns, TimeRemainingColumn())
        super().__init__(*every, console=console, transient=transient, auto_refresh=False)
        self._task = self.add_task(what, total=total, completed=done, text="")
        self._done, self._text, self._drawn = done, "", -math.inf

    def step(self, text: str = "") -> None:
        """Counts a step, and draws the bar unless it was drawn a moment ago."""
        self._done, self._text = self._done + 1, text
        if time.monotonic() - self._drawn >= REFRESH:
            self._draw()

    def stop(self) -> None:
        """Draws the bar for the last time."""
        self._draw()
        super().stop()

    def _draw(self) -> None:
        self.update(self._task, completed=self._done, text=self._text, refresh=True)
        self._drawn = time.monotonic()


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

    with Bar(console, "training", steps, TextColumn("{task.fields[text]}"), done=done) as bar:
        yield lambda update: bar.step(pace.add(update)[0])


def with_progress(items: Iterable[T], total: int, what: str, console: Console) -> Iterator[T]:
    """Yields the items and shows how many were processed."""
    if console.is_terminal:
        with Bar(console, what, total, transient=True) as bar:
            for item in items:
                yield item
                bar.step()
        return
    last = time.monotonic()
    for number, item in enumerate(items, start=1):
        yield item
        if time.monotonic() - last >= PATIENCE:
            last = time.monotonic()
            console.print(f"{what}: {number:,} of {total:,}", highlight=False)
