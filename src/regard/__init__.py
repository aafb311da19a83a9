"""Regard: train, inspect and deploy sequence-to-sequence models with attention.

Public names are imported on first use, so that `import regard` and `regard --help` start quickly.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard import reference
    from regard.core import losses, masks, positions
    from regard.core.attention import AttentionOutput, attend, attention_weights, self_attention
    from regard.core.costs import cost
    from regard.core.score import Score
    from regard.core.summary import summarise
    from regard.errors import UserError
    from regard.inspection.capture import inspect
    from regard.inspection.explain import explain
    from regard.inspection.render import draw
    from regard.inspection.report import write_page
    from regard.layers import scores
    from regard.layers.attention import MultiHeadAttention
    from regard.layers.mixing import Convolution, Dense
    from regard.layers.reach import gradient_reach, path_length
    from regard.layers.scores import ScoreMaker
    from regard.look import Edit, Look, Tap
    from regard.options import SearchOptions
    from regard.pipeline import Translator

__version__ = "0.1.0"

_HOMES = {
    "attend": "core.attention",
    "AttentionOutput": "core.attention",
    "attention_weights": "core.attention",
    "Convolution": "layers.mixing",
    "cost": "core.costs",
    "Dense": "layers.mixing",
    "draw": "inspection.render",
    "Edit": "look",
    "explain": "inspection.explain",
    "gradient_reach": "layers.reach",
    "Look": "look",
    "MultiHeadAttention": "layers.attention",
    "Score": "core.score",
    "SearchOptions": "options",
    "inspect": "inspection.capture",
    "path_length": "layers.reach",
    "self_attention": "core.attention",
    "summarise": "core.summary",
    "Tap": "look",
    "Translator": "pipeline",
    "UserError": "errors",
    "write_page": "inspection.report",
}
"""Public name -> the module that defines it."""

_MODULES = {
    "losses": "core.losses",
    "masks": "core.masks",
    "positions": "core.positions",
    "reference": "reference",
    "scores": "layers.scores",
}
"""Public module -> its path in the package."""

__all__ = [
    "AttentionOutput",
    "Convolution",
    "Dense",
    "Edit",
    "Look",
    "MultiHeadAttention",
    "Score",
    "SearchOptions",
    "Tap",
    "Translator",
    "UserError",
    "attend",
    "attention_weights",
    "cost",
    "draw",
    "explain",
    "gradient_reach",
    "inspect",
    "load",
    "losses",
    "masks",
    "path_length",
    "positions",
    "reference",
    "scores",
    "self_attention",
    "summarise",
    "write_page",
]


def load(path: str | Path, *, device: str = "auto", scores: Mapping[str, ScoreMaker] | None = None) -> Translator:
    """Loads a model folder and returns a `Translator`: `regard.load("model")("a text").text`.

    Runs no code from the folder and makes no network requests. Raises UserError if the folder cannot be loaded.

    device: "auto", "cpu", "cuda" or "mps".
    scores: your own score functions, {"name": Class}; required if the model was trained with one.
    """
    from regard.checkpoint.alignment import read_alignment_head
    from regard.checkpoint.folder import load as load_folder
    from regard.core.devices import choose_device
    from regard.pipeline import Translator

    saved, chosen = load_folder(Path(path), scores), choose_device(device)
    return Translator.of_model(
        saved.model.to(chosen),
        saved.source,
        saved.target,
        chosen,
        alignment_head=read_alignment_head(Path(path)),
        training=saved.training,
    )


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        value = importlib.import_module(f"regard.{_MODULES[name]}")
    elif name in _HOMES:
        value = getattr(importlib.import_module(f"regard.{_HOMES[name]}"), name)
    else:
        raise AttributeError(f"module 'regard' has no attribute {name!r}")
    globals()[name] = value  # the next access finds it without this function
    return value


def __dir__() -> list[str]:
    return __all__
