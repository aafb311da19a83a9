"""Trains the models of an ensemble side by side, each in a process of its own (`training.member`), and shows their progress.

The models differ in their seeds alone. Each has its model folder and its run folder in the folder of the ensemble, so that a
model of an ensemble is trained, interrupted and continued as any other.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any, cast

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from regard.checkpoint import folder as model_folder
from regard.checkpoint.ensemble import write_ensemble
from regard.checkpoint.files import discard
from regard.checkpoint.folder import CONFIG, ENSEMBLE
from regard.checkpoint.lock import locked
from regard.core.devices import num_cores
from regard.errors import UserError, plural
from regard.layers.scores import ScoreMaker
from regard.pipeline import Translator
from regard.training.config import read_config
from regard.training.console import LOGGER, RunConsole
from regard.training.data import TrainingData
from regard.training.interrupts import on_interrupt
from regard.training.member import Task
from regard.training.order import Order
from regard.training.progress import PATIENCE, REFRESH
from regard.training.run_folder import RunFolder
from regard.training.spool import DATA, HELD_OUT
from regard.training.survey import survey
from regard.training.tokenise import from_files
from regard.training.transfer import Start
from regard.training.validation import predict, rates_of

Event = dict[str, Any]
"""What a process reports, see `training.member`."""
LoadScores = Callable[[], Mapping[str, ScoreMaker]]
_OURS = re.compile(rf"\d+(\.run)?|{re.escape(ENSEMBLE)}|{re.escape(DATA)}|{re.escape(HELD_OUT)}|\..*")
"""The names that a folder of an ensemble may hold."""


@dataclass
class Member:
    """A model of an ensemble in training: its number, from 1, and what it reported last.

    update, steps, loss: its last update, and how many it will make.  result: its error rates, once it is done.
    """

    number: int
    order: Order
    started: bool = False
    update: int = 0
    steps: int = 0
    loss: float = 0.0
    result: str = ""
    error: str = ""
    ended: bool = False

    @property
    def progress(self) -> str:
        """One or two words on how far it is."""
        if self.ended:
            return "done" if self.result else "stopped"
        return f"{self.update}/{self.steps}" if self.steps else "starting" if self.started else "waiting"


def train_members(
    order: Order,
    number: int,
    console: RunConsole,
    device: torch.device,
    *,
    threads: int | None = None,
    scores: LoadScores = dict,
) -> Translator:
    """Trains models with the seeds s, s + 1, …, where s is the seed of the order, or continues to train them; each as
    `train_model` does it. Returns them as an ensemble, which the folder of the order then holds.

    number: how many models.  threads: the number of CPU threads of each.
    scores: returns custom score functions, in any process; those of the order are ignored.
    Raises UserError if a run cannot go on; the others are stopped then, and saved.
    """
    out = order.out
    check_folder(out)
    with locked(out):
        folders = [out / str(index) for index in range(1, number + 1)]
        resuming = not order.overwrite and any(RunFolder.for_model(folder).started for folder in folders)
        if order.overwrite:
            discard(out / ENSEMBLE)
        order = order.in_files(RunFolder(out), resuming=resuming)
        side_by_side, threads = share_cores(number, threads, device)
        seed = first_seed(order)
        members = [
            Member(
                index,
                replace(
                    order,
                    out=folder,
                    save=True,
                    scores={},
                    changes={**order.changes, "seed": seed + index - 1},
                    minutes=order.minutes and order.minutes * side_by_side / number,
                ),
            )
            for index, folder in enumerate(folders, start=1)
        ]
        console.print(
            f"{plural(number, 'model')} with the seeds {seed} to {seed + number - 1}; {side_by_side} at a time, "
            f"with {plural(threads, 'thread') if threads else 'all threads'} each"
        )
        with MembersProgress(members, console) as progress:
            Team(members, side_by_side, progress).train(lambda own: Task(own, scores, device, threads))
        for member in members:
            console.print(f"model {member.number}, {folders[member.number - 1]}: held out: {member.result}")
        write_ensemble(out, [folder.name for folder in folders])
        translator = Translator.ensemble([Translator.of_saved(model_folder.load(path, scores())) for path in folders])
        translator.model.to(device)
        console.print(f"all together: held out: {held_out_rates(translator, folders[0], scores())}")
    return translator


def check_folder(out: Path) -> None:
    """Raises UserError if a folder cannot become that of an ensemble, because it holds something else."""
    if (out / CONFIG).exists():
        raise UserError(f"{out} holds one model, and --models writes several into a folder of their own; choose another --out")
    others = [path.name for path in sorted(out.iterdir()) if not _OURS.fullmatch(path.name)] if out.is_dir() else []
    if others:
        raise UserError(
            f"{out} holds files that are not part of an ensemble ({', '.join(others[:3])}); choose another folder with --out"
        )


def share_cores(number: int, threads: int | None, device: torch.device) -> tuple[int, int | None]:
    """Returns how many models are trained at a time, and the number of threads of each: as many models as there are cores for
    their threads; by default, as few threads as keep all cores busy. A GPU trains one model at a time."""
    if device.type != "cpu":
        return 1, threads
    cores = num_cores()
    if threads is None:
        threads = max(1, cores // number)
    return max(1, min(number, cores // threads)), threads


def first_seed(order: Order) -> int:
    """Returns the seed of the first model: the one that was given, or 1. Raises UserError if it is not a whole number."""
    complete = order.complete_settings()
    given = order.changes.get("seed", complete.seed if complete else 1)
    try:
        return int(given)
    except (TypeError, ValueError):
        raise UserError(f"--set seed={given}: expected a whole number") from None


def held_out_rates(translator: Translator, folder: Path, scores: Mapping[str, ScoreMaker]) -> str:
    """Returns the error rates of an ensemble on the held-out pairs of its first model, whose folder is given."""
    data = held_out_data(folder, scores)
    longest = 2 * data.lengths.longest[1] + 10
    if translator.reader.max_output is not None:
        longest = min(longest, translator.reader.max_output)
    return str(rates_of(predict(translator.at(Path()), data.held_out, longest)))


def held_out_data(folder: Path, scores: Mapping[str, ScoreMaker]) -> TrainingData:
    """Returns the data of a finished run."""
    run_folder = RunFolder.for_model(folder)
    settings = read_config(run_folder.config, scores)
    start = Start.load(settings.start, scores)
    return from_files(
        settings.data, survey(settings.data), run_folder.path, RunConsole(quiet=True), start.codecs, resuming=True
    )


class Process:
    """The process of a member."""

    def __init__(self, task: Task, module: str = "regard.training.member") -> None:
        """Starts it. module: what it runs. Raises UserError if the task cannot be sent to another process."""
        try:
            content = pickle.dumps(task)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise UserError(
                f"a score function cannot be sent to another process ({error}); define it in a file of its own"
            ) from None
        self.popen = subprocess.Popen(
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path)},
            start_new_session=True,  # Ctrl-C reaches this process alone, which stops the others
        )
        self._send(len(content).to_bytes(8) + content)

    def events(self) -> Iterator[Event]:
        """Yields what it reports until it ends."""
        assert self.popen.stdout
        with self.popen.stdout as lines:
            for line in lines:
                yield json.loads(line)
        self.popen.wait()

    def stop(self) -> None:
        """Asks it to stop after the current update, with a checkpoint."""
        self._send(b"!")

    def close(self) -> None:
        """Ends it, if it still runs."""
        self.popen.kill()
        with suppress(OSError):
            cast(IO[bytes], self.popen.stdin).close()

    def _send(self, content: bytes) -> None:
        with suppress(OSError):  # it has ended
            cast(IO[bytes], self.popen.stdin).write(content)
            cast(IO[bytes], self.popen.stdin).flush()


class Team:
    """Runs the processes of the members, some at a time, and follows their events."""

    def __init__(self, members: Sequence[Member], side_by_side: int, progress: MembersProgress) -> None:
        self.members, self.side_by_side, self.progress = members, side_by_side, progress
        self.running: dict[int, Process] = {}
        """The processes that run, by the number of the member."""
        self.news: SimpleQueue[tuple[Member | None, Event | None]] = SimpleQueue()
        """What members report, and None when they end. No member: the user stops all of them."""
        self.stopped = False
        self.failed: Member | None = None
        """The first member that failed; the others are stopped because of it."""

    def train(self, task_of: Callable[[Order], Task]) -> None:
        """Trains all members. Raises UserError if one of them fails, or if the user stops them (Ctrl-C, SIGTERM): those that
        run are stopped with a checkpoint before."""
        try:
            with self._interruptible():
                for member in self.members:
                    while len(self.running) == self.side_by_side:
                        self._follow(*self.news.get())
                    if not self.stopped:
                        self._start(member, Process(task_of(member.order)))
                while self.running:
                    self._follow(*self.news.get())
        finally:
            for process in self.running.values():
                process.close()
        if self.failed:
            raise UserError(f"model {self.failed.number}: {self.failed.error}")
        if self.stopped:
            how_far = ", ".join(f"model {member.number} {member.progress}" for member in self.members if member.steps)
            raise UserError(
                f"training stopped ({how_far or 'before the first update'}) and was saved; run the same command to continue"
            )

    def _start(self, member: Member, process: Process) -> None:
        """Follows a process in a thread."""
        self.running[member.number], member.started = process, True

        def read() -> None:
            for event in process.events():
                self.news.put((member, event))
            self.news.put((member, None))

        threading.Thread(target=read, daemon=True).start()

    def _follow(self, member: Member | None, event: Event | None) -> None:
        """Takes note of what happened, and shows it."""
        if member is None:
            self._stop()
            return
        if event is None:
            process = self.running.pop(member.number)
            process.close()
            member.ended = True
            if not member.result and not member.error:
                code = process.popen.returncode
                member.error = f"its process ended unexpectedly (exit code {code}); it may have run out of memory"
        elif "line" in event:
            self.progress.add_line(member, event["line"])
        elif not (member.error and "error" in event):  # a model that is stopped while it reports an error reports another
            for name, value in event.items():
                setattr(member, name, value)
        if member.error and not self.stopped:
            self.failed = member
            self._stop()
        self.progress.show()

    def _stop(self) -> None:
        self.stopped = True
        for process in self.running.values():
            process.stop()

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Lets SIGINT (Ctrl-C) and SIGTERM stop all members with a checkpoint; a second signal stops them at once."""
        signals = 0

        def stop() -> None:
            nonlocal signals
            signals += 1
            if signals > 1:
                raise KeyboardInterrupt
            self.news.put((None, None))

        with on_interrupt(stop):
            yield


@dataclass
class MembersProgress:
    """Shows how far the members are: a bar for each on a terminal, one line for all elsewhere.

    What the first member prints before its first update, such as the settings and their reasons, is printed for all of them.
    """

    members: Sequence[Member]
    console: RunConsole
    bars: Progress | None = None
    tasks: dict[int, TaskID] = field(default_factory=dict)
    shown_at: float = 0.0

    def __enter__(self) -> MembersProgress:
        if self.console.is_terminal and not self.console.quiet and not self.console.in_notebook:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[text]}"))
            self.bars = Progress(*columns, TimeRemainingColumn(), console=self.console, auto_refresh=False)
            for member in self.members:
                self.tasks[member.number] = self.bars.add_task(f"model {member.number}", total=None, text="")
            self.bars.start()
        self.shown_at = time.monotonic()
        return self

    def __exit__(self, *error: object) -> None:
        if self.bars:
            self._draw(self.bars)
            self.bars.stop()
        elif self.console.in_notebook:
            self.console.show_line("")

    def add_line(self, member: Member, text: str) -> None:
        """Prints a line of the first member, until it trains; all others are only logged."""
        if member is self.members[0] and not member.steps:
            self.console.print(text)
        else:
            LOGGER.info("model %d: %s", member.number, text.strip("\n"))

    def show(self) -> None:
        """Shows how far the members are, unless that was shown a moment ago."""
        often = self.bars is not None or self.console.in_notebook
        if time.monotonic() - self.shown_at < (REFRESH if often else PATIENCE):
            return
        self.shown_at = time.monotonic()
        if self.bars:
            self._draw(self.bars)
            return
        trained = [member for member in self.members if member.steps and not member.ended]
        losses = ", ".join(f"{member.loss:.3f}" for member in trained)
        text = "; ".join(f"model {member.number} {member.progress}" for member in self.members)
        text += f"; loss {losses}" if losses else ""
        if self.console.in_notebook:
            self.console.show_line(text)
        else:
            self.console.print(text)

    def _draw(self, bars: Progress) -> None:
        for member in self.members:
            loss = f"loss {member.loss:.3f}" if member.steps and not member.ended else "" if member.steps else member.progress
            bars.update(
                self.tasks[member.number], total=member.steps or None, completed=member.update, text=loss or member.progress
            )
        bars.refresh()
