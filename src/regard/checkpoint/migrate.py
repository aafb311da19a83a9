"""Lifts what earlier versions of regard wrote to the names of this one. Each format has one small function per kind of file.

Format 1 (0.1.0 before its release) differs from format 2 in names alone: no number changes. Files are never rewritten; they are
lifted each time they are read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")

FORMAT = 2
"""The format that this version writes, for model folders and for checkpoints of a run."""

SETTINGS = {
    "model.choice": "model.attention",
    "model.front": "model.frontend",
    "model.join": "model.position_join",
    "model.max_places": "model.max_positions",
    "model.order": "model.norm_order",
}
"""Old spellings of settings. A run that was begun with them continues; elsewhere an error names the new one."""

VALUES = {
    "model.attention": {"one": "hard", "gates": "gated", "sum": "unnormalised"},
    "train.metric": {"word_error_rate": "sequence_error_rate"},
}
"""Old spellings of values, by the new names of their settings."""

SOURCE_FIELDS = {"beside": "auxiliary"}
"""Old names in a source.json, which has no format number."""

STORE_TENSORS = {"beside_ids": "auxiliary_ids", "beside_offsets": "auxiliary_offsets"}
"""Old names of the tensors in a token store."""

_WEIGHTS = ((re.compile(r"\bfront\."), "frontend."), (re.compile(r"\bplaced\."), "projection."))


def config(given: dict[str, Any]) -> dict[str, Any]:
    """Lifts the content of a config.json; `format` keeps the number that the folder has."""
    if given["format"] != 1:
        return given
    lifted = {**given, "model": _section("model", given.get("model"))}
    if isinstance(training := given.get("training"), dict):
        lifted["training"] = _rename(training, {"word_error_rate": "sequence_error_rate"})
        if "settings" in training:
            lifted["training"]["settings"] = run_settings(training["settings"])
    return lifted


def run_settings(given: Any) -> Any:
    """Lifts the settings of a run, a mapping of sections. Leaves what is no mapping to the checks of the caller."""
    if not isinstance(given, dict):
        return given
    return {name: _section(name, value) for name, value in given.items()}


def setting(key: str, value: T) -> tuple[str, T | str]:
    """Lifts one setting such as ("model.choice", "one")."""
    key = SETTINGS.get(key, key)
    return key, VALUES.get(key, {}).get(value, value) if isinstance(value, str) else value


def checkpoint(state: dict[str, Any]) -> dict[str, Any]:
    """Lifts the state.json of a checkpoint."""
    if state["format"] != 1 or not isinstance(state.get("origin"), dict):
        return state
    origin = training_data(state["origin"])
    if "settings" in origin:
        origin["settings"] = run_settings(origin["settings"])
    return {**state, "origin": origin}


def training_data(given: Mapping[str, Any]) -> dict[str, Any]:
    """Lifts what a checkpoint or a token store says about its data."""
    return _rename(given, {"material": "training_data"})


def weights(names: Mapping[str, T], number: int) -> dict[str, T]:
    """Lifts the names of weights, or of what the optimiser keeps for them, in a file of format `number`."""
    return {_weight(name) if number == 1 else name: value for name, value in names.items()}


def _weight(name: str) -> str:
    for old, new in _WEIGHTS:
        name = old.sub(new, name)
    return name


def _section(section: str, given: Any) -> Any:
    if not isinstance(given, dict):
        return given
    pairs = (setting(f"{section}.{name}", value) for name, value in given.items())
    return {key.removeprefix(f"{section}."): value for key, value in pairs}


def _rename(given: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(name, name): value for name, value in given.items()}
