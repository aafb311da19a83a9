"""Settings by key, such as train.steps: applies `--set key=value` and arguments of `regard.train`, and explains wrong settings,
also those of a run file."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from regard.checkpoint import migrate
from regard.errors import UserError, WrongNumbers, did_you_mean, is_utf_8
from regard.layers.scores import check_score_name
from regard.models.build import FAMILIES, presets
from regard.models.contract import ModelSettings
from regard.training.settings import RunSettings

_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "a string",
    "tuple_type": "a list, such as [one, two]",
    "greater_than": "more than {gt}",
    "greater_than_equal": "{ge} or more",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "finite_number": "a finite number",
    "literal_error": "one of {expected}",
}
"""Type of a pydantic error -> the value that was expected."""


class WrongSetting(NamedTuple):
    """A wrong setting, with a message for the command line and one for a run file, which file, line and key precede."""

    key: str
    on_command_line: str
    in_file: str


def check(tree: Mapping[str, Any], scores: Collection[str] = (), *, typed: bool = False) -> RunSettings | list[WrongSetting]:
    """Returns the settings, or all errors in them. scores: names of custom score functions. typed: whether to reject
    numbers that are given as strings."""
    wrong: list[WrongSetting] = []
    try:
        adapter = _adapter(tuple(family.settings for family in FAMILIES.values()))
        settings = adapter.validate_json(json.dumps(tree), strict=True) if typed else adapter.validate_python(tree)
    except ValidationError as error:
        wrong += (setting for details in error.errors() for setting in _explain(details))
    for key in ("score", "fusion_score"):
        score = tree["model"].get(key)  # a recurrent language model has none
        try:
            if isinstance(score, str):
                check_score_name(score, scores)
        except UserError as error:
            wrong.append(WrongSetting(f"model.{key}", f"--set model.{key}={score}: {error}", str(error)))
    return wrong or settings


@cache
def _adapter(families: tuple[type[ModelSettings], ...]) -> TypeAdapter[RunSettings]:
    """Returns the validator of all settings. It knows the families of the moment, so other families have another validator."""
    return TypeAdapter(RunSettings)


def model_tree(kind: str) -> dict[str, Any] | WrongSetting:
    """Returns all settings of a family or a preset."""
    if kind in (named := presets()):
        return asdict(named[kind])
    if kind in FAMILIES:
        return asdict(FAMILIES[kind].settings())
    kinds = [*FAMILIES, *named]
    text = f"expected one of {', '.join(kinds)}{did_you_mean(kind, kinds)}"
    return WrongSetting("model.kind", f"--set model.kind={kind}: {text}", f"got {kind!r}, {text}")


def unknown(key: str, value: object, tree: Mapping[str, Any]) -> WrongSetting:
    """Returns the error for a key that is not in the tree."""
    known = dict(leaves(tree))
    section, _, name = key.rpartition(".")
    here = list(tree.get(section, tree))
    kind, (new, new_value) = tree["model"]["kind"], migrate.setting(key, value)
    if new == key:
        elsewhere = "".join(f'; did you mean "{other}"?' for other in known if other.rpartition(".")[2] == name)
    elif new in known:
        elsewhere = f'; did you mean "{new}"?' if new_value == value else f'; did you mean "{new}={new_value}"?'
    else:
        elsewhere = f'; it is now called "{new}", which models of the kind {kind} do not have'
    on_command_line = elsewhere or did_you_mean(key, list(known)) or f"; expected one of {', '.join(known)}"
    in_file = elsewhere or did_you_mean(name, here) or f", expected one of {', '.join(here)}"
    of = f" of the model kind {kind}" if section == "model" else ""
    return WrongSetting(
        key, f"--set {key}={value}: there is no setting {key!r}{on_command_line}", f"got an unknown setting{of}{in_file}"
    )


def override(settings: RunSettings, changes: Sequence[str] | Mapping[str, Any], scores: Collection[str] = ()) -> RunSettings:
    """Changes settings by key. Raises UserError with all errors.

    changes: arguments of `--set`, such as "train.steps=300", or values by key, such as {"train.steps": 300}.
    scores: names of custom score functions.
    """
    pairs, errors = (dict(changes), []) if isinstance(changes, Mapping) else parse_changes(changes)
    tree = asdict(settings)
    kind = str(pairs.pop("model.kind", settings.model.kind))
    if kind != settings.model.kind:  # another family has other settings
        model = model_tree(kind)
        if isinstance(model, WrongSetting):
            raise UserError(model.on_command_line)
        if "frontend" in model:  # depends on the data, not on the family
            model["frontend"] = settings.model.traits.frontend
        if "fusion_score" in model:  # that of an older run or model
            model["fusion_score"] = getattr(settings.model, "fusion_score", None)
        tree["model"] = model
    known = dict(leaves(tree))
    for key, value in pairs.items():
        if key in known:
            put(tree, key, _as_tuple(value) if isinstance(known[key], tuple) else value)
        else:
            errors.append(unknown(key, value, tree).on_command_line)
    if errors:
        raise UserError("; ".join(errors))
    changed = check(tree, scores)
    if isinstance(changed, list):
        raise UserError("; ".join(dict.fromkeys(wrong.on_command_line for wrong in changed)))
    return changed


def keys_of(named: Mapping[str, Any], call: str) -> dict[str, Any]:
    """Returns settings by key for settings that are given by name: {"steps": 300} becomes {"train.steps": 300}.

    named: keys, or names without their section, where only one section has a setting of that name.
    call: the function that received them, for error messages. Raises TypeError for a name that is unknown or ambiguous, and for
    a setting that is given twice.
    """
    keys: dict[str, Any] = {}
    for name, value in named.items():
        key = _key_of(name, call)
        if key in keys:
            raise TypeError(f"{call}() got the setting {key!r} twice; give it once")
        keys[key] = value
    return keys


def flat_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a mapping of settings by key, whether it is nested, {"train": {"steps": 300}}, or flat, {"train.steps": 300}."""
    return dict(leaves({str(name): value for name, value in given.items()}))


def _key_of(name: str, call: str) -> str:
    if "." in name:
        return name
    known = list(dict.fromkeys(key for tree in _trees() for key, _ in leaves(tree) if not key.startswith("start.")))
    fitting = [key for key in known if key.rpartition(".")[2] == name]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise TypeError(f"{call}() got {name!r}, which names several settings: {', '.join(fitting)}; give one of these keys")
    names = sorted({key.rpartition(".")[2] for key in known})
    hint = did_you_mean(name, names) or f"; expected one of {', '.join(names)}"
    raise TypeError(f"{call}() got an unknown argument {name!r}, which is no setting either{hint}")


def _trees() -> Iterator[dict[str, Any]]:
    """Yields the default settings with the model of each family."""
    for family in FAMILIES.values():
        yield {**asdict(RunSettings()), "model": asdict(family.settings())}


def describe(settings: RunSettings, reasons: Mapping[str, str]) -> str:
    """Returns the settings that have a reason, one per line, in the form that --set takes, with their reasons."""
    chosen = {
        key: f"{key}={','.join(value) if isinstance(value, tuple) else value}"
        for key, value in leaves(asdict(settings))
        if key in reasons
    }
    width = max(map(len, chosen.values()), default=0)
    return "\n".join(f"  {text:<{width}}  {reasons[key]}" for key, text in chosen.items())


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields all settings as pairs such as ("train.steps", 1000)."""
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def put(tree: dict[str, Any], key: str, value: object) -> None:
    """Sets a value in the tree by its key, such as "train.steps"."""
    *path, last = key.split(".")
    for name in path:
        tree = tree[name]
    tree[last] = value


def show(value: object) -> str:
    """Returns a value of a run file as text for error messages."""
    if isinstance(value, dict | list | tuple):
        return "a mapping" if isinstance(value, dict) else "a list"
    return "nothing" if value is None else str(value).lower() if isinstance(value, bool) else f"{value!r:.80}"


def parse_changes(changes: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Returns the arguments of `--set` as {key: text}, and the errors in them."""
    pairs: dict[str, Any] = {}
    errors: list[str] = []
    for change in changes:
        key, equals, value = change.partition("=")
        if not is_utf_8(change):
            errors.append(f"--set {change!a:.80} is not UTF-8; type it in UTF-8")
        elif equals:
            pairs[key.strip()] = value.strip()
        else:
            errors.append(f"--set {change}: expected key=value, such as train.steps=300")
    return pairs, errors


def _as_tuple(value: Any) -> tuple[str, ...]:
    """Returns the value of a setting that is a list: as it is typed, "a,b", or a list of texts."""
    return tuple(filter(None, value.split(","))) if isinstance(value, str) else tuple(map(str, value))


def _explain(error: Any) -> Iterator[WrongSetting]:
    """Translates a pydantic error; errors that a settings class raises have the type "value_error"."""
    parts = [part for part in error["loc"] if isinstance(part, str) and part not in FAMILIES]
    where = ".".join(parts[:2]) or "model"  # parts that follow name one of several types of a setting
    text, value, context = error["msg"].removeprefix("Value error, "), error["input"], error.get("ctx", {})
    on_command_line = f"--set {where}: {text[0].lower()}{text[1:]}"
    if isinstance(context.get("error"), WrongNumbers):
        for name, (number, expected) in context["error"].wrong.items():
            yield WrongSetting(f"{where}.{name}", on_command_line, f"got {number!r}, expected {expected}")
    elif error["type"] == "value_error":
        yield WrongSetting(where, on_command_line, text)
    else:
        limits = {name: f"{limit:g}" if isinstance(limit, float) else limit for name, limit in context.items()}
        expected = _EXPECTED[error["type"]].format(**limits) if error["type"] in _EXPECTED else text
        choices = re.findall("'([^']+)'", context.get("expected", ""))
        renamed = migrate.VALUES.get(where, {}).get(value) if isinstance(value, str) else None
        hint = f'; did you mean "{renamed}"?' if renamed else did_you_mean(value, choices)
        got = "" if isinstance(value, dict) else f", got {value!r:.80}{hint if renamed else ''}"
        yield WrongSetting(where, on_command_line + got, f"got {show(value)}, expected {expected}{hint}")
