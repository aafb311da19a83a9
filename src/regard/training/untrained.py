"""Models without data: settings by the name of a family or a preset, and an untrained model of given vocabulary sizes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from regard.core.devices import choose_device, settings_restored
from regard.data.codecs import FITTING
from regard.errors import check_whole
from regard.layers.scores import ScoreMaker
from regard.models.build import build
from regard.models.contract import Model, ModelSettings
from regard.training.overrides import override, parse_changes
from regard.training.settings import RunSettings


def model_settings(kind: str, changes: Sequence[str] | Mapping[str, Any] = (), scores: Collection[str] = ()) -> ModelSettings:
    """Returns the settings of a family or a preset, with changes.

    changes: arguments of `--set`, such as "model.width=64", or values by key, such as {"model.width": 64}.
    scores: names of custom score functions. Raises UserError with all errors.
    """
    pairs = dict(changes) if isinstance(changes, Mapping) else parse_changes(changes)[0]
    frontend = pairs.get("model.frontend", "tokens")
    units = [unit for unit, fitting in FITTING.items() if frontend in fitting]
    data = {"data.source_unit": units[0]} if units else {"data.shared": True}  # the data would have to be like this
    base = override(RunSettings(), {**data, "model.kind": kind, **({"model.frontend": frontend} if units else {})})
    return override(base, changes, scores).model


def build_model(
    kind: str,
    num_tokens: int | tuple[int, int],
    changes: Mapping[str, Any],
    *,
    seed: int,
    scores: Mapping[str, ScoreMaker] | None,
    device: str | torch.device,
) -> Model:
    """Returns an untrained model. num_tokens: the sizes of the vocabularies of source and target. changes: settings by key."""
    sizes = num_tokens if isinstance(num_tokens, tuple) else (num_tokens, num_tokens)
    for size in sizes:
        check_whole("num_tokens", size)
    settings = model_settings(kind, changes, scores or {})
    with settings_restored():
        torch.manual_seed(seed)
        return build(settings, *sizes, scores).to(choose_device(device)).eval()
