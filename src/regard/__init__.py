"""Regard: train, inspect and deploy sequence-to-sequence models with attention.

    import regard

    model = regard.load("model")  # a folder that `regard train` wrote
    print(model("a text").text)

`help(regard.attend)` and so on end with an example; the examples assume `import regard, torch`. docs/api.md lists all public
names, which are imported on first use, so that `import regard` and `regard --help` start quickly.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from regard import markup, reference
    from regard.comparing.compare import compare
    from regard.comparing.report import Comparison, Row
    from regard.contracts import Traits
    from regard.core import latent, losses, masks, positions
    from regard.core.attention import AttentionOutput, attend, attention_weights, self_attention
    from regard.core.costs import Cost, cost
    from regard.core.score import Score
    from regard.core.source import Source
    from regard.core.summary import summarise
    from regard.data.batch import Batch
    from regard.errors import UserError
    from regard.inspection.capture import CapturedGates, CapturedLayer, Inspection, inspect
    from regard.inspection.describe import describe
    from regard.inspection.description import Description
    from regard.inspection.drawing import Drawing, draw
    from regard.inspection.explain import Explanation, ExplanationLine, explain
    from regard.inspection.parts import ModelPart
    from regard.inspection.report import write_page
    from regard.inspection.roles import HeadRoles, Roles, roles
    from regard.layers import scores
    from regard.layers.attention import MultiHeadAttention
    from regard.layers.blocks import TransformerDecoderLayer, TransformerEncoderLayer
    from regard.layers.mixing import Convolution, Dense
    from regard.layers.reach import gradient_reach, path_length
    from regard.layers.scores import ScoreMaker
    from regard.layers.stacks import TransformerDecoder, TransformerEncoder
    from regard.look import Edit, Kind, Look, Seen, Summary, Tap, What
    from regard.markup import transfer_markup
    from regard.models.contract import Decoded, Memory, Model, ModelSettings, Projected, State, Step
    from regard.options import EngineName, SearchKeywords, SearchOptions
    from regard.pipeline.translator import Translator, save
    from regard.results import Alternative, AttentionMap, Encoded, Partial, Refused, Result, Scored
    from regard.training.distill import distill
    from regard.training.gradients import gradient_by_layer
    from regard.training.loop import Update
    from regard.training.own_loop import batches, build, loss
    from regard.training.settings import RunSettings
    from regard.training.train import train

__version__ = "0.1.0"

_HOMES = {
    "Train": {
        "train": "training.train",
        "distill": "training.distill",
        "compare": "comparing.compare",
        "build": "training.own_loop",
        "batches": "training.own_loop",
        "loss": "training.own_loop",
        "gradient_by_layer": "training.gradients",
        "save": "pipeline.translator",
        "RunSettings": "training.settings",
        "Update": "training.loop",
        "Batch": "data.batch",
    },
    "Translate": {
        "load": "",
        "Translator": "pipeline.translator",
        "SearchOptions": "options",
        "SearchKeywords": "options",
        "transfer_markup": "markup",
    },
    "Look inside": {
        "inspect": "inspection.capture",
        "explain": "inspection.explain",
        "draw": "inspection.drawing",
        "describe": "inspection.describe",
        "write_page": "inspection.report",
        "roles": "inspection.roles",
        "Look": "look",
        "Tap": "look",
        "Edit": "look",
        "Kind": "look",
        "What": "look",
    },
    "Attention functions": {
        "attend": "core.attention",
        "attention_weights": "core.attention",
        "self_attention": "core.attention",
        "summarise": "core.summary",
        "cost": "core.costs",
        "Score": "core.score",
    },
    "Layers": {
        "MultiHeadAttention": "layers.attention",
        "TransformerEncoder": "layers.stacks",
        "TransformerDecoder": "layers.stacks",
        "TransformerEncoderLayer": "layers.blocks",
        "TransformerDecoderLayer": "layers.blocks",
        "Convolution": "layers.mixing",
        "Dense": "layers.mixing",
        "gradient_reach": "layers.reach",
        "path_length": "layers.reach",
    },
    "Data that you receive": {
        "Result": "results",
        "Alternative": "results",
        "Partial": "results",
        "Refused": "results",
        "Scored": "results",
        "Encoded": "results",
        "AttentionMap": "results",
        "AttentionOutput": "core.attention",
        "Seen": "look",
        "Summary": "look",
        "Inspection": "inspection.capture",
        "CapturedLayer": "inspection.capture",
        "CapturedGates": "inspection.capture",
        "Drawing": "inspection.drawing",
        "Description": "inspection.description",
        "ModelPart": "inspection.parts",
        "Explanation": "inspection.explain",
        "ExplanationLine": "inspection.explain",
        "Roles": "inspection.roles",
        "HeadRoles": "inspection.roles",
        "Cost": "core.costs",
        "Comparison": "comparing.report",
        "Row": "comparing.report",
    },
    "Models of your own": {
        "Model": "models.contract",
        "ModelSettings": "models.contract",
        "Traits": "contracts",
        "Source": "core.source",
        "Memory": "models.contract",
        "State": "models.contract",
        "Step": "models.contract",
        "Decoded": "models.contract",
        "Projected": "models.contract",
    },
    "Errors": {
        "UserError": "errors",
    },
}
"""Section of docs/api.md -> public name -> the module that defines it; "" is this file."""

_MODULES = {
    "latent": "core.latent",
    "losses": "core.losses",
    "markup": "markup",
    "masks": "core.masks",
    "positions": "core.positions",
    "reference": "reference",
    "scores": "layers.scores",
}
"""Public module -> its path in the package."""

__all__ = [
    "Alternative",
    "AttentionMap",
    "AttentionOutput",
    "Batch",
    "CapturedGates",
    "CapturedLayer",
    "Comparison",
    "Convolution",
    "Cost",
    "Decoded",
    "Dense",
    "Description",
    "Drawing",
    "Edit",
    "Encoded",
    "Explanation",
    "ExplanationLine",
    "HeadRoles",
    "Inspection",
    "Kind",
    "Look",
    "Memory",
    "Model",
    "ModelPart",
    "ModelSettings",
    "MultiHeadAttention",
    "Partial",
    "Projected",
    "Refused",
    "Result",
    "Roles",
    "Row",
    "RunSettings",
    "Score",
    "Scored",
    "SearchKeywords",
    "SearchOptions",
    "Seen",
    "Source",
    "State",
    "Step",
    "Summary",
    "Tap",
    "Traits",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
    "Translator",
    "Update",
    "UserError",
    "What",
    "attend",
    "attention_weights",
    "batches",
    "build",
    "compare",
    "cost",
    "describe",
    "distill",
    "draw",
    "explain",
    "gradient_by_layer",
    "gradient_reach",
    "inspect",
    "latent",
    "load",
    "loss",
    "losses",
    "markup",
    "masks",
    "path_length",
    "positions",
    "reference",
    "roles",
    "save",
    "scores",
    "self_attention",
    "summarise",
    "train",
    "transfer_markup",
    "write_page",
]


def load(
    path: str | Path | Sequence[str | Path],
    *,
    update: int | None = None,
    device: str | torch.device = "auto",
    scores: Mapping[str, ScoreMaker] | None = None,
    engine: EngineName = "auto",
) -> Translator:
    """Loads a model folder and returns a `Translator`.

    Loads models of other formats, too (docs/interop.md): a folder of Hugging Face's MarianMT, of CTranslate2 or of fairseq, an
    .argosmodel; or a name such as "Helsinki-NLP/opus-mt-en-de" of a model that was downloaded before. At the first loading, its
    numbers and outputs are compared with those of its own library, if that is installed.

    Loads a checkpoint, too: `regard.load("model.run", update=500)` returns the model as it was after 500 updates. A list of
    folders is loaded as an ensemble: several models that write together, `regard.load(["a", "b", "c"])`. So is the folder that
    `regard train --models 3` writes.

    Runs no code from the folder and makes no network requests. Raises UserError if the folder cannot be loaded.

    update: for a run folder, the number of updates of the checkpoint; by default, the last one.
    device: "auto", "cpu", "cuda", "cuda:1", "mps" or a torch.device.
    scores: your own score functions, {"name": Class}; required if the model was trained with one.
    engine: what takes the steps of searches: "native" (C++), "torch", or "auto": native where it serves. Outputs are the same,
    but for ties, and so are attention, scores and alignments, which torch computes. `Translator.engine_report` says which one.

    >>> model = regard.load("model")  # a model that spells words, written by `regard train`
    >>> model("cab").text
    'C A B'
    """
    from regard.checkpoint.ensemble import members_of
    from regard.core.devices import choose_device
    from regard.interop.convert import open_any
    from regard.pipeline import Translator

    folders = [member for one in ([path] if isinstance(path, str | Path) else path) for member in members_of(Path(one))]
    if len(folders) != 1 or not isinstance(path, str | Path):
        return Translator.ensemble([load(one, update=update, device=device, scores=scores, engine=engine) for one in folders])
    folder, chosen = folders[0], choose_device(device)
    if update is not None or (folder / "run.yaml").is_file() or (folder / "checkpoints").is_dir():
        from regard.training.checkpoint import load_checkpoint

        translator = Translator.of_saved(load_checkpoint(folder, update, scores), engine=engine)
    else:
        saved, head = open_any(folder, scores)
        translator = Translator.of_saved(saved, alignment_head=head, engine=engine)
    translator.model.to(chosen)
    return translator


if not TYPE_CHECKING:  # a type checker would take every name for public, mistyped ones included

    def __getattr__(name: str) -> object:
        homes = {name: home for names in _HOMES.values() for name, home in names.items()}
        if name in _MODULES:
            value = importlib.import_module(f"regard.{_MODULES[name]}")
        elif name in homes:
            value = getattr(importlib.import_module(f"regard.{homes[name]}"), name)
        else:
            from regard.errors import did_you_mean

            raise AttributeError(f"module 'regard' has no attribute {name!r}{did_you_mean(name, __all__)}", name=name, obj=None)
        globals()[name] = value  # the next access finds it without this function
        return value


def __dir__() -> list[str]:
    return __all__
