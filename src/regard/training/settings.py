"""All settings of a training run: they are chosen from the data, and users change them with `key=value`."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, reduce
from operator import or_
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, GetCoreSchemaHandler, TypeAdapter, ValidationError
from pydantic_core import CoreSchema

from regard.checkpoint import migrate
from regard.data.codecs import SourceUnit, check_fit, recognise
from regard.data.corpus import Pair
from regard.data.sounds import Sounds
from regard.data.sources import FileCodec, split_source
from regard.data.tokenizers.codec import TokenUnit
from regard.errors import LARGEST_SIZE, UserError, WrongNumbers, did_you_mean, is_utf_8, plural
from regard.layers.scores import check_score_name
from regard.models.build import FAMILIES, file_readers, presets
from regard.models.contract import ModelSettings
from regard.models.rnn_seq2seq import RnnSettings
from regard.models.transformer import PRESETS as TRANSFORMERS

NormalForm = Literal["nfc", "none"]

OLDER: dict[str, Any] = {"data.normalise": "none", "data.header": "usual", "data.bad_lines": "stop"}
"""Settings that older versions lacked, with values that reproduce what those versions did; runs that they started continue
with these."""


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """The files with the pairs, and how pairs become tokens. Paths are relative to the working directory."""

    files: tuple[str, ...] = ()
    """Training data: one file of pairs, or two parallel files, source and target."""
    held_out_files: tuple[str, ...] = ()
    """Held-out data, to validate and evaluate on; if there is none, a part of the pairs is held out."""
    source_columns: tuple[str, ...] = ()
    """Names or numbers (from 1) of the source columns. Columns after the first are appended to it as symbols or, if the first
    holds file names, are the auxiliary text."""
    target_column: str = ""
    """Name or number (from 1) of the target column."""
    header: Literal["auto", "yes", "no", "usual"] = "auto"
    """Whether the first line holds the column names; auto: decided from the lines below it; usual: only if all of them are
    well-known English names, as in runs that older versions started."""
    bad_lines: Literal["stop", "skip"] = "stop"
    """What to do with lines whose columns differ from those of the first: stop with an error, or skip and count them."""
    source_unit: SourceUnit = "characters"
    """Unit of the source tokens; with picture, sound, grid or frames, sources are file names, relative to the folder of the
    data file."""
    target_unit: TokenUnit = "characters"
    """Unit of the target tokens."""
    vocabulary: Annotated[int, Field(ge=300, le=10_000_000)] = 8000
    """Maximum vocabulary size for the units bpe, unigram and words."""
    shared: bool = False
    """Whether source and target share one vocabulary."""
    subword_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Probability of skipping a bpe merge in training, so that words are split in different ways."""
    held_out: Annotated[float, Field(gt=0, lt=1)] = 0.05
    """Fraction of the sources that is held out if there are no held_out_files."""
    normalise: NormalForm = "nfc"
    """Unicode normalisation of texts: nfc turns e with a combining accent into é, none leaves texts unchanged."""
    max_length: Annotated[int, Field(ge=1, le=LARGEST_SIZE)] = 1000
    """Maximum number of characters per side; longer pairs are skipped and counted."""
    picture_size: Annotated[int, Field(ge=8, le=4096)] = 128
    """Pictures: maximum length of the longer side in pixels; larger pictures are scaled down."""
    augment: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Strength of data augmentation for files: pictures are shifted and scaled by up to this fraction of their size; sounds are
    played faster or slower by up to this fraction, with noise, and with spans of time and frequency masked."""
    bad_files: Literal["skip", "stop"] = "skip"
    """What to do with a file that cannot be read: skip and report it, or stop."""

    def __post_init__(self) -> None:
        for name, files in (("files", self.files), ("held_out_files", self.held_out_files)):
            if len(files) > 2:
                raise UserError(f"{name} names {len(files)} files, expected one file of pairs or two parallel files")
        if len(self.files) == 2 and (self.source_columns or self.target_column):
            raise UserError(
                "source_columns and target_column select columns of one file, but files names two parallel files; "
                "leave the columns out, or name one file"
            )
        if self.target_column in self.source_columns:
            raise UserError(f"column {self.target_column!r} is both source and target; leave it out of source_columns")
        units: tuple[str, ...] = (self.source_unit, self.target_unit)
        if self.shared and len(set(units)) > 1:
            raise UserError(
                f"shared=true requires one unit, but source_unit is {units[0]} and target_unit is {units[1]}; "
                "make them equal, or set shared=false"
            )
        if self.subword_dropout and "bpe" not in units:
            raise UserError(
                f"subword_dropout is {self.subword_dropout}, but only the unit bpe has merges to skip, and the units are "
                f"{units[0]} and {units[1]}; set one to bpe, or set subword_dropout=0"
            )


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """How a model is trained. A step is an update of the weights."""

    steps: Annotated[int, Field(ge=1, le=LARGEST_SIZE)] = 1000
    """Number of updates."""
    batch_tokens: Annotated[int, Field(ge=1, le=LARGEST_SIZE)] = 512
    """Maximum number of positions per side in a micro-batch, padding included; a longer pair is a micro-batch by itself."""
    accumulate: Annotated[int, Field(ge=1, le=LARGEST_SIZE)] = 1
    """Number of micro-batches per update."""
    shortest_first: bool = False
    """Whether the first pass over the data goes from short to long pairs; sounds need this (docs/LOG.md)."""
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 4e-3
    """Highest learning rate, reached at the end of the warm-up."""
    schedule: Literal["linear", "inverse_sqrt", "cosine", "constant"] = "linear"
    """How the learning rate falls after the warm-up: linear and cosine fall almost to 0."""
    warmup: Annotated[float, Field(ge=0, le=1)] = 0.05
    """Fraction of the updates during which the learning rate rises."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Fraction of the target probability that is spread over all tokens."""
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.01
    """Weight decay of AdamW."""
    clip: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """Maximum gradient norm; larger gradients are scaled down to it."""
    entropy_bonus: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Hard and gated attention: weight of the entropy bonus, which rewards undecided attention."""
    doubly_stochastic: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Soft attention: weight of the penalty for not attending equally to all source positions (Xu et al. 2015)."""
    validate_every: Annotated[int, Field(ge=0, le=LARGEST_SIZE)] = 0
    """Number of updates between validations; 0: validate only at the end."""
    checkpoint_every: Annotated[int, Field(ge=1, le=LARGEST_SIZE)] = 500
    """Number of updates between checkpoints."""
    keep: Annotated[int, Field(ge=1, le=LARGEST_SIZE)] = 3
    """Number of most recent checkpoints that are kept."""
    average: Annotated[int, Field(ge=0, le=LARGEST_SIZE)] = 0
    """Number of most recent checkpoints that are averaged at the end; 0: none."""
    ema: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Decay of the moving average of the weights; 0: no average."""
    patience: Annotated[int, Field(ge=0, le=LARGEST_SIZE)] = 0
    """Number of validations without improvement after which the run stops; 0: never."""
    metric: Literal["loss", "symbol_error_rate", "sequence_error_rate", "bleu"] = "loss"
    """Metric that decides which validation is the best."""

    def __post_init__(self) -> None:
        if self.patience and not self.validate_every:
            raise UserError(
                f"patience is {plural(self.patience, 'validation')}, but validate_every is 0, so there are none before the end"
                "; set validate_every, e.g. to 500, or patience=0"
            )


@dataclass(frozen=True, kw_only=True)
class StartSettings:
    """The model that a run starts from: none, a whole model that is trained further, or only the encoder of a model."""

    model: str = ""
    """Folder of a model that is trained further, with its settings and vocabulary."""
    encoder: str = ""
    """Folder of a model whose encoder this one takes over."""
    freeze: bool = False
    """Whether the weights of that encoder stay fixed."""

    def __post_init__(self) -> None:
        if self.freeze and not self.encoder:
            raise UserError("--freeze requires an encoder to freeze; name its model with --encoder-from")
        if self.model and self.encoder:
            raise UserError("--start-from takes a whole model and --encoder-from only an encoder; use one of them")


class AnyFamily:
    """Makes pydantic read the settings of a model as those of the family that their `kind` names."""

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        union = reduce(or_, (family.settings for family in FAMILIES.values()))
        return handler.generate_schema(Annotated[union, Field(discriminator="kind")])


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """All settings of a run. Raises UserError if they contradict each other."""

    seed: Annotated[int, Field(ge=0, lt=2**31)] = 1
    """Seed of all random numbers; another seed gives another run."""
    data: DataSettings = DataSettings()
    model: Annotated[ModelSettings, AnyFamily()] = RnnSettings()
    train: TrainSettings = TrainSettings()
    start: StartSettings = StartSettings()

    def __post_init__(self) -> None:
        traits = self.model.traits
        check_fit(self.data.source_unit, traits.frontend, file_readers())
        if self.train.doubly_stochastic and not traits.soft_cross_attention:
            raise UserError(
                f"doubly_stochastic is {self.train.doubly_stochastic}, but this model has no soft attention to its source; "
                "set train.doubly_stochastic=0"
            )
        if traits.shares_vocabulary and not self.data.shared:
            raise UserError("tie=all requires one vocabulary for both sides; set data.shared=true, or tie=output")


DEMO = RunSettings(
    data=DataSettings(target_unit="symbols"),
    model=RnnSettings(width=192, embedding=32, encoder_layers=2, score_width=64, dropout=0.0),
    train=TrainSettings(steps=3200, batch_tokens=512, learning_rate=8e-3),
)
"""Settings for the bundled dictionary; chosen on its dev split (docs/LOG.md)."""


@dataclass(frozen=True)
class Suggestion:
    """Suggested settings, and the reasons, such as {"train.steps": "…"}, for those that were chosen from the data."""

    settings: RunSettings
    reasons: Mapping[str, str]


@dataclass(frozen=True)
class Side:
    """Statistics of one side of the data. words, characters: the mean number per line."""

    words: float
    characters: float
    alphabet: frozenset[str]

    @property
    def width(self) -> float:
        """The mean number of characters per word."""
        return (self.characters - self.words + 1) / self.words

    @property
    def is_symbols(self) -> bool:
        """Whether the words are symbols, such as phonemes: several per line, and short."""
        return self.words > 1.5 and self.width <= 3

    @property
    def is_sentences(self) -> bool:
        return self.words > 3 and not self.is_symbols

    @property
    def tokens(self) -> float:
        """The mean number of tokens per line, for the suggested unit."""
        return 1 + (self.words if self.is_symbols else self.characters)

    @property
    def unit(self) -> TokenUnit:
        """The suggested unit."""
        return "symbols" if self.is_symbols else "characters"

    def __str__(self) -> str:
        what = "symbols" if self.is_symbols else "words"
        return f"{self.words:.1f} {what} of {self.width:.1f} characters per line, on average"


def suggest(pairs: Sequence[Pair], num_pairs: int | None = None, root: Path = Path(), *, of_text: bool = False) -> Suggestion:
    """Returns settings for this data, with reasons.

    num_pairs: the number of all pairs, if `pairs` is only a sample. root: the folder that file names are relative to.
    of_text: whether sources are texts even if they look like file names.

    Files, recognised by their extensions, get the frontend that reads them and a recurrent decoder. Short strings get a small
    recurrent model, sentences a small Transformer with subwords; the less data, the more dropout. Experiments: docs/LOG.md.
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
    """Returns the statistics of some lines."""
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
            "model.kind": "a recurrent model with attention is best and fastest for short strings",
            "model.dropout": ("only " if number < 30_000 else "") + count,
            "train.steps": f"{steps / epoch:.1f} passes over {count}; the aim is 20 passes, in 600 to 8,000 updates",
        },
    )


def _for_files(codec: type[FileCodec], number: int, example: str, target: Side) -> Suggestion:
    count = plural(number, "pair")
    unit = target.unit if target.words < 1.5 else "words"
    few = number < 20_000
    train = TrainSettings(learning_rate=2e-3, ema=0.999, batch_tokens=2048)
    steps = _rounded(min(20_000, max(1000, 30 * number / 16)))  # of about 128 positions each
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
    amount = ("only " if few else "") + count
    reasons = {
        "data.source_unit": f"sources are names of {codec.nouns}, such as {example}",
        "data.target_unit": str(target),
        "model.frontend": f"the frontend for {codec.nouns}",
        "model.kind": "a recurrent decoder that attends to its source at every step trains fastest",
        "model.decoder": LAST_CONTEXT,
        "model.dropout": amount,
        "train.steps": f"the aim is about 30 passes over {count}, in 1,000 to 20,000 updates",
    }
    if is_picture:
        reasons["data.augment"] = f"{amount}: each picture is shifted and scaled a little"
        reasons["data.picture_size"] = "maximum length of the longer side in pixels; 8 x 8 pixels become one position"
    return Suggestion(settings, reasons)


LAST_CONTEXT = "the previous context helps the decoder choose what to attend to next"
FILE_AND_TEXT = "a file and its auxiliary text, which is read as words; positions of the file attend to these words"


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
            "data.augment": f"{count}: each sound is played faster or slower, with noise, and partly masked",
            "model.frontend": "log-mel frames; convolutions turn four frames into one position",
            "model.kind": "a recurrent model with attention trains fastest on little speech",
            "model.decoder": LAST_CONTEXT,
            "train.shortest_first": "short sounds teach the model how words sound before it has to find them in long sounds",
            "train.steps": f"the aim is 20 passes over {count}, in 2,000 to 20,000 updates",
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
            "data.vocabulary": f"{count}; few pairs are not enough for many subwords",
            "model.kind": f"a Transformer for sentences; the preset {'small' if large else 'tiny'} for {count}",
            "model.dropout": ("" if large else "only ") + count,
            "train.batch_tokens": "small batches, so that there are many updates"
            if not large
            else "large batches, because the data is large",
            "train.steps": f"{steps / epoch:.1f} passes over {count}; the aim is 40 passes, in 1,000 to 20,000 updates",
        },
    )


def _rounded(number: float) -> int:
    """Rounds to two significant digits, which are easier to read."""
    size: int = 10 ** max(0, len(str(round(number))) - 2)
    return max(1, round(number / size)) * size


def expectation(number: int) -> str | None:
    """Returns a sentence that says what to expect from few pairs; None if there are enough."""
    if number >= 5000:
        return None
    count = plural(number, "pair")
    return (
        f"{count} is little training data: expect a model that gets frequent patterns right and guesses the rest. "
        "More pairs help most; after that, --encoder-from or --start-from with a model of a related task"
    )


# --- errors ------------------------------------------------------------------------------------------------------------------

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
    score = tree["model"].get("score")  # a recurrent language model has none
    try:
        if isinstance(score, str):
            check_score_name(score, scores)
    except UserError as error:
        wrong.append(WrongSetting("model.score", f"--set model.score={score}: {error}", str(error)))
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


def override(settings: RunSettings, changes: Sequence[str], scores: Collection[str] = ()) -> RunSettings:
    """Applies `--set` arguments such as "train.steps=300". Raises UserError with all errors. scores: names of custom score
    functions."""
    pairs, errors = _parse(changes)
    tree = asdict(settings)
    kind = pairs.pop("model.kind", settings.model.kind)
    if kind != settings.model.kind:  # another family has other settings
        model = model_tree(kind)
        if isinstance(model, WrongSetting):
            raise UserError(model.on_command_line)
        if "frontend" in model:  # depends on the data, not on the family
            model["frontend"] = settings.model.traits.frontend
        tree["model"] = model
    known = dict(leaves(tree))
    for key, value in pairs.items():
        if key in known:
            put(tree, key, tuple(filter(None, value.split(","))) if isinstance(known[key], tuple) else value)
        else:
            errors.append(unknown(key, value, tree).on_command_line)
    if errors:
        raise UserError("; ".join(errors))
    changed = check(tree, scores)
    if isinstance(changed, list):
        raise UserError("; ".join(dict.fromkeys(wrong.on_command_line for wrong in changed)))
    return changed


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


def _parse(changes: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    pairs, errors = {}, []
    for change in changes:
        key, equals, value = change.partition("=")
        if not is_utf_8(change):
            errors.append(f"--set {change!a:.80} is not UTF-8; type it in UTF-8")
        elif equals:
            pairs[key.strip()] = value.strip()
        else:
            errors.append(f"--set {change}: expected key=value, such as train.steps=300")
    return pairs, errors


def _explain(error: Any) -> Iterator[WrongSetting]:
    """Translates a pydantic error; errors that a settings class raises have the type "value_error"."""
    where = ".".join(part for part in error["loc"] if isinstance(part, str) and part not in FAMILIES) or "model"
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
