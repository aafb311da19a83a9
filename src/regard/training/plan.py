"""What a run will cost, before it: parameters, operations, time, memory, and what is left out of the data.

Time and memory are measured: a copy of the run makes updates for some seconds, the largest batch first, writes a checkpoint,
translates a batch until its outputs are cut off, as those of a model that has learned little, and validates. The speed-up of
several processes is computed from the time of an update with fewer threads.
"""

from __future__ import annotations

import math
import resource
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console

from regard.checkpoint.runs import Checkpoints
from regard.core.devices import settings_restored
from regard.data.sources import auxiliary_vocabulary_size, num_positions
from regard.decoding.torch_search import BATCH_HYPOTHESES
from regard.errors import UserError, plural
from regard.models.build import build, num_parameters
from regard.training.choice import Choice, choose
from regard.training.data import HeldOut, TrainingData
from regard.training.learner import Learner
from regard.training.minutes import Pace, measure
from regard.training.operations import count
from regard.training.order import Order
from regard.training.ranks import Ranks
from regard.training.run_folder import RunFolder
from regard.training.session import for_ranks
from regard.training.tokenise import from_files
from regard.training.transfer import Start
from regard.training.validation import Validator, predict

SECONDS = 10
"""How long a copy of the run is measured."""
EXCHANGE_LATENCY, EXCHANGE_RATE = 1.3e-3, 1e9
"""Seconds, and bytes per second, of adding up gradients over processes on one machine (gloo; see docs/LOG.md)."""


@dataclass(frozen=True)
class RunPlan:
    """What a run will cost.

    data: what was read, and what is left out, in sentences.  chosen: the settings, with reasons.
    parameters: their number in each part of the model.  operations: multiplications (each with an addition) per update.
    padding: the share of padding in the batches.  num_updates: the updates of a pass over the data.
    pace: the seconds of an update, a validation and the evaluation.  memory: the peak, in bytes; None on a GPU.
    speed_up: how many times faster the updates are with `processes` than with one.
    """

    data: str
    chosen: Choice
    parameters: dict[str, int]
    operations: float
    padding: float
    num_updates: int
    pace: Pace
    memory: int | None
    processes: int = 1
    speed_up: float = 1.0

    @property
    def seconds_per_pass(self) -> float:
        """The time of a pass over the data."""
        return self.num_updates * self.pace.update / self.speed_up

    @property
    def seconds(self) -> float:
        """The time of the run, from its first update on."""
        train = self.chosen.settings.train
        validations = train.steps // train.validate_every if train.validate_every else 0
        return train.steps * self.pace.update / self.speed_up + validations * self.pace.validation + self.pace.evaluation

    def __str__(self) -> str:
        steps, total = self.chosen.settings.train.steps, sum(self.parameters.values())
        parts = ", ".join(f"{name} {number:,}" for name, number in self.parameters.items())
        lines = [
            self.data,
            f"parameters        {total:,}: {parts}",
            f"operations        {self.operations:.3g} multiplications per update, each with an addition; "
            f"{self.operations / self.pace.update:.3g} per second",
            f"padding           {self.padding:.1%} of the positions in the batches",
            f"time of a pass    {describe_seconds(self.seconds_per_pass)}: {plural(self.num_updates, 'update')}",
            f"time of the run   {describe_seconds(self.seconds)}: {plural(steps, 'update')}, "
            f"{steps / self.num_updates:.1f} passes, validations included",
        ]
        if self.memory is not None:
            lines.append(f"peak memory       {self.memory / 1e6:,.0f} MB" + (" in each process" if self.processes > 1 else ""))
        if self.processes > 1:
            lines.append(f"speed-up          {self.speed_up:.2f} with {self.processes} processes, computed from one")
        return "\n".join(lines)


def plan_run(order: Order, console: Console, device: torch.device, processes: int = 1) -> RunPlan:
    """Plans a run without training it. The folder of the order is not used. Raises UserError."""
    with tempfile.TemporaryDirectory(prefix="regard-") as folder:
        run_folder = RunFolder(Path(folder))
        start = Start.load(order.start_settings(), order.scores)
        order = order.in_files(run_folder, resuming=False)
        ranks = Ranks(0, processes)
        choice = for_ranks(choose(order, start), order, None, ranks)
        settings = choice.settings
        start.check(settings)
        ranks.check(settings)
        data = from_files(settings.data, choice.surveyed, run_folder.path, console, start.codecs)
        if mask := settings.model.traits.mask:
            data = data.with_blanks(mask)

        def rehearse(learner: Learner) -> None:
            """Writes a checkpoint, and translates a batch until its outputs are cut off: both take memory."""
            Checkpoints(run_folder.path / "checkpoints", keep=1).write(learner.checkpoint())
            validator = Validator(learner.model, data, settings, Console(quiet=True))
            learner.model.eval()
            predict(validator.translator, one_batch(data.held_out), validator.max_length)

        with settings_restored():
            pace = measure(settings, data, start, device, order.scores, SECONDS, rehearse)
        memory = peak_memory() if device.type == "cpu" else None  # before operations are counted, which takes more of it
        with settings_restored():
            operations = count(settings, data, start, device, order.scores)
        batches = data.batches(settings.train, settings.data.subword_dropout, settings.seed, settings.data.augment).order
        parameters = parameters_by_part(choice, data, order)
        speed_up = 1.0
        if processes > 1:
            speed_up = predicted_speed_up(choice, data, start, device, order, pace, sum(parameters.values()), processes)
        return RunPlan(
            choice.surveyed.counts.describe(),
            choice,
            parameters,
            operations,
            batches.padding(),
            batches.epoch_length,
            pace,
            memory,
            processes,
            speed_up,
        )


def one_batch(held_out: HeldOut) -> HeldOut:
    """Returns the pairs with the longest sources, as many as are translated at a time."""
    number = len(held_out.pairs)
    size = math.ceil(number / math.ceil(number / BATCH_HYPOTHESES))
    longest = sorted(range(number), key=lambda index: -num_positions(held_out.examples[index].source))[:size]
    return HeldOut([held_out.pairs[index] for index in longest], [held_out.examples[index] for index in longest])


def parameters_by_part(choice: Choice, data: TrainingData, order: Order) -> dict[str, int]:
    """Returns the number of parameters of each part of the model; those that parts share count once."""
    source, target = data.codecs
    with settings_restored():
        model = build(
            choice.settings.model, len(source), len(target), order.scores, auxiliary=auxiliary_vocabulary_size(source)
        )
    seen, parts = set[int](), dict[str, int]()
    for name, part in model.named_children():
        own = {id(parameter): parameter.numel() for parameter in part.parameters() if id(parameter) not in seen}
        seen |= own.keys()
        if own:
            parts[name] = sum(own.values())
    if rest := num_parameters(model) - sum(parts.values()):
        parts["other"] = rest
    return parts


def predicted_speed_up(
    choice: Choice,
    data: TrainingData,
    start: Start,
    device: torch.device,
    order: Order,
    pace: Pace,
    num_parameters: int,
    processes: int,
) -> float:
    """Returns the time of an update in one process over that in several, which have a share of its threads each.

    What processes take from each other, such as memory bandwidth, is not known before they run."""
    threads = torch.get_num_threads()
    if device.type != "cpu" or threads < processes:
        raise UserError(
            f"the speed-up of {processes} processes is only computed for CPUs with at least {processes} threads; "
            f"this is {device} with {plural(threads, 'thread')}"
        )
    with settings_restored(threads // processes):
        alone = measure(choice.settings, data, start, device, order.scores, SECONDS / 2)
    accumulate = choice.settings.train.accumulate
    share = -(-accumulate // processes) / accumulate
    exchange = EXCHANGE_LATENCY + 4 * num_parameters / EXCHANGE_RATE
    return pace.update / (alone.update * share + exchange)


def peak_memory() -> int:
    """Returns the peak of the memory of this process so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def describe_seconds(seconds: float) -> str:
    """Returns a duration in words: "42 s", "3 min 20 s", "5 h 12 min"."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
