"""What a model folder says about the data that the model was trained on: its columns, and which sources it saw."""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

from regard.data.corpus import CorpusCounts, stream_pairs
from regard.data.files import TWO_COLUMNS, Columns, WrongColumns
from regard.errors import UserError, plural

MOST_KEYS = 8192
"""How many sources are remembered, in 4 bytes each; of more, a sample."""
_ALL = 1 << 32


class Sources:
    """The sources that a model was trained on, as hashes. Of more than MOST_KEYS only the smallest hashes are kept; then those
    of other sources that are as small can still be checked, and they are a fair sample."""

    def __init__(self, sources: Iterable[str] = ()) -> None:
        self._keys: set[int] = set()
        self._below = _ALL
        """Of the hashes below this one, all are known."""
        for source in sources:
            self.add(source)

    def add(self, source: str) -> None:
        key = _key(source)
        if key < self._below:
            self._keys.add(key)
            if len(self._keys) > 2 * MOST_KEYS:
                self._shrink()

    def update(self, other: Sources) -> None:
        self._below = min(self._below, other._below)
        self._keys = {key for key in self._keys | other._keys if key < self._below}
        self._shrink()

    def describe_seen(self, sources: Sequence[str]) -> str:
        """How many of these were seen in training, as a sentence; nothing if there are none."""
        keys = [key for key in map(_key, sources) if key < self._below]
        seen = sum(key in self._keys for key in keys)
        if not seen:
            return ""
        of = plural(len(keys), "source") + (" that can be checked" if len(keys) < len(sources) else "")
        were = "was" if seen == 1 else "were"
        return f"{seen:,} of {of} {were} seen in training: what is measured on them says little about new ones"

    def to_facts(self) -> dict[str, Any]:
        self._shrink()
        raw = struct.pack(f"<{len(self._keys)}I", *sorted(self._keys))
        return {"below": self._below, "hashes": base64.b64encode(raw).decode()}

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Sources:
        found = cls()
        found._keys = {key for (key,) in struct.iter_unpack("<I", base64.b64decode(facts["hashes"], validate=True))}
        found._below = int(facts["below"])
        return found

    def _shrink(self) -> None:
        if len(self._keys) > MOST_KEYS:
            keys = sorted(self._keys)
            self._keys, self._below = set(keys[:MOST_KEYS]), keys[MOST_KEYS]


def _key(source: str) -> int:
    return int.from_bytes(blake2b(source.encode(), digest_size=4).digest())


@dataclass(frozen=True)
class TrainedOn:
    """source, target: the columns that were chosen, as they were typed; nothing if nobody chose. header: the names of all
    columns, if the file had any. sources: None if that is not known."""

    source: tuple[str, ...] = ()
    target: str = ""
    header: tuple[str, ...] = ()
    sources: Sources | None = None

    @classmethod
    def from_facts(cls, training: Mapping[str, Any]) -> TrainedOn:
        """What config.json holds as `training`; folders of older versions, and of other origin, say less."""
        try:
            data = training.get("settings", {}).get("data", {})
            return cls(
                tuple(map(str, data.get("source_columns", ()))),
                str(data.get("target_column", "")),
                tuple(map(str, training.get("header", ()))),
                Sources.from_facts(training["sources"]) if "sources" in training else None,
            )
        except (AttributeError, KeyError, TypeError, ValueError, struct.error) as error:
            raise UserError(
                f"config.json: what it says about the training data cannot be read: {error!r}; "
                "copy the folder again from its origin"
            ) from None

    @property
    def one_reference(self) -> bool:
        """Whether further columns are no references: the model was trained on some of more than two."""
        return bool(self.source or self.target or len(self.header) > 2)

    def columns(
        self,
        files: Sequence[Path],
        source: Sequence[str] = (),
        targets: Sequence[str] = (),
        *,
        header: bool | None = None,
        bad_lines: Literal["stop", "skip"] = "stop",
    ) -> ChosenColumns:
        """The columns to read in these files: those that are given, else those of the training: by their names, or, where a
        file has none, by their numbers. header, bad_lines: as in `Columns`."""
        given = ChosenColumns(
            tuple(source), tuple(targets), Columns(header=header, bad_lines=bad_lines, known_header=self.header)
        )
        if len(files) > 1 or (source and targets) or not (self.source or self.target):
            return given
        found: UserError | None = None
        for way in (self._name, self._number):
            wanted = self._wanted(given, way)
            if wanted is None or (found and _header(files, given)):  # there are names, but others
                continue
            try:
                _first(files, wanted)
            except WrongColumns as error:
                found = found or error
            else:
                return wanted
        expected = self._wanted(given, self._name) or self._wanted(given, self._number)
        raise UserError(
            f"{found}; expected the columns that the model was trained on, {expected}: choose others with --from and --to"
        )

    def _wanted(self, given: ChosenColumns, way: Callable[[str], str | None]) -> ChosenColumns | None:
        """What was not given as it was in training; None if it cannot be said in this way."""
        source = given.source or [way(one) for one in self.source]
        targets = given.targets or [way(one) for one in (self.target,) if one]
        if None in (*source, *targets):
            return None
        chosen = tuple(filter(None, source)), tuple(filter(None, targets))
        return replace(given, source=chosen[0], targets=chosen[1], as_in_training=True)

    def _name(self, column: str) -> str | None:
        if not column.isdecimal():
            return column
        return self.header[int(column) - 1] if 0 < int(column) <= len(self.header) else None

    def _number(self, column: str) -> str | None:
        if column.isdecimal():
            return column
        return str(self.header.index(column) + 1) if column in self.header else None


@dataclass(frozen=True)
class ChosenColumns:
    """Columns of the sources and of their references, by name or number. table: how to read the rest of the table."""

    source: tuple[str, ...]
    targets: tuple[str, ...]
    table: Columns = TWO_COLUMNS
    as_in_training: bool = False

    def __str__(self) -> str:
        return f"source {', '.join(self.source) or 'any'} and target {', '.join(self.targets) or 'any'}"

    def describe(self) -> list[str]:
        """A sentence if nobody chose them."""
        return [f"columns as in training: {self} (choose others with --from and --to)"] if self.as_in_training else []

    @property
    def each(self) -> list[Columns]:
        """One for every column of references."""
        return [replace(self.table, source=self.source, target=target) for target in self.targets or ("",)]


def _first(files: Sequence[Path], chosen: ChosenColumns) -> None:
    """Reads the first pair; WrongColumns if there are no such columns."""
    for columns in chosen.each:
        next(stream_pairs(files, columns), None)


def _header(files: Sequence[Path], chosen: ChosenColumns) -> bool:
    next(stream_pairs(files, replace(chosen.table, source=("1",), target="2"), counts=(counts := CorpusCounts())), None)
    return bool(counts.header)
