"""Transfer learning: an encoder that was trained elsewhere starts a new model."""

from __future__ import annotations

from dataclasses import dataclass

from regard.checkpoint.folder import Saved
from regard.errors import UserError, plural
from regard.models.build import Model

ENCODER = ("encoder.", "source_embedding.")
"""How the names of an encoder's weights begin, in every model."""


@dataclass(frozen=True)
class Transfer:
    """The model whose encoder is taken over, with its source vocabulary. freeze: it does not learn any further."""

    saved: Saved
    freeze: bool = False


def start_encoder(model: Model, transfer: Transfer) -> int:
    """Copies the weights of the encoder and gives their number."""
    theirs = {name: tensor for name, tensor in transfer.saved.model.state_dict().items() if name.startswith(ENCODER)}
    mine = {name: tensor.shape for name, tensor in model.state_dict().items() if name.startswith(ENCODER)}
    if not any("embedding" in name for name in theirs):
        raise UserError(
            "that model shares its embedding with its decoder (tie=all) and has no encoder of its own to start from"
        )
    shapes = {name: tensor.shape for name, tensor in theirs.items()}
    if mine != shapes:
        differing = sorted(name for name in mine.keys() | shapes.keys() if mine.get(name) != shapes.get(name))
        raise UserError(
            f"the encoders do not fit: {plural(len(differing), 'weight')} of another name or size, such as {differing[0]}; "
            "leave the encoder's settings as they are in the model that it comes from"
        )
    model.load_state_dict(theirs, strict=False)
    for name, parameter in model.named_parameters():
        if name in theirs:
            parameter.requires_grad_(not transfer.freeze)
    return sum(tensor.numel() for tensor in theirs.values())
