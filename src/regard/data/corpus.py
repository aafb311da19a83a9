"""Reads pairs of texts from files. Pairs that are skipped are always counted.

`stream_pairs` reads files of any size; `read_pairs` returns a corpus that fits into memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from regard.contracts import SourceText
from regard.data.columns import TWO_COLUMNS, Columns
from regard.data.counts import CorpusCounts
from regard.data.formats import read_rows
from regard.data.source_text import flat
from regard.data.tokenizers.normal import nfc
from regard.errors import UserError, plural


class Pair(NamedTuple):
    """A source and its target text. A source of several columns is a tuple."""

    source: SourceText
    target: str

    @property
    def texts(self) -> tuple[str, str]:
        """Both sides as one string each, by which pairs are compared."""
        return flat(self.source), self.target

    @property
    def key(self) -> SourceText:
        """What decides whether the pair is held out, and whether it was seen in training: its source or, without one, its
        text."""
        return self.source or self.target


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
    *,
    needs_source: bool = True,
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
    needs_source: whether pairs without a source are skipped; language models need none.
    """
    files = [files] if isinstance(files, Path) else list(files)
    counts = CorpusCounts() if counts is None else counts
    counts.name = "+".join(path.name for path in files)
    counts.max_length = max_length
    for number, row in read_rows(files, columns, counts):
        counts.lines = number
        cells = normalise_line([_clean(cell, counts) for cell in row], normalisation, counts)
        if (needs_source and not any(cells[:-1])) or not cells or not cells[-1]:
            counts.empty += 1
            continue
        pair = Pair(tuple(cells[:-1]) if len(cells) > 2 else cells[0], cells[-1])
        if max_length is not None and max(map(len, pair.texts)) > max_length:
            counts.add_too_long(number)
            continue
        counts.without.update(name for name, cell in zip(columns.source, cells[:-1], strict=False) if not cell)
        try:
            counts.add(*pair)
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
