"""Reads pairs of texts from files and decides which of them are held out. Pairs that are skipped are always counted.

`stream_pairs` reads files of any size; `read_pairs` returns a corpus that fits into memory.
"""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from regard.contracts import SourceText
from regard.data.files import MAX_LISTED, TWO_COLUMNS, Columns, Report, decode_lines, list_lines, read_lines, read_rows, shorten
from regard.data.source_text import flat
from regard.data.tokenizers.normal import nfc
from regard.errors import UserError, plural

__all__ = [
    "Columns",
    "Corpus",
    "CorpusCounts",
    "Normalisation",
    "Pair",
    "decode_lines",
    "hash_fraction",
    "is_held_out",
    "normalise_line",
    "read_lines",
    "read_pairs",
    "shorten",
    "stream_pairs",
]


class Pair(NamedTuple):
    """A source and its target text. A source of several columns is a tuple."""

    source: SourceText
    target: str


class Normalisation(NamedTuple):
    """Whether the source and the target of a pair are normalised to Unicode's composed form, NFC.

    names: whether the first source column contains file names, which are never changed.
    """

    source: bool = False
    target: bool = False
    names: bool = False

    def of(self, cells: list[str]) -> list[str]:
        """Returns the cells of a row, normalised. The last cell is the target, the others are the source columns."""
        *sources, target = cells
        if self.source:
            first = 1 if self.names else 0
            sources[first:] = map(nfc, sources[first:])
        return [*sources, nfc(target) if self.target else target]


NO_NORMALISATION = Normalisation()

_INVISIBLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\xa0\xad\u061c\u180e\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ufeff]"
)
"""Characters that are invisible, or look like a space, but make a text different."""


class Repeats(NamedTuple):
    """The numbers of repeated pairs, of distinct sources, and of sources with several targets (ambiguous)."""

    pairs: int
    sources: int
    ambiguous: int


class Hashes:
    """Hashes of pairs, 8 bytes each: 44 bits of the source, 12 of which select the bucket, and 32 bits of the target."""

    def __init__(self) -> None:
        self._buckets: defaultdict[int, array[int]] = defaultdict(lambda: array("Q"))

    def add(self, source: int, target: str) -> None:
        """Adds a pair. source: the 64-bit hash of its source."""
        target_hash = int.from_bytes(blake2b(target.encode(), digest_size=4).digest())
        self._buckets[source & 4095].append((source >> 12 & 0xFFFFFFFF) << 32 | target_hash)

    def repeats(self) -> Repeats:
        """Returns how often pairs and sources are repeated."""
        pairs = sources = ambiguous = 0
        for bucket in self._buckets.values():
            distinct = set(bucket)
            targets = Counter(number >> 32 for number in distinct)
            pairs += len(bucket) - len(distinct)
            sources += len(targets)
            ambiguous += sum(count > 1 for count in targets.values())
        return Repeats(pairs, sources, ambiguous)

    def shared_sources(self, other: Hashes) -> int:
        """Returns the number of distinct sources that occur in both corpora."""
        both = self._buckets.keys() & other._buckets.keys()
        return sum(
            len({number >> 32 for number in self._buckets[at]} & {number >> 32 for number in other._buckets[at]}) for at in both
        )


@dataclass
class CorpusCounts(Report):
    """Counts collected while pairs are read; complete at the end of the stream.

    lines: the number of lines, including blank ones and the header.   pairs: the number of pairs that were kept.
    empty: lines skipped because source or target is empty.
    too_long: pairs skipped because source or target exceeds max_length; too_long_at: the numbers of the first few lines.
    with_breaks: texts in which tabs or line breaks became spaces.
    normalised: lines that NFC changed.   not_normalised: lines that NFC would change, but which were kept as they are.
    invisible: the number of lines that contain an invisible character or an unusual space, by character.
    without: the number of rows that lack one of several source columns, by its name or number.
    lowest, highest: the lowest and the highest `hash_fraction` of a source.
    """

    name: str = ""
    lines: int = 0
    pairs: int = 0
    empty: int = 0
    too_long: int = 0
    too_long_at: list[int] = field(default_factory=list)
    max_length: int | None = None
    with_breaks: int = 0
    normalised: int = 0
    not_normalised: int = 0
    invisible: Counter[str] = field(default_factory=Counter)
    without: Counter[str] = field(default_factory=Counter)
    hashes: Hashes = field(default_factory=Hashes, repr=False, compare=False)
    lowest: float = 1.0
    highest: float = 0.0

    def add(self, pair: Pair) -> None:
        """Counts a pair that is kept."""
        number = _number(flat(pair.source))
        self.hashes.add(number, pair.target)
        fraction = number / 2**64
        self.lowest, self.highest = min(self.lowest, fraction), max(self.highest, fraction)
        self.pairs += 1

    def threshold(self, share: float) -> float:
        """Returns the threshold for `is_held_out` that holds out this fraction of the sources.

        It equals `share`, unless no source would be held out, or none left to train on; then it is the nearest threshold
        that avoids this. To hold out about n pairs at most, pass min(share, n / counts.pairs). Raises UserError if there are
        fewer than two distinct sources.
        """
        if self.lowest >= self.highest:
            raise UserError("found fewer than 2 distinct sources, expected at least 2: one to train on and one to hold out")
        return min(max(share, math.nextafter(self.lowest, 1)), self.highest)

    def describe(self) -> str:
        """Returns a summary for the console, in sentences. Counts of zero are not mentioned."""
        repeats = self.hashes.repeats()
        skipped = []
        if self.empty:
            skipped.append(f"{plural(self.empty, 'line')} with an empty source or target")
        if self.too_long:
            where = list_lines(self.too_long_at, self.too_long)
            skipped.append(f"{plural(self.too_long, 'pair')} longer than {self.max_length or 0:,} characters ({where})")
        skipped += self.skipped_lines()
        kept = [
            (repeats.pairs, "repeated pair", ""),
            (repeats.ambiguous, "source with several targets", "sources with several targets"),
            (self.with_breaks, "text whose tabs or line breaks became spaces", "texts whose tabs or line breaks became spaces"),
        ]
        kept += [(rows, f"row without column {name!r}", f"rows without column {name!r}") for name, rows in self.without.items()]
        sentences = [f"{self.name}: {plural(self.pairs, 'pair')} in {plural(self.lines, 'line')}"]
        if skipped:
            sentences.append(f"Skipped: {', '.join(skipped)}")
        if counted := [plural(*entry) for entry in kept if entry[0]]:
            sentences.append(f"Kept: {', '.join(counted)}")
        sentences += [*self.notes, *self.describe_normalisation()]
        return ". ".join(sentences) + "."

    def describe_reading(self) -> list[str]:
        """Returns notes for commands that do not print all counts: guesses, skipped lines, normalisation; one clause each."""
        return [*self.notes, *self.describe_bad_lines(), *self.describe_normalisation()]

    def describe_normalisation(self) -> list[str]:
        """Returns notes about texts that can look the same and differ, one clause each."""
        notes = []
        if self.normalised:
            notes.append(f"Normalised {plural(self.normalised, 'line')} to Unicode NFC")
        if self.not_normalised:
            kept = plural(self.not_normalised, "line that is", "lines that are")
            notes.append(f"Kept {kept} not in Unicode NFC; texts that look the same may differ")
        if self.invisible:
            which = ", ".join(f"U+{ord(char):04X} in {plural(lines, 'line')}" for char, lines in self.invisible.most_common(5))
            notes.append(f"Kept invisible characters or unusual spaces ({which}{', …' if len(self.invisible) > 5 else ''})")
        return notes

    def describe_shared(self, held_out: CorpusCounts) -> str:
        """Returns a sentence that says how many held-out sources also occur in the training data; empty if none does."""
        shared = self.hashes.shared_sources(held_out.hashes)
        if not shared:
            return ""
        total = held_out.hashes.repeats().sources
        return (
            f"{shared:,} of the {plural(total, 'source')} in {held_out.name} also {'occurs' if shared == 1 else 'occur'} in "
            f"{self.name}; results on such sources say little about new ones."
        )


@dataclass(frozen=True)
class Corpus:
    """All pairs of a file, or of two parallel files, in memory."""

    name: str
    pairs: tuple[Pair, ...]
    counts: CorpusCounts = field(default_factory=CorpusCounts)

    @property
    def num_empty(self) -> int:
        """The number of lines that were skipped because source or target is empty."""
        return self.counts.empty


def read_pairs(
    files: Path | Sequence[Path],
    columns: Columns = TWO_COLUMNS,
    max_length: int | None = None,
    normalisation: Normalisation = NO_NORMALISATION,
) -> Corpus:
    """Returns all pairs that `stream_pairs` yields, with their counts."""
    counts = CorpusCounts()
    pairs = tuple(stream_pairs(files, columns, max_length, counts, normalisation))
    return Corpus(counts.name, pairs, counts)


def stream_pairs(
    files: Path | Sequence[Path],
    columns: Columns = TWO_COLUMNS,
    max_length: int | None = None,
    counts: CorpusCounts | None = None,
    normalisation: Normalisation = NO_NORMALISATION,
) -> Iterator[Pair]:
    """Yields the pairs of one file with source and target, or of two parallel files. Text is UTF-8 and may be gzipped.

    The suffix decides how a file is read:

    .csv            separated by comma, semicolon or tab, with quoting
    .jsonl, .json   one object per line, {"source": …, "target": …} or {"translation": {"en": …, "de": …}}
    .xlsx           the first sheet
    any other       separated by tabs, without quoting; if not .tsv and without tabs, by |||, ->, "IN: … OUT: …" or like a .csv

    White space around a text is removed; tabs and line breaks inside it become a space. Pairs whose source or target is empty
    or longer than `max_length` characters are skipped and counted; repeated pairs are kept and counted. Raises UserError if the
    files cannot be read or contain no pairs.

    columns: the columns to read.   counts: receives the counts.
    normalisation: applied before anything is counted or compared.
    """
    files = [files] if isinstance(files, Path) else list(files)
    counts = CorpusCounts() if counts is None else counts
    counts.name = "+".join(path.name for path in files)
    counts.max_length = max_length
    for number, row in read_rows(files, columns, counts):
        counts.lines = number
        cells = normalise_line([_clean(cell, counts) for cell in row], normalisation, counts)
        if not any(cells[:-1]) or not cells[-1]:
            counts.empty += 1
            continue
        pair = Pair(tuple(cells[:-1]) if len(cells) > 2 else cells[0], cells[-1])
        if max_length is not None and max(len(flat(pair.source)), len(pair.target)) > max_length:
            counts.too_long += 1
            if len(counts.too_long_at) < MAX_LISTED:
                counts.too_long_at.append(number)
            continue
        counts.without.update(name for name, cell in zip(columns.source, cells[:-1], strict=False) if not cell)
        try:
            counts.add(pair)
        except UnicodeEncodeError as error:
            raise UserError(
                f"{files[0]}:{number}: a lone surrogate (\\u{ord(error.object[error.start]):04x}) in {pair!a}, "
                "expected valid Unicode; save the file again with the program that wrote it"
            ) from None
        yield pair
    if not counts.pairs:
        raise UserError(
            f"{' and '.join(map(str, files))}: expected pairs of texts (lines of source<TAB>target), found none in "
            f"{plural(counts.lines, 'line')}: {counts.empty:,} with an empty source or target, {counts.too_long:,} too long"
            f"{f', {counts.bad_lines:,} bad' if counts.bad_lines else ''}"
        )


def _clean(cell: str, counts: CorpusCounts) -> str:
    cell = cell.strip()
    if "\t" in cell or "\n" in cell or "\r" in cell:
        counts.with_breaks += 1
        return re.sub(r"[\t\n\r]+", " ", cell)
    return cell


def normalise_line(cells: list[str], normalisation: Normalisation, counts: CorpusCounts) -> list[str]:
    """Returns the source columns and the target, normalised. Counts lines that change and lines with invisible characters."""
    line = "".join(cells)
    counts.invisible.update(dict.fromkeys(_INVISIBLE.findall(line), 1))
    if line.isascii():
        return cells
    fully, result = Normalisation(True, True, normalisation.names).of(cells), normalisation.of(cells)
    counts.normalised += result != cells
    counts.not_normalised += result != fully
    return result


# --- held-out sources --------------------------------------------------------------------------------------------------------


def _number(text: str) -> int:
    """Returns a 64-bit hash, the same on every machine."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest())


def hash_fraction(source: SourceText) -> float:
    """Returns a number from 0 to 1 that depends only on the text of the source, and is uniformly distributed."""
    return _number(flat(source)) / 2**64


def is_held_out(source: SourceText, threshold: float) -> bool:
    """Whether a source is held out.

    This depends on the source alone, so it works on a stream and stays the same when pairs are added.
    threshold: from `CorpusCounts.threshold`.
    """
    return hash_fraction(source) < threshold
