"""Splits the lines of a text file into cells, and guesses what separates them."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path

from regard.data.files import suffix_of
from regard.data.lines import read_lines, sample
from regard.data.rows import BadLine, NumberedRow, Report
from regard.errors import UserError, shorten

_SAMPLE_LINES = 50
"""Number of lines from which the separator of a file is guessed."""

_SEPARATOR_LINE = re.compile(r'"?sep=([,;\t|])"?', re.IGNORECASE)
"""The first line of a .csv file that gives Excel the separator of the columns."""


def text_rows(path: Path, report: Report) -> Iterator[NumberedRow | BadLine]:
    """Returns the rows of a text file, split according to its suffix.

    .tsv is split at tabs, without quoting; .csv at commas, semicolons or tabs, with quoting. Any other text is split at tabs;
    if its first line has none, by one of the `_PAIR_SPLITTERS` or like a .csv.
    """
    lines = read_lines(path, report.notes)
    head = list(sample(lines, _SAMPLE_LINES, len))
    suffix = suffix_of(path)
    named = _SEPARATOR_LINE.fullmatch(head[0]) if suffix == ".csv" and head else None
    if named:
        head[0] = ""  # keeps the line numbers of the other lines
    lines = chain(head, lines)
    first = next(filter(str.strip, head), "")
    if suffix == ".csv":
        sep = named[1] if named else _guess_separator(head)
        if sep != ",":
            report.notes.append(f"Columns are separated by {sep!r}")
        return _csv_rows(path, lines, sep)
    if suffix != ".tsv" and "\t" not in first:
        if form := next((form for form, split in _PAIR_SPLITTERS.items() if split(first)), None):
            report.notes.append(f"Lines were split at {form!r}")
            return _split_rows(lines, form)
        if likely := [sep for sep in _widths(head) if sep == ";" or any(re.search(f"{sep}[^ ]", line) for line in head)]:
            sep = _guess_separator(head)
            if sep in likely:
                report.notes.append(f"The file was read as CSV with columns separated by {sep!r}")
                return _csv_rows(path, lines, sep)
    return ((number, line.split("\t")) for number, line in enumerate(lines, start=1))


def _split_in_out(line: str) -> tuple[str, str] | None:
    if not line.startswith("IN:"):
        return None
    at = line.find("OUT:", 4)
    while at > 0 and not line[at - 1].isspace():
        at = line.find("OUT:", at + 1)
    return (line[3:at].strip(), line[at + 4 :].lstrip()) if at > 0 else None


def _split_at(divider: str) -> Callable[[str], tuple[str, str] | None]:
    def split(line: str) -> tuple[str, str] | None:
        before, found, after = line.partition(divider)
        return (before.rstrip(), after.lstrip()) if found else None

    return split


_PAIR_SPLITTERS: dict[str, Callable[[str], tuple[str, str] | None]] = {
    "IN: … OUT: …": _split_in_out,
    "|||": _split_at("|||"),
    "->": _split_at("->"),
}
"""How text files without tabs separate source and target: SCAN, word aligners, lists of corrections. Each returns None for a
line in another format."""


def _split_rows(lines: Iterable[str], form: str) -> Iterator[NumberedRow | BadLine]:
    split = _PAIR_SPLITTERS[form]
    for number, line in enumerate(lines, start=1):
        if pair := split(line):
            yield number, list(pair)
        elif not line.strip():
            yield number, []
        else:
            yield BadLine(number, f"expected {form!r} as in the first line, found none in {shorten(line)!r}")


def _csv_rows(path: Path, lines: Iterable[str], sep: str) -> Iterator[NumberedRow]:
    reader = csv.reader((line + "\n" for line in lines), delimiter=sep, strict=True)
    start = 1
    try:
        for cells in reader:
            yield start, cells
            start = reader.line_num + 1  # a quoted cell may span several lines
    except csv.Error as error:
        raise UserError(
            f"{path}:{start}: cannot be read as CSV: {str(error).expandtabs(1)}; is a quote missing, or one too many? "
            "A cell that contains quotes must be quoted, with each inner quote doubled; a tab-separated file without quoting "
            "must be named .tsv"
        ) from None


def _guess_separator(head: list[str]) -> str:
    """Returns comma, semicolon or tab: the one that gives every row of the sample the same number of columns, preferably two.

    If several do, prefers one that is never followed by a space, as it would be in prose, and then the comma.
    """
    widths = _widths(head)
    first = next(filter(str.strip, head), "")
    guess = max(",;\t", key=first.count)
    return min(widths, key=lambda sep: (widths[sep] != 2, any(f"{sep} " in line for line in head)), default=guess)


def _widths(head: list[str]) -> dict[str, int]:
    """Returns the number of columns for each separator that gives every row of the sample the same number, at least 2."""
    widths = {}
    for sep in ",;\t":
        try:
            rows = [row for row in csv.reader((line + "\n" for line in head), delimiter=sep) if row]
        except csv.Error:
            continue
        sizes = {len(row) for row in (rows[:-1] if len(head) == _SAMPLE_LINES else rows)}  # the last row may be cut off
        if len(sizes) == 1 and sizes != {1}:
            widths[sep] = sizes.pop()
    return widths
