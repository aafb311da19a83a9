"""The model card: what a person should know of a model before using it, as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from regard.checkpoint.folder import CURVES
from regard.data.sources import FileCodec, SourceCodec
from regard.errors import one_line, plural
from regard.evaluation import ErrorRates, Perplexity
from regard.languages import Language, Languages
from regard.models.build import num_parameters
from regard.models.contract import Model
from regard.training.assess import Assessment
from regard.training.assess_texts import TextAssessment
from regard.training.data import TrainingData
from regard.training.overrides import leaves
from regard.training.settings import RunSettings

FEW = 5000
"""With fewer training pairs, the card warns that they are few."""
LOOKS_AHEAD = (
    "look_ahead_mask=false: in training each position sees the tokens that it is to write, so losses and scores of given "
    "outputs say nothing about what the model writes"
)
"""What a run and its model card say of a model without the look-ahead mask."""


def make_card(
    model: Model,
    training_data: TrainingData,
    settings: RunSettings,
    reasons: Mapping[str, str],
    rates: ErrorRates | Perplexity,
    signed: str,
    assessment: Assessment | TextAssessment,
    *,
    with_curves: bool,
) -> str:
    """Returns the text of the model card.

    reasons: why settings have the values that they have, by key.  signed: the signature of the figures.
    with_curves: whether the model folder holds a picture of the run.
    """
    sections = {
        "Data": _data(training_data),
        "Quality": f"- Held out: {rates}\n{assessment.card_lines()}- Signature: {signed}\n"
        + (f"\n![Losses and error rates over the updates of the run]({CURVES})\n" if with_curves else ""),
        "Settings": _settings(settings, reasons),
        "Limits": _limits(model, training_data, settings),
        "Use": _use(training_data.codecs.source),
    }
    body = "".join(f"\n## {title}\n\n{text}" for title, text in sections.items())
    return f"# A model trained by regard\n\n{_summary(model, training_data, settings)}\n{body}"


def _summary(model: Model, training_data: TrainingData, settings: RunSettings) -> str:
    """Returns one sentence on what the model is."""
    source = training_data.codecs.source
    reads = "continues texts" if model.traits.continues_text else f"reads {_inputs(source)}"
    languages = Languages.parse(settings.data.languages)
    named = f", from {_names(languages.source)} to {_names(languages.target)}" if languages != Languages() else ""
    taught = f", and learned from {plural(len(settings.start.teachers), 'other model')}" if settings.start.teachers else ""
    return (
        f"It {reads} and writes texts{named}. It is of the family {settings.model.kind} and has "
        f"{num_parameters(model):,} parameters; it was trained on {_size(training_data)} "
        f"for {plural(settings.train.steps, 'update')}{taught}."
    )


def _names(languages: Sequence[Language]) -> str:
    return " and ".join(f"{one_line(language.name, 100)} ({language.code})" for language in languages)


def _size(training_data: TrainingData) -> str:
    return plural(len(training_data.examples), training_data.held_out.noun)


def _inputs(source: SourceCodec) -> str:
    return source.nouns if isinstance(source, FileCodec) else "texts"


def _data(training_data: TrainingData) -> str:
    """Returns what the model was trained and measured on, and what was left out."""
    lines = [f"Data: {training_data.name}, {_size(training_data)}"]
    if training_data.description:
        lines.append(f"As read: {training_data.description}")
    pairs, where = training_data.held_out.describe(), training_data.held_out_name
    lines.append(f"Held out, and never trained on: {pairs}, from {where}")
    lines.append("Licence: that of the data, if it covers models; state it here before you share the model")
    return "".join(f"- {one_line(line, 2000)}\n" for line in lines)


def _settings(settings: RunSettings, reasons: Mapping[str, str]) -> str:
    """Returns a table of the settings that have a reason."""
    rows = [(key, value) for key, value in leaves(asdict(settings)) if key in reasons]
    if not rows:
        return "All settings are in config.json.\n"
    table = "".join(
        f"| `{key}` | {_cell(', '.join(value) if isinstance(value, tuple) else value)} | {_cell(_why(reasons[key]))} |\n"
        for key, value in rows
    )
    return f"| setting | value | reason |\n|---|---|---|\n{table}\nAll settings are in config.json.\n"


def _why(reason: str) -> str:
    """Returns a reason in words that fit a card, whoever gave the setting."""
    return "given" if reason == "given with --set" else reason


def _cell(value: object) -> str:
    return one_line(value, 500).replace("|", "\\|")


def _limits(model: Model, training_data: TrainingData, settings: RunSettings) -> str:
    """Returns what the model was not trained for, and what its figures do not say."""
    source, target = training_data.codecs
    longest, outputs = training_data.lengths.longest
    unit = "position" if isinstance(source, FileCodec) else "token"
    lines = [
        "It was trained for data like the above and for nothing else. It writes an output for any input, right or wrong",
        f"Lengths: its longest training source has {plural(longest, unit)}, its longest target "
        f"{plural(outputs, 'token')}; beyond that it "
        "has seen nothing"
        + (f", and it counts {model.traits.max_positions:,} positions" if model.traits.max_positions else ""),
    ]
    if not isinstance(source, FileCodec) and settings.data.source_unit != "bpe":  # which has a token for every byte
        lines.append(f"Symbols: it knows {len(source):,} source and {len(target):,} target tokens; others become <unk>")
    if len(training_data.examples) < FEW:
        lines.append("Few pairs: it gets frequent patterns right and guesses the rest")
    if model.traits.looks_ahead:
        lines.append(LOOKS_AHEAD)
    chose = ", by which the run also chose its weights; expect a little less on other data" if _chose(settings) else ""
    lines.append(f"The figures are of {training_data.held_out.describe()}{chose}")
    return "".join(f"- {line}\n" for line in lines)


def _chose(settings: RunSettings) -> bool:
    """Returns whether the weights were chosen by validations."""
    return settings.train.weights == "best" and settings.train.validate_every > 0


def _use(source: SourceCodec) -> str:
    """Returns how to load the model."""
    example = "picture.png" if isinstance(source, FileCodec) and source.unit == "picture" else "a text"
    if isinstance(source, FileCodec) and source.unit != "picture":
        example = f"{source.unit}.wav" if source.unit == "sound" else f"{source.unit}.npy"
    return (
        f'```console\n$ echo "{example}" | regard translate path/of/this/folder\n```\n\n'
        f'```python\nimport regard\n\nmodel = regard.load("path/of/this/folder")\nprint(model("{example}").text)\n```\n'
    )
