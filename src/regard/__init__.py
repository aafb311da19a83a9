"""Regard: train, inspect and deploy sequence-to-sequence models with attention.

Public names are imported on first use, so that `import regard` and `regard --help` start quickly.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from regard import reference
    from regard.core import losses, masks, positions
    from regard.core.attention import AttentionOutput, attend, attention_weights, self_attention
    from regard.core.costs import cost
    from regard.core.score import Score
    from regard.core.summary import summarise
    from regard.data.batch import Batch
    from regard.errors import UserError
    from regard.inspection.capture import inspect
    from regard.inspection.explain import explain
    from regard.inspection.render import draw
    from regard.inspection.report import write_page
    from regard.layers import scores
    from regard.layers.attention import MultiHeadAttention
    from regard.layers.mixing import Convolution, Dense
    from regard.layers.scores import ScoreMaker
    from regard.look import Edit, Look, Tap
    from regard.options import SearchOptions
    from regard.pipeline import Translator, save
    from regard.training.loop import Update
    from regard.training.own_loop import batches, build, loss
    from regard.training.settings import RunSettings
    from regard.training.train import train

__version__ = "0.1.0"

_HOMES = {
    "attend": "core.attention",
    "AttentionOutput": "core.attention",
    "attention_weights": "core.attention",
    "Batch": "data.batch",
    "batches": "training.own_loop",
    "build": "training.own_loop",
    "Convolution": "layers.mixing",
    "cost": "core.costs",
    "Dense": "layers.mixing",
    "draw": "inspection.render",
    "Edit": "look",
    "explain": "inspection.explain",
    "Look": "look",
    "loss": "training.own_loop",
    "MultiHeadAttention": "layers.attention",
    "RunSettings": "training.settings",
    "save": "pipeline",
    "Score": "core.score",
    "SearchOptions": "options",
    "inspect": "inspection.capture",
    "self_attention": "core.attention",
    "summarise": "core.summary",
    "Tap": "look",
    "train": "training.train",
    "Translator": "pipeline",
    "Update": "training.loop",
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
    "Batch",
    "Convolution",
    "Dense",
    "Edit",
    "Look",
    "MultiHeadAttention",
    "RunSettings",
    "Score",
    "SearchOptions",
    "Tap",
    "Translator",
    "Update",
    "UserError",
    "attend",
    "attention_weights",
    "batches",
    "build",
    "cost",
    "draw",
    "explain",
    "inspect",
    "load",
    "loss",
    "losses",
    "masks",
    "positions",
    "reference",
    "save",
    "scores",
    "self_attention",
    "summarise",
    "train",
    "write_page",
]


def load(
    path: str | Path,
    *,
    update: int | None = None,
    device: str | torch.device = "auto",
    scores: Mapping[str, ScoreMaker] | None = None,
) -> Translator:
    """Loads a model folder and returns a `Translator`: `regard.load("model")("a text").text`.

    Loads a checkpoint, too: `regard.load("model.run", update=500)` returns the model as it was after 500 updates.

    Runs no code from the folder and makes no network requests. Raises UserError if the folder cannot be loaded.

    update: for a run folder, the number of updates of the checkpoint; by default, the last one.
    device: "auto", "cpu", "cuda", "cuda:1", "mps" or a torch.device.
    scores: your own score functions, {"name": Class}; required if the model was trained with one.
    """
    from regard.checkpoint.alignment import read_alignment_head
    from regard.checkpoint.folder import load as load_folder
    from regard.core.devices import choose_device
    from regard.pipeline import Translator

    folder, chosen = Path(path), choose_device(device)
    if update is not None or (folder / "run.yaml").is_file() or (folder / "checkpoints").is_dir():
        from regard.training.checkpoint import load_checkpoint

        translator = Translator.of_saved(load_checkpoint(folder, update, scores))
    else:
        translator = Translator.of_saved(load_folder(folder, scores), alignment_head=read_alignment_head(folder))
    translator.model.to(chosen)
    return translator


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
