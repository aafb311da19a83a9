"""From files to what a run learns from: pairs are read as a stream, and what is tokenised once stays on disk."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from rich.console import Console
from torch import Tensor

from regard.checkpoint import migrate
from regard.checkpoint.files import replace_file, sha256, writing
from regard.checkpoint.folder import FILE_SOURCE, SOURCE, TARGET, read_codec, read_source_codec, source_name
from regard.data.batch import Batches, BatchOrder, Example, encode_pairs, lengths
from regard.data.codecs import FILE_CODECS, recognise
from regard.data.corpus import Columns, CorpusCounts, Normalisation, Pair, is_held_out, read_pairs, stream_pairs
from regard.data.sources import FileAndText, FileCodec, SourceCodec, split_source
from regard.data.store import Store, file_fingerprint, write_store
from regard.data.tokenizers.codec import Codec, TokenUnit, learn_shared
from regard.data.trained import Sources
from regard.errors import UserError, plural
from regard.evaluation import text_fingerprint
from regard.training.progress import with_progress
from regard.training.settings import OLDER, DataSettings, TrainSettings

SAMPLE = 20_000
"""From how many pairs settings are chosen."""
LOOKED_AT = 200
"""From how many sources it is told whether they are names of files."""
MOST_HELD_OUT = 2_000
TOGETHER = 10_000
"""How many pairs are tokenised at a time."""


STORE = "tokens.safetensors"


class Codecs(NamedTuple):
    source: SourceCodec
    target: Codec


class StartCodecs(NamedTuple):
    """Codecs of a model that a run goes on from."""

    source: SourceCodec | None = None
    target: Codec | None = None

    def __bool__(self) -> bool:
        return any(codec is not None for codec in self)


@dataclass(frozen=True)
class TrainingData:
    """All that a run learns from and is measured with.

    name, held_out_name: of the files that the examples and the held-out pairs come from.
    digest: six letters that change when any of it does. unknown: symbols that codecs learnt elsewhere do not know.
    header: the names of the columns, if they had any. sources: those that are learnt from, unless they are files.
    origin: the fingerprint of the data and the sha256 of the codecs, for checkpoints of what is learnt from it.
    """

    name: str
    held_out_name: str
    digest: str
    examples: Sequence[Example]
    lengths: tuple[Tensor, Tensor]
    held_out: Sequence[Pair]
    codecs: Codecs
    unknown: Counter[str]
    header: tuple[str, ...] = ()
    sources: Sources | None = None
    origin: Mapping[str, Any] = field(default_factory=dict)

    def batches(self, train: TrainSettings, subword_dropout: float, seed: int, augment: float = 0.0) -> Batches:
        order = BatchOrder(
            self.lengths,
            batch_tokens=train.batch_tokens,
            accumulate=train.accumulate,
            seed=seed,
            shortest_first=train.shortest_first,
        )
        vary = partial(self._varied, subword_dropout, augment)
        return Batches(self.examples, order, vary if subword_dropout or augment else None)

    def _varied(self, p: float, augment: float, example: Example, chance: random.Random) -> Example:
        source, target = self.codecs
        read, written = example
        if isinstance(read, list):
            read = source.redrop(read, p, chance) if isinstance(source, Codec) and source.has_merges else list(read)
        elif augment and isinstance(source, FileCodec):
            file, *text = read if isinstance(read, FileAndText) else (read,)
            file = source.varied(file, augment, chance) if len(file) else file
            read = FileAndText(file, *text) if text else file
        return Example(read, target.redrop(written, p, chance) if p and target.has_merges else list(written))


def in_memory(
    name: str,
    learning: Sequence[Pair],
    held_out: Sequence[Pair],
    data: DataSettings,
    start_codecs: StartCodecs | None = None,
    root: Path | None = None,
) -> TrainingData:
    """For pairs that are there already. root: from where names of files are seen."""
    start_codecs = start_codecs or StartCodecs()
    codecs = learn_codecs(lambda what: iter(learning), data, start_codecs, root or Path())
    unknown: Counter[str] = Counter()
    examples = list(_encoded(iter(learning), codecs, start_codecs, unknown))
    letters = text_fingerprint("\t".join(pair) for pair in learning)
    sources = None if data.source_unit in FILE_CODECS else Sources(pair.source for pair in learning)
    return TrainingData(name, name, letters, examples, lengths(examples), held_out, codecs, unknown, sources=sources)


def learn_codecs(pairs: Callable[[str], Iterator[Pair]], data: DataSettings, start_codecs: StartCodecs, root: Path) -> Codecs:
    """`pairs` starts reading from the first one whenever it is called; it is told what for. root: from where names of files are
    seen."""
    targets = (pair.target for pair in pairs("learning target tokens"))
    normalise = data.normalise == "nfc"
    if data.shared and not start_codecs:
        both = learn_shared(_sources(pairs), targets, data.target_unit, data.vocabulary, normalise=normalise)
        return Codecs(both, both)
    return Codecs(
        start_codecs.source.at(root) if start_codecs.source else _learn_source(pairs, data, root),
        start_codecs.target or Codec.learn(targets, data.target_unit, data.vocabulary, normalise=normalise),
    )


def _sources(pairs: Callable[[str], Iterator[Pair]]) -> Iterator[str]:
    return (pair.source for pair in pairs("learning source tokens"))


def _learn_source(pairs: Callable[[str], Iterator[Pair]], data: DataSettings, root: Path) -> SourceCodec:
    """Where sources are files and have more than one column, the words of the texts beside them are learnt, too."""
    normalise = data.normalise == "nfc"
    if data.source_unit not in FILE_CODECS:
        return Codec.learn(_sources(pairs), cast(TokenUnit, data.source_unit), data.vocabulary, normalise=normalise)
    kind = FILE_CODECS[data.source_unit]
    names = filter(None, (split_source(pair.source)[0] for pair in pairs(f"looking at {kind.nouns}")))
    codec = kind.learn(names, root, picture_size=data.picture_size)
    del names  # only the first few were read, and a bar waits for the others
    if len(data.source_columns) < 2:
        return codec
    texts = (split_source(pair.source)[1] for pair in pairs("learning tokens beside the files"))
    return replace(codec, auxiliary=Codec.learn(texts, "words", data.vocabulary, normalise=normalise))


class BadFiles:
    """Sources that cannot be read, by name, and why. place: the first one is an error, which begins with what this says."""

    def __init__(self, locate: Callable[[str], str] | None = None) -> None:
        self.locate = locate
        self.why: dict[str, str] = {}

    def __call__(self, pair: Pair, error: UserError) -> None:
        if self.locate:
            raise UserError(f"{self.locate(pair.source)}{error}; to leave such files out, set data.bad_files=skip")
        self.why[pair.source] = str(error)


def _line_of(data: DataSettings, source: str) -> str:
    """Where the data has this source; nothing where it has not."""
    counts = CorpusCounts()
    return next((f"{counts.name}:{counts.lines}: " for pair in _stream(data, counts) if pair.source == source), "")


def _encoded(
    pairs: Iterator[Pair], codecs: Codecs, start_codecs: StartCodecs, unknown: Counter[str], bad: BadFiles | None = None
) -> Iterator[Example]:
    """Counts in `unknown` what a codec that was learnt elsewhere does not know."""
    together = TOGETHER if isinstance(codecs.source, Codec) else 64
    while some := list(islice(pairs, together)):
        for side, codec in enumerate(start_codecs):
            if codec is not None:
                unknown.update(symbol for pair in some for symbol in codec.unknown(pair[side]))
        yield from encode_pairs(some, codecs.source, codecs.target, bad)


# --- files -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Survey:
    """What the first pass over the files found, with some of their pairs, each as likely as any other."""

    counts: CorpusCounts
    sample: list[Pair]


def names_files(data: DataSettings) -> bool:
    """Whether the sources are names of files, as the first few of them tell."""
    first = [pair.source for pair in islice(_stream(replace(data, normalise="none")), LOOKED_AT)]
    return recognise(first, folder_of(data.files)) is not None


def survey(data: DataSettings, *, names: bool = False) -> Survey:
    """Reads all pairs once. Mistakes in the files are errors with their line. names: the sources are names of files, though
    data.source_unit does not say so yet."""
    counts, sample, chance = CorpusCounts(), [], random.Random(0)
    for number, pair in enumerate(_stream(data, counts, names=names)):
        if number < SAMPLE:
            sample.append(pair)
        elif (locate := chance.randrange(number + 1)) < SAMPLE:
            sample[locate] = pair
    return Survey(counts, sample)


def from_files(
    data: DataSettings,
    found: Survey,
    folder: Path,
    console: Console,
    start_codecs: StartCodecs | None = None,
    *,
    begun: bool = False,
    learnt: Mapping[str, Any] | None = None,
) -> TrainingData:
    """Tokenises into `folder`, where it is found again when the run goes on. begun: a run did so already. learnt: the `origin`
    of its last checkpoint."""
    learnt = learnt or {}
    start_codecs, counts, threshold, root = start_codecs or StartCodecs(), found.counts, 0.0, folder_of(data.files)
    bad = BadFiles(partial(_line_of, data) if data.bad_files == "stop" else None)
    held_out_name = counts.name
    everything: list[Pair] = []  # of what is measured with, where that has files of its own
    if data.held_out_files:
        columns = replace(_columns(data, data.held_out_files), known_header=counts.header)
        measuring = read_pairs(_paths(data.held_out_files), columns, data.max_length, _spelling(data))
        held_out_name = measuring.counts.name
        held_out = everything = _seen_from(root, data, measuring.pairs)
        console.print(measuring.counts.describe())
        if shared := counts.describe_shared(measuring.counts):
            console.print(shared)
    else:
        threshold = counts.threshold(min(data.held_out, MOST_HELD_OUT / counts.pairs))
        held_out = []
    sources = None if data.source_unit in FILE_CODECS else Sources()
    for pair in _stream(data):
        if is_held_out(pair.source, threshold):
            held_out.append(pair)
        elif sources is not None:
            sources.add(pair.source)

    def learning(what: str) -> Iterator[Pair]:
        pairs = with_progress(_stream(data), counts.pairs, what, console)
        return (pair for pair in pairs if not (threshold and is_held_out(pair.source, threshold)))

    codecs = [codec.to_json() for codec in start_codecs if codec]
    sizes = _file_sizes(data, root)
    known = file_fingerprint(*_paths(data.files), *_paths(data.held_out_files), how_read(data), *codecs, *sizes)
    names = (FILE_SOURCE if data.source_unit in FILE_CODECS else SOURCE, TARGET)
    tokenised = _tokenised(folder, names, console)
    before = tokenised and migrate.training_data(tokenised.store.metadata).get("training_data")
    if begun and learnt.get("training_data", before) not in (None, known):
        raise UserError(
            f"{counts.name}: the data is not what it was when this run began, and what it has learnt is left alone; "
            "bring the old data back to go on, or begin anew with another --out, or with --overwrite"
        )
    if not tokenised or before != known:
        _tokenise(learning, data, start_codecs, folder, known, bad, learnt)
        tokenised = Tokenised.read(folder, names)
    store, sums = tokenised.store, tokenised.sums
    _check_codecs(learnt, sums, folder)
    source = read_source_codec(folder / names[0], tokenised.codecs[names[0]]).at(root)
    target = read_codec(folder / TARGET, tokenised.codecs[TARGET])
    unknown = Counter(json.loads(store.metadata["unknown"]))
    bad.why |= json.loads(store.metadata.get("unreadable", "{}"))
    held_out = _readable(held_out, source, bad)
    if bad.why:
        console.print(_say_bad(data, bad, everything))
    return TrainingData(
        counts.name,
        held_out_name,
        known[:6],
        store,
        store.sizes(),
        held_out,
        Codecs(source, target),
        unknown,
        header=counts.header,
        sources=sources,
        origin={"training_data": known, "codecs": sums},
    )


def how_read(data: DataSettings) -> str:
    """What decides which tokens files become. The files' names do not, nor does what training makes of the tokens."""
    same = asdict(replace(data, files=(), held_out_files=(), subword_dropout=0.0, augment=0.0))
    return repr({name: value for name, value in same.items() if value != OLDER.get(f"data.{name}")})


def folder_of(files: Sequence[str]) -> Path:
    """From where the names of files in the data are seen."""
    return Path(files[0]).parent if files else Path()


def _seen_from(root: Path, data: DataSettings, pairs: Iterable[Pair]) -> list[Pair]:
    """Held-out pairs, with names of files that can be found from the folder of those that are learnt from."""
    here = folder_of(data.held_out_files)
    if data.source_unit not in FILE_CODECS or here == root:
        return list(pairs)

    def moved(source: str) -> str:
        name, tab, text = source.partition("\t")
        return (str((here / name).resolve()) if name else "") + tab + text

    return [pair._replace(source=moved(pair.source)) for pair in pairs]


def _file_sizes(data: DataSettings, root: Path) -> list[str]:
    """Changes when a file that a source names changes its size; reading them all to know more would take long."""
    if data.source_unit not in FILE_CODECS:
        return []
    paths = (root / split_source(pair.source)[0] for pair in _stream(data))
    return [text_fingerprint(str(path.stat().st_size if path.is_file() else None) for path in paths)]


def _readable(pairs: Sequence[Pair], source: SourceCodec, bad: BadFiles) -> list[Pair]:
    if isinstance(source, Codec):
        return list(pairs)
    good = []
    for pair in pairs:
        try:
            source.encode(pair.source)
            good.append(pair)
        except UserError as error:
            bad(pair, error)
    if not good:
        raise UserError(f"no file that is held out ({len(pairs):,}) can be read; the first: {bad.why[pairs[0].source]}")
    return good


def _say_bad(data: DataSettings, bad: BadFiles, held_out: Sequence[Pair]) -> str:
    """How many files and rows, and the first few with the lines that name them. held_out: rows that are not in the data."""
    counts, lines, rows = CorpusCounts(), dict[str, int](), sum(pair.source in bad.why for pair in held_out)
    for pair in _stream(data, counts):
        if pair.source in bad.why:
            lines.setdefault(pair.source, counts.lines)
            rows += 1
    shown = "".join(f"\n  {f'line {lines[name]}: ' if name in lines else ''}{why}" for name, why in islice(bad.why.items(), 5))
    more = f"\n  and {len(bad.why) - 5:,} more" if len(bad.why) > 5 else ""
    files = f", which name {plural(len(bad.why), 'file')}" if rows > len(bad.why) else ""
    return (
        f"rows that are left out because their file cannot be read (data.bad_files=stop makes this an error): {rows:,}"
        f"{files}{shown}{more}"
    )


class Tokenised(NamedTuple):
    """What a run folder holds of the data: the tokens, and the files of the codecs that they were made with, by name."""

    store: Store
    codecs: Mapping[str, bytes]

    @property
    def sums(self) -> dict[str, str]:
        return {name: sha256(content) for name, content in self.codecs.items()}

    @classmethod
    def read(cls, folder: Path, names: Iterable[str]) -> Tokenised:
        """Raises if any of it is missing, or not what was written; earlier versions did not write down what that was."""
        store, codecs = Store.open(folder / STORE, migrate.STORE_TENSORS), {}
        sums = json.loads(store.metadata.get("codecs", "{}"))
        for name in names:
            try:
                codecs[name] = (folder / name).read_bytes()
            except OSError as error:
                raise UserError(f"{folder / name} cannot be read: {error.strerror}") from None
            if name in sums and sha256(codecs[name]) != sums[name]:
                raise UserError(f"{folder / name} is damaged: its sha256 is not the one in {STORE}")
        return cls(store, codecs)


def _tokenised(folder: Path, names: Iterable[str], console: Console) -> Tokenised | None:
    """What was tokenised before; None if that is nothing, or damaged."""
    if not (folder / STORE).exists():
        return None
    try:
        return Tokenised.read(folder, names)
    except UserError as error:
        console.print(f"{str(error).partition(';')[0]}; the data is tokenised again")
        return None


def _check_codecs(learnt: Mapping[str, Any], sums: Mapping[str, str], folder: Path) -> None:
    """Raises if a run has learnt with other codecs than these."""
    if learnt.get("codecs", sums) != sums:
        raise UserError(
            f"{folder}: {' and '.join(sums)} are not what this run has learnt with, and the data does not give them again; "
            f"bring them and {STORE} back from a copy, or begin anew with another --out, or with --overwrite"
        )


def _tokenise(
    learning: Callable[[str], Iterator[Pair]],
    data: DataSettings,
    start_codecs: StartCodecs,
    folder: Path,
    known: str,
    bad: BadFiles,
    learnt: Mapping[str, Any],
) -> None:
    codecs = learn_codecs(learning, data, start_codecs, folder_of(data.files))
    files = {source_name(codecs.source): codecs.source.to_json().encode(), TARGET: codecs.target.to_json().encode()}
    sums = {name: sha256(content) for name, content in files.items()}
    _check_codecs(learnt, sums, folder)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        replace_file(folder / name, content)
    unknown: Counter[str] = Counter()
    metadata = {"training_data": known, "codecs": json.dumps(sums)}
    what = f"reading {FILE_CODECS[data.source_unit].nouns}" if data.source_unit in FILE_CODECS else "tokenising"

    def examples() -> Iterator[Example]:
        yield from _encoded(learning(what), codecs, start_codecs, unknown, bad)
        metadata.update(unknown=json.dumps(unknown), unreadable=json.dumps(bad.why))  # known only now

    if not write_store(folder / STORE, examples(), len(codecs.source), len(codecs.target), metadata) and bad.why:
        raise UserError(f"none of the files can be read; the first: {next(iter(bad.why.values()))}")


def _stream(data: DataSettings, counts: CorpusCounts | None = None, *, names: bool = False) -> Iterator[Pair]:
    return stream_pairs(_paths(data.files), _columns(data, data.files), data.max_length, counts, _spelling(data, names=names))


def _spelling(data: DataSettings, *, names: bool = False) -> Normalisation:
    normalise = data.normalise == "nfc"
    return Normalisation(normalise, normalise, names or data.source_unit in FILE_CODECS)


def _paths(files: Iterable[str]) -> list[Path]:
    return [Path(file) for file in files]


def _columns(data: DataSettings, files: Sequence[str]) -> Columns:
    header: dict[str, bool | Literal["usual"] | None] = {"auto": None, "yes": True, "no": False, "usual": "usual"}
    return (
        Columns() if len(files) > 1 else Columns(data.source_columns, data.target_column, header[data.header], data.bad_lines)
    )
