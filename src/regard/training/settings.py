"""All settings of a training run: chosen from the data, changed by the user with `key=value`."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, TypeAdapter, ValidationError

from regard.checkpoint import migrate
from regard.data.codecs import SourceUnit, check_fit, recognise
from regard.data.corpus import Pair
from regard.data.sounds import Sounds
from regard.data.sources import FileCodec, split_source
from regard.data.tokenizers.codec import TokenUnit
from regard.errors import LARGEST_SIZE, UserError, WrongNumbers, did_you_mean, is_utf_8, plural
from regard.layers.scores import check_score_name
from regard.models.build import PRESETS, SETTINGS
from regard.models.decoder_only import DecoderOnlySettings
from regard.models.rnn_lm import RnnLmSettings
from regard.models.rnn_seq2seq import RnnSettings
from regard.models.transformer import PRESETS as TRANSFORMERS
from regard.models.transformer import TransformerSettings

NormalForm = Literal["nfc", "none"]

OLDER: dict[str, Any] = {"data.normalise": "none", "data.header": "usual", "data.bad_lines": "stop"}
"""Settings that older versions lacked, with what these did: a run that they began goes on like this."""


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """Where the pairs are and how they become tokens. Names of files are seen from the folder that the command runs in."""

    files: tuple[str, ...] = ()
    """What to learn from: one file of pairs, or two parallel files, source and target."""
    held_out_files: tuple[str, ...] = ()
    """What to measure with; without any, a share of the pairs is held out."""
    source_columns: tuple[str, ...] = ()
    """Names or numbers (from 1) of the columns that are read; those after the first join it as symbols, or, where the first
    names files, as a text beside the file."""
    target_column: str = ""
    """Name or number (from 1) of the column that is written."""
    header: Literal["auto", "yes", "no", "usual"] = "auto"
    """Whether the first line holds the names of the columns; auto: recognised from the lines below it; usual: only where all of
    them are well-known English names, as in runs that older versions began."""
    bad_lines: Literal["stop", "skip"] = "stop"
    """What to do with lines that have other columns than the first: stop, and report them all, or leave them out, counted."""
    source_unit: SourceUnit = "characters"
    """What a source token is; or picture, sound, grid, frames: then the source is the name of a file, seen from the folder of
    the data file."""
    target_unit: TokenUnit = "characters"
    """What a target token is."""
    vocabulary: Annotated[int, Field(ge=300, le=10_000_000)] = 8000
    """How many tokens are learnt where the unit is a piece of a word."""
    shared: bool = False
    """Whether both sides have one vocabulary."""
    subword_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """How often a merge of bpe is left out in training, so that words are seen in other pieces."""
    held_out: Annotated[float, Field(gt=0, lt=1)] = 0.05
    """The share of the sources that is held out, where no files are."""
    normalise: NormalForm = "nfc"
    """Which Unicode spelling texts are read in: nfc makes one of é and of e with an accent, none leaves them as they are."""
    max_length: Annotated[int, Field(ge=1, le=LARGEST_SIZE)] = 1000
    """Characters per side; longer pairs are left out and counted."""
    picture_size: Annotated[int, Field(ge=8, le=4096)] = 128
    """Pictures: the longer side in pixels; larger pictures are made smaller."""
    augment: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """How much files vary in training: pictures are moved and scaled by up to this share of their size; sounds are played
    faster or slower by it, get noise, and lose stretches of time and of bands."""
    bad_files: Literal["skip", "stop"] = "skip"
    """What to do with a file that cannot be read: leave it out and say so, or stop."""

    def __post_init__(self) -> None:
        for name, files in (("files", self.files), ("held_out_files", self.held_out_files)):
            if len(files) > 2:
                raise UserError(f"{name} names {len(files)} files, expected one file of pairs or two parallel ones")
        if len(self.files) == 2 and (self.source_columns or self.target_column):
            raise UserError(
                "source_columns and target_column choose columns of one file, but files names two parallel ones; "
                "leave the columns out, or name one file"
            )
        if self.target_column in self.source_columns:
            raise UserError(f"column {self.target_column!r} is both source and target; leave it out of source_columns")
        units: tuple[str, ...] = (self.source_unit, self.target_unit)
        if self.shared and len(set(units)) > 1:
            raise UserError(
                f"shared=true wants one unit, but source_unit is {units[0]} and target_unit {units[1]}; "
                "make them equal, or set shared=false"
            )
        if self.subword_dropout and "bpe" not in units:
            raise UserError(
                f"subword_dropout is {self.subword_dropout}, but only the unit bpe has merges to leave out, and the units are "
                f"{units[0]} and {units[1]}; set one to bpe, or subword_dropout=0"
            )


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """How a model learns. A step is an update of the weights."""

    steps: Annotated[int, Field(ge=1, le=LARGEST_SIZE)] = 1000
    """Updates of the weights."""
    batch_tokens: Annotated[int, Field(ge=1, le=LARGEST_SIZE)] = 512
    """Target tokens in a micro-batch, about."""
    accumulate: Annotated[int, Field(ge=1, le=LARGEST_SIZE)] = 1
    """Micro-batches per update."""
    shortest_first: bool = False
    """Whether the first time through the data goes from short to long. Sounds want it (docs/LOG.md)."""
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 4e-3
    """The highest, reached at the end of the warm-up."""
    schedule: Literal["linear", "inverse_sqrt", "cosine", "constant"] = "linear"
    """How the learning rate falls after the warm-up: linear and cosine reach 0 at the end of the run."""
    warmup: Annotated[float, Field(ge=0, le=1)] = 0.05
    """The share of the updates in which the learning rate rises."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """How much of the probability the loss wants spread over all tokens."""
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.01
    """Of AdamW."""
    clip: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """The greatest norm of a gradient; longer ones are shortened to it."""
    entropy_bonus: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """For hard attention: how much undecided attention is rewarded."""
    doubly_stochastic: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """For soft attention: how much the loss wants every place to be looked at as much as any other (Xu et al. 2015)."""
    validate_every: Annotated[int, Field(ge=0, le=LARGEST_SIZE)] = 0
    """Updates from one validation to the next; 0: only at the end."""
    checkpoint_every: Annotated[int, Field(ge=1, le=LARGEST_SIZE)] = 500
    """Updates from one checkpoint to the next."""
    keep: Annotated[int, Field(ge=1, le=LARGEST_SIZE)] = 3
    """How many of the last checkpoints are kept."""
    average: Annotated[int, Field(ge=0, le=LARGEST_SIZE)] = 0
    """How many of the last checkpoints are averaged at the end; 0: none."""
    ema: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Decay of a moving average of the weights; 0: none."""
    patience: Annotated[int, Field(ge=0, le=LARGEST_SIZE)] = 0
    """Validations without progress after which the run stops; 0: never."""
    metric: Literal["loss", "symbol_error_rate", "sequence_error_rate", "bleu"] = "loss"
    """What "best" means in a validation."""

    def __post_init__(self) -> None:
        if self.patience and not self.validate_every:
            raise UserError(
                f"patience is {plural(self.patience, 'validation')}, but validate_every is 0, so there are none before the end"
                "; set validate_every, e.g. to 500, or patience=0"
            )


@dataclass(frozen=True, kw_only=True)
class StartSettings:
    """What a run starts from: nothing, a whole model that learns on, or the encoder of another."""

    model: str = ""
    """The folder of a model that learns on, with its settings and vocabulary."""
    encoder: str = ""
    """The folder of a model whose encoder this one takes over."""
    freeze: bool = False
    """Whether that encoder stays as it is."""

    def __post_init__(self) -> None:
        if self.freeze and not self.encoder:
            raise UserError("--freeze keeps an encoder as it is, but there is none; say which with --encoder-from")
        if self.model and self.encoder:
            raise UserError("--start-from takes a whole model and --encoder-from only an encoder; say one of them")


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 1
    """Of all chance: another seed is another run."""
    data: DataSettings = DataSettings()
    model: Annotated[RnnSettings | RnnLmSettings | TransformerSettings | DecoderOnlySettings, Field(discriminator="kind")] = (
        RnnSettings()
    )
    train: TrainSettings = TrainSettings()
    start: StartSettings = StartSettings()

    def __post_init__(self) -> None:
        check_fit(self.data.source_unit, getattr(self.model, "frontend", "tokens"))
        soft = getattr(self.model, "attention", "soft") == "soft" and getattr(self.model, "decoder", "") != "fixed"
        if self.train.doubly_stochastic and not (soft and hasattr(self.model, "frontend")):
            raise UserError(
                f"doubly_stochastic is {self.train.doubly_stochastic}, but this model has no soft attention to its source; "
                "set train.doubly_stochastic=0"
            )
        if getattr(self.model, "tie", None) == "all" and not self.data.shared:
            raise UserError("tie=all wants one vocabulary for both sides; set data.shared=true, or tie=output")


DEMO = RunSettings(
    data=DataSettings(target_unit="symbols"),
    model=RnnSettings(width=192, embedding=32, encoder_layers=2, score_width=64, dropout=0.0),
    train=TrainSettings(steps=3200, batch_tokens=512, learning_rate=8e-3),
)
"""For the embedded dictionary; chosen on its dev split (docs/LOG.md)."""


@dataclass(frozen=True)
class Suggestion:
    """Settings, and why: {"train.steps": "…"} for those that were not simply left as they are."""

    settings: RunSettings
    reasons: Mapping[str, str]


@dataclass(frozen=True)
class Side:
    """What one side of the data looks like; words and characters: in a line, on average."""

    words: float
    characters: float
    alphabet: frozenset[str]

    @property
    def width(self) -> float:
        """Of what stands between spaces."""
        return (self.characters - self.words + 1) / self.words

    @property
    def is_symbols(self) -> bool:
        """Phonemes, say: several to a line, and short."""
        return self.words > 1.5 and self.width <= 3

    @property
    def is_sentences(self) -> bool:
        return self.words > 3 and not self.is_symbols

    @property
    def tokens(self) -> float:
        """In a line, where a token is what `unit` says."""
        return 1 + (self.words if self.is_symbols else self.characters)

    @property
    def unit(self) -> TokenUnit:
        return "symbols" if self.is_symbols else "characters"

    def __str__(self) -> str:
        what = "symbols" if self.is_symbols else "words"
        return f"{self.words:.1f} {what} of {self.width:.1f} characters in a line, on average"


def suggest(pairs: Sequence[Pair], num_pairs: int | None = None, root: Path = Path(), *, of_text: bool = False) -> Suggestion:
    """Settings for this data, without asking anybody. num_pairs: how many there are, if these are only a sample. root: from
    where names of files are seen. of_text: whether it is known that sources are texts, whatever they look like.

    Files, told by their endings, go to a front that reads them, with a recurrent decoder. Short strings go to a small recurrent
    model, sentences to a small Transformer with subwords; the less there is to learn from, the more dropout.
    Experiments: docs/LOG.md.
    """
    number = num_pairs or len(pairs)
    source, target = (side_of([pair[side] for pair in pairs]) for side in (0, 1))
    if not of_text and (codec := recognise([pair.source for pair in pairs[:200]], root)):
        example = next(filter(None, (split_source(pair.source)[0] for pair in pairs)))
        if codec is Sounds:
            return _for_sounds(number, pairs, example)
        return _for_files(codec, number, example, target)
    return (_for_sentences if source.is_sentences and target.is_sentences else _for_strings)(number, source, target)


def side_of(texts: Sequence[str]) -> Side:
    words = sum(max(1, len(text.split())) for text in texts) / len(texts)
    return Side(words, sum(map(len, texts)) / len(texts), frozenset().union(*texts))


def _for_strings(number: int, source: Side, target: Side) -> Suggestion:
    count = plural(number, "pair")
    dropout = 0.3 if number < 30_000 else 0.1
    train = TrainSettings(learning_rate=4e-3, ema=0.999)
    epoch = number * target.tokens / train.batch_tokens
    steps = _rounded(min(8000, max(600, 20 * epoch)))
    train = replace(train, steps=steps, validate_every=_rounded(steps / 8), metric="symbol_error_rate")
    settings = RunSettings(
        data=DataSettings(source_unit=source.unit, target_unit=target.unit),
        model=RnnSettings(width=192, embedding=64, encoder_layers=2, dropout=dropout),
        train=train,
    )
    return Suggestion(
        settings,
        {
            "data.source_unit": str(source),
            "data.target_unit": str(target),
            "model.kind": "short strings are learnt best, and quickest, by a recurrent model with attention",
            "model.dropout": count + (", which is little" if number < 30_000 else ""),
            "train.steps": f"{steps / epoch:.1f} times through {count}; 20 are wanted, in 600 to 8,000 updates",
        },
    )


def _for_files(codec: type[FileCodec], number: int, example: str, target: Side) -> Suggestion:
    count = plural(number, "pair")
    unit = target.unit if target.words < 1.5 else "words"
    few = number < 20_000
    train = TrainSettings(learning_rate=2e-3, ema=0.999, batch_tokens=2048)
    steps = _rounded(min(20_000, max(1000, 30 * number / 16)))  # of 128 places each, say
    train = replace(train, steps=steps, validate_every=_rounded(steps / 8), metric="symbol_error_rate")
    is_picture = codec.unit == "picture"
    settings = RunSettings(
        data=DataSettings(
            source_unit=codec.unit,  # type: ignore[arg-type]
            target_unit=unit,
            augment=0.05 if is_picture and few else 0.0,
        ),
        model=RnnSettings(
            width=192,
            embedding=64,
            decoder="bahdanau",
            frontend=codec.unit,  # type: ignore[arg-type]
            dropout=0.2 if few else 0.1,
        ),
        train=train,
    )
    few_said = count + (", which is little" if few else "")
    reasons = {
        "data.source_unit": f"sources are names of {codec.nouns}, such as {example}",
        "data.target_unit": str(target),
        "model.frontend": f"a front for {codec.nouns}",
        "model.kind": "a recurrent decoder that looks at its source at every word is quickest to learn",
        "model.decoder": "where it looked last tells it where to look next",
        "model.dropout": few_said,
        "train.steps": f"about 30 times through {count} are wanted, in 1,000 to 20,000 updates",
    }
    if is_picture:
        reasons["data.augment"] = f"{few_said}: each is seen a little moved and scaled"
        reasons["data.picture_size"] = "the longer side in pixels; cells of 8 x 8 become one place"
    return Suggestion(settings, reasons)


FILE_AND_TEXT = (
    "a file and a text beside it, of which the words are learnt; the places of the one attend to the words of the other"
)


def _for_sounds(number: int, pairs: Sequence[Pair], example: str) -> Suggestion:
    words = {word for pair in pairs for word in pair.target.split()}
    count = plural(number, "pair")
    closed = len(words) <= min(200, len(pairs) / 4)
    few = number < 20_000
    steps = _rounded(min(20_000, max(2000, 20 * number / 32)))
    settings = RunSettings(
        data=DataSettings(source_unit="sound", target_unit="symbols" if closed else "characters", augment=0.2 if few else 0.1),
        model=RnnSettings(frontend="sound", width=128, embedding=128, channels=32, decoder="bahdanau", dropout=0.1),
        train=TrainSettings(
            learning_rate=4e-3,
            batch_tokens=1024,
            shortest_first=True,
            ema=0.995,
            steps=steps,
            validate_every=_rounded(steps / 8),
            metric="symbol_error_rate",
        ),
    )
    return Suggestion(
        settings,
        {
            "data.source_unit": f"sources are names of sounds, such as {example}",
            "data.target_unit": f"{plural(len(words), 'different word')} in {plural(len(pairs), 'text')}",
            "data.augment": f"{count}: each is heard faster or slower, noisy, without stretches of time and bands",
            "model.frontend": "log-mel frames; convolutions make one place of four of them",
            "model.kind": "a recurrent model with attention learns quickest from little speech",
            "model.decoder": "where it listened last tells it where to listen next",
            "train.shortest_first": "short sounds teach what words sound like, before long ones ask where they are",
            "train.steps": f"20 times through {count} are wanted, in 2,000 to 20,000 updates",
            **({"data.source_columns": FILE_AND_TEXT} if any("\t" in pair.source for pair in pairs) else {}),
        },
    )


def _for_sentences(number: int, source: Side, target: Side) -> Suggestion:
    count = plural(number, "pair")
    common = len(source.alphabet & target.alphabet) / len(source.alphabet | target.alphabet)
    shared = common > 0.5
    vocabulary = min(8000, max(1000, 500 * round(number / 1800)))
    large = number > 200_000
    preset = TRANSFORMERS["small" if large else "tiny"]
    model = replace(preset, tie="all" if shared else "output", dropout=0.1 if large else 0.3)
    train = TrainSettings(batch_tokens=2048, learning_rate=3e-3, label_smoothing=0.1, ema=0.999)
    if not large:
        train = replace(train, batch_tokens=1024, warmup=0.02)
    epoch = number * target.words * 1.4 / train.batch_tokens
    steps = _rounded(min(20_000, max(1000, 40 * epoch)))
    settings = RunSettings(
        data=DataSettings(source_unit="bpe", target_unit="bpe", shared=shared, vocabulary=vocabulary),
        model=model,
        train=replace(train, steps=steps, validate_every=_rounded(steps / 10)),
    )
    return Suggestion(
        settings,
        {
            "data.source_unit": str(source),
            "data.target_unit": str(target),
            "data.shared": f"{common:.0%} of all characters occur on both sides",
            "data.vocabulary": f"{count}; few pairs cannot teach many subwords",
            "model.kind": f"sentences; {count}" + (" are enough for the preset small" if large else ": the preset tiny"),
            "model.dropout": count + ("" if large else ", which is little"),
            "train.batch_tokens": "many small updates" if not large else "the data is large",
            "train.steps": f"{steps / epoch:.1f} times through {count}; 40 are wanted, in 1,000 to 20,000 updates",
        },
    )


def _rounded(number: float) -> int:
    """To two digits, which are easier to read and to remember."""
    size: int = 10 ** max(0, len(str(round(number))) - 2)
    return max(1, round(number / size)) * size


def expectation(number: int) -> str | None:
    """What to expect of few pairs."""
    if number >= 5000:
        return None
    count = plural(number, "pair")
    return (
        f"{count} is little to learn from: expect a model that gets the frequent patterns right and guesses the others. "
        "More pairs help most, then --encoder-from or --start-from with a model of a related task"
    )


# --- mistakes ----------------------------------------------------------------------------------------------------------------

_ADAPTER = TypeAdapter(RunSettings)
_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "a text",
    "tuple_type": "a list, such as [one, two]",
    "greater_than": "more than {gt}",
    "greater_than_equal": "{ge} or more",
    "less_than": "less than {lt}",
    "less_than_equal": "{le} at most",
    "finite_number": "a finite number",
    "literal_error": "one of {expected}",
}
"""What pydantic calls a mistake -> what a run file should have said."""


class Mistake(NamedTuple):
    """One wrong setting, in the words of the command line and of a run file, where key and line are said before."""

    key: str
    on_command_line: str
    in_file: str


def check(tree: Mapping[str, Any], scores: Collection[str] = (), *, typed: bool = False) -> RunSettings | list[Mistake]:
    """Settings, or all that is wrong with them. `scores`: names of own ones. typed: a number must not be written as a text."""
    mistakes: list[Mistake] = []
    try:
        settings: RunSettings = (
            _ADAPTER.validate_json(json.dumps(tree), strict=True) if typed else _ADAPTER.validate_python(tree)
        )
    except ValidationError as error:
        mistakes += (mistake for one in error.errors() for mistake in _explain(one))
    score = tree["model"].get("score")  # a language model of recurrent cells has none
    try:
        if isinstance(score, str):
            check_score_name(score, scores)
    except UserError as error:
        mistakes.append(Mistake("model.score", f"--set model.score={score}: {error}", str(error)))
    return mistakes or settings


def model_tree(kind: str) -> dict[str, Any] | Mistake:
    """All settings of a family or a preset."""
    if kind in PRESETS:
        return asdict(PRESETS[kind])
    if kind in SETTINGS:
        return asdict(SETTINGS[kind]())
    kinds = [*SETTINGS, *PRESETS]
    text = f"expected one of {', '.join(kinds)}{did_you_mean(kind, kinds)}"
    return Mistake("model.kind", f"--set model.kind={kind}: {text}", f"got {kind!r}, {text}")


def unknown(key: str, value: object, tree: Mapping[str, Any]) -> Mistake:
    """There is no such key in this tree."""
    known = dict(leaves(tree))
    section, _, name = key.rpartition(".")
    here = list(tree.get(section, tree))
    new = migrate.SETTINGS.get(key)
    elsewhere = "".join(f'; did you mean "{one}"?' for one in known if one == new or one.rpartition(".")[2] == name)
    said = elsewhere or did_you_mean(key, list(known)) or f"; expected one of {', '.join(known)}"
    written = elsewhere or did_you_mean(name, here) or f", expected one of {', '.join(here)}"
    of = f" of the kind {tree['model']['kind']}" if section == "model" else ""
    return Mistake(key, f"--set {key}={value}: there is no setting {key!r}{said}", f"got an unknown setting{of}{written}")


def override(settings: RunSettings, changes: Sequence[str], scores: Collection[str] = ()) -> RunSettings:
    """Applies `--set` arguments such as "train.steps=300". All mistakes are reported at once. `scores`: names of own ones."""
    pairs, mistakes = _parse(changes)
    tree = asdict(settings)
    kind = pairs.pop("model.kind", settings.model.kind)
    if kind != settings.model.kind:  # another family has settings of its own
        found = model_tree(kind)
        if isinstance(found, Mistake):
            raise UserError(found.on_command_line)
        if "frontend" in found:  # what the data is stays
            found["frontend"] = getattr(settings.model, "frontend", "tokens")
        tree["model"] = found
    known = dict(leaves(tree))
    for key, value in pairs.items():
        if key in known:
            put(tree, key, tuple(filter(None, value.split(","))) if isinstance(known[key], tuple) else value)
        else:
            mistakes.append(unknown(key, value, tree).on_command_line)
    if mistakes:
        raise UserError("; ".join(mistakes))
    changed = check(tree, scores)
    if isinstance(changed, list):
        raise UserError("; ".join(dict.fromkeys(mistake.on_command_line for mistake in changed)))
    return changed


def describe(settings: RunSettings, reasons: Mapping[str, str]) -> str:
    """What was chosen and why, in the form that --set takes, a line for each."""
    chosen = {
        key: f"{key}={','.join(value) if isinstance(value, tuple) else value}"
        for key, value in leaves(asdict(settings))
        if key in reasons
    }
    width = max(map(len, chosen.values()), default=0)
    return "\n".join(f"  {text:<{width}}  {reasons[key]}" for key, text in chosen.items())


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """("train.steps", 1000) and all others."""
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def put(tree: dict[str, Any], key: str, value: object) -> None:
    """Changes what stands at "train.steps"."""
    *path, last = key.split(".")
    for name in path:
        tree = tree[name]
    tree[last] = value


def show(value: object) -> str:
    """A value as a run file has it, for people."""
    if isinstance(value, dict | list | tuple):
        return "a mapping" if isinstance(value, dict) else "a list"
    return "nothing" if value is None else str(value).lower() if isinstance(value, bool) else f"{value!r:.80}"


def _parse(changes: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    pairs, mistakes = {}, []
    for change in changes:
        key, equals, value = change.partition("=")
        if not is_utf_8(change):
            mistakes.append(f"--set {change!a:.80}: half a character, expected whole ones; type it in UTF-8")
        elif equals:
            pairs[key.strip()] = value.strip()
        else:
            mistakes.append(f"--set {change}: expected key=value, such as train.steps=300")
    return pairs, mistakes


def _explain(error: Any) -> Iterator[Mistake]:
    """What pydantic found wrong; it reports what a settings class raises as "value_error"."""
    where = ".".join(part for part in error["loc"] if isinstance(part, str) and part not in SETTINGS) or "model"
    text, value, context = error["msg"].removeprefix("Value error, "), error["input"], error.get("ctx", {})
    said = f"--set {where}: {text[0].lower()}{text[1:]}"
    if isinstance(context.get("error"), WrongNumbers):
        for name, (number, expected) in context["error"].wrong.items():
            yield Mistake(f"{where}.{name}", said, f"got {number!r}, expected {expected}")
    elif error["type"] == "value_error":
        yield Mistake(where, said, text)
    else:
        limits = {name: f"{limit:g}" if isinstance(limit, float) else limit for name, limit in context.items()}
        expected = _EXPECTED[error["type"]].format(**limits) if error["type"] in _EXPECTED else text
        choices = re.findall("'([^']+)'", context.get("expected", ""))
        renamed = migrate.VALUES.get(where, {}).get(value) if isinstance(value, str) else None
        hint = f'; did you mean "{renamed}"?' if renamed else did_you_mean(value, choices)
        got = "" if isinstance(value, dict) else f", got {value!r:.80}{hint if renamed else ''}"
        yield Mistake(where, said + got, f"got {show(value)}, expected {expected}{hint}")
