"""Turns files into training data: pairs are read as a stream, tokenised once, and kept on disk as tokens.

Pairs do not fit into memory, so the files are parsed several times:

survey          counts the pairs, samples those that settings are chosen from, and fingerprints the sizes of source files
vocabularies    a pass for each, since the tokenizers library reads all texts of one: source (or auxiliary texts) and target, or
                both in one pass if they share it
tokens          needs the vocabularies

Which pairs are held out depends on their number. So the first complete pass after the survey collects them, together with the
hashes of the other sources. A run with texts thus makes four passes, or three with a shared vocabulary; a run with files three,
or four with auxiliary texts. A resumed run makes two: the survey, and one for the held-out pairs. If files cannot be read, one
more pass finds their line numbers. Other readings are short or do not parse: the first 200 pairs show whether sources are file
names, the first files show how to read them, and the fingerprint of the data is that of its bytes.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console

from regard.checkpoint import migrate
from regard.checkpoint.files import replace_file, sha256, writing
from regard.checkpoint.folder import FILE_SOURCE, SOURCE, TARGET, read_codec, read_source_codec, source_name
from regard.contracts import SourceText
from regard.data.batch import Example, lengths
from regard.data.codecs import FILE_CODECS
from regard.data.corpus import Pair
from regard.data.counts import CorpusCounts
from regard.data.held_out import is_held_out
from regard.data.source_text import file_and_text, flat
from regard.data.sources import FileCodec, SourceCodec
from regard.data.store import Store, write_store
from regard.data.trained import Sources
from regard.errors import UserError, plural, shorten
from regard.signatures import file_fingerprint
from regard.training.data import Codecs, HeldOut, StartCodecs, TrainingData, encoded, make_codecs
from regard.training.progress import with_progress
from regard.training.settings import OLDER, DataSettings
from regard.training.survey import Survey, columns_of, folder_of, paths, stream, survey

MOST_HELD_OUT = 2_000
"""The maximum number of pairs that are held out when no held-out files are given."""
STORE = "tokens.safetensors"


class Division:
    """Divides the pairs of the training files into those that are trained on and those that are held out.

    The first complete pass over the files, whatever it is for, also collects the held-out pairs and the training sources.
    """

    def __init__(self, data: DataSettings, threshold: float, num_pairs: int, console: Console) -> None:
        """threshold: see `is_held_out`; 0 if no pairs are held out. num_pairs: the number of all pairs."""
        self.data, self.threshold, self.num_pairs, self.console = data, threshold, num_pairs, console
        self._collected: tuple[list[Pair], Sources] | None = None

    def training(self, what: str) -> Iterator[Pair]:
        """Yields the training pairs, in a new pass over the files. what: the label of the progress bar."""
        collected, held_out, sources = self._collected, list[Pair](), Sources()
        for pair in with_progress(stream(self.data), self.num_pairs, what, self.console):
            if self.threshold and is_held_out(pair.key, self.threshold):
                held_out.append(pair)
                continue
            if not collected:
                sources.add(pair.key)
            yield pair
        self._collected = collected or (held_out, sources)

    @property
    def held_out(self) -> list[Pair]:
        """The held-out pairs."""
        return self._collect()[0]

    @property
    def sources(self) -> Sources | None:
        """The training sources; None if they are files."""
        return None if self.data.source_unit in FILE_CODECS else self._collect()[1]

    def _collect(self) -> tuple[list[Pair], Sources]:
        """Returns what was collected; makes a pass if there was none yet, as in a resumed run."""
        if not self._collected:
            deque(self.training("reading the held-out pairs"), maxlen=0)
        assert self._collected
        return self._collected


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
        columns = replace(columns_of(data, data.held_out_files), known_header=counts.header)
        measured = CorpusCounts()
        in_files = _relative_to(root, data, stream(data, measured, held_out=columns))
        held_out_name = measured.name
        console.print(measured.describe())
        if shared := counts.describe_shared(measured):
            console.print(shared)
    else:
        threshold = counts.threshold(min(data.held_out, MOST_HELD_OUT / counts.pairs))
    division = Division(data, threshold, counts.pairs, console)
    codecs = [codec.to_json() for codec in start_codecs if codec]
    sizes = _file_sizes(data, surveyed)
    fingerprint = file_fingerprint(*paths(data.files), *paths(data.held_out_files), how_read(data), *codecs, *sizes)
    names = (FILE_SOURCE if data.source_unit in FILE_CODECS else SOURCE, TARGET)
    tokenised = _tokenised(folder, names, console)
    before = tokenised and migrate.training_data(tokenised.store.metadata).get("training_data")
    if resuming and origin.get("training_data", before) not in (None, fingerprint):
        raise data_changed(counts.name)
    if not tokenised or before != fingerprint:
        _tokenise(division, data, start_codecs, folder, fingerprint, bad, origin)
        tokenised = Tokenised.read(folder, names)
    store, sums = tokenised.store, tokenised.sums
    _check_codecs(origin, sums, folder)
    used = tokenised.read_codecs(folder, names, root)
    unknown = Counter(json.loads(store.metadata["unknown"]))
    bad.reasons |= json.loads(store.metadata.get("unreadable", "{}"))
    held_out = _encode_held_out(in_files or division.held_out, used, bad)
    if bad.reasons:
        console.print(_describe_bad(data, bad, in_files))
    if shortened := json.loads(store.metadata.get("shortened", "[]")):
        console.print(f"{FILE_CODECS[data.source_unit].nouns} that are not read as a whole: {shortened[0]:,}; {shortened[1]}")
    return TrainingData(
        counts.name,
        held_out_name,
        fingerprint[:6],
        store,
        store.lengths(),
        held_out,
        used,
        unknown,
        header=counts.header,
        sources=division.sources,
        description=counts.describe(),
        origin={"training_data": fingerprint, "codecs": sums},
    )


def tokenised_before(data: DataSettings, folder: Path) -> TrainingData:
    """Returns the training data that `from_files` has tokenised into `folder`, without held-out pairs."""
    names = (FILE_SOURCE if data.source_unit in FILE_CODECS else SOURCE, TARGET)
    tokenised = Tokenised.read(folder, names)
    codecs, store = tokenised.read_codecs(folder, names, folder_of(data.files)), tokenised.store
    return TrainingData(folder.name, "", "", store, store.lengths(), HeldOut((), ()), codecs, Counter())


def check_tags(training_data: TrainingData, data: DataSettings) -> None:
    """Raises UserError, with the line, if a source does not have as many tokens as its target has tags."""
    source, target = training_data.codecs
    assert not isinstance(source, FileCodec)
    counts = CorpusCounts()
    if all(torch.equal(*block) for block in chain(training_data.lengths, lengths(training_data.held_out.examples))):
        return
    for pair in stream(data, counts):
        words, tags = source.pieces(flat(pair.source)), target.pieces(pair.target)
        if len(words) != len(tags):
            raise UserError(
                f"{counts.name}:{counts.lines}: {plural(len(words), 'token')} in the source, but {plural(len(tags), 'tag')}; "
                f"expected a tag for each token ({data.source_unit}): {shorten(flat(pair.source), 40)!r}, "
                f"{shorten(pair.target, 40)!r}"
            )
    raise UserError("a held-out source does not have as many tokens as its target has tags; expected a tag for each token")


def data_changed(name: str) -> UserError:
    """Returns the error for a run whose data is no longer that which it started with. name: that of the data."""
    return UserError(
        f"{name}: the training data changed since this run started; the run was not modified. "
        "Restore the old data to continue, or start a new run with another --out or with --overwrite"
    )


def how_read(data: DataSettings) -> str:
    """Returns the settings that decide which tokens the files become: not the names of the files, and not the settings that
    only matter in training."""
    same = asdict(replace(data, files=(), held_out_files=(), subword_dropout=0.0, augment=0.0, languages=()))
    return repr({name: value for name, value in same.items() if value != OLDER.get(f"data.{name}")})


def _relative_to(root: Path, data: DataSettings, pairs: Iterable[Pair]) -> list[Pair]:
    """Returns held-out pairs with file names that are valid relative to `root`, the folder of the training files."""
    here = folder_of(data.held_out_files)
    if data.source_unit not in FILE_CODECS or here == root:
        return list(pairs)

    def moved(name: str) -> str:
        return str((here / name).resolve()) if name else ""

    return [
        pair._replace(source=moved(pair.source) if isinstance(pair.source, str) else (moved(pair.source[0]), *pair.source[1:]))
        for pair in pairs
    ]


def _file_sizes(data: DataSettings, surveyed: Survey) -> list[str]:
    """Returns the fingerprint of the sizes of the source files; nothing if the sources are texts."""
    if data.source_unit not in FILE_CODECS:
        return []
    if surveyed.file_sizes is None:  # when the data was surveyed, its sources did not look like names of files
        surveyed = survey(data)
    return [str(surveyed.file_sizes)]


def _encode_held_out(pairs: Sequence[Pair], codecs: Codecs, bad: BadFiles) -> HeldOut:
    """Encodes the held-out pairs whose file can be read, and adds the others to `bad`. Raises UserError if there are none."""
    held_out = HeldOut.encode(pairs, codecs, bad)
    if not held_out.pairs:
        raise UserError(
            f"none of the {len(pairs):,} held-out files can be read; the first error: {bad.reasons[flat(pairs[0].source)]}"
        )
    return held_out


class BadFiles:
    """Collects the sources whose files cannot be read, with the reasons.

    locate: returns the file and line of a source as the start of an error message; if given, the first such source raises.
    """

    def __init__(self, locate: Callable[[SourceText], str] | None = None) -> None:
        self.locate = locate
        self.reasons: dict[str, str] = {}

    def __call__(self, pair: Pair, error: UserError) -> None:
        if self.locate:
            raise UserError(f"{self.locate(pair.source)}{error}; set data.bad_files=skip to skip such files")
        self.reasons[flat(pair.source)] = str(error)


class Shortened:
    """Counts the files of which the codec reads only a part, such as long videos."""

    def __init__(self, codec: SourceCodec) -> None:
        self.codec, self.number, self.first = codec, 0, ""

    def counted(self, pairs: Iterator[Pair]) -> Iterator[Pair]:
        """Yields the pairs unchanged."""
        for pair in pairs:
            if isinstance(self.codec, FileCodec) and (name := file_and_text(pair.source)[0]):
                with suppress(UserError):  # reported where the file is read
                    left_out = self.codec.left_out(name)
                    self.number += bool(left_out)
                    self.first = self.first or left_out
            yield pair

    @property
    def metadata(self) -> dict[str, str]:
        """The number of such files, and what is left out of the first, for the token store; nothing if there are none."""
        return {"shortened": json.dumps([self.number, self.first])} if self.number else {}


def _line_of(data: DataSettings, source: SourceText) -> str:
    """Returns "FILE:LINE: " for a source, or an empty string if the data does not contain it."""
    counts = CorpusCounts()
    return next((f"{counts.name}:{counts.lines}: " for pair in stream(data, counts) if pair.source == source), "")


def _describe_bad(data: DataSettings, bad: BadFiles, held_out: Sequence[Pair]) -> str:
    """Returns a message with the number of unreadable files and rows, and the first few errors with their lines.

    held_out: the pairs of the held-out files.
    """
    counts, lines, rows = CorpusCounts(), dict[str, int](), sum(flat(pair.source) in bad.reasons for pair in held_out)
    for pair in stream(data, counts):
        if (source := flat(pair.source)) in bad.reasons:
            lines.setdefault(source, counts.lines)
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

    def read_codecs(self, folder: Path, names: Sequence[str], root: Path) -> Codecs:
        """Returns the codecs. names: the files of the source and the target. root: the folder of the training files."""
        source, target = names
        return Codecs(
            read_source_codec(folder / source, self.codecs[source]).at(root), read_codec(folder / target, self.codecs[target])
        )


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
    division: Division,
    data: DataSettings,
    start_codecs: StartCodecs,
    folder: Path,
    fingerprint: str,
    bad: BadFiles,
    origin: Mapping[str, Any],
) -> None:
    """Builds the codecs, encodes all training pairs and writes both to `folder`. fingerprint: that of the data."""
    codecs = make_codecs(division.training, data, start_codecs, folder_of(data.files))
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

    shortened = Shortened(codecs.source)

    def examples() -> Iterator[Example]:
        yield from encoded(shortened.counted(division.training(what)), codecs, start_codecs, unknown, bad)
        metadata.update(unknown=json.dumps(unknown), unreadable=json.dumps(bad.reasons))  # complete only now
        metadata.update(shortened.metadata)

    if not write_store(folder / STORE, examples(), len(codecs.source), len(codecs.target), metadata) and bad.reasons:
        raise UserError(f"none of the files can be read; the first error: {next(iter(bad.reasons.values()))}")
