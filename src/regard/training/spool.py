"""Pairs in memory, written to a file of JSON lines, which a run then reads like any other file.

So pairs of any number take constant memory, checkpoints and fingerprints work as for files, and the same pairs again continue
the run.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from regard.checkpoint.files import sibling, sync_folder, writing
from regard.data.codecs import SUFFIXES
from regard.errors import UserError, plural, shown
from regard.training.tokenise import data_changed

DATA, HELD_OUT = "data.jsonl", "held_out.jsonl"
"""The names of the files in a run folder."""

_SUFFIXES = tuple(SUFFIXES)
_EXPECTED = (
    "expected pairs (source, target) or dictionaries of columns; a source of several columns is a tuple: "
    '(("walk", "V;PST"), "walked")'
)


class Spool:
    """A file in a run folder that holds pairs which were given in memory.

    columns: the names of the source columns of pairs, if they were given; numbers choose columns by their order.
    target: that of the target column. texts: whether rows may also be texts, which have no source.
    """

    def __init__(self, path: Path, columns: Sequence[str] = (), target: str = "", *, texts: bool = False) -> None:
        self.path, self.columns, self.texts = path, tuple(columns), texts
        self.target = target if target and not target.isdecimal() else "target"
        self.num_sources = 0
        """The number of source columns of the pairs that were written; 0 if they were dictionaries."""

    @property
    def source_columns(self) -> tuple[str, ...]:
        """The source columns to read, if they must be chosen: pairs have several."""
        return self._names(self.num_sources) if self.num_sources > 1 else ()

    def write(self, rows: Iterable[Any], *, resuming: bool) -> None:
        """Writes rows in one pass, atomically.

        rows: pairs or dictionaries, or a table that `itertuples` reads (pandas).
        resuming: whether the file belongs to a run that continues, and so must not change.
        Raises UserError for a row that is neither a pair nor a dictionary, if the file cannot be written, or if it must not
        change but would.
        """
        fresh = sibling(self.path, "new")
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = open(fresh, "xb")  # noqa: SIM115 closed below
        try:
            with file:
                for line in self._lines(rows):
                    with writing(self.path):
                        file.write(line)
                with writing(self.path):
                    file.flush()
                    os.fsync(file.fileno())
            if resuming and self.path.exists():
                if _digest(self.path) != _digest(fresh):
                    raise data_changed("the pairs")
                return
            with writing(self.path):
                fresh.replace(self.path)
                sync_folder(self.path.parent)
        finally:
            fresh.unlink(missing_ok=True)

    def _lines(self, rows: Iterable[Any]) -> Iterator[bytes]:
        """Yields a JSON object for each row."""
        if isinstance(rows, Table):
            names = [str(name) for name in rows.columns]
            rows = (dict(zip(names, cells, strict=True)) for cells in rows.itertuples(index=False, name=None))
        for number, row in enumerate(rows, start=1):
            columns = row if isinstance(row, Mapping) else self._columns(row, number)
            yield json.dumps(_plain(columns)).encode() + b"\n"

    def _columns(self, row: Any, number: int) -> dict[str, Any]:
        """Returns a pair as columns. number: that of the row."""
        if self.texts and isinstance(row, str):
            return {"source": "", self.target: row}
        if not isinstance(row, list | tuple) or len(row) != 2:
            raise UserError(f"row {number} of the data is {shown(row)}; {_EXPECTED}")
        source = row[0] if isinstance(row[0], list | tuple) else (row[0],)
        for text in (*source, row[1]):
            if text is not None and not isinstance(text, str | Real | os.PathLike):
                raise UserError(f"row {number} of the data is {shown(row)}; expected texts, got {type(text).__name__}")
        self.num_sources = self.num_sources or len(source)
        if len(source) != self.num_sources:
            raise UserError(
                f"row {number} of the data is {shown(row)}, with {plural(len(source), 'source column')}; "
                f"expected {self.num_sources}, as in the rows before it"
            )
        return {**dict(zip(self._names(len(source)), source, strict=True)), self.target: row[1]}

    def _names(self, number: int) -> tuple[str, ...]:
        """Returns the names of this many source columns."""
        if len(self.columns) == number and not any(name.isdecimal() for name in self.columns):
            return self.columns
        return ("source", *(f"source {column}" for column in range(2, number + 1)))


@runtime_checkable
class Table(Protocol):
    """What a pandas DataFrame has."""

    columns: Iterable[Any]

    def itertuples(self, *, index: bool, name: str | None) -> Iterable[tuple[Any, ...]]:
        """Yields the cells of each row."""
        ...


def _plain(value: Any) -> Any:
    """Returns a value as JSON holds it. A missing cell of a table (NaN) is null; what is no text, such as a picture in memory,
    is an empty object, which no column can be. Names of files become absolute: they are relative to the working directory."""
    if isinstance(value, str):
        return os.path.abspath(value) if value.lower().endswith(_SUFFIXES) and os.path.isfile(value) else str(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return None if value != value else float(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, os.PathLike):
        return os.path.abspath(value)
    return None if type(value).__name__ in ("NAType", "NaTType") else {}


def _digest(path: Path) -> bytes:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
