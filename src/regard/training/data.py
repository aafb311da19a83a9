"""Turns files into training data: pairs are read as a stream, tokenised once, and kept on disk as tokens."""

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
from regard.data.store import Store, write_store
from regard.data.tokenizers.codec import Codec, TokenUnit, train_shared
from regard.data.trained import Sources
from regard.errors import UserError, plural
from regard.signatures import file_fingerprint, text_fingerprint
from regard.training.progress import with_progress
from regard.training.settings import OLDER, DataSettings, TrainSettings

SAMPLE = 20_000
"""The maximum number of pairs from which settings are chosen."""
NUM_RECOGNISED = 200
"""The number of sources that decide whether sources are file names."""
MOST_HELD_OUT = 2_000
"""The maximum number of pairs that are held out when no held-out files are given."""
CHUNK = 10_000
"""The number of pairs that are tokenised at a time."""


STORE = "tokens.safetensors"


class Codecs(NamedTuple):
    source: SourceCodec
    target: Codec


class StartCodecs(NamedTuple):
    """Codecs that a run takes over from the model it starts from; None where it builds its own."""

    source: SourceCodec | None = None
    target: Codec | None = None

    def __bool__(self) -> bool:
        return any(codec is not None for codec in self)


@dataclass(frozen=True)
class TrainingData:
    """Training examples, held-out pairs and the codecs for both.

    name, held_out_name: names of the files that the examples and the held-out pairs come from.
    digest: six characters that change when the data changes. unknown: symbols that codecs taken over from another model cannot
    encode, with their counts. header: the names of the columns, if the file has a header. sources: the training sources, unless
    they are files. origin: the fingerprint of the data and the sha256 of the codecs, which checkpoints record.
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
        """Returns the batches of every update; subword dropout and augmentation differ from epoch to epoch."""
        order = BatchOrder(
            self.lengths,
            batch_tokens=train.batch_tokens,
            accumulate=train.accumulate,
            seed=seed,
            shortest_first=train.shortest_first,
        )
        vary = partial(self._varied, subword_dropout, augment)
        return Batches(self.examples, order, vary if subword_dropout or augment else None)

    def _varied(self, p: float, augment: float, example: Example, rng: random.Random) -> Example:
        source, target = self.codecs
        source_row, target_ids = example
        if isinstance(source_row, list):
            if isinstance(source, Codec) and source.has_merges:
                source_row = source.bpe_dropout(source_row, p, rng)
            else:
                source_row = list(source_row)
        elif augment and isinstance(source, FileCodec):
            file, *text = source_row if isinstance(source_row, FileAndText) else (source_row,)
            file = source.varied(file, augment, rng) if len(file) else file
            source_row = FileAndText(file, *text) if text else file
        return Example(source_row, target.bpe_dropout(target_ids, p, rng) if p and target.has_merges else list(target_ids))


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
    examples = list(_encoded(iter(training), codecs, start_codecs, unknown))
    digest = text_fingerprint("\t".join(pair) for pair in training)
    sources = None if data.source_unit in FILE_CODECS else Sources(pair.source for pair in training)
    return TrainingData(name, name, digest, examples, lengths(examples), held_out, codecs, unknown, sources=sources)


def make_codecs(pairs: Callable[[str], Iterator[Pair]], data: DataSettings, start_codecs: StartCodecs, root: Path) -> Codecs:
    """Builds the codecs from the training pairs, except those in `start_codecs`.

    pairs: returns a new iterator over the training pairs; its argument is the label of the progress bar.
    root: the folder that file names in the pairs are relative to.
    """
    targets = (pair.target for pair in pairs("building the target vocabulary"))
    normalise = data.normalise == "nfc"
    if data.shared and not start_codecs:
        both = train_shared(_sources(pairs), targets, data.target_unit, data.vocabulary, normalise=normalise)
        return Codecs(both, both)
    return Codecs(
        start_codecs.source.at(root) if start_codecs.source else _make_source_codec(pairs, data, root),
        start_codecs.target or Codec.train(targets, data.target_unit, data.vocabulary, normalise=normalise),
    )


def _sources(pairs: Callable[[str], Iterator[Pair]]) -> Iterator[str]:
    return (pair.source for pair in pairs("building the source vocabulary"))


def _make_source_codec(pairs: Callable[[str], Iterator[Pair]], data: DataSettings, root: Path) -> SourceCodec:
    """Builds the source codec. If sources are files with a second column, it includes a vocabulary of the auxiliary texts."""
    normalise = data.normalise == "nfc"
    if data.source_unit not in FILE_CODECS:
        return Codec.train(_sources(pairs), cast(TokenUnit, data.source_unit), data.vocabulary, normalise=normalise)
    kind = FILE_CODECS[data.source_unit]
    names = filter(None, (split_source(pair.source)[0] for pair in pairs(f"sampling {kind.nouns}")))
    codec = kind.fit(names, root, picture_size=data.picture_size)
    del names  # only the first few were read; this closes the progress bar
    if len(data.source_columns) < 2:
        return codec
    texts = (split_source(pair.source)[1] for pair in pairs("building the vocabulary of the auxiliary texts"))
    return replace(codec, auxiliary=Codec.train(texts, "words", data.vocabulary, normalise=normalise))


class BadFiles:
    """Collects the sources whose files cannot be read, with the reasons.

    locate: returns the file and line of a source as the start of an error message; if given, the first such source raises.
    """

    def __init__(self, locate: Callable[[str], str] | None = None) -> None:
        self.locate = locate
        self.reasons: dict[str, str] = {}

    def __call__(self, pair: Pair, error: UserError) -> None:
        if self.locate:
            raise UserError(f"{self.locate(pair.source)}{error}; set data.bad_files=skip to skip such files")
        self.reasons[pair.source] = str(error)


def _line_of(data: DataSettings, source: str) -> str:
    """Returns "FILE:LINE: " for a source, or an empty string if the data does not contain it."""
    counts = CorpusCounts()
    return next((f"{counts.name}:{counts.lines}: " for pair in _stream(data, counts) if pair.source == source), "")


def _encoded(
    pairs: Iterator[Pair], codecs: Codecs, start_codecs: StartCodecs, unknown: Counter[str], bad: BadFiles | None = None
) -> Iterator[Example]:
    """Encodes the pairs; counts in `unknown` the symbols that codecs taken over from another model cannot encode."""
    size = CHUNK if isinstance(codecs.source, Codec) else 64
    while chunk := list(islice(pairs, size)):
        for side, codec in enumerate(start_codecs):
            if codec is not None:
                unknown.update(symbol for pair in chunk for symbol in codec.unknown(pair[side]))
        yield from encode_pairs(chunk, codecs.source, codecs.target, bad)


# --- files -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Survey:
    """The result of the first pass over the files: counts, and a uniform random sample of the pairs."""

    counts: CorpusCounts
    sample: list[Pair]


def names_files(data: DataSettings) -> bool:
    """Returns whether the sources are file names, judging by the first few."""
    first = [pair.source for pair in islice(_stream(replace(data, normalise="none")), NUM_RECOGNISED)]
    return recognise(first, folder_of(data.files)) is not None


def survey(data: DataSettings, *, names: bool = False) -> Survey:
    """Reads all pairs once. Raises UserError with the line number if a file is malformed. names: whether the sources are file
    names, even if data.source_unit does not say so yet."""
    counts, sample, rng = CorpusCounts(), [], random.Random(0)
    for number, pair in enumerate(_stream(data, counts, names=names)):
        if number < SAMPLE:
            sample.append(pair)
        elif (index := rng.randrange(number + 1)) < SAMPLE:
            sample[index] = pair
    return Survey(counts, sample)


def from_files(
    data: DataSettings,
    surveyed: Survey,
    folder: Path,
    console: Console,
    start_codecs: StartCodecs | None = None,
    *,
    resuming: bool = False,
    origin: Mapping[str, Any] | None = None,
) -> TrainingData:
    """Tokenises the files into `folder`, and reuses the tokens there when a run is resumed.

    surveyed: the result of `survey`. resuming: whether the run was started before. origin: the `origin` of its last checkpoint.
    Raises UserError if the data changed since the run started, or if no file can be read.
    """
    origin = origin or {}
    start_codecs, counts, threshold, root = start_codecs or StartCodecs(), surveyed.counts, 0.0, folder_of(data.files)
    bad = BadFiles(partial(_line_of, data) if data.bad_files == "stop" else None)
    held_out_name = counts.name
    in_files: list[Pair] = []  # the pairs of the held-out files
    if data.held_out_files:
        columns = replace(_columns(data, data.held_out_files), known_header=counts.header)
        measuring = read_pairs(_paths(data.held_out_files), columns, data.max_length, _normalisation(data))
        held_out_name = measuring.counts.name
        held_out = in_files = _relative_to(root, data, measuring.pairs)
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

    def training(what: str) -> Iterator[Pair]:
        pairs = with_progress(_stream(data), counts.pairs, what, console)
        return (pair for pair in pairs if not (threshold and is_held_out(pair.source, threshold)))

    codecs = [codec.to_json() for codec in start_codecs if codec]
    sizes = _file_sizes(data, root)
    fingerprint = file_fingerprint(*_paths(data.files), *_paths(data.held_out_files), how_read(data), *codecs, *sizes)
    names = (FILE_SOURCE if data.source_unit in FILE_CODECS else SOURCE, TARGET)
    tokenised = _tokenised(folder, names, console)
    before = tokenised and migrate.training_data(tokenised.store.metadata).get("training_data")
    if resuming and origin.get("training_data", before) not in (None, fingerprint):
        raise UserError(
            f"{counts.name}: the training data changed since this run started; the run was not modified. "
            "Restore the old data to continue, or start a new run with another --out or with --overwrite"
        )
    if not tokenised or before != fingerprint:
        _tokenise(training, data, start_codecs, folder, fingerprint, bad, origin)
        tokenised = Tokenised.read(folder, names)
    store, sums = tokenised.store, tokenised.sums
    _check_codecs(origin, sums, folder)
    source = read_source_codec(folder / names[0], tokenised.codecs[names[0]]).at(root)
    target = read_codec(folder / TARGET, tokenised.codecs[TARGET])
    unknown = Counter(json.loads(store.metadata["unknown"]))
    bad.reasons |= json.loads(store.metadata.get("unreadable", "{}"))
    held_out = _readable(held_out, source, bad)
    if bad.reasons:
        console.print(_describe_bad(data, bad, in_files))
    return TrainingData(
        counts.name,
        held_out_name,
        fingerprint[:6],
        store,
        store.sizes(),
        held_out,
        Codecs(source, target),
        unknown,
        header=counts.header,
        sources=sources,
        origin={"training_data": fingerprint, "codecs": sums},
    )


def how_read(data: DataSettings) -> str:
    """Returns the settings that decide which tokens the files become: not the names of the files, and not the settings that
    only matter in training."""
    same = asdict(replace(data, files=(), held_out_files=(), subword_dropout=0.0, augment=0.0))
    return repr({name: value for name, value in same.items() if value != OLDER.get(f"data.{name}")})


def folder_of(files: Sequence[str]) -> Path:
    """Returns the folder that file names in the data are relative to: that of the first data file."""
    return Path(files[0]).parent if files else Path()


def _relative_to(root: Path, data: DataSettings, pairs: Iterable[Pair]) -> list[Pair]:
    """Returns held-out pairs with file names that are valid relative to `root`, the folder of the training files."""
    here = folder_of(data.held_out_files)
    if data.source_unit not in FILE_CODECS or here == root:
        return list(pairs)

    def moved(source: str) -> str:
        name, tab, text = source.partition("\t")
        return (str((here / name).resolve()) if name else "") + tab + text

    return [pair._replace(source=moved(pair.source)) for pair in pairs]


def _file_sizes(data: DataSettings, root: Path) -> list[str]:
    """Returns a fingerprint of the sizes of the source files; hashing their contents would take long."""
    if data.source_unit not in FILE_CODECS:
        return []
    paths = (root / split_source(pair.source)[0] for pair in _stream(data))
    return [text_fingerprint(str(path.stat().st_size if path.is_file() else None) for path in paths)]


def _readable(pairs: Sequence[Pair], source: SourceCodec, bad: BadFiles) -> list[Pair]:
    """Returns the pairs whose file can be read, and adds the others to `bad`. Raises UserError if there are none."""
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
        raise UserError(
            f"none of the {len(pairs):,} held-out files can be read; the first error: {bad.reasons[pairs[0].source]}"
        )
    return good


def _describe_bad(data: DataSettings, bad: BadFiles, held_out: Sequence[Pair]) -> str:
    """Returns a message with the number of unreadable files and rows, and the first few errors with their lines.

    held_out: the pairs of the held-out files.
    """
    counts, lines, rows = CorpusCounts(), dict[str, int](), sum(pair.source in bad.reasons for pair in held_out)
    for pair in _stream(data, counts):
        if pair.source in bad.reasons:
            lines.setdefault(pair.source, counts.lines)
            rows += 1
    shown = "".join(
        f"\n  {f'line {lines[name]}: ' if name in lines else ''}{why}" for name, why in islice(bad.reasons.items(), 5)
    )
    more = f"\n  and {len(bad.reasons) - 5:,} more" if len(bad.reasons) > 5 else ""
    files = f" ({plural(len(bad.reasons), 'file')})" if rows > len(bad.reasons) else ""
    return (
        f"rows skipped because their file cannot be read (data.bad_files=stop makes this an error): {rows:,}"
        f"{files}{shown}{more}"
    )


class Tokenised(NamedTuple):
    """The tokenised data in a run folder: the tokens, and the contents of the codec files, by file name."""

    store: Store
    codecs: Mapping[str, bytes]

    @property
    def sums(self) -> dict[str, str]:
        """The sha256 of each codec file."""
        return {name: sha256(content) for name, content in self.codecs.items()}

    @classmethod
    def read(cls, folder: Path, names: Iterable[str]) -> Tokenised:
        """Reads the tokens and codecs. Raises UserError if a file is missing, or if its sha256 differs from the recorded one;
        earlier versions did not record it."""
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
    """Returns the tokenised data in `folder`; None if there is none, or if it is damaged."""
    if not (folder / STORE).exists():
        return None
    try:
        return Tokenised.read(folder, names)
    except UserError as error:
        console.print(f"{str(error).partition(';')[0]}; tokenising the data again")
        return None


def _check_codecs(origin: Mapping[str, Any], sums: Mapping[str, str], folder: Path) -> None:
    """Raises UserError if a run was trained with other codecs. origin: that of its last checkpoint."""
    if origin.get("codecs", sums) != sums:
        raise UserError(
            f"{folder}: {' and '.join(sums)} differ from those that this run was trained with, and the data does not reproduce "
            f"them; restore them and {STORE} from a copy, or start a new run with another --out or with --overwrite"
        )


def _tokenise(
    training: Callable[[str], Iterator[Pair]],
    data: DataSettings,
    start_codecs: StartCodecs,
    folder: Path,
    fingerprint: str,
    bad: BadFiles,
    origin: Mapping[str, Any],
) -> None:
    """Builds the codecs, encodes all training pairs and writes both to `folder`. fingerprint: that of the data."""
    codecs = make_codecs(training, data, start_codecs, folder_of(data.files))
    files = {source_name(codecs.source): codecs.source.to_json().encode(), TARGET: codecs.target.to_json().encode()}
    sums = {name: sha256(content) for name, content in files.items()}
    _check_codecs(origin, sums, folder)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        replace_file(folder / name, content)
    unknown: Counter[str] = Counter()
    metadata = {"training_data": fingerprint, "codecs": json.dumps(sums)}
    what = f"reading {FILE_CODECS[data.source_unit].nouns}" if data.source_unit in FILE_CODECS else "tokenising"

    def examples() -> Iterator[Example]:
        yield from _encoded(training(what), codecs, start_codecs, unknown, bad)
        metadata.update(unknown=json.dumps(unknown), unreadable=json.dumps(bad.reasons))  # complete only now

    if not write_store(folder / STORE, examples(), len(codecs.source), len(codecs.target), metadata) and bad.reasons:
        raise UserError(f"none of the files can be read; the first error: {next(iter(bad.reasons.values()))}")


def _stream(data: DataSettings, counts: CorpusCounts | None = None, *, names: bool = False) -> Iterator[Pair]:
    return stream_pairs(
        _paths(data.files), _columns(data, data.files), data.max_length, counts, _normalisation(data, names=names)
    )


def _normalisation(data: DataSettings, *, names: bool = False) -> Normalisation:
    normalise = data.normalise == "nfc"
    return Normalisation(normalise, normalise, names or data.source_unit in FILE_CODECS)


def _paths(files: Iterable[str]) -> list[Path]:
    return [Path(file) for file in files]


def _columns(data: DataSettings, files: Sequence[str]) -> Columns:
    header: dict[str, bool | Literal["usual"] | None] = {"auto": None, "yes": True, "no": False, "usual": "usual"}
    return (
        Columns() if len(files) > 1 else Columns(data.source_columns, data.target_column, header[data.header], data.bad_lines)
    )
