"""Settings that are chosen from the data, with the reasons. The experiments behind them: docs/LOG.md."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from regard.data.codecs import recognise
from regard.data.corpus import Pair
from regard.data.sounds import Sounds
from regard.data.source_text import file_and_text
from regard.data.sources import FileCodec
from regard.data.tokenizers.codec import TokenUnit
from regard.data.videos import VideoGrids, Videos
from regard.errors import plural
from regard.models.rnn_seq2seq import RnnSettings
from regard.models.transformer import PRESETS
from regard.training.monotone import order_correlation
from regard.training.settings import DataSettings, RunSettings, TrainSettings


@dataclass(frozen=True)
class Suggestion:
    """Suggested settings, and the reasons, such as {"train.steps": "…"}, for those that were chosen from the data."""

    settings: RunSettings
    reasons: Mapping[str, str]


@dataclass(frozen=True)
class Side:
    """Statistics of one side of the data. words, characters: the mean number per line. is_closed: whether the same few words
    occur again and again."""

    words: float
    characters: float
    alphabet: frozenset[str]
    is_closed: bool = False

    @property
    def width(self) -> float:
        """The mean number of characters per word."""
        return (self.characters - self.words + 1) / self.words

    @property
    def is_symbols(self) -> bool:
        """Whether the words are symbols, such as phonemes or commands: several per line, and short or few."""
        return self.words > 1.5 and (self.width <= 3 or self.is_closed)

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

    def split(self, text: str) -> list[str]:
        """Splits a text into the suggested units."""
        return text.split() if self.is_symbols else list(text)

    def __str__(self) -> str:
        what = "symbols" if self.is_symbols else "words"
        return f"{self.words:.1f} {what} of {self.width:.1f} characters per line, on average"


def suggest(
    pairs: Sequence[Pair],
    num_pairs: int | None = None,
    root: Path = Path(),
    *,
    of_text: bool = False,
    given: Collection[str] = (),
) -> Suggestion:
    """Returns settings for this data, with reasons.

    num_pairs: the number of all pairs, if `pairs` is only a sample. root: the folder that file names are relative to.
    of_text: whether sources are texts even if they look like file names. given: the names of settings that the user gives.

    Files, recognised by their extensions, get the frontend that reads them and a recurrent decoder. Short strings get a small
    recurrent model, with monotone attention if there are few and their order is that of the source; sentences get a small
    Transformer with subwords; the less data, the more dropout. Units are chosen by the texts without their features.
    Evidence: docs/choosing.md, docs/LOG.md.
    """
    number = num_pairs or len(pairs)
    texts = [pair.source if isinstance(pair.source, str) else pair.source[0] for pair in pairs]
    source, target = side_of(texts), side_of([pair.target for pair in pairs])
    if not of_text and (codec := recognise([pair.source for pair in pairs[:200]], root)):
        example = next(filter(None, (file_and_text(pair.source)[0] for pair in pairs)))
        if codec is Sounds:
            return _for_sounds(number, pairs, example)
        return _for_files(codec, number, example, target)
    if source.is_sentences and target.is_sentences:
        return _for_sentences(number, source, target)
    if max(source.tokens, target.tokens) <= LONGEST_MONOTONE and not ATTENDS & set(given):
        symbols = [(source.split(pair.source), target.split(pair.target)) for pair in pairs if isinstance(pair.source, str)]
        if len(symbols) == len(pairs) and (order := order_correlation(symbols)) >= SAME_ORDER:
            return _for_monotone_strings(number, source, target, order)
    return _for_strings(number, source, target, "luong" if ATTENDS & set(given) else "bahdanau")


def side_of(texts: Sequence[str]) -> Side:
    """Returns the statistics of some lines."""
    words = sum(max(1, len(text.split())) for text in texts) / len(texts)
    lines = set(texts)
    vocabulary = {word for line in lines for word in line.split()}
    is_closed = len(vocabulary) <= min(MOST_CLOSED, len(lines) / 4)
    return Side(words, sum(map(len, texts)) / len(texts), frozenset().union(*texts), is_closed)


MOST_CLOSED = 200
"""A vocabulary is closed if it has at most so many words, and at most a quarter of the number of different lines."""


LONGEST_MONOTONE = 40
SAME_ORDER = 0.85
"""Strings get monotone attention if they have at most LONGEST_MONOTONE tokens per side on average, and their order correlates
at least so much."""
ATTENDS = {"model.kind", "model.decoder", "model.input_feeding", "model.readout", "model.attention", "model.score"}
"""Whoever gives one of these settings chooses how the model attends."""


@dataclass(frozen=True)
class Size:
    """Sizes of a model with monotone attention, and of its training, for at most so many pairs."""

    most_pairs: float
    width: int
    encoder_width: int
    dropout: float
    batch_tokens: int
    learning_rate: float
    most_steps: int


MONOTONE_SIZES = (
    Size(20_000, 96, 320, 0.3, 352, 2e-3, 4000),
    Size(60_000, 128, 448, 0.3, 512, 4e-3, 11_000),
    Size(float("inf"), 128, 384, 0.1, 512, 4e-3, 11_000),
)


def _for_monotone_strings(number: int, source: Side, target: Side, order: float) -> Suggestion:
    count = plural(number, "pair")
    size = next(size for size in MONOTONE_SIZES if number <= size.most_pairs)
    train = TrainSettings(learning_rate=size.learning_rate, schedule="cosine", warmup=0.08, batch_tokens=size.batch_tokens)
    epoch = number * max(source.tokens, target.tokens) / train.batch_tokens
    steps = rounded(min(size.most_steps, max(600, 22 * epoch)))
    settings = RunSettings(
        data=DataSettings(source_unit=source.unit, target_unit=target.unit),
        model=RnnSettings(
            cell="lstm",
            width=size.width,
            encoder_width=size.encoder_width,
            embedding=64,
            attention="monotone",
            score="general",
            readout="plain",
            bridge="zero",
            dropout=size.dropout,
        ),
        train=replace(train, steps=steps, validate_every=rounded(steps / 4), metric="symbol_error_rate", weights="last"),
    )
    return Suggestion(
        settings,
        {
            "data.source_unit": str(source),
            "data.target_unit": str(target),
            "model.kind": "a recurrent model with attention is best and fastest for short strings",
            "model.attention": f"targets have the order of their sources (correlation {order:.2f}): "
            "each symbol comes from one source position, and these only move to the right",
            "model.width": f"for {count}",
            "model.dropout": f"for {count}",
            "train.steps": f"{steps / epoch:.1f} passes over {count}; "
            f"the aim is 22 passes, in 600 to {size.most_steps:,} updates",
            "train.weights": "the learning rate falls to 0, so the last weights are the best; few held-out pairs mislead",
        },
    )


def _for_strings(number: int, source: Side, target: Side, decoder: Literal["luong", "bahdanau"]) -> Suggestion:
    count = plural(number, "pair")
    dropout = 0.3 if number < 30_000 else 0.1
    train = TrainSettings(learning_rate=4e-3, ema=0.999)
    epoch = number * target.tokens / train.batch_tokens
    steps = rounded(min(8000, max(600, 20 * epoch)))
    train = replace(train, steps=steps, validate_every=rounded(steps / 8), metric="symbol_error_rate")
    settings = RunSettings(
        data=DataSettings(source_unit=source.unit, target_unit=target.unit),
        model=RnnSettings(width=192, embedding=64, encoder_layers=2, decoder=decoder, dropout=dropout),
        train=train,
    )
    return Suggestion(
        settings,
        {
            "data.source_unit": str(source),
            "data.target_unit": str(target),
            "model.kind": "a recurrent model with attention is best and fastest for short strings",
            **({"model.decoder": LAST_CONTEXT} if decoder == "bahdanau" else {}),
            "model.dropout": ("only " if number < 30_000 else "") + count,
            "train.steps": f"{steps / epoch:.1f} passes over {count}; the aim is 20 passes, in 600 to 8,000 updates",
        },
    )


def _for_files(codec: type[FileCodec], number: int, example: str, target: Side) -> Suggestion:
    count = plural(number, "pair")
    unit = target.unit if target.words < 1.5 else "words"
    few = number < 20_000
    train = TrainSettings(learning_rate=2e-3, ema=0.999, batch_tokens=2048)
    steps = rounded(min(20_000, max(1000, 30 * number / 16)))  # of about 128 positions each
    train = replace(train, steps=steps, validate_every=rounded(steps / 8), metric="symbol_error_rate")
    is_video, has_pixels = codec is Videos, codec.unit in ("picture", "video")
    settings = RunSettings(
        data=DataSettings(
            source_unit=codec.unit,  # type: ignore[arg-type]
            target_unit=unit,
            augment=0.05 if has_pixels and few else 0.0,
            picture_size=VIDEO_SIZE if is_video else DataSettings.picture_size,
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
    if has_pixels:
        reasons["data.augment"] = f"{amount}: each {codec.unit} is shifted and scaled a little"
        reasons["data.picture_size"] = "maximum length of the longer side in pixels; 8 x 8 pixels become one position"
    if codec in (Videos, VideoGrids):
        reasons["data.max_frames"] = "evenly spaced frames of longer videos are read"
    return Suggestion(settings, reasons)


VIDEO_SIZE = 64
"""Suggested size of videos in pixels: 32 frames of 64 x 64 pixels become 2,048 positions."""
LAST_CONTEXT = "the previous context helps the decoder choose what to attend to next"
FILE_AND_TEXT = "a file and its auxiliary text, which is read as words; positions of the file attend to these words"


def _for_sounds(number: int, pairs: Sequence[Pair], example: str) -> Suggestion:
    words = {word for pair in pairs for word in pair.target.split()}
    count = plural(number, "pair")
    closed = len(words) <= min(MOST_CLOSED, len(pairs) / 4)
    few = number < 20_000
    steps = rounded(min(20_000, max(2000, 20 * number / 32)))
    settings = RunSettings(
        data=DataSettings(source_unit="sound", target_unit="symbols" if closed else "characters", augment=0.2 if few else 0.1),
        model=RnnSettings(frontend="sound", width=128, embedding=128, channels=32, decoder="bahdanau", dropout=0.1),
        train=TrainSettings(
            learning_rate=4e-3,
            batch_tokens=1024,
            shortest_first=True,
            ema=0.995,
            steps=steps,
            validate_every=rounded(steps / 8),
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
            **({"data.source_columns": FILE_AND_TEXT} if any(isinstance(pair.source, tuple) for pair in pairs) else {}),
        },
    )


def _for_sentences(number: int, source: Side, target: Side) -> Suggestion:
    count = plural(number, "pair")
    common = len(source.alphabet & target.alphabet) / len(source.alphabet | target.alphabet)
    shared = common > 0.5
    vocabulary = min(8000, max(1000, 500 * round(number / 1800)))
    large = number > 200_000
    preset = PRESETS["small" if large else "tiny"]
    model = replace(preset, tie="all" if shared else "output", dropout=0.1 if large else 0.3)
    train = TrainSettings(batch_tokens=2048, learning_rate=3e-3, label_smoothing=0.1, ema=0.999)
    if not large:
        train = replace(train, batch_tokens=1024, warmup=0.02)
    epoch = number * target.words * 1.4 / train.batch_tokens
    steps = rounded(min(20_000, max(1000, 40 * epoch)))
    settings = RunSettings(
        data=DataSettings(source_unit="bpe", target_unit="bpe", shared=shared, vocabulary=vocabulary),
        model=model,
        train=replace(train, steps=steps, validate_every=rounded(steps / 10)),
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


def rounded(number: float) -> int:
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
