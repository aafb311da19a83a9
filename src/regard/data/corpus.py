"""Pairs of texts from files, and which of them are held out. Nothing is dropped without being counted.

`stream_pairs` reads without end in sight; `read_pairs` keeps what is small enough to be kept.
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

from regard.data.files import SHOWN, TWO_COLUMNS, Columns, Report, decode_lines, list_lines, read_lines, read_rows, shorten
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
    "join_columns",
    "normalise_line",
    "read_lines",
    "read_pairs",
    "shorten",
    "stream_pairs",
]


class Pair(NamedTuple):
    source: str
    target: str


class Normalisation(NamedTuple):
    """Which texts of a pair are normalised to Unicode's composed spelling, NFC.

    names: the first source column holds names of files, which stay as they are on disk.
    """

    source: bool = False
    target: bool = False
    names: bool = False

    def of(self, cells: list[str]) -> list[str]:
        """The source columns, and last the target."""
        *read, written = cells
        if self.source:
            first = 1 if self.names else 0
            read[first:] = map(nfc, read[first:])
        return [*read, nfc(written) if self.target else written]


NO_NORMALISATION = Normalisation()

_UNSEEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\xa0\xad\u061c\u180e\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ufeff]")
"""Characters that cannot be seen, or look like a space, but make another text."""


class Repeats(NamedTuple):
    """pairs: how many occur again. sources: how many are distinct. several: how many of these have more than one target."""

    pairs: int
    sources: int
    several: int


class Hashes:
    """What was seen, in 8 bytes per pair: 44 bits of the source (12 of them say in which bucket) and 32 of the target."""

    def __init__(self) -> None:
        self._buckets: defaultdict[int, array[int]] = defaultdict(lambda: array("Q"))

    def add(self, source: int, target: str) -> None:
        own = int.from_bytes(blake2b(target.encode(), digest_size=4).digest())
        self._buckets[source & 4095].append((source >> 12 & 0xFFFFFFFF) << 32 | own)

    def repeats(self) -> Repeats:
        pairs = sources = several = 0
        for bucket in self._buckets.values():
            distinct = set(bucket)
            targets = Counter(number >> 32 for number in distinct)
            pairs += len(bucket) - len(distinct)
            sources += len(targets)
            several += sum(count > 1 for count in targets.values())
        return Repeats(pairs, sources, several)

    def shared_sources(self, other: Hashes) -> int:
        both = self._buckets.keys() & other._buckets.keys()
        return sum(
            len({number >> 32 for number in self._buckets[at]} & {number >> 32 for number in other._buckets[at]}) for at in both
        )


@dataclass
class CorpusCounts(Report):
    """What was met while reading; complete when the stream has ended.

    lines: all of them, with blank ones and the header.
    empty: left out because a side was empty.   too_long: left out; too_long_at: the numbers of the first few lines.
    with_breaks: texts in which tabs or line breaks became spaces.
    normalised: lines that NFC changed.   not_normalised: lines that it would have changed.
    unseen: lines that hold an invisible character or an unusual space, by character.
    without: rows that lack one of several source columns, by its name or number.
    lowest, highest: the first and the last `hash_fraction` a source.
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
    unseen: Counter[str] = field(default_factory=Counter)
    without: Counter[str] = field(default_factory=Counter)
    hashes: Hashes = field(default_factory=Hashes, repr=False, compare=False)
    lowest: float = 1.0
    highest: float = 0.0

    def add(self, pair: Pair) -> None:
        number = _number(pair.source)
        self.hashes.add(number, pair.target)
        fraction = number / 2**64
        self.lowest, self.highest = min(self.lowest, fraction), max(self.highest, fraction)
        self.pairs += 1

    def threshold(self, share: float) -> float:
        """For `is_held_out`: the share itself, unless one side would be empty; then the least change that leaves it a source.

        For at most n pairs, ask for the share min(share, n / counts.pairs).
        """
        if self.lowest >= self.highest:
            raise UserError("found fewer than 2 distinct sources, expected at least 2: one to learn from and one to hold out")
        return min(max(share, math.nextafter(self.lowest, 1)), self.highest)

    def describe(self) -> str:
        """For the console, in plain sentences; what did not happen is not mentioned."""
        repeats = self.hashes.repeats()
        left_out = {
            "because a side is empty": self.empty,
            f"longer than {self.max_length or 0:,} characters ({list_lines(self.too_long_at, self.too_long)})": self.too_long,
            f"because other columns were found ({list_lines(self.bad_lines_at, self.bad_lines)})": self.bad_lines,
            "because they repeat the names of the columns": self.header_again,
        }
        kept = {
            "pairs that occur again": repeats.pairs,
            "sources with several targets": repeats.several,
            "texts in which tabs or line breaks became spaces": self.with_breaks,
            **{f"rows without {column!r}": count for column, count in self.without.items()},
        }
        sentences = [f"{self.name}: {plural(self.pairs, 'pair')} in {plural(self.lines, 'line')}"]
        if any(left_out.values()):
            sentences.append("Left out: " + ", ".join(f"{count:,} {why}" for why, count in left_out.items() if count))
        if any(kept.values()):
            sentences.append("Kept: " + ", ".join(f"{what} ({count:,})" for what, count in kept.items() if count))
        sentences += [*self.notes, *self.describe_normalisation()]
        return ". ".join(sentences) + "."

    def describe_reading(self) -> list[str]:
        """What a reader should know who is not told the counts: guesses, lines left out, spellings; a clause for each."""
        return [*self.notes, *self.describe_bad_lines(), *self.describe_normalisation()]

    def describe_normalisation(self) -> list[str]:
        """What looks like something else, a clause for each."""
        found = []
        if self.normalised:
            found.append(f"Normalised to Unicode's NFC: {plural(self.normalised, 'line')}")
        if self.not_normalised:
            found.append(
                f"Kept as written, though not in Unicode's NFC: {plural(self.not_normalised, 'line')}, which may differ from "
                "others that look the same"
            )
        if self.unseen:
            which = ", ".join(f"U+{ord(one):04X} in {plural(lines, 'line')}" for one, lines in self.unseen.most_common(5))
            found.append(f"Kept: invisible characters or unusual spaces ({which}{', …' if len(self.unseen) > 5 else ''})")
        return found

    def describe_shared(self, held_out: CorpusCounts) -> str:
        """How many held-out sources the training data holds too, as a sentence; nothing if there are none."""
        shared = self.hashes.shared_sources(held_out.hashes)
        if not shared:
            return ""
        total = held_out.hashes.repeats().sources
        return (
            f"{shared:,} of the {total:,} sources in {held_out.name} are in {self.name} too: "
            "what is measured on them was seen in training."
        )


@dataclass(frozen=True)
class Corpus:
    """All pairs of a file (or of two parallel ones), in memory."""

    name: str
    pairs: tuple[Pair, ...]
    counts: CorpusCounts = field(default_factory=CorpusCounts)

    @property
    def num_empty(self) -> int:
        return self.counts.empty


def read_pairs(
    files: Path | Sequence[Path],
    columns: Columns = TWO_COLUMNS,
    max_length: int | None = None,
    normalisation: Normalisation = NO_NORMALISATION,
) -> Corpus:
    """As `stream_pairs`, for what fits into memory."""
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
    """Reads one file with both sides, or two parallel ones; UTF-8, each may be .gz. The suffix says of what kind:

    .csv            separated by comma, semicolon or tab, with quotes
    .jsonl, .json   one object per line, {"source": …, "target": …} or {"translation": {"en": …, "de": …}}
    .xlsx           the first sheet
    any other       separated by tabs, without quotes; if not .tsv and without tabs, by |||, ->, as "IN: … OUT: …" or as a .csv

    Columns are told by `columns`. White space around a text is cut off; tabs and line breaks inside become a space. Pairs with
    an empty side, or one longer than `max_length` characters, are left out and counted; repeated ones are kept and counted.
    Texts are normalised as `spelling` says, before anything is counted or compared.
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
        pair = Pair(join_columns(cells[:-1]) if len(cells) > 2 else cells[0], cells[-1])
        if max_length is not None and max(map(len, pair)) > max_length:
            counts.too_long += 1
            if len(counts.too_long_at) < SHOWN:
                counts.too_long_at.append(number)
            continue
        counts.without.update(name for name, cell in zip(columns.source, cells[:-1], strict=False) if not cell)
        try:
            counts.add(pair)
        except UnicodeEncodeError as error:
            raise UserError(
                f"{files[0]}:{number}: half a character (\\u{ord(error.object[error.start]):04x}) in {pair!a}; "
                "expected whole ones: write the file again with the program that made it"
            ) from None
        yield pair
    if not counts.pairs:
        raise UserError(
            f"{' and '.join(map(str, files))}: expected pairs of texts (lines of source<TAB>target), found none in "
            f"{plural(counts.lines, 'line')}: {counts.empty:,} with an empty side, {counts.too_long:,} too long"
            f"{f', {counts.bad_lines:,} with other columns' if counts.bad_lines else ''}"
        )


def join_columns(cells: Sequence[str]) -> str:
    """The first cell, then a tab and a symbol for every feature of the others: ("walk", "V;PST") is "walk<TAB>V<TAB>PST".

    Features are parted by ; | or white space. A line that was joined already, split at its tabs, comes out the same.
    """
    first, *others = cells
    features = [feature for cell in others for feature in re.split(r"[;|\s]+", cell) if feature]
    return "\t".join((first.strip(), *features))


def _clean(cell: str, counts: CorpusCounts) -> str:
    cell = cell.strip()
    if "\t" in cell or "\n" in cell or "\r" in cell:
        counts.with_breaks += 1
        return re.sub(r"[\t\n\r]+", " ", cell)
    return cell


def normalise_line(cells: list[str], normalisation: Normalisation, counts: CorpusCounts) -> list[str]:
    """Source columns and target in the wanted spelling; what changes, and what cannot be seen, is counted."""
    line = "".join(cells)
    counts.unseen.update(dict.fromkeys(_UNSEEN.findall(line), 1))
    if line.isascii():
        return cells
    normal, spelt = Normalisation(True, True, normalisation.names).of(cells), normalisation.of(cells)
    counts.normalised += spelt != cells
    counts.not_normalised += spelt != normal
    return spelt


# --- what is held out --------------------------------------------------------------------------------------------------------


def _number(text: str) -> int:
    """Evenly spread over 64 bits, the same on every machine."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest())


def hash_fraction(source: str) -> float:
    """Where a source stands from 0 to 1, by a hash of its text alone."""
    return _number(source) / 2**64


def is_held_out(source: str, threshold: float) -> bool:
    """Depends on this source alone: it can be told on a stream, and stays when pairs are added. Get `border` from
    `Counts.border`: it is the share that is wanted, unless there are so few sources that a side would be empty."""
    return hash_fraction(source) < threshold
