"""All settings of a training run: chosen from the data, changed by the user with `key=value`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from regard.data.corpus import Pair
from regard.data.tokenizers.codec import Unit
from regard.errors import UserError, did_you_mean
from regard.layers.scores import check_score_name
from regard.models.build import PRESETS, SETTINGS
from regard.models.decoder_only import DecoderOnlySettings
from regard.models.rnn_lm import RnnLmSettings
from regard.models.rnn_seq2seq import RnnSettings
from regard.models.transformer import TransformerSettings


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    source: Unit = "characters"
    target: Unit = "characters"
    held_out: Annotated[float, Field(gt=0, lt=1)] = 0.05


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """The learning rate rises for `warmup` (a share of the updates) and then falls in a straight line to 0."""

    steps: Annotated[int, Field(ge=1)] = 1000
    batch_tokens: Annotated[int, Field(ge=1)] = 512
    learning_rate: Annotated[float, Field(gt=0)] = 4e-3
    warmup: Annotated[float, Field(ge=0, le=1)] = 0.05
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    clip: Annotated[float, Field(gt=0)] = 1.0
    entropy_bonus: Annotated[float, Field(ge=0)] = 0.0
    """For hard attention: how much undecided attention is rewarded."""


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 1
    data: DataSettings = DataSettings()
    model: Annotated[RnnSettings | RnnLmSettings | TransformerSettings | DecoderOnlySettings, Field(discriminator="kind")] = (
        RnnSettings()
    )
    train: TrainSettings = TrainSettings()


DEMO = RunSettings(
    data=DataSettings(source="characters", target="symbols"),
    model=RnnSettings(width=192, embedding=32, encoder_layers=2, score_width=64, dropout=0.0),
    train=TrainSettings(steps=3200, batch_tokens=512, learning_rate=8e-3),
)
"""For the embedded dictionary; chosen on its dev split (docs/LOG.md)."""


def suggest(pairs: Sequence[Pair]) -> RunSettings:
    """Settings for this data, without asking anybody."""
    units = DataSettings(source=_unit([pair.source for pair in pairs]), target=_unit([pair.target for pair in pairs]))
    tokens = sum(len(pair.target.split() if units.target == "symbols" else pair.target) + 1 for pair in pairs)
    train = TrainSettings()
    return RunSettings(data=units, train=replace(train, steps=min(3000, max(300, 20 * tokens // train.batch_tokens))))


def _unit(texts: Sequence[str]) -> Unit:
    """Symbols, if most lines have several and they are as short as phonemes are; else characters."""
    words = [word for text in texts for word in text.split()]
    several = sum(" " in text for text in texts) > len(texts) / 2
    return "symbols" if several and sum(map(len, words)) <= 3 * len(words) else "characters"


def override(settings: RunSettings, changes: Sequence[str], scores: Collection[str] = ()) -> RunSettings:
    """Applies `--set` arguments such as "train.steps=300". All mistakes are reported at once. `scores`: names of own ones."""
    pairs, mistakes = _parse(changes)
    tree = asdict(settings)
    kind = pairs.pop("model.kind", settings.model.kind)
    if kind not in (kinds := [*SETTINGS, *PRESETS]):
        raise UserError(f"--set model.kind={kind}: expected one of {', '.join(kinds)}{did_you_mean(kind, kinds)}")
    if kind != settings.model.kind:  # another family has settings of its own
        tree["model"] = asdict(PRESETS[kind] if kind in PRESETS else SETTINGS[kind]())
    known = dict(_leaves(tree))
    for key, value in pairs.items():
        if key not in known:
            hint = did_you_mean(key, list(known)) or f"; expected one of {', '.join(known)}"
            mistakes.append(f"--set {key}={value}: there is no setting {key!r}{hint}")
            continue
        *path, last = key.split(".")
        branch = tree
        for name in path:
            branch = branch[name]
        branch[last] = value
    if mistakes:
        raise UserError("; ".join(mistakes))
    try:
        changed: RunSettings = TypeAdapter(RunSettings).validate_python(tree)
    except ValidationError as error:
        raise UserError("; ".join(_explain(one) for one in error.errors())) from None
    score = getattr(changed.model, "score", None)  # a language model of recurrent cells has none
    try:
        if score is not None:
            check_score_name(score, scores)
    except UserError as error:
        raise UserError(f"--set model.score={score}: {error}") from None
    return changed


def describe(settings: RunSettings) -> str:
    """All settings, in the form that --set takes, a line for each group."""
    groups: dict[str, list[str]] = {}
    for key, value in _leaves(asdict(settings)):
        groups.setdefault(key.partition(".")[0], []).append(f"{key}={value}")
    return "\n".join("  " + " ".join(group) for group in groups.values())


def _parse(changes: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    pairs, mistakes = {}, []
    for change in changes:
        key, equals, value = change.partition("=")
        if equals:
            pairs[key.strip()] = value.strip()
        else:
            mistakes.append(f"--set {change}: expected key=value, such as train.steps=300")
    return pairs, mistakes


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _explain(error: Any) -> str:
    where = ".".join(str(part) for part in error["loc"] if part not in SETTINGS)
    text = error["msg"].removeprefix("Value error, ")
    got = "" if isinstance(error["input"], dict) else f", got {error['input']!r}"
    return f"--set {where}: {text[0].lower()}{text[1:]}{got}"
