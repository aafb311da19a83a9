"""Chooses all settings of a run: from the data, a run file, and what the user asked for; with the reasons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from regard.checkpoint.folder import Saved
from regard.data.codecs import FILE_CODECS
from regard.data.texts import recognise_texts
from regard.data.tokenizers.sentencepieces import RULES
from regard.data.tokenizers.units import SENTENCEPIECE
from regard.errors import UserError
from regard.models.build import FAMILIES, presets
from regard.training.order import Order
from regard.training.overrides import override
from regard.training.resume import Previous
from regard.training.settings import DataSettings, RunSettings, TrainSettings
from regard.training.suggest import Suggestion, suggest
from regard.training.suggest_labels import suggest_labels
from regard.training.suggest_portable import suggest_portable
from regard.training.suggest_texts import suggest_texts
from regard.training.survey import Survey, folder_of, names_files, survey
from regard.training.transfer import Start, with_encoder_of

READING = {
    f"data.{name}"
    for name in (
        *("files", "held_out_files", "contents", "source_columns", "target_column"),
        *("header", "bad_lines", "normalise", "max_length"),
    )
}
"""Settings that must be known before the data is read."""


UNITS = ("source_unit", "target_unit")
SUBWORDS = ("bpe", "unigram", "labels", *SENTENCEPIECE)
"""Units whose number of tokens does not correspond to anything that a user counts."""


@dataclass(frozen=True)
class Choice:
    """The settings of a run, the reasons for some of them, such as {"train.steps": "…"}, and the survey of the data."""

    settings: RunSettings
    reasons: Mapping[str, str]
    surveyed: Survey


def choose(order: Order, start: Start, previous: Previous | None = None) -> Choice:
    """Reads the data and chooses all settings.

    start: the model that the run starts from. previous: what the run was trained with so far, if it continues.
    Raises UserError.
    """
    if any(key.startswith("start.") for key in order.changes):
        raise UserError("--set start.…: use --start-from, --encoder-from and --freeze to say what a run starts from")
    defaults = previous.defaults if previous else start.defaults
    if previous and previous.settings["data"]["header"] == "usual" and not order.reading.get("header"):
        order = replace(order, reading={**order.reading, "header": "usual"})
    if order.portable and (other := _obstacle(order, start)):
        raise UserError(f"--portable chooses model and vocabulary, but {other}; leave one of them out")
    complete = order.complete_settings(defaults)
    if complete is None:
        choice = _from_data(order, start, defaults, previous)
        if not previous:
            _check_contents(choice.settings)
        return choice
    settings = override(order.with_options(complete, start.settings), _changes(order), order.scores)
    if not settings.data.files:
        name = order.run_file or "settings"
        raise UserError(f"{name}: data.files: got none, expected files to train on, such as files: [pairs.tsv]")
    if not previous:
        _check_contents(settings)
    return Choice(settings, _reasons(order), survey(settings.data))


def _from_data(order: Order, start: Start, defaults: Mapping[str, Any], previous: Previous | None) -> Choice:
    """Chooses the settings from the data. defaults: those of data.normalise and model.fusion_score. previous: see `choose`."""
    changes, normalise = _changes(order), defaults["data.normalise"]
    tokens = {name: changes[f"data.{name}"] for name in UNITS if changes.get(f"data.{name}") in SENTENCEPIECE}
    if tokens and normalise == "nfc":
        normalise = "nmt_nfkc"
    early = {key: value for key, value in changes.items() if key in READING}
    if early.get("data.normalise") in RULES:  # SentencePiece applies it, not the reader
        early["data.normalise"] = "none"
    usual = RunSettings(data=DataSettings(normalise="none" if normalise in RULES else normalise))
    reading = override(order.with_options(usual, start.settings), early).data
    kind = str(changes.get("model.kind", start.parent.settings.kind if start.parent else ""))
    of_pairs = previous and previous.settings["data"].get("contents", "pairs") == "pairs"  # as language models once were
    learns_from = FAMILIES[kind].settings().traits.learns_from if kind in FAMILIES else "pairs"
    if learns_from == "texts" and tokens:
        raise UserError(
            f"model.kind={kind} continues texts, but SentencePiece puts a space before a continuation; set data.target_unit=bpe"
        )
    if learns_from == "texts" and not of_pairs:
        suggestion, surveyed = _for_texts(kind, reading, changes)
    else:
        suggestion, surveyed = _for_pairs(order, reading, changes)
    if learns_from in ("labels", "tags"):
        suggestion = suggest_labels(kind, surveyed.sample, surveyed.counts.pairs, suggestion)
    if order.portable:
        suggestion = suggest_portable(suggestion, surveyed.counts.pairs)
        normalise = suggestion.settings.data.normalise
    settings, reasons = order.with_options(suggestion.settings, start.settings), {**suggestion.reasons}
    model = settings.model
    if "fusion_score" in model.__dataclass_fields__:
        model = replace(model, fusion_score=defaults["model.fusion_score"])
    if start.saved:  # take over its model settings, and the units of its vocabularies
        reasons["data.normalise"] = f"as {start.name} normalises texts"
        start_data = start.saved.training.get("settings", {}).get("data", {})
        same = ("source_unit",) if start.transfer else ("source_unit", "target_unit", "shared", "vocabulary")
        tokens |= {name: start_data[name] for name in same if name in start_data}
        tokens |= {name: value for name, value in _units_of(start.saved).items() if name in same}
        model = start.saved.settings
        if start.transfer and kind:
            model = with_encoder_of(kind, model)
    data = replace(settings.data, normalise=normalise, **tokens)
    settings = replace(settings, data=data, model=model)
    if start.teachers:
        settings = override(settings, _as_taught(start), order.scores)
        reasons = {"start.teachers": "their mean is what the model learns", "train.steps": f"as {start.name} was trained"}
    return Choice(override(settings, changes, order.scores), {**reasons, **_reasons(order)}, surveyed)


def _units_of(saved: Saved) -> dict[str, Any]:
    """Returns the units of a model that was converted, and so has no settings of a run."""
    sides = zip(UNITS, (saved.source, saved.target), strict=True)
    units = {name: codec.unit for name, codec in sides if codec.unit}
    return {**units, **({"shared": True} if saved.settings.traits.shares_vocabulary else {})}


def _obstacle(order: Order, start: Start) -> str:
    """Returns what else chooses the model or the vocabulary; "" if nothing does."""
    if order.run_file or order.settings:
        return f"the settings come {order.settings_from}"
    if start.saved:
        return f"those of {start.name} are taken over"
    kind = order.changes.get("model.kind", "transformer")
    portable = [name for name, preset in presets().items() if preset.kind == "transformer"]
    return "" if kind == "transformer" or kind in portable else f"model.kind is {kind}"


def _as_taught(start: Start) -> dict[str, Any]:
    """Returns the train settings of the first teacher by key, as far as its folder has them."""
    train = start.teachers[0].training.get("settings", {}).get("train", {})
    return {f"train.{name}": value for name, value in train.items() if name in TrainSettings.__dataclass_fields__}


def _for_texts(kind: str, reading: DataSettings, changes: Mapping[str, Any]) -> tuple[Suggestion, Survey]:
    """Reads texts and suggests settings. kind: the family of the model."""
    reasons = {}
    if reading.contents == "pairs":
        contents, reasons["data.contents"] = recognise_texts(Path(reading.files[0]))
        reading = replace(reading, contents=contents)
    surveyed = survey(reading)
    number = surveyed.counts.pairs
    return suggest_texts(kind, reading.contents, surveyed.sample, number, changes, reasons), surveyed


def _for_pairs(order: Order, reading: DataSettings, changes: Mapping[str, Any]) -> tuple[Suggestion, Survey]:
    """Reads pairs and suggests settings."""
    unit = str(changes.get("data.source_unit", ""))
    surveyed = survey(reading, names=unit in FILE_CODECS if unit else names_files(reading))
    of_text = bool(unit) and unit not in FILE_CODECS
    root = folder_of(tuple(map(str, order.files)))
    return suggest(surveyed.sample, surveyed.counts.pairs, root, of_text=of_text, given=changes), surveyed


def _check_contents(settings: RunSettings) -> None:
    """Raises UserError if the model does not learn from what the files hold. Runs that older versions started continue: their
    language models were trained on the targets of pairs."""
    kind, learns_from = settings.model.kind, settings.model.traits.learns_from
    if learns_from == "texts" and settings.data.contents == "pairs":
        raise UserError(
            f"model.kind={kind} learns from texts, but data.contents is pairs; set data.contents=lines or paragraphs and give "
            "a file of texts, or choose a model that reads a source, such as model.kind=transformer"
        )
    if learns_from != "texts" and settings.data.contents != "pairs":
        raise UserError(
            f"model.kind={kind} learns from pairs, but data.contents is {settings.data.contents}; set model.kind=decoder_only, "
            "which continues texts, or data.contents=pairs"
        )
    if learns_from == "labels" and settings.data.target_unit != "labels":
        raise UserError(
            f"model.kind={kind} writes one label for each source, but data.target_unit is {settings.data.target_unit}; "
            "set data.target_unit=labels"
        )
    if learns_from == "tags" and (settings.data.source_unit in SUBWORDS or settings.data.target_unit in SUBWORDS):
        raise UserError(
            f"model.kind={kind} writes one tag for each source token, but the units are {settings.data.source_unit} and "
            f"{settings.data.target_unit}; set both to one of symbols, words, characters"
        )


def _changes(order: Order) -> dict[str, Any]:
    """Returns the settings that the user gave by key. A custom score function is one of them."""
    *_, score = ("", *order.scores)
    return {**order.changes, "model.score": score} if score else dict(order.changes)


def _reasons(order: Order) -> dict[str, str]:
    return dict.fromkeys(_changes(order), "given with --set")
