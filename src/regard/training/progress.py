"""Shows progress: a bar on a terminal, a line that changes in a notebook, plain lines otherwise; and logs it."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol, Self, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn

from regard.training.console import LOGGER, RunConsole
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


class Line:
    """Shows in a notebook how many of `total` steps are done: one line of text, which changes. It needs no widgets, and no
    thread."""

    def __init__(self, console: RunConsole, what: str, total: int, *, done: int = 0) -> None:
        self._console, self._what, self._total, self._done, self._drawn = console, what, total, done, -math.inf

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._console.show_line("")

    def step(self, text: str = "") -> None:
        """Counts a step, and shows it unless the line changed a moment ago."""
        self._done += 1
        if time.monotonic() - self._drawn >= REFRESH:
            self._console.show_line(f"{self._what} {self._done}/{self._total}  {text}".rstrip())
            self._drawn = time.monotonic()


def _bar(
    console: Console, what: str, total: int, *columns: ProgressColumn, done: int = 0, transient: bool
) -> Bar | Line | None:
    """Returns a bar for this console; None if it can show none."""
    if isinstance(console, RunConsole) and console.in_notebook:
        return Line(console, what, total, done=done)
    can_draw = console.is_terminal and not console.quiet  # a bar also captures what others print, which must stay visible
    return Bar(console, what, total, *columns, done=done, transient=transient) if can_draw else None


@contextmanager
def progress_bar(console: Console, steps: int, done: int = 0) -> Iterator[OnUpdate]:
    """Yields the function to call after every update. done: the number of updates before the run was resumed."""
    pace, every = Pace(steps), math.ceil(steps / LINES)

    def line(update: Update, text: str, left: float) -> str | None:
        """Returns the line of an update, if one is due."""
        if (update.number + 1) % every and update.number + 1 != steps:
            return None
        return f"update {update.number + 1}/{steps}  {text}{'' if math.isnan(left) else f'  {left:.0f} s left'}"

    bar = _bar(console, "training", steps, TextColumn("{task.fields[text]}"), done=done, transient=False)
    if bar is None:

        def print_line(update: Update) -> None:
            if due := line(update, *pace.add(update)):
                console.print(due, highlight=False)

        yield print_line
        return

    def draw(update: Update) -> None:
        text, left = pace.add(update)
        bar.step(text)
        if due := line(update, text, left):
            LOGGER.info("%s", due)

    with bar:
        yield draw


def with_progress(items: Iterable[T], total: int, what: str, console: Console) -> Iterator[T]:
    """Yields the items and shows how many were processed."""
    if bar := _bar(console, what, total, transient=True):
        with bar:
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
