"""Reads tables: text with columns (.tsv, .csv, plain text) and sheets (.xlsx), with or without a header."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from regard.data.columns import Columns, choose_columns
from regard.data.files import reading, suffix_of
from regard.data.header import are_usual_names, evidence
from regard.data.labels import readable
from regard.data.lines import sample
from regard.data.rows import BadLine, NumberedRow, Report
from regard.data.separators import text_rows
from regard.errors import UserError, shorten

_SAMPLE_ROWS = 1000
"""Number of rows with which the first row is compared to recognise a header."""


class Table(NamedTuple):
    """A table whose first rows have been examined.

    first: the first row that is not blank.   named: whether that row is a header.
    rows: all rows except the header; blank rows have no cells.
    """

    first: list[str]
    named: bool
    rows: Iterator[NumberedRow | BadLine]


def open_table(path: Path, columns: Columns, report: Report) -> Table:
    """Opens a table and decides whether its first row is a header. Guesses are recorded in `report`."""
    rows: Iterator[NumberedRow | BadLine]
    rows = _sheet_rows(path, report) if suffix_of(path) == ".xlsx" else text_rows(path, report)
    head = list(sample(rows, _SAMPLE_ROWS + 1, lambda row: 0 if isinstance(row, BadLine) else sum(map(len, row[1]))))
    least = 2 if columns.bad_lines == "skip" else 1  # a title above the table is a bad line too
    full = [row for row in head if not isinstance(row, BadLine) and any(cell.strip() for cell in row[1])]
    start = next((at for at, (_, cells) in enumerate(full) if len(cells) >= least), None)
    if start is None:
        return Table([], False, chain(head, rows))
    number, cells = full[start]
    similar = [other for _, other in full[start:] if len(other) == len(cells)]
    width = max(at for row in similar for at, cell in enumerate(row, start=1) if cell.strip())  # further columns are empty
    first, *below = (row[:width] for row in similar)
    if not _is_header(path, number, first, below, columns, report.notes):
        return Table(first, False, chain(head, rows))
    report.header = tuple(cell.strip() for cell in first)
    return Table(first, True, _without_header(number, cells, chain(head, rows), report))


def _sheet_rows(path: Path, report: Report) -> Iterator[NumberedRow]:
    from regard.data.sheets import read_sheet

    with reading(path):
        yield from read_sheet(path, report.notes)


def _is_header(path: Path, number: int, first: list[str], below: list[list[str]], columns: Columns, notes: list[str]) -> bool:
    if columns.header in (True, False):
        return bool(columns.header)
    if columns.by_name:
        return True
    usual = suffix_of(path) in (".csv", ".xlsx")
    if columns.header == "usual":
        strength = float(are_usual_names(first))
    else:
        strength = 1.0 if tuple(cell.strip() for cell in first) == columns.known_header else evidence(first, below, usual=usual)
    shown = f"Line {number} ({', '.join(readable(shorten(cell, 20)) for cell in first[:10])}{', …' * (len(first) > 10)})"
    if strength >= 1:
        notes.append(f"{shown} was read as a header (if it is data, use --no-header)")
    elif (usual or strength) and len(first) > 1:
        notes.append(f"{shown} was read as data (if it is a header, use --header)")
    return strength >= 1


def _without_header(
    number: int, header: list[str], rows: Iterable[NumberedRow | BadLine], report: Report
) -> Iterator[NumberedRow | BadLine]:
    """Yields all rows except the header and its repetitions, which occur in concatenated files."""
    for row in rows:
        if isinstance(row, BadLine) or row[1] != header:
            yield row
        elif row[0] != number:
            report.repeated_headers += 1


def table_rows(path: Path, columns: Columns, report: Report) -> Iterator[NumberedRow | BadLine]:
    """Yields the chosen cells of every row of a table. Blank rows have no cells; rows of another width are bad lines."""
    table = open_table(path, columns, report)
    width, picks = len(table.first), list[int]()
    if width > 1:
        picks = choose_columns(path, table.first, table.named, columns, report.notes)
    for row in table.rows:
        if isinstance(row, BadLine):
            yield row
            continue
        number, cells = row
        if len(cells) > width and not any(cell.strip() for cell in cells[width:]):
            cells = cells[:width]  # empty cells at the end of a line do not count
        if not any(cell.strip() for cell in cells):
            yield number, []
        elif width < 2:
            why = _ragged(path, cells, 2)
            raise UserError(f"{path}:{number}: {why}; give a table with source and target, or two parallel files")
        elif len(cells) == width:
            yield number, [cells[pick] for pick in picks]
        else:
            yield BadLine(number, _ragged(path, cells, width))


def _ragged(path: Path, cells: list[str], width: int) -> str:
    line = shorten("\t".join(cells))
    if width == 2 and suffix_of(path) not in (".csv", ".xlsx"):
        found = "no tab" if len(cells) == 1 else f"{len(cells) - 1} tabs"
        return f"expected source<TAB>target, found {found} in {line!r}"
    return f"expected {width} columns in every line, found {len(cells)} in {line!r}"
