"""Test sets: sources with all of their references, read from files in any format that a model can be trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from regard.contracts import SourceText
from regard.data.columns import TWO_COLUMNS, Columns
from regard.data.corpus import NO_NORMALISATION, Normalisation, normalise_line, stream_pairs
from regard.data.counts import CorpusCounts
from regard.data.rows import BadLine, NumberedRow, good_rows
from regard.data.source_text import flat
from regard.data.tables import open_table
from regard.errors import UserError, plural, shorten
from regard.signatures import text_fingerprint


@dataclass(frozen=True)
class TestSet:
    """A test set: distinct sources, each with all of its references.

    num_empty: the number of lines that were skipped because a side was empty.  notes: assumptions made about the file format.
    lines: for each source, the numbers of its lines.
    """

    __test__ = False  # stops pytest from collecting the class

    name: str
    sources: tuple[SourceText, ...]
    references: tuple[tuple[str, ...], ...]
    num_empty: int
    notes: tuple[str, ...] = ()
    lines: tuple[tuple[int, ...], ...] = ()

    @property
    def num_repeats(self) -> int:
        """The number of lines that repeat the source of an earlier line."""
        return sum(len(numbers) - 1 for numbers in self.lines)

    def only(self, indices: Sequence[int]) -> TestSet:
        """Returns a test set with only some of the sources, given by index."""
        return replace(
            self,
            sources=tuple(self.sources[index] for index in indices),
            references=tuple(self.references[index] for index in indices),
            lines=tuple(self.lines[index] for index in indices),
        )

    @property
    def fingerprint(self) -> str:
        """Identifies the sources and references in a signature."""
        return text_fingerprint(
            "\t".join((flat(source), *known)) for source, known in zip(self.sources, self.references, strict=True)
        )


def read_test_set(
    files: Sequence[Path],
    columns: Sequence[Columns] = (TWO_COLUMNS,),
    *,
    normalisation: Normalisation = NO_NORMALISATION,
    one_reference: bool = False,
) -> TestSet:
    """Reads a test set from files in any format that a model can be trained on. A source may have several references: in
    several lines with the same source, or in several columns.

    columns: the source and target columns, once for each column of references. If none are given for a .tsv table,
    all columns after the first are references.
    normalisation: that of the model, see `Translator.normalisation`.
    one_reference: whether there is only one column of references.

    Raises UserError if a file cannot be read or holds no source with a reference.
    """
    first = columns[0]
    if len(files) == 1 and not (first.source or first.target or one_reference) and ".tsv" in files[0].suffixes:
        return _read_table(files[0], first, normalisation)
    known: Known = {}
    num_empty = 0
    notes: list[str] = []
    for pair_columns in columns:
        counts = CorpusCounts()
        for pair in stream_pairs(files, pair_columns, counts=counts, normalisation=normalisation):
            known.setdefault(pair.source, []).append((counts.lines, pair.target))
        num_empty += counts.empty
        notes += counts.describe_reading()
    return _test_set(counts.name, known, num_empty, notes)


Known = dict[SourceText, list[tuple[int, str]]]
"""For each source, its references and the numbers of their lines."""


def _test_set(name: str, known: Known, num_empty: int, notes: Sequence[str]) -> TestSet:
    """Returns the test set of these sources and references. Raises UserError if there are none."""
    if not known:
        raise UserError(f"{name}: expected sources with references, found none in {plural(num_empty, 'line')}")
    references = tuple(tuple(dict.fromkeys(text for _, text in numbered)) for numbered in known.values())
    lines = tuple(tuple(sorted({number for number, _ in numbered})) for numbered in known.values())
    return TestSet(name, tuple(known), references, num_empty, tuple(dict.fromkeys(notes)), lines)


def _read_table(path: Path, columns: Columns, normalisation: Normalisation) -> TestSet:
    """Reads a table in which all columns after the first are references."""
    known: Known = {}
    num_empty = 0
    counts = CorpusCounts()
    rows = (_with_reference(row) for row in open_table(path, columns, counts).rows)
    for number, cells in good_rows(path, rows, columns, counts):
        source, *references = [cell.strip() for cell in cells] or [""]
        source, line = normalise_line([source, "\t".join(references)], normalisation, counts)
        references = line.split("\t")
        references = [reference for reference in references if reference]
        if source and references:
            known.setdefault(source, []).extend((number, reference) for reference in references)
        else:
            num_empty += 1
    return _test_set(path.name, known, num_empty, counts.describe_reading())


def _with_reference(row: NumberedRow | BadLine) -> NumberedRow | BadLine:
    """Returns the row, or a BadLine if it has a text but no tab."""
    if isinstance(row, BadLine) or len(row[1]) != 1:
        return row
    (cell,) = row[1]
    return (
        BadLine(row[0], f"expected source<TAB>reference, found no tab in {shorten(cell)!r}") if cell.strip() else (row[0], [])
    )
