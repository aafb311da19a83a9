"""Transfer learning: a new model starts with the encoder of a trained model."""

from __future__ import annotations

from dataclasses import dataclass

from regard.checkpoint.folder import Saved
from regard.errors import UserError, plural
from regard.models.contract import Model

ENCODER = ("encoder.", "source_embedding.")
"""The prefixes of the names of encoder weights, in every model."""


@dataclass(frozen=True)
class Transfer:
    """The model whose encoder and source vocabulary are taken over. freeze: whether the encoder's weights stay fixed."""

    saved: Saved
    freeze: bool = False


def start_encoder(model: Model, transfer: Transfer) -> int:
    """Copies the weights of the encoder into `model` and returns their number. Raises UserError if they do not match."""
    theirs = {name: tensor for name, tensor in transfer.saved.model.state_dict().items() if name.startswith(ENCODER)}
    mine = {name: tensor.shape for name, tensor in model.state_dict().items() if name.startswith(ENCODER)}
    if not any("embedding" in name for name in theirs):
        raise UserError(
            "that model shares its embedding with its decoder (tie=all), so its encoder cannot be taken over; "
            "use a model with another setting of tie"
        )
    shapes = {name: tensor.shape for name, tensor in theirs.items()}
    if mine != shapes:
        differing = sorted(name for name in mine.keys() | shapes.keys() if mine.get(name) != shapes.get(name))
        raise UserError(
            f"the encoders do not match: {plural(len(differing), 'weight')} with another name or shape, such as {differing[0]}"
            "; use the encoder settings of the other model"
        )
    model.load_state_dict(theirs, strict=False)
    for name, parameter in model.named_parameters():
        if name in theirs:
            parameter.requires_grad_(not transfer.freeze)
    return sum(tensor.numel() for tensor in theirs.values())
