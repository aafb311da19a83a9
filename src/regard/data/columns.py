"""The choice of columns: which cells of a row are the source, and which is the target."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from regard.data.header import NUMBERS, SOURCES, TARGETS
from regard.errors import UserError, did_you_mean, plural, shorten


@dataclass(frozen=True)
class Columns:
    """The columns to read, by name or by number from 1. Empty: the file has only two columns, or their names say which to use.

    source: the source columns; the further ones hold features or an auxiliary text (see data/source_text.py).
    target: the target column.
    header: whether the first row is a header. None: it is if a column is chosen by name; otherwise `header.evidence` decides,
    and a note reports the decision. "usual": like None, but recognises only well-known names, as before `evidence` existed.
    bad_lines: "stop" raises an error that counts all bad lines and lists the first few; "skip" skips and counts them.
    known_header: the header of another file; a first row equal to it is a header too, however few rows are below it.
    """

    source: tuple[str, ...] = ()
    target: str = ""
    header: bool | Literal["usual"] | None = None
    bad_lines: Literal["stop", "skip"] = "stop"
    known_header: tuple[str, ...] = ()

    @property
    def by_name(self) -> bool:
        """Whether any column is chosen by name."""
        return any(not column.isdecimal() for column in (*self.source, self.target) if column)


TWO_COLUMNS = Columns()


class WrongColumns(UserError):
    """The file lacks one of the chosen columns."""


def choose_columns(path: Path, labels: list[str], named: bool, columns: Columns, notes: list[str]) -> list[int]:
    """Returns the indices of the columns to read, the target last.

    labels: the cells of the first row, which are the names of the columns if `named`.
    """
    labels = [label.strip() for label in labels]
    shown = ", ".join(f"{number} {shorten(label, 20)!r}" for number, label in enumerate(labels[:20], start=1))
    shown = f"{plural(len(labels), 'column')} ({shown}{', …' if len(labels) > 20 else ''})"
    source = [_find_column(path, labels, shown, column) for column in columns.source]
    target = _find_column(path, labels, shown, columns.target) if columns.target else None
    roles = [label.lower().rpartition(".")[2] if named else "" for label in labels]
    free = [at for at in range(len(labels)) if at not in source and at != target]
    if len(labels) > 2:
        free = [at for at in free if roles[at] not in NUMBERS]
    if not source:
        likely = [at for at in free if roles[at] in SOURCES]
        source = likely if len(likely) == 1 else free[:1] if len(free) == 1 + (target is None) else []
    if target is None:
        left = [at for at in free if at not in source]
        likely = [at for at in left if roles[at] in TARGETS]
        target = likely[0] if len(likely) == 1 else left[0] if len(left) == 1 else None
    twice = [at for at in (*source, target) if (*source, target).count(at) > 1]
    if twice and twice[0] is not None:
        raise UserError(f"{path} has {shown}; column {twice[0] + 1} is chosen twice; choose each column once")
    if not source or target is None:
        raise UserError(
            f"{path} has {shown}; expected two columns, or a choice of source and target by number or name, "
            "e.g. --from 1 --to 2, or --from 1,3 --to 2 for a text and its features, or a file and its auxiliary text"
        )
    if named and not (columns.source and columns.target):
        notes.append(f"Column {labels[source[0]]!r} was read as the source and {labels[target]!r} as the target")
    return [*source, target]


def _find_column(path: Path, labels: list[str], shown: str, column: str) -> int:
    if column.isdecimal():
        if len(column) > 9 or not 1 <= int(column) <= len(labels):
            raise WrongColumns(f"{path} has {shown}; there is no column {shorten(column, 20)}")
        return int(column) - 1
    lowered = [label.lower() for label in labels]
    for names, wanted in (
        (labels, column),
        (lowered, column.lower()),
        ([name.rpartition(".")[2] for name in lowered], column.lower()),
    ):
        if (count := names.count(wanted)) == 1:
            return names.index(wanted)
        if count:
            raise UserError(f"{path} has {shown}; {count} of them are called {column!r}; choose by number")
    raise WrongColumns(
        f"{path} has {shown}; none is called {shorten(column)!r}{did_you_mean(column, labels)}; "
        "if the first line is not a header, choose by number"
    )
