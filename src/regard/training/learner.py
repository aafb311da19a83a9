"""The state that an update changes: weights, optimiser, averages and counts, with methods to save and restore it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from regard.checkpoint.runs import Checkpoint, Damaged
from regard.core.losses import Baseline
from regard.models.contract import Model
from regard.training.settings import TrainSettings

MOMENTS = ("step", "exp_avg", "exp_avg_sq")
"""The tensors that AdamW keeps for each parameter."""


@dataclass(frozen=True)
class TrainingState:
    """The counters of a run.

    update: the number of updates done. baseline: that of the policy gradient. best, best_at: the best validation result so far,
    and the update it was measured after. stale: the number of validations since then.
    """

    update: int = 0
    baseline: Baseline = Baseline()
    best: float | None = None
    best_at: int = 0
    stale: int = 0


class Learner:
    """A model in training, with its optimiser. If `ema` is set, it keeps a moving average of the weights; validation and the
    saved model use the average."""

    def __init__(self, model: Model, settings: TrainSettings) -> None:
        self.model, self.ema = model, settings.ema
        self.optimiser = torch.optim.AdamW(
            model.parameters(), betas=(0.9, 0.98), weight_decay=settings.weight_decay, fused=True
        )
        self.state = TrainingState()
        self.average = [parameter.detach().clone() for parameter in model.parameters()] if self.ema else []

    def update(self, learning_rate: float) -> None:
        """Makes an optimiser step with the accumulated gradients, and clears them."""
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate
        self.optimiser.step()
        self.optimiser.zero_grad()
        if self.average:  # over fewer updates at the start of a run
            number = self.state.update
            decay = min(self.ema, (1 + number) / (10 + number))
            torch._foreach_lerp_(self.average, list(self._weights()), 1 - decay)

    @contextmanager
    def evaluation_weights(self) -> Iterator[Model]:
        """Provides the model in evaluation mode, with the averaged weights if there are any; restores training mode and weights
        afterwards."""
        current = [weight.clone() for weight in self._weights()] if self.average else []
        self._set_weights(self.average)
        self.model.eval()
        try:
            yield self.model
        finally:
            self.model.train()
            self._set_weights(current)

    def use_average(self) -> None:
        """Makes the moving average, if there is one, the weights of the model."""
        self._set_weights(self.average)
        self.average = []

    def checkpoint(self, origin: Mapping[str, Any] | None = None) -> Checkpoint:
        """Returns a checkpoint of the current state. origin: what identifies the settings and the data of the run."""
        names = [name for name, _ in self.model.named_parameters()]
        training = {f"average.{name}": tensor for name, tensor in zip(names, self.average, strict=False)}
        for number, moments in self.optimiser.state_dict()["state"].items():
            training |= {f"{moment}.{names[number]}": moments[moment] for moment in MOMENTS}
        return Checkpoint(self.state.update, asdict(self.state), self.model.state_dict(), training, origin or {})

    def check(self, checkpoint: Checkpoint) -> None:
        """Raises Damaged if the checkpoint does not fit this model and its optimiser."""
        if _state(checkpoint).update != checkpoint.update:
            raise Damaged(f"its counters are those of update {_state(checkpoint).update}")
        weights = {name: tensor.shape for name, tensor in self.model.state_dict().items()}
        _check_shapes("weights", checkpoint.model, weights)
        shapes = {name: parameter.shape for name, parameter in self.model.named_parameters()}
        training = {f"average.{name}": shape for name, shape in shapes.items() if self.average}
        for name, shape in shapes.items():
            if f"step.{name}" in checkpoint.training:  # frozen weights have none
                training |= {f"{moment}.{name}": torch.Size() if moment == "step" else shape for moment in MOMENTS}
        _check_shapes("moments", checkpoint.training, training)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Restores the state of a checkpoint; training continues exactly as if it had not been interrupted."""
        self.model.load_state_dict(checkpoint.model, strict=True)
        names = [name for name, _ in self.model.named_parameters()]
        tensors = checkpoint.training
        self._restore_moments(names, tensors)
        for name, average in zip(names, self.average, strict=False):
            average.copy_(tensors[f"average.{name}"])
        self.state = _state(checkpoint)

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


def _state(checkpoint: Checkpoint) -> TrainingState:
    try:
        return TypeAdapter(TrainingState).validate_json(json.dumps(checkpoint.numbers), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        raise Damaged(f"its counters cannot be read: {name} is {first['input']!r} ({first['msg']})") from None


def _check_shapes(what: str, tensors: Mapping[str, Tensor], expected: Mapping[str, torch.Size]) -> None:
    for name in {**expected, **tensors}:
        shapes = [
            tuple(shape) if shape is not None else None
            for shape in (expected.get(name), getattr(tensors.get(name), "shape", None))
        ]
        if shapes[0] != shapes[1]:
            raise Damaged(f"its {what} do not fit this model: {name} has the shape {shapes[1]}, expected {shapes[0]}")
