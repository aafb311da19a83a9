"""Migrates files of earlier versions of regard to the names of this version, with one function per kind of file.

Format 1 (0.1.0 before its release) differs from format 2 only in names: all numbers stay the same. Files are never rewritten;
they are migrated whenever they are read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

FORMAT = 2
"""The format of the model folders and checkpoints that this version writes."""

READABLE = (FORMAT, 1)
"""The formats that this version reads."""

SETTINGS = {
    "model.choice": "model.attention",
    "model.front": "model.frontend",
    "model.join": "model.position_join",
    "model.max_places": "model.max_positions",
    "model.order": "model.norm_order",
}
"""Old names of settings. A run that was started with them can continue; anywhere else, an error states the new name."""

VALUES = {
    "model.attention": {"one": "hard", "gates": "gated", "sum": "unnormalised"},
    "train.metric": {"word_error_rate": "sequence_error_rate"},
}
"""Old names of values, by the new names of their settings."""

FUSION_SCORE = "scaled_dot"
"""model.fusion_score of models and runs of versions that lacked this setting."""

SOURCE_FIELDS = {"beside": "auxiliary"}
"""Old names of fields in source.json, which has no format number."""

STORE_TENSORS = {"beside_ids": "auxiliary_ids", "beside_offsets": "auxiliary_offsets"}
"""Old names of tensors in a token store."""

_WEIGHTS = ((re.compile(r"\bfront\."), "frontend."), (re.compile(r"\bplaced\."), "projection."))


def unreadable(path: Path, number: object) -> str:
    """Returns the error message for a format that this version does not read."""
    expected = " or ".join(map(str, READABLE))
    return f"{path} has format {number}, expected {expected}; it was written by another version of regard"


def config(given: dict[str, Any]) -> dict[str, Any]:
    """Migrates the content of config.json. `format` keeps the number of the folder."""
    given = {**given, "model": _with_fusion_score(given.get("model"))}
    if given["format"] != 1:
        return given
    migrated = {**given, "model": _section("model", given.get("model"))}
    if isinstance(training := given.get("training"), dict):
        migrated["training"] = _rename(training, _by_table({"word_error_rate": "sequence_error_rate"}))
        if "settings" in training:
            migrated["training"]["settings"] = run_settings(training["settings"])
    return migrated


def _with_fusion_score(model: Any) -> Any:
    """Adds the setting to the families that read files; config.json holds all settings, so a model without it is older."""
    reads_files = isinstance(model, dict) and model.get("kind") in ("rnn", "transformer")
    return {"fusion_score": FUSION_SCORE, **model} if reads_files else model


def run_settings(given: Any) -> Any:
    """Migrates the settings of a run, a mapping of sections. Returns anything else as it is, for the caller to check."""
    if not isinstance(given, dict):
        return given
    return {name: _section(name, value) for name, value in given.items()}


def setting(key: str, value: T) -> tuple[str, T | str]:
    """Migrates one setting: ("model.choice", "one") becomes ("model.attention", "hard")."""
    key = SETTINGS.get(key, key)
    return key, VALUES.get(key, {}).get(value, value) if isinstance(value, str) else value


def checkpoint(state: dict[str, Any]) -> dict[str, Any]:
    """Migrates the state.json of a checkpoint."""
    if state["format"] != 1 or not isinstance(state.get("origin"), dict):
        return state
    origin = training_data(state["origin"])
    if "settings" in origin:
        origin["settings"] = run_settings(origin["settings"])
    return {**state, "origin": origin}


def training_data(given: Mapping[str, Any]) -> dict[str, Any]:
    """Migrates the description of the data in a checkpoint or token store."""
    return _rename(given, _by_table({"material": "training_data"}))


def weights(names: Mapping[str, T], number: int) -> dict[str, T]:
    """Migrates the names of weights, or of optimiser states, in a file of format `number`."""
    return _rename(names, _weight) if number == 1 else dict(names)


def _weight(name: str) -> str:
    for old, new in _WEIGHTS:
        name = old.sub(new, name)
    return name


def _section(section: str, given: Any) -> Any:
    if not isinstance(given, dict):
        return given
    renamed = _rename(given, lambda name: setting(f"{section}.{name}", None)[0].removeprefix(f"{section}."))
    return {name: setting(f"{section}.{name}", value)[1] for name, value in renamed.items()}


def _rename(given: Mapping[str, T], new_name: Callable[[str], str]) -> dict[str, T]:
    """Renames keys. A key whose new name is taken keeps its old name, so that strict readers refuse it."""
    return {name if new_name(name) in given else new_name(name): value for name, value in given.items()}


def _by_table(names: Mapping[str, str]) -> Callable[[str], str]:
    return lambda name: names.get(name, name)
