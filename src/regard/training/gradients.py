"""How large the gradient is at each layer of a Transformer: what residual connections do over depth."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from regard.errors import UserError
from regard.layers.blocks import TransformerLayer
from regard.models.evaluation import in_evaluation
from regard.pipeline import Translator
from regard.training.objective import batch_loss
from regard.training.own_loop import batches
from regard.training.settings import TrainSettings
from regard.training.train import Data


def gradient_by_layer(model: Translator, data: Data) -> dict[str, list[float]]:
    """Returns ‖∂ loss / ∂ x‖ for the input x of each layer, the first layer first, by stack: {"encoder": […], "decoder": […]}.

    The loss is the mean per target token of all pairs, without dropout; x are the vectors of all positions of all pairs.
    data: pairs, or files of them, as `regard.train` takes them. Raises UserError if the model has no Transformer layers.

    >>> pairs = [("cab", "C A B"), ("ad", "A D")]
    >>> model = regard.build("transformer", pairs, width=16, heads=2, encoder_layers=3, decoder_layers=1)
    >>> norms = regard.gradient_by_layer(model, pairs)
    >>> {stack: len(of_stack) for stack, of_stack in norms.items()}
    {'encoder': 3, 'decoder': 1}
    """
    evaluated = in_evaluation(model.model)
    layers = {name: module for name, module in evaluated.named_modules() if isinstance(module, TransformerLayer)}
    if not layers:
        raise UserError(
            f"this model is a {type(model.model).__name__}, which has no Transformer layers; gradient_reach measures how far "
            "gradients reach in recurrent networks"
        )
    squares, num_targets = dict.fromkeys(layers, 0.0), 0
    for batch in batches(model, data, epochs=1):
        with torch.enable_grad(), _inputs(layers) as inputs:
            total, _ = batch_loss(evaluated, batch, TrainSettings())
            gradients = torch.autograd.grad(total, list(inputs.values()))
        for name, gradient in zip(inputs, gradients, strict=True):
            squares[name] += gradient.double().square().sum().item()
        num_targets += batch.num_targets
    norms: dict[str, list[float]] = {}
    for name, square in squares.items():
        norms.setdefault(name.partition(".")[0], []).append(square**0.5 / num_targets)
    return norms


@contextmanager
def _inputs(layers: dict[str, TransformerLayer]) -> Iterator[dict[str, Tensor]]:
    """Collects the first argument of each layer, which has a gradient even if all before it is frozen."""
    collected: dict[str, Tensor] = {}

    def keep(name: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        x, *others = arguments
        collected[name] = x if x.requires_grad else x.detach().requires_grad_()
        return (collected[name], *others)

    hooks = [
        layer.register_forward_pre_hook(lambda _, arguments, name=name: keep(name, arguments)) for name, layer in layers.items()
    ]
    try:
        yield collected
    finally:
        for handle in hooks:
            handle.remove()
