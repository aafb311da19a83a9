"""All settings of a training run, with their defaults, their limits and their descriptions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal

from pydantic import Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema

from regard.checkpoint.migrate import FUSION_SCORE
from regard.data.codecs import FILE_CODECS, SourceUnit, check_fit
from regard.data.sources import MAX_FRAMES
from regard.data.texts import Contents
from regard.data.tokenizers.units import NormalForm, TextUnit, check_normal_form
from regard.errors import LARGEST_SIZE, UserError, plural
from regard.languages import Languages
from regard.models.build import FAMILIES, file_readers
from regard.models.contract import ModelSettings
from regard.models.rnn_seq2seq import RnnSettings

OLDER: dict[str, Any] = {
    "data.contents": "pairs",
    "data.normalise": "none",
    "data.header": "usual",
    "data.bad_lines": "stop",
    "data.max_frames": MAX_FRAMES,
    "data.languages": (),
    "model.fusion_score": FUSION_SCORE,
}
"""Settings that older versions lacked, with values that reproduce what those versions did; runs that they started continue
with these."""


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """The files with the pairs, and how pairs become tokens. Paths are relative to the working directory."""

    files: tuple[str, ...] = ()
    """Training data: one file of pairs, or two parallel files, source and target."""
    held_out_files: tuple[str, ...] = ()
    """Held-out data, to validate and evaluate on; if there is none, a part of the pairs is held out."""
    contents: Contents = "pairs"
    """What the files hold: pairs; or texts, one per line (lines), or separated by blank lines (paragraphs), as in a book whose
    lines are wrapped. Language models learn from texts."""
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
    languages: tuple[str, ...] = ()
    """Codes of the languages of source and target, such as en,de; with a name en=English; several of one side as de+fr."""
    source_unit: SourceUnit = "characters"
    """Unit of the source tokens; with picture, video, sound, grid, frames or video_grid, sources are file names, relative to
    the folder of the data file."""
    target_unit: TextUnit = "characters"
    """Unit of the target tokens."""
    vocabulary: Annotated[int, Field(ge=300, le=10_000_000)] = 8000
    """Maximum vocabulary size for the units bpe, unigram, words and sentencepiece."""
    shared: bool = False
    """Whether source and target share one vocabulary."""
    subword_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Probability of skipping a bpe merge in training, so that words are split in different ways."""
    held_out: Annotated[float, Field(gt=0, lt=1)] = 0.05
    """Fraction of the sources that is held out if there are no held_out_files."""
    normalise: NormalForm = "nfc"
    """Unicode normalisation of texts: nfc turns e with a combining accent into é, none leaves texts unchanged. The unit
    sentencepiece has nmt_nfkc, nfkc (which also replace characters by compatible ones), and both with _cf (which fold case)."""
    max_length: Annotated[int, Field(ge=1, le=LARGEST_SIZE)] = 1000
    """Maximum number of characters per side; longer pairs are skipped and counted, longer texts are cut."""
    picture_size: Annotated[int, Field(ge=8, le=4096)] = 128
    """Pictures and videos: maximum length of the longer side in pixels; larger pictures are scaled down."""
    max_frames: Annotated[int, Field(ge=1, le=4096)] = MAX_FRAMES
    """Videos: maximum number of frames; of longer videos, evenly spaced frames are read."""
    augment: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Strength of data augmentation for files: pictures and videos are shifted and scaled by up to this fraction of their size;
    sounds are played faster or slower by up to this fraction, with noise, and with spans of time and frequency masked."""
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
        Languages.parse(self.languages)
        if self.target_column in self.source_columns:
            raise UserError(f"column {self.target_column!r} is both source and target; leave it out of source_columns")
        units: tuple[str, ...] = (self.source_unit, self.target_unit)
        if self.shared and len(set(units)) > 1:
            raise UserError(
                f"shared=true requires one unit, but source_unit is {units[0]} and target_unit is {units[1]}; "
                "make them equal, or set shared=false"
            )
        check_normal_form([unit for unit in units if unit not in FILE_CODECS], self.normalise)
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
    precision: Literal["float32", "bfloat16"] = "float32"
    """Type of the numbers in products of matrices while the model learns: bfloat16 is torch's autocast, for devices that have
    it; weights, losses and updates stay float32."""
    policy_gradient: bool = True
    """Hard and gated attention: whether the choices are trained; if not, they are still sampled, but the model does not learn
    where to attend."""
    entropy_bonus: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Hard and gated attention: weight of the entropy bonus, which rewards undecided attention."""
    samples: Annotated[int, Field(ge=1, le=LARGEST_SIZE)] = 1
    """Hard and gated attention: number of times that each example's choices are sampled in an update."""
    baseline: Literal["moving", "leave_one_out", "self_critical"] = "moving"
    """Hard and gated attention: what the reward of a choice is compared with: a moving average (moving), the mean of the
    example's other samples (leave_one_out), or the reward of the most probable choices (self_critical)."""
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
    teacher_weight: Annotated[float, Field(gt=0, le=1)] = 0.5
    """With start.teachers: weight of the loss against their distribution; the rest is the weight of the loss of the targets."""
    metric: Literal["loss", "symbol_error_rate", "sequence_error_rate", "bleu"] = "loss"
    """Metric that decides which validation is the best."""
    weights: Literal["best", "last"] = "best"
    """Which weights the model gets: those with the best validation result; or the last ones (with average: their average),
    which a few held-out pairs cannot mislead."""

    def __post_init__(self) -> None:
        if self.patience and not self.validate_every:
            raise UserError(
                f"patience is {plural(self.patience, 'validation')}, but validate_every is 0, so there are none before the end"
                "; set validate_every, e.g. to 500, or patience=0"
            )
        if self.baseline == "leave_one_out" and self.samples < 2:
            raise UserError(
                "baseline=leave_one_out compares several samples of one example, but samples is 1; set train.samples=4"
            )
        if self.entropy_bonus and not self.policy_gradient:
            raise UserError(
                f"entropy_bonus is {self.entropy_bonus}, but it is part of the policy gradient, which is off; "
                "set policy_gradient=true, or entropy_bonus=0"
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
    teachers: tuple[str, ...] = ()
    """Folders of the models whose distribution, the mean of theirs, the model learns (regard distill)."""

    def __post_init__(self) -> None:
        if self.freeze and not self.encoder:
            raise UserError("--freeze requires an encoder to freeze; name its model with --encoder-from")
        if self.model and self.encoder:
            raise UserError("--start-from takes a whole model and --encoder-from only an encoder; use one of them")
        if self.teachers and (self.model or self.encoder):
            raise UserError(
                "a model that learns from teachers starts with random weights; leave out start.model and start.encoder"
            )


class AnyFamily:
    """Makes pydantic read the settings of a model as those of the family that their `kind` names."""

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        union = reduce(or_, (family.settings for family in FAMILIES.values()))
        return handler.generate_schema(Annotated[union, Field(discriminator="kind")])


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """All settings of a run, as run.yaml holds them. Raises UserError if they contradict each other.

    >>> settings = regard.RunSettings(seed=3)
    >>> settings.model.kind, settings.train.steps
    ('rnn', 1000)
    """

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
        if not traits.sampled_attention and (self.train.samples > 1 or self.train.baseline != "moving"):
            raise UserError(
                f"samples is {self.train.samples} and baseline is {self.train.baseline}, but this model samples no choices; "
                "set model.attention=hard, or train.samples=1 and train.baseline=moving"
            )
        if traits.shares_vocabulary and not self.data.shared:
            which, other = ("copy=true", "copy=false") if self.model.kind == "rnn" else ("tie=all", "tie=output")
            raise UserError(f"{which} requires one vocabulary for both sides; set data.shared=true, or {other}")


DEMO = RunSettings(
    data=DataSettings(target_unit="symbols"),
    model=RnnSettings(width=192, embedding=32, encoder_layers=2, score_width=64, dropout=0.0),
    train=TrainSettings(steps=3200, batch_tokens=512, learning_rate=8e-3),
)
"""Settings for the bundled dictionary; chosen on its dev split (docs/LOG.md)."""
