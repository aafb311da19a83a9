"""From files to what a run learns from: pairs are read as a stream, and what is tokenised once stays on disk."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from torch import Tensor

from regard.checkpoint.files import replace_file
from regard.data.batch import Batches, Example, Order, encode_pairs, lengths
from regard.data.corpus import Columns, Counts, Pair, is_held_out, read_pairs, stream_pairs
from regard.data.store import Store, write_store
from regard.data.store import fingerprint as fingerprint_files
from regard.data.tokenizers.codec import Codec, learn_shared
from regard.errors import UserError
from regard.evaluation import fingerprint
from regard.training.record import counted
from regard.training.settings import DataSettings, TrainSettings

SAMPLE = 20_000
"""From how many pairs settings are chosen."""
MOST_HELD_OUT = 2_000
TOGETHER = 10_000
"""How many pairs are tokenised at a time."""


STORE, SOURCE, TARGET = "tokens.safetensors", "source.tokenizer.json", "target.tokenizer.json"


class Codecs(NamedTuple):
    source: Codec
    target: Codec


class Given(NamedTuple):
    """Codecs of a model that a run goes on from."""

    source: Codec | None = None
    target: Codec | None = None

    def __bool__(self) -> bool:
        return any(codec is not None for codec in self)


@dataclass(frozen=True)
class Material:
    """All that a run learns from and is measured with.

    digest: six letters that change when any of it does. unknown: symbols that codecs learnt elsewhere do not know.
    """

    name: str
    digest: str
    examples: Sequence[Example]
    lengths: tuple[Tensor, Tensor]
    held_out: Sequence[Pair]
    codecs: Codecs
    unknown: Counter[str]

    def batches(self, train: TrainSettings, subword_dropout: float, seed: int) -> Batches:
        order = Order(self.lengths, batch_tokens=train.batch_tokens, accumulate=train.accumulate, seed=seed)
        return Batches(self.examples, order, self._varied(subword_dropout) if subword_dropout else None)

    def _varied(self, p: float) -> Callable[[Example, random.Random], Example]:
        source, target = self.codecs.source, self.codecs.target
        sides = [codec.redrop if codec.has_merges else lambda ids, p, chance: list(ids) for codec in (source, target)]
        return lambda example, chance: Example(*(side(ids, p, chance) for side, ids in zip(sides, example, strict=True)))


def in_memory(
    name: str, learning: Sequence[Pair], held_out: Sequence[Pair], data: DataSettings, given: Given | None = None
) -> Material:
    """For pairs that are there already."""
    given = given or Given()
    codecs = learn_codecs(lambda what: iter(learning), data, given)
    unknown: Counter[str] = Counter()
    examples = list(_encoded(iter(learning), codecs, given, unknown))
    letters = fingerprint("\t".join(pair) for pair in learning)
    return Material(name, letters, examples, lengths(examples), held_out, codecs, unknown)


def learn_codecs(pairs: Callable[[str], Iterator[Pair]], data: DataSettings, given: Given) -> Codecs:
    """`pairs` starts reading from the first one whenever it is called; it is told what for."""
    sources = (pair.source for pair in pairs("learning source tokens"))
    targets = (pair.target for pair in pairs("learning target tokens"))
    if data.shared and not given:
        both = learn_shared(sources, targets, data.source_unit, data.vocabulary)
        return Codecs(both, both)
    return Codecs(
        given.source or Codec.learn(sources, data.source_unit, data.vocabulary),
        given.target or Codec.learn(targets, data.target_unit, data.vocabulary),
    )


def _encoded(pairs: Iterator[Pair], codecs: Codecs, given: Given, unknown: Counter[str]) -> Iterator[Example]:
    """Counts in `unknown` what a codec that was learnt elsewhere does not know."""
    while some := list(islice(pairs, TOGETHER)):
        for side, codec in enumerate(given):
            if codec is not None:
                unknown.update(symbol for pair in some for symbol in codec.unknown(pair[side]))
        yield from encode_pairs(some, codecs.source, codecs.target)


# --- files -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Survey:
    """What the first pass over the files found, with some of their pairs, each as likely as any other."""

    counts: Counts
    sample: list[Pair]


def survey(data: DataSettings) -> Survey:
    """Reads all pairs once. Mistakes in the files are errors with their line."""
    counts, sample, chance = Counts(), [], random.Random(0)
    for number, pair in enumerate(_stream(data, counts)):
        if number < SAMPLE:
            sample.append(pair)
        elif (place := chance.randrange(number + 1)) < SAMPLE:
            sample[place] = pair
    return Survey(counts, sample)


def from_files(
    data: DataSettings,
    found: Survey,
    folder: Path,
    console: Console,
    given: Given | None = None,
    *,
    begun: bool = False,
) -> Material:
    """Tokenises into `folder`, where it is found again when the run goes on. begun: it has learnt from this data already."""
    given, counts, border = given or Given(), found.counts, 0.0
    if data.held_out_files:
        measuring = read_pairs(_paths(data.held_out_files), _columns(data, data.held_out_files), data.max_length)
        held_out = list(measuring.pairs)
        console.print(measuring.counts.say())
        if shared := counts.say_shared(measuring.counts):
            console.print(shared)
    else:
        border = counts.border(min(data.held_out, MOST_HELD_OUT / counts.pairs))
        held_out = [pair for pair in _stream(data) if is_held_out(pair.source, border)]

    def learning(what: str) -> Iterator[Pair]:
        pairs = counted(_stream(data), counts.pairs, what, console)
        return (pair for pair in pairs if not (border and is_held_out(pair.source, border)))

    how = repr(asdict(replace(data, files=(), held_out_files=(), subword_dropout=0.0)))  # another place is not other data
    codecs = [codec.to_json() for codec in given if codec]
    known = fingerprint_files(*_paths(data.files), *_paths(data.held_out_files), how, *codecs)
    before = _material_in(folder / STORE)
    if begun and before not in (None, known):
        raise UserError(
            f"{counts.name}: the data is not what it was when this run began, and what it has learnt is left alone; "
            "bring the old data back to go on, or begin anew with another --out, or with --overwrite"
        )
    if before != known:
        _tokenise(learning, data, given, folder, known)
    source, target = (Codec.from_json((folder / name).read_text("utf-8")) for name in (SOURCE, TARGET))
    store = Store.open(folder / STORE)
    unknown = Counter(json.loads(store.metadata["unknown"]))
    return Material(counts.name, known[:6], store, store.sizes(), held_out, Codecs(source, target), unknown)


def _tokenise(learning: Callable[[str], Iterator[Pair]], data: DataSettings, given: Given, folder: Path, known: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    codecs = learn_codecs(learning, data, given)
    replace_file(folder / SOURCE, codecs.source.to_json().encode())
    replace_file(folder / TARGET, codecs.target.to_json().encode())
    unknown: Counter[str] = Counter()
    encoded = _encoded(learning("tokenising"), codecs, given, unknown)
    examples = list(encoded) if given else encoded
    metadata = {"material": known, "unknown": json.dumps(unknown)}
    write_store(folder / STORE, examples, len(codecs.source), len(codecs.target), metadata)


def _material_in(store: Path) -> str | None:
    """The fingerprint of what was tokenised; None if there is nothing, or nothing whole."""
    try:
        return Store.open(store).metadata.get("material")
    except UserError:
        return None


def _stream(data: DataSettings, counts: Counts | None = None) -> Iterator[Pair]:
    return stream_pairs(_paths(data.files), _columns(data, data.files), data.max_length, counts)


def _paths(files: Iterable[str]) -> list[Path]:
    return [Path(file) for file in files]


def _columns(data: DataSettings, files: Sequence[str]) -> Columns:
    return Columns() if len(files) > 1 else Columns(data.source_columns, data.target_column)
