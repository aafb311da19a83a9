"""Turns the multiplications and additions that a run may take into its number of updates, before the first of them.

A few updates of a copy of the model, which is then thrown away, are counted, each forwards and backwards. Only products of
matrices count, as in core/costs.py: a multiplication and an addition are one operation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from rich.console import Console
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from regard.core.devices import settings_restored
from regard.data.seeds import derived_seed
from regard.errors import UserError
from regard.layers.scores import ScoreMaker
from regard.native.flops import COUNTED_KERNELS
from regard.training.data import TrainingData
from regard.training.minutes import GOLDEN
from regard.training.objective import batch_loss
from regard.training.run import first_model
from regard.training.settings import RunSettings
from regard.training.transfer import Start

COUNTED = 8
"""The number of updates that are counted, spread evenly over a pass."""


def fit_to_operations(
    operations: float,
    settings: RunSettings,
    training_data: TrainingData,
    start: Start,
    device: torch.device,
    scores: Mapping[str, ScoreMaker],
) -> tuple[RunSettings, str]:
    """Returns the settings of a run that takes about this many operations, and the reason for its number of updates.

    Raises UserError if they are not enough for one update."""
    with settings_restored():
        per_update = count(settings, training_data, start, device, scores)
    steps = int(operations / per_update)
    if not steps:
        raise UserError(f"operations: got {operations:.3g}, but one update takes {per_update:.3g}; allow more")
    reason = f"{operations:.3g} operations at {per_update:.3g} per update"
    return replace(settings, train=replace(settings.train, steps=steps)), reason


def count(
    settings: RunSettings,
    training_data: TrainingData,
    start: Start,
    device: torch.device,
    scores: Mapping[str, ScoreMaker],
) -> float:
    """Returns the mean number of operations of an update. The random numbers of torch change."""
    model = first_model(training_data, settings, Console(quiet=True), scores, start.transfer, start.parent).to(device).train()
    batches = training_data.batches(settings.train, settings.data.subword_dropout, settings.seed, settings.data.augment)
    baseline = None
    with (
        FlopCounterMode(display=False, custom_mapping=COUNTED_KERNELS) as counter,
        sdpa_kernel(SDPBackend.MATH),
    ):  # it does not know the fused kernel
        for number in range(COUNTED):
            for part, batch in enumerate(batches(int(number * GOLDEN % 1 * batches.order.epoch_length))):
                torch.manual_seed(derived_seed(settings.seed, "update", number, part))
                total, baseline = batch_loss(model, batch.to(device), settings.train, baseline, None)
                total.backward()
    return float(counter.get_total_flops()) / 2 / COUNTED
