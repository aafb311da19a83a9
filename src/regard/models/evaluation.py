"""A model in evaluation mode, without a change of the model itself; and where it is."""

from __future__ import annotations

from typing import TypeVar, cast

import torch
from torch import nn

from regard.models.contract import Seq2Seq

AnyModel = TypeVar("AnyModel", bound=Seq2Seq)


def in_evaluation(model: AnyModel) -> AnyModel:
    """Returns the model in evaluation mode: without dropout, and with deterministic attention.

    Another thread may be training the same model, so its mode is never changed. The result has modules of its own, in
    evaluation mode, which share all parameters, buffers and hooks with those of the model.
    """
    return cast(AnyModel, _in_evaluation(model, {})) if isinstance(model, nn.Module) else model


def _in_evaluation(module: nn.Module, done: dict[nn.Module, nn.Module]) -> nn.Module:
    """Returns a module that shares everything but its mode and its children. done: the modules that were returned before."""
    if module not in done:
        view = done[module] = type(module).__new__(type(module))
        view.__dict__.update(module.__dict__)
        view.__dict__["training"] = False
        view.__dict__["_modules"] = {name: child and _in_evaluation(child, done) for name, child in module._modules.items()}
    return done[module]


def device_of(model: Seq2Seq) -> torch.device:
    """Returns the device of the parameters of a model; the CPU if it has none."""
    parameter = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    return torch.device("cpu") if parameter is None else parameter.device
