"""Runs the cells of a comparison, some at a time, each in a process of its own, and shows how far they are."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue

from regard.comparing.cell import MODULE, Cell, CellTask
from regard.errors import UserError, shorten
from regard.training.console import RunConsole
from regard.training.interrupts import on_interrupt
from regard.training.members import Event, Process
from regard.training.progress import PATIENCE


@dataclass
class Running:
    """A cell that is being trained, and what it reported last."""

    task: CellTask
    process: Process
    update: int = 0
    steps: int = 0
    answer: str = ""

    def __str__(self) -> str:
        return f"{self.task.contender} {self.update}/{self.steps}" if self.steps else f"{self.task.contender} starting"


@dataclass
class Crew:
    """side_by_side: how many cells are trained at a time."""

    side_by_side: int
    console: RunConsole
    running: dict[int, Running] = field(default_factory=dict)
    news: SimpleQueue[tuple[int, Event | None]] = field(default_factory=SimpleQueue)
    """(number of the cell, what it reports, or None when it ends); the number −1: the user stops all cells."""
    stopped: bool = False
    shown_at: float = 0.0

    def run(self, tasks: Sequence[CellTask]) -> None:
        """Trains all cells. Raises UserError if the user stops them (Ctrl-C, SIGTERM), after their checkpoints; or, after all
        others are done, if the process of one ended unexpectedly."""
        lost = []

        def stop() -> None:
            if self.stopped:
                raise KeyboardInterrupt
            self.news.put((-1, None))

        try:
            with on_interrupt(stop):
                for number, task in enumerate(tasks):
                    while len(self.running) >= self.side_by_side and not self.stopped:
                        lost += self._follow(*self.news.get())
                    if not self.stopped:
                        self._start(number, task)
                while self.running:
                    lost += self._follow(*self.news.get())
        finally:
            for one in self.running.values():
                one.process.close()
            self.running.clear()
        if self.stopped:
            raise UserError("the comparison was stopped, and all runs were saved; run the same command to continue")
        if lost:
            raise UserError(f"{'; '.join(lost)}; all other mechanisms are done; run the same command to continue")

    def _start(self, number: int, task: CellTask) -> None:
        process = Process(task, MODULE)
        self.running[number] = Running(task, process)

        def read() -> None:
            for event in process.events():
                self.news.put((number, event))
            self.news.put((number, None))

        threading.Thread(target=read, daemon=True).start()

    def _follow(self, number: int, event: Event | None) -> list[str]:
        """Takes note of what happened. Returns what there is to report of a process that ended unexpectedly."""
        if number < 0:
            self.stopped = True
            for one in self.running.values():
                one.process.stop()
            return []
        running = self.running[number]
        if event is None:
            return self._end(self.running.pop(number))
        running.update, running.steps = event.get("update", running.update), event.get("steps", running.steps)
        running.answer = str(event.get("error", running.answer))
        if time.monotonic() - self.shown_at >= PATIENCE:
            self.shown_at = time.monotonic()
            self.console.print("; ".join(map(str, self.running.values())))
        return []

    def _end(self, running: Running) -> list[str]:
        running.process.close()
        name = f"{running.task.contender}, seed {running.task.seed}"
        cell = Cell.read(running.task.result)
        if cell is None and not self.stopped:
            code = running.process.popen.returncode
            why = running.answer or f"its process ended unexpectedly (exit code {code}); it may have run out of memory"
            return [f"{name}: {why}"]
        if cell and cell.error:
            self.console.print(f"{name}: {shorten(cell.error, 200)}")
        elif cell:
            measure = cell.measure(running.task.measured)
            sign, scale = ("%", 100) if measure.percent else ("", 1)
            self.console.print(
                f"{name}: {measure.name} {measure.value * scale:.1f}{sign}, loss {cell.training_loss:.3f}, "
                f"{cell.timings.seconds if cell.timings else 0:.0f} s"
            )
        return []
