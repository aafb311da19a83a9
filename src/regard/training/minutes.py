"""Turns the minutes that a run may take into its number of updates, before the first of them.

A few updates of a copy of the model, which is then thrown away, show how long one takes. The run itself does not know of it: it
has the settings, the weights and the random numbers of a run that was given this number of updates.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from rich.console import Console

from regard.core.devices import settings_restored
from regard.errors import UserError, plural
from regard.layers.scores import ScoreMaker
from regard.training.data import TrainingData
from regard.training.learner import Learner
from regard.training.loop import Update, train
from regard.training.run import first_model
from regard.training.settings import RunSettings
from regard.training.transfer import Start
from regard.training.validation import MOST_DECODED, Validator, predict

SHARE = 0.03
"""The share of the time that is spent on measuring."""
LEAST = 4
"""The smallest number of updates that are measured; the first is not counted, because it is slow."""
RESERVE = 0.95
"""The share of the time that is planned; the rest is for checkpoints, and for a machine that is busier later on."""
MOST, MOST_PASSES = 4, 40
"""A run makes at most MOST times the updates that were chosen from the data, or MOST_PASSES passes over it if that is more."""
GOLDEN = 0.6180339887
"""Multiples of the golden ratio, modulo 1, are spread evenly, however many there are."""


@dataclass(frozen=True)
class Pace:
    """Seconds that parts of a run take: an update, a validation, and the evaluation at the end."""

    update: float
    validation: float
    evaluation: float


def check_minutes(minutes: float | None, changes: Mapping[str, object]) -> None:
    """Raises UserError if the minutes are not a positive number, or if the number of updates is given as well."""
    if minutes is None:
        return
    if not 0 < minutes < 1e6:
        raise UserError(f"--minutes is {minutes:g}, expected a number of minutes, such as 10")
    if "train.steps" in changes:
        raise UserError("--minutes fixes the number of updates, and so does train.steps; use one of them")


def fit_to_minutes(
    minutes: float,
    settings: RunSettings,
    training_data: TrainingData,
    start: Start,
    device: torch.device,
    *,
    scores: Mapping[str, ScoreMaker],
    since: float,
    keep_validations: bool = False,
) -> tuple[RunSettings, str]:
    """Returns the settings of a run that takes about this many minutes, and the reason for its number of updates.

    The number of validations stays the same, and so does the shape of the learning rate over the updates.
    since: the `time.monotonic()` at which the minutes began. keep_validations: whether train.validate_every was given, and
    stays as it is.
    """
    with settings_restored():
        pace = measure(settings, training_data, start, device, scores, SHARE * 60 * minutes)
    left = RESERVE * 60 * minutes - (time.monotonic() - since) - pace.evaluation
    old = settings.train
    every, validations = old.validate_every, old.steps // old.validate_every if old.validate_every else 0
    if keep_validations and every:
        number = left / (pace.update + pace.validation / every)
    else:
        number = (left - validations * pace.validation) / pace.update
    epoch = training_data.batches(old, 0.0, settings.seed).order.epoch_length
    most = max(MOST * old.steps, MOST_PASSES * epoch)
    steps = max(1, min(most, _rounded_down(number)))
    if validations and not keep_validations:
        every = max(1, steps // validations)
        steps = every * min(steps, validations)  # so that the last update is validated
    reason = f"{minutes:g} minutes at {pace.update:.3g} s per update"
    if number > most:
        reason += f" would allow {_rounded_down(number):,}, but more than {most:,} rarely help"
    return replace(settings, train=replace(old, steps=steps, validate_every=every)), reason


def measure(
    settings: RunSettings,
    training_data: TrainingData,
    start: Start,
    device: torch.device,
    scores: Mapping[str, ScoreMaker],
    seconds: float,
    inspect: Callable[[Learner], object] = lambda learner: None,
) -> Pace:
    """Measures a copy of the run for about this many seconds, the largest batch first. The random numbers of torch change.

    inspect: receives the copy after its last update.
    """
    quiet = Console(quiet=True)
    model = first_model(training_data, settings, quiet, scores, start.transfer, start.parent).to(device)
    teacher = start.teacher.to(device).eval() if start.teacher else None
    batches = training_data.batches(settings.train, settings.data.subword_dropout, settings.seed, settings.data.augment)
    length = batches.order.epoch_length
    timed = Timed(seconds)
    learner = Learner(model, settings.train)
    train(
        learner,
        lambda number, *share: batches(int(number * GOLDEN % 1 * length), *share),
        replace(settings.train, steps=10**6, validate_every=0, checkpoint_every=10**6, patience=0),
        seed=settings.seed,
        callbacks=timed,
        teacher=teacher,
    )
    inspect(learner)
    validator = Validator(model, training_data, settings, quiet)
    model.eval()
    mean_length = 1 + round(training_data.lengths.mean_target)  # an untrained model would never end
    began = time.monotonic()
    predict(validator.translator, validator.sample, min(mean_length, validator.max_length))
    per_source = (time.monotonic() - began) / validator.sample.num_sources
    began = time.monotonic()
    validator.losses()
    loss = (time.monotonic() - began) / 2
    share = max(1.0, len(training_data.held_out.examples) / MOST_DECODED)
    return Pace(
        timed.per_update,
        per_source * validator.sample.num_sources + loss * share,
        per_source * training_data.held_out.num_sources + 2 * loss,
    )


class Timed:
    """Callbacks of a training that ends when it has lasted for some seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.interrupted = seconds, False
        self.times: list[float] = []

    def on_update(self, update: Update) -> None:
        self.times.append(time.monotonic())
        self.interrupted = len(self.times) >= LEAST and self.times[-1] - self.times[0] >= self.seconds

    @property
    def per_update(self) -> float:
        """The mean number of seconds of an update, without the first."""
        return (self.times[-1] - self.times[0]) / (len(self.times) - 1)

    def validate(self) -> float:
        raise AssertionError("no validation is due")

    def save_best(self) -> None:
        raise AssertionError("no validation is due")

    def checkpoint(self) -> None:
        """Writes nothing."""


def _rounded_down(number: float) -> int:
    """Rounds down to two significant digits, which are easier to read."""
    size: int = 10 ** max(0, len(str(max(0, int(number)))) - 2)
    return max(0, int(number)) // size * size


def describe_fixed(steps: int, budget: str = "--minutes") -> str:
    """Returns what a run that continues says of its minutes, or of another budget."""
    return f"{budget}: the number of updates was fixed when this run started: {plural(steps, 'update')}"
