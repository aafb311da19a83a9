"""Training data: examples, held-out pairs, and the codecs that encoded both."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch

from regard.contracts import FileAndText, SourceText
from regard.data.batch import Batch, Batches, BatchOrder, Example, collate, encode_pairs, lengths
from regard.data.blanks import masked
from regard.data.codecs import FILE_CODECS
from regard.data.corpus import Pair
from regard.data.lengths import Lengths
from regard.data.reader import Reader
from regard.data.seeds import derived_seed
from regard.data.source_text import file_and_text, flat
from regard.data.sources import FileCodec, SourceCodec
from regard.data.tokenizers.codec import Codec
from regard.data.tokenizers.contract import TextCodec
from regard.data.tokenizers.units import TextUnit, train_codec
from regard.data.trained import Sources
from regard.errors import UserError, plural
from regard.signatures import text_fingerprint
from regard.training.settings import DataSettings, TrainSettings

CHUNK = 10_000
"""The number of pairs that are tokenised at a time."""

Unreadable = Callable[[Pair, UserError], None]
"""Called for each pair whose source file cannot be read, and which is left out."""


class Codecs(NamedTuple):
    source: SourceCodec
    target: TextCodec

    @property
    def reader(self) -> Reader:
        """Reads the sources of pairs."""
        return Reader(self.source, self.target)

    def collate(self, examples: Sequence[Example]) -> Batch:
        """Returns a padded batch of these examples."""
        return collate(examples, self.source.specials, self.target.specials)


class StartCodecs(NamedTuple):
    """Codecs that a run takes over from the model it starts from; None where it builds its own."""

    source: SourceCodec | None = None
    target: TextCodec | None = None

    def __bool__(self) -> bool:
        return any(codec is not None for codec in self)


@dataclass(frozen=True)
class HeldOut:
    """Held-out pairs, and the same pairs encoded, once for the whole run."""

    pairs: Sequence[Pair]
    examples: Sequence[Example]

    @classmethod
    def encode(cls, pairs: Sequence[Pair], codecs: Codecs, unreadable: Unreadable | None = None) -> HeldOut:
        """Encodes pairs. If `unreadable` is None, a file that cannot be read raises UserError."""
        skipped: set[SourceText] = set()

        def skip(pair: Pair, error: UserError) -> None:
            if unreadable is None:
                raise error
            unreadable(pair, error)
            skipped.add(pair.source)

        examples = encode_pairs(pairs, codecs.reader, skip)
        return cls([pair for pair in pairs if pair.source not in skipped], examples)

    @cached_property
    def num_sources(self) -> int:
        """The number of distinct sources."""
        return len({pair.key for pair in self.pairs})

    def sample(self, number: int, seed: int) -> HeldOut:
        """Returns all pairs of `number` random sources; the sample depends on the seed, not on the order of the pairs."""
        drawn = {pair.key: derived_seed(seed, "validation", flat(pair.key)) for pair in self.pairs}
        kept = set(sorted(drawn, key=drawn.__getitem__)[:number])
        indices = [index for index, pair in enumerate(self.pairs) if pair.key in kept]
        indices.sort(key=lambda index: drawn[self.pairs[index].key])
        return HeldOut([self.pairs[index] for index in indices], [self.examples[index] for index in indices])

    def describe(self) -> str:
        """Returns the number of pairs, in words."""
        different = f" with {plural(self.num_sources, 'different source')}" if self.num_sources < len(self.pairs) else ""
        return f"{plural(len(self.pairs), f'held-out {self.noun}')}{different}"

    @property
    def noun(self) -> str:
        """What is held out: pairs, or texts without sources."""
        return "pair" if any(pair.source for pair in self.pairs) else "text"


@dataclass(frozen=True)
class TrainingData:
    """Training examples, held-out pairs and the codecs for both.

    name, held_out_name: names of the files that the examples and the held-out pairs come from.
    digest: six characters that change when the data changes. unknown: symbols that codecs taken over from another model cannot
    encode, with their counts. header: the names of the columns, if the file has a header. sources: the training sources, unless
    they are files. description: what was read, and what was left out, in sentences.
    origin: the fingerprint of the data and the sha256 of the codecs, which checkpoints record.
    """

    name: str
    held_out_name: str
    digest: str
    examples: Sequence[Example]
    lengths: Lengths
    held_out: HeldOut
    codecs: Codecs
    unknown: Counter[str]
    header: tuple[str, ...] = ()
    sources: Sources | None = None
    description: str = ""
    origin: Mapping[str, Any] = field(default_factory=dict)

    def batches(
        self, train: TrainSettings, subword_dropout: float, seed: int, augment: float = 0.0, mask: float = 0.0
    ) -> Batches:
        """Returns the batches of every update; subword dropout, augmentation and masks differ from epoch to epoch."""
        order = BatchOrder(
            self.lengths,
            batch_tokens=train.batch_tokens,
            accumulate=train.accumulate,
            seed=seed,
            shortest_first=train.shortest_first,
        )
        vary = partial(self._varied, subword_dropout, augment, mask)
        source, target = (codec.specials for codec in self.codecs)
        return Batches(self.examples, order, vary if subword_dropout or augment or mask else None, source, target)

    def with_blanks(self, mask: float) -> TrainingData:
        """Returns the data with held-out texts that lack tokens, always the same ones."""
        held_out = self.held_out
        examples = [
            masked(example, mask, random.Random(derived_seed(0, "mask", pair.target)), self.codecs.target.specials)
            for pair, example in zip(held_out.pairs, held_out.examples, strict=True)
        ]
        return replace(self, held_out=HeldOut(held_out.pairs, examples))

    def _varied(self, p: float, augment: float, mask: float, example: Example, rng: random.Random) -> Example:
        source, target = self.codecs
        source_row, target_ids = example
        if isinstance(source_row, list):
            if not isinstance(source, FileCodec) and source.has_merges:
                source_row = source.bpe_dropout(source_row, p, rng)
            else:
                source_row = list(source_row)
        elif augment and isinstance(source, FileCodec):
            file, *text = source_row if isinstance(source_row, FileAndText) else (source_row,)
            if len(file):
                file = source.varied(torch.from_numpy(file), augment, rng).numpy()
            source_row = FileAndText(file, *text) if text else file
        varied = Example(source_row, target.bpe_dropout(target_ids, p, rng) if p and target.has_merges else list(target_ids))
        return masked(varied, mask, rng, target.specials) if mask else varied


def in_memory(
    name: str,
    training: Sequence[Pair],
    held_out: Sequence[Pair],
    data: DataSettings,
    start_codecs: StartCodecs | None = None,
    root: Path | None = None,
) -> TrainingData:
    """Returns training data for pairs in memory. root: the folder that file names in the pairs are relative to."""
    start_codecs = start_codecs or StartCodecs()
    codecs = make_codecs(lambda what: iter(training), data, start_codecs, root or Path())
    unknown: Counter[str] = Counter()
    examples = list(encoded(iter(training), codecs, start_codecs, unknown))
    digest = text_fingerprint("\t".join(pair.texts) for pair in training)
    sources = None if data.source_unit in FILE_CODECS else Sources(pair.source for pair in training)
    encoded_held_out = HeldOut.encode(held_out, codecs)
    return TrainingData(name, name, digest, examples, lengths(examples), encoded_held_out, codecs, unknown, sources=sources)


def make_codecs(pairs: Callable[[str], Iterator[Pair]], data: DataSettings, start_codecs: StartCodecs, root: Path) -> Codecs:
    """Builds the codecs from the training pairs, except those in `start_codecs`.

    pairs: returns a new iterator over the training pairs; its argument is the label of the progress bar.
    root: the folder that file names in the pairs are relative to.
    """
    train = partial(train_codec, vocabulary=data.vocabulary, normalise=data.normalise)
    if data.shared and not start_codecs:
        both = (text for pair in pairs("building the vocabulary") for text in pair.texts)
        shared = train(both, data.target_unit)
        return Codecs(shared, shared)
    if start_codecs.source:
        source = start_codecs.source.at(root)
    elif data.source_unit in FILE_CODECS:
        source = _make_file_codec(pairs, data, root, train)
    else:
        sources = (flat(pair.source) for pair in pairs("building the source vocabulary"))
        source = train(sources, cast(TextUnit, data.source_unit))
    targets = (pair.target for pair in pairs("building the target vocabulary"))
    return Codecs(source, start_codecs.target or train(targets, data.target_unit))


def _make_file_codec(
    pairs: Callable[[str], Iterator[Pair]],
    data: DataSettings,
    root: Path,
    train: Callable[[Iterator[str], TextUnit], TextCodec],
) -> FileCodec:
    """Builds the codec of files. If there is a second source column, it includes a vocabulary of the auxiliary texts."""
    kind = FILE_CODECS[data.source_unit]
    names = filter(None, (file_and_text(pair.source)[0] for pair in pairs(f"sampling {kind.nouns}")))
    codec = kind.fit(names, root, picture_size=data.picture_size, max_frames=data.max_frames)
    del names  # only the first few were read; this closes the progress bar
    if len(data.source_columns) < 2:
        return codec
    texts = (file_and_text(pair.source)[1] for pair in pairs("building the vocabulary of the auxiliary texts"))
    return replace(codec, auxiliary=Codec.train(texts, "words", data.vocabulary, normalise=data.normalise == "nfc"))


def encoded(
    pairs: Iterator[Pair], codecs: Codecs, start_codecs: StartCodecs, unknown: Counter[str], bad: Unreadable | None = None
) -> Iterator[Example]:
    """Encodes the pairs; counts in `unknown` the symbols that codecs taken over from another model cannot encode."""
    size, reader = 64 if isinstance(codecs.source, FileCodec) else CHUNK, codecs.reader
    while chunk := list(islice(pairs, size)):
        for pair in chunk:
            if start_codecs.source is not None:
                unknown.update(reader.unknown(pair.source))
            if start_codecs.target is not None:
                unknown.update(codecs.target.unknown(pair.target))
        yield from encode_pairs(chunk, reader, bad)
