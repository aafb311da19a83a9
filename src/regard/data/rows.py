"""Rows of a file, its bad lines, and the report on what was guessed and skipped while it was read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from regard.data.columns import Columns
from regard.errors import UserError, plural

NumberedRow = tuple[int, list[str]]
"""A line number and the cells of that line. Chosen cells are ordered: first source column, further source columns, target."""

MAX_LISTED = 5
"""How many line numbers a message lists."""


@dataclass(frozen=True)
class BadLine:
    """A line that does not fit the format of the file, and the reason."""

    number: int
    why: str


@dataclass(kw_only=True)
class Report:
    """Findings about a file, collected while it is read.

    notes: guesses about its format, one sentence each, without a full stop.   header: the column names, if there is a header.
    bad_lines: how many lines do not fit the format; bad_lines_at: the numbers of the first few.
    repeated_headers: how many later rows repeat the header, as in concatenated files.
    """

    notes: list[str] = field(default_factory=list)
    header: tuple[str, ...] = ()
    bad_lines: int = 0
    bad_lines_at: list[int] = field(default_factory=list)
    repeated_headers: int = 0

    def describe_bad_lines(self) -> list[str]:
        """Returns a sentence about each kind of line that was skipped, without a full stop."""
        return [f"Skipped {lines}" for lines in self.skipped_lines()]

    def skipped_lines(self) -> list[str]:
        """Returns a noun phrase for each kind of line that was skipped, such as "1 bad line (line 7)"."""
        skipped = []
        if self.bad_lines:
            where = list_lines(self.bad_lines_at, self.bad_lines)
            skipped.append(f"{plural(self.bad_lines, 'bad line')} ({where})")
        if self.repeated_headers:
            skipped.append(plural(self.repeated_headers, "line that repeats the header", "lines that repeat the header"))
        return skipped

    def add_bad_line(self, number: int) -> None:
        """Counts a bad line, and keeps its number if it is one of the first."""
        self.bad_lines += 1
        if len(self.bad_lines_at) < MAX_LISTED:
            self.bad_lines_at.append(number)


def list_lines(numbers: Sequence[int], total: int) -> str:
    """Returns "line 7" or "lines 7, 9, …"."""
    return f"line{'s' * (total > 1)} {', '.join(map(str, numbers))}{', …' * (total > len(numbers))}"


def good_rows(path: Path, rows: Iterable[NumberedRow | BadLine], columns: Columns, report: Report) -> Iterator[NumberedRow]:
    """Yields the rows without the bad lines. If these are an error, reads to the end of the file and then raises it."""
    first: BadLine | None = None
    for row in rows:
        if isinstance(row, BadLine):
            report.add_bad_line(row.number)
            first = first or row
        elif first is None or columns.bad_lines == "skip":
            yield row
    if first and columns.bad_lines == "stop":
        others = report.bad_lines_at[1:], report.bad_lines - 1
        more = f"; {plural(others[1], 'more bad line')}: {list_lines(*others)}" if others[1] else ""
        raise UserError(f"{path}:{first.number}: {first.why}{more}; correct the file, or skip bad lines with --skip-bad-lines")
