"""What all exports of our models have in common: which models they can represent, and what they write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from regard.checkpoint.folder import Saved
from regard.data.sources import FileCodec
from regard.errors import UserError
from regard.interop.record import Record
from regard.models.transformer import TransformerSettings

NORMAL = {
    "score": "scaled_dot",
    "score_divisor": None,
    "norm": "layer",
    "residual": True,
    "project_values": True,
    "project_output": True,
    "scale_embedding": True,
    "embedding_norm": False,
    "mixing": "attention",
    "window": None,
    "position_join": "added",
    "look_ahead_mask": True,
    "frontend": "tokens",
}
"""Settings that other formats know with one value only."""
ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu")


@dataclass(frozen=True)
class Export:
    """A model that is written in another format. weights: as they are written, under our names (see `Record`)."""

    saved: Saved
    settings: TransformerSettings
    weights: Mapping[str, Tensor]
    record: Record


def obstacles(saved: Saved) -> list[str]:
    """Returns all reasons why no other format can hold a model."""
    settings = saved.settings
    reasons = []
    if not isinstance(settings, TransformerSettings):
        reasons.append(f"it is of the family {settings.kind}, expected a transformer")
    if isinstance(saved.source, FileCodec):
        reasons.append(f"it reads {saved.source.nouns}, expected texts")
    elif saved.source.has_features:
        reasons.append("it reads features (columns), which other formats do not have")
    if not isinstance(settings, TransformerSettings):
        return reasons + _of_other_families(saved)
    for name, normal in NORMAL.items():
        if (value := getattr(settings, name)) != normal and not (name == "frontend" and isinstance(saved.source, FileCodec)):
            reasons.append(f"{name} is {value}, expected {'none' if normal is None else normal}")
    if settings.kv_heads not in (None, settings.heads):
        reasons.append(f"{settings.heads} heads share {settings.kv_heads} keys and values, expected one per head")
    if settings.head_width * settings.heads != settings.width:
        reasons.append(f"{settings.heads} heads have width {settings.head_width}, expected {settings.width} together")
    if settings.activation not in ACTIVATIONS:
        reasons.append(f"its activation function is {settings.activation}, expected one of {', '.join(ACTIVATIONS)}")
    if settings.positions not in ("sinusoidal", "learned"):
        reasons.append(f"its positions are {settings.positions}, expected sinusoidal or learned")
    return reasons


def _of_other_families(saved: Saved) -> list[str]:
    """Returns further reasons that concern a model which is no Transformer, so that all are known at once."""
    attention = getattr(saved.settings, "attention", None)
    recurrent = "it is recurrent: its decoder carries a state from step to step"
    return [
        *([recurrent] if hasattr(saved.settings, "cell") else []),
        *([f"its attention is {attention}"] if isinstance(attention, str) and attention != "soft" else []),
        *(["it has no heads"] if not hasattr(saved.settings, "heads") else []),
    ]


def refuse(name: str, reasons: list[str]) -> None:
    """Raises UserError with all reasons, if there are any. name: of the format."""
    if reasons:
        raise UserError(
            f"{name} cannot represent this model: {'; '.join(reasons)}. Train one that fits with regard train --portable"
        )
