"""What an update changes: weights, optimiser, averages and counts. All of it can be written down and taken up again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from regard.checkpoint.runs import Checkpoint
from regard.core.losses import Baseline
from regard.models.build import Model
from regard.training.settings import TrainSettings

MOMENTS = ("step", "exp_avg", "exp_avg_sq")
"""What AdamW keeps for each parameter."""


@dataclass(frozen=True)
class Counts:
    """The numbers of a run. update: how many are done. best: the best validation so far, at which update, and how many
    validations have passed since."""

    update: int = 0
    baseline: Baseline = Baseline()
    best: float | None = None
    best_at: int = 0
    stale: int = 0


class Learner:
    """A model in training. With `ema`, a moving average of its weights is kept, which is what is validated and saved."""

    def __init__(self, model: Model, settings: TrainSettings) -> None:
        self.model, self.ema = model, settings.ema
        self.optimiser = torch.optim.AdamW(
            model.parameters(), betas=(0.9, 0.98), weight_decay=settings.weight_decay, fused=True
        )
        self.counts = Counts()
        self.average = [parameter.detach().clone() for parameter in model.parameters()] if self.ema else []

    def update(self, learning_rate: float) -> None:
        """Follows the gradients that have been gathered."""
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate
        self.optimiser.step()
        self.optimiser.zero_grad()
        if self.average:  # young averages are short ones
            number = self.counts.update
            decay = min(self.ema, (1 + number) / (10 + number))
            torch._foreach_lerp_(self.average, list(self._weights()), 1 - decay)

    @contextmanager
    def at_its_best(self) -> Iterator[Model]:
        """The model for use, with the averaged weights if there are any; back in training afterwards."""
        own = [weight.clone() for weight in self._weights()] if self.average else []
        self._set_weights(self.average)
        self.model.eval()
        try:
            yield self.model
        finally:
            self.model.train()
            self._set_weights(own)

    def checkpoint(self) -> Checkpoint:
        names = [name for name, _ in self.model.named_parameters()]
        training = {f"average.{name}": tensor for name, tensor in zip(names, self.average, strict=False)}
        for number, moments in self.optimiser.state_dict()["state"].items():
            training |= {f"{moment}.{names[number]}": moments[moment] for moment in MOMENTS}
        return Checkpoint(self.counts.update, asdict(self.counts), self.model.state_dict(), training)

    def restore(self, checkpoint: Checkpoint) -> None:
        """From here on everything goes on as it would have."""
        self.model.load_state_dict(checkpoint.model, strict=True)
        names = [name for name, _ in self.model.named_parameters()]
        tensors = checkpoint.training
        self._restore_moments(names, tensors)
        for name, average in zip(names, self.average, strict=False):
            average.copy_(tensors[f"average.{name}"])
        numbers = dict(checkpoint.numbers)
        self.counts = Counts(**{**numbers, "baseline": Baseline(**numbers["baseline"])})

    def _restore_moments(self, names: list[str], tensors: Mapping[str, Tensor]) -> None:
        state: dict[int, Any] = {
            number: {moment: tensors[f"{moment}.{name}"] for moment in MOMENTS}
            for number, name in enumerate(names)
            if f"step.{name}" in tensors  # frozen weights have none
        }
        self.optimiser.load_state_dict({"state": state, "param_groups": self.optimiser.state_dict()["param_groups"]})

    def _weights(self) -> Iterator[Tensor]:
        return (parameter.detach() for parameter in self.model.parameters())

    def _set_weights(self, values: list[Tensor]) -> None:
        for weight, value in zip(self._weights(), values, strict=False):
            weight.copy_(value)
