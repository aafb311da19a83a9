"""The training loop, complete in this file but for the loss: learning rate, updates, validation, checkpoints."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import count
from typing import Protocol

import torch
from torch import nn

from regard.core.devices import has_bfloat16
from regard.data.batch import Batch
from regard.data.seeds import derived_seed
from regard.errors import UserError
from regard.models.contract import Seq2Seq
from regard.training.learner import Learner, TrainingState
from regard.training.objective import batch_loss
from regard.training.ranks import Ranks
from regard.training.settings import TrainSettings


@dataclass(frozen=True)
class Update:
    """The figures of one update of training.

    loss: per target token, including label smoothing. norm: the gradient norm before clipping.

    >>> updates = []
    >>> model = regard.train("pairs.tsv", steps=2, width=16, on_update=updates.append, quiet=True)
    >>> [update.number for update in updates], updates[1].loss < updates[0].loss
    ([0, 1], True)
    """

    number: int
    loss: float
    norm: float
    learning_rate: float
    num_targets: int


class Callbacks(Protocol):
    """The functions that `train` calls after an update, to validate the model, and to save it."""

    interrupted: bool
    """Whether the run should stop. The current update, its validation and its checkpoint are completed first."""

    def on_update(self, update: Update) -> None:
        """Called after every update."""

    def validate(self) -> float:
        """Returns the validation result of the current model; lower is better."""
        ...

    def save_best(self) -> None:
        """Called when the last validation result is the best so far."""

    def checkpoint(self) -> None:
        """Writes a checkpoint; raises UserError if the run was interrupted, unless it ends here."""


def learning_rate(number: int, settings: TrainSettings) -> float:
    """Returns the learning rate of an update: a linear warm-up, then the schedule; never 0, not even for the last update."""
    warmup = num_warmup(settings)
    rise = (number + 1) / warmup
    left = (settings.steps - number) / max(1, settings.steps - warmup)
    fall = {
        "linear": left,
        "cosine": 0.5 - 0.5 * math.cos(math.pi * min(1.0, left)),
        "inverse_sqrt": math.sqrt(warmup / (number + 1)),
        "constant": 1.0,
    }[settings.schedule]
    return settings.learning_rate * min(1.0, rise, fall)


def num_warmup(settings: TrainSettings) -> int:
    """Returns the number of warm-up updates."""
    return max(1, round(settings.warmup * settings.steps))


def same_rates(one: TrainSettings, other: TrainSettings, num_updates: int) -> bool:
    """Returns whether the first `num_updates` updates have the same learning rates under both settings."""
    return all(learning_rate(number, one) == learning_rate(number, other) for number in range(num_updates))


class MicroBatches(Protocol):
    """Returns the micro-batches of an update: every step-th, from the first-th on."""

    def __call__(self, update: int, first: int = 0, step: int = 1, /) -> tuple[Batch, ...]: ...


def train(
    learner: Learner,
    batches: MicroBatches,
    settings: TrainSettings,
    *,
    seed: int,
    callbacks: Callbacks,
    teacher: Seq2Seq | None = None,
    ranks: Ranks | None = None,
) -> None:
    """Trains from the learner's last update to the end of the run.

    batches: returns the micro-batches of an update. Random numbers are a function of (seed, update, batch), so a resumed run
    repeats them exactly. teacher: a model whose distribution this one learns, too. ranks: the processes that share out the
    micro-batches; by default, there is only this one. Raises UserError if training diverges.
    """
    ranks = ranks or Ranks()
    model = learner.model.train()
    device = next(model.parameters()).device
    check_precision(settings, device)
    while not finished(learner.state, settings):
        number = learner.state.update
        parts = batches(number, ranks.rank, ranks.size)
        num_targets, loss = int(ranks.total(sum(part.num_targets for part in parts))), 0.0
        for part, batch in zip(count(ranks.rank, ranks.size), parts, strict=False):
            torch.manual_seed(derived_seed(seed, "update", number, part))
            with torch.autocast(device.type, torch.bfloat16, enabled=settings.precision == "bfloat16"):
                total, baseline = batch_loss(model, batch.to(device), settings, learner.state.baseline, teacher)
            (total / num_targets).backward()
            loss += total.item() / num_targets
            learner.state = replace(learner.state, baseline=baseline)
        loss, stopped = ranks.add_up(model.parameters(), loss, callbacks.interrupted)
        norm = nn.utils.clip_grad_norm_(model.parameters(), settings.clip).item()
        if not math.isfinite(norm):
            raise UserError(
                f"update {number}: training diverged: the loss is {loss:.4g}, the gradient norm {norm:.4g}; "
                f"try a train.learning_rate below {settings.learning_rate:g}"
            )
        rate = learning_rate(number, settings)
        learner.update(rate)
        learner.state = replace(learner.state, update=number + 1)
        callbacks.on_update(Update(number, loss, norm, rate, num_targets))
        if settings.validate_every and (number + 1) % settings.validate_every == 0:
            learner.state = after_validation(learner.state, ranks.of_first(callbacks.validate()))
            if learner.state.stale == 0:
                callbacks.save_best()
        stop = stopped or (ranks.size == 1 and callbacks.interrupted)  # all processes stop after the same update
        callbacks.interrupted |= stop
        if finished(learner.state, settings) or (number + 1) % settings.checkpoint_every == 0 or stop:
            callbacks.checkpoint()
        if stop:
            break
    model.eval()


def check_precision(settings: TrainSettings, device: torch.device) -> None:
    """Raises UserError if the device does not have the numbers that a run is to compute with."""
    if settings.precision == "bfloat16" and not has_bfloat16(device):
        raise UserError(f"train.precision is bfloat16, which this device ({device}) does not have; set train.precision=float32")


def finished(state: TrainingState, settings: TrainSettings) -> bool:
    """Returns whether all updates are done, or the patience is used up."""
    return state.update >= settings.steps or bool(settings.patience and state.stale >= settings.patience)


def after_validation(state: TrainingState, value: float) -> TrainingState:
    """Returns the state after a validation with this result; `stale` is 0 if it is the best so far."""
    if state.best is None or value < state.best:
        return replace(state, best=value, best_at=state.update, stale=0)
    return replace(state, stale=state.stale + 1)
