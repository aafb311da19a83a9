"""One cell of a comparison: a mechanism, trained with one seed, in a process of its own (`python -m regard.comparing.cell`).

It trains as `regard train` does, measures the model on the held-out sources, and writes one file, atomically: a cell either has
its result or is trained again, from its last checkpoint. The run folder is deleted after that; the model folder stays.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from regard.checkpoint.files import discard, replace_file
from regard.comparing.tasks import TASKS, Origin
from regard.contracts import Array
from regard.data.source_text import flat
from regard.errors import UserError
from regard.evaluation import Measure, by_length, measures
from regard.models.build import num_parameters
from regard.training.curves import thinned
from regard.training.interrupts import Interrupted
from regard.training.member import EventConsole, Events, Task, UpdateEvents, serve
from regard.training.run import Trained
from regard.training.run_folder import RunFolder
from regard.training.session import train_model
from regard.training.validation import Prediction

Pieces = Callable[[str], Sequence[str]]
"""Splits a text into the symbols that the symbol error rate counts."""
MODULE = "regard.comparing.cell"
MOST_ALIGNED = 200
"""So many outputs are looked at to see where the model attends."""
GAP = 20.0
"""An update that took so many times as long as the median is one during which the run was interrupted."""


@dataclass(frozen=True)
class LengthGroup:
    """Sources of similar length, such as "5-8" tokens, with the quality of their outputs."""

    lengths: str
    sources: int
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Timings:
    """What differs from machine to machine. seconds: of training.  tokens: target tokens trained on per second.
    memory: peak resident memory in bytes beyond that of a process that has imported everything."""

    seconds: float
    tokens: float
    memory: int
    threads: int


@dataclass(frozen=True)
class Cell:
    """What came out. error: why the mechanism could not be trained, if so; all else is then missing.

    training_loss: the mean over the last tenth of the updates.  aligned: the share of target tokens whose largest weight is at
    most one position from where they come from, in the best head of the last layer; None if the task does not say, or if there
    is no attention.  curve: (update, loss) of the training.
    """

    contender: str
    seed: int
    error: str = ""
    updates: int = 0
    parameters: int = 0
    training_loss: float = 0.0
    measures: tuple[Measure, ...] = ()
    by_length: tuple[LengthGroup, ...] = ()
    aligned: float | None = None
    curve: tuple[tuple[float, float], ...] = ()
    signature: str = ""
    timings: Timings | None = None

    def measure(self, name: str) -> Measure:
        """Returns the measure of this name."""
        return next(measure for measure in self.measures if measure.name == name)

    @classmethod
    def read(cls, path: Path) -> Cell | None:
        """Reads what was written; None if there is nothing yet. Raises UserError if the file is damaged."""
        if not path.exists():
            return None
        try:
            return cls.from_dict(json.loads(path.read_text("utf-8")))
        except (ValueError, TypeError, KeyError) as error:
            raise UserError(f"{path} is damaged ({error}); delete it, and its cell is trained again") from None

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> Cell:
        parts = {
            "measures": tuple(Measure(**measure) for measure in facts["measures"]),
            "by_length": tuple(LengthGroup(**group) for group in facts["by_length"]),
            "curve": tuple((update, loss) for update, loss in facts["curve"]),
            "timings": Timings(**facts["timings"]) if facts["timings"] else None,
        }
        return cls(**{**facts, **parts})


@dataclass(frozen=True)
class CellTask(Task):
    """contender, seed: which cell.  result: the file to write.  measured: the name of the measure that counts.
    task: the built-in task, or ""."""

    contender: str = ""
    seed: int = 1
    result: Path = field(default_factory=Path)
    measured: str = "exact match"
    task: str = ""


def train_cell(task: CellTask, events: Events) -> None:
    """Trains and measures a cell. A mechanism that cannot be trained, for what it is or because its loss diverges, is a
    result, too."""
    before, failed = memory(), ""
    try:
        trained = train_model(task.order, EventConsole(events), task.device, UpdateEvents(events, task.order))
        cell = measure(trained, task, before)
    except Interrupted as error:
        events.send(error=str(error))
        return
    except UserError as error:
        failed = str(error)
        cell = Cell(task.contender, task.seed, failed)
    replace_file(task.result, json.dumps(asdict(cell), ensure_ascii=False, default=float).encode())
    discard(RunFolder.for_model(task.order.out).path)
    events.send(result=failed or "done")


def measure(trained: Trained, task: CellTask, before: int) -> Cell:
    """Measures a trained model. before: the memory of the process before the training."""
    found = [one for one in trained.predictions if isinstance(one, Prediction)]
    target = trained.translator.target
    texts = [target.normalised(one.result.text) for one in found]
    references = [one.references for one in found]
    sizes = [len(one.result.source_tokens) for one in found]
    sizes = sizes if any(sizes) else [len(one.reference_tokens[0]) for one in found]
    groups = groups_of(texts, references, sizes, task.measured, target.pieces)
    losses = list(_updates(RunFolder.for_model(task.order.out)))
    origin = TASKS[task.task].origin if task.task else None
    return Cell(
        task.contender,
        task.seed,
        updates=len(losses),
        parameters=num_parameters(trained.saved.model),
        training_loss=final_loss([loss for _, loss, _, _ in losses]),
        measures=tuple(measures(texts, references, target.pieces)),
        by_length=groups,
        aligned=aligned(trained, found[:MOST_ALIGNED], origin) if origin else None,
        curve=tuple(thinned([(update, loss) for update, loss, _, _ in losses])[:: max(1, len(losses) // 100)]),
        signature=trained.signature,
        timings=_timings(losses, memory() - before),
    )


def final_loss(losses: Sequence[float]) -> float:
    """Returns the mean loss over the last tenth of the updates, at least one."""
    return statistics.fmean(losses[-max(1, len(losses) // 10) :])


def groups_of(
    texts: Sequence[str], references: Sequence[Sequence[str]], sizes: Sequence[int], measured: str, pieces: Pieces
) -> tuple[LengthGroup, ...]:
    """Returns the quality of sources of similar length. Groups that are too short for the measure (BLEU) are left out."""
    groups = []
    for lengths, members in by_length(sizes):
        part = measures([texts[index] for index in members], [references[index] for index in members], pieces)
        for one in part:
            if one.name == measured:
                groups.append(LengthGroup(lengths, len(members), one.value, one.low, one.high))
    return tuple(groups)


def aligned(trained: Trained, found: Sequence[Prediction], origin: Origin) -> float | None:
    """Returns the share of target tokens whose largest weight is at most one position from where they come from."""
    if "cross" not in trained.translator.reader.traits.attention:
        return None
    maps = trained.translator.attention([one.result for one in found], "cross", layer=-1)
    return share_aligned([one.weights_HTS for one in maps], [origin(flat(one.source)) for one in found])


def share_aligned(weights: Sequence[Array], expected: Sequence[Sequence[int]]) -> float:
    """Returns the share of target tokens whose largest weight, in the best head, is at most one position from its origin.
    Tokens that were not written count as wrong. weights: (H, T, S) for each source."""
    hits_H = np.zeros(len(weights[0]), int)
    for weights_HTS, origins in zip(weights, expected, strict=True):
        largest_HT = weights_HTS.argmax(-1)[:, : len(origins)]
        hits_H += (abs(largest_HT - np.array(origins)[: largest_HT.shape[1]]) <= 1).sum(-1)
    return float(hits_H.max() / sum(map(len, expected)))


def _updates(run_folder: RunFolder) -> Iterator[tuple[int, float, int, float]]:
    """Yields the number, loss, number of target tokens and time of each update of the log."""
    for line in run_folder.log_file.read_text("utf-8").splitlines():
        facts = json.loads(line)
        if "loss" in facts:
            yield facts["update"], facts["loss"], facts["targets"], facts["time"]


def _timings(updates: Sequence[tuple[int, float, int, float]], nbytes: int) -> Timings:
    """Returns the timings of a run; the time while it was interrupted does not count."""
    gaps = [after[3] - before[3] for before, after in pairwise(updates)]
    usual = statistics.median(gaps) if gaps else 0.0
    trained = [(gap, update[2]) for gap, update in zip(gaps, updates[1:], strict=False) if gap <= max(GAP * usual, 1.0)]
    seconds, tokens = sum(gap for gap, _ in trained), sum(number for _, number in trained)
    per_second = tokens / seconds if seconds else 0.0
    return Timings(seconds * len(updates) / max(1, len(trained)), per_second, nbytes, torch.get_num_threads())


def memory() -> int:
    """Returns the peak resident memory of this process in bytes. Linux counts that of the parent before `exec` in getrusage."""
    status = Path("/proc/self/status")
    if status.exists():
        return next(1024 * int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    if sys.platform == "win32":
        return 0
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


if __name__ == "__main__":
    serve(train_cell)
