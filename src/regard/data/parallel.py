"""Reads two parallel files: line n of one is the translation of line n of the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from regard.data.columns import Columns
from regard.data.files import suffix_of
from regard.data.json_lines import JSON_SUFFIXES
from regard.data.lines import read_lines
from regard.data.rows import NumberedRow, Report
from regard.errors import UserError, plural


def parallel_rows(source: Path, target: Path, columns: Columns, report: Report) -> Iterator[NumberedRow]:
    """Yields a row of two cells per line. Raises UserError if the files are tables, or have different numbers of lines."""
    for path in (source, target):
        if suffix_of(path) in (".tsv", ".csv", ".xlsx", *JSON_SUFFIXES):
            raise UserError(
                f"{path}: two files are read as parallel texts, line n of one with line n of the other, but this is a table; "
                "give a single table, or concatenate tables of the same format first, e.g. cat a.tsv b.tsv > all.tsv"
            )
    if columns.source or columns.target or columns.header is True:
        raise UserError(
            f"columns or a header were chosen, but {source} and {target} are parallel texts, which have neither; "
            "remove --from, --to and --header"
        )
    lines, others = read_lines(source, report.notes), read_lines(target, report.notes)
    number = 0
    for number, line in enumerate(lines, start=1):
        other = next(others, None)
        if other is None:
            raise _different_lengths(source, number + sum(1 for _ in lines), target, number - 1)
        yield number, [line, other]
    if rest := sum(1 for _ in others):
        raise _different_lengths(source, number, target, number + rest)


def _different_lengths(source: Path, num_source: int, target: Path, num_target: int) -> UserError:
    return UserError(
        f"{source} has {plural(num_source, 'line')} and {target} has {num_target:,}, expected the same number: line n of one "
        "translates line n of the other; find the first lines that do not match"
    )
