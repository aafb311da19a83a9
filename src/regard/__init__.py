"""Regard: train, look inside, and ship sequence-to-sequence models with attention.

The names below are loaded when they are first used, so that `import regard` and `regard --help` stay quick.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard import reference as reference
    from regard.contracts import Edit, Look, Score, SearchOptions, Tap
    from regard.core import losses, masks, positions
    from regard.core.attention import AttentionOutput, attend, attention_weights, self_attention
    from regard.core.costs import cost
    from regard.core.summary import summarise
    from regard.errors import UserError
    from regard.inspection.capture import inspect
    from regard.inspection.explain import explain
    from regard.inspection.render import draw
    from regard.inspection.report import write_page
    from regard.layers import scores
    from regard.layers.attention import MultiHeadAttention
    from regard.layers.mixing import Convolution, Dense
    from regard.layers.scores import ScoreMaker
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
    "Edit": "contracts",
    "explain": "inspection.explain",
    "Look": "contracts",
    "MultiHeadAttention": "layers.attention",
    "Score": "contracts",
    "SearchOptions": "contracts",
    "inspect": "inspection.capture",
    "self_attention": "core.attention",
    "summarise": "core.summary",
    "Tap": "contracts",
    "Translator": "pipeline",
    "UserError": "errors",
    "write_page": "inspection.report",
}

_MODULES = {
    "losses": "core.losses",
    "masks": "core.masks",
    "positions": "core.positions",
    "reference": "reference",
    "scores": "layers.scores",
}

__all__ = [  # without `reference`, which needs numpy: `from regard import *` must not
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
    "inspect",
    "load",
    "losses",
    "masks",
    "positions",
    "scores",
    "self_attention",
    "summarise",
    "write_page",
]

# numpy is optional here (it comes with the plot extra); torch says so at every start, which is not news to our users.
warnings.filterwarnings("ignore", message="Failed to initialize NumPy")


def load(path: str | Path, *, device: str = "auto", scores: Mapping[str, ScoreMaker] | None = None) -> Translator:
    """Opens a model folder: `regard.load("model")("a text").text`. Runs no code from the folder and asks no network.

    A model that was trained with a score function of your own names it; give it along as scores={"name": Class}.
    On Linux the whole process keeps freed memory from here on, which makes searches faster (core.devices.keep_freed_memory).
    """
    from regard.checkpoint.folder import load as load_folder
    from regard.core.devices import choose_device, keep_freed_memory
    from regard.inspection.align import read_alignment_head
    from regard.pipeline import Translator, known_positions

    keep_freed_memory()
    saved, chosen = load_folder(Path(path), scores), choose_device(device)
    positions = known_positions(saved.settings)
    return Translator(
        saved.model.to(chosen),
        saved.source,
        saved.target,
        chosen,
        max_positions=positions,
        alignment_head=read_alignment_head(Path(path)),
        training=saved.training,
    )


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        found = importlib.import_module(f"regard.{_MODULES[name]}")
    elif name in _HOMES:
        found = getattr(importlib.import_module(f"regard.{_HOMES[name]}"), name)
    else:
        raise AttributeError(f"module 'regard' has no attribute {name!r}")
    globals()[name] = found  # asked for once
    return found


def __dir__() -> list[str]:
    return [*__all__, "reference"]
