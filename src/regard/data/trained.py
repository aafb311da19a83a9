"""The record of the training data in a model folder: the columns that were read, and the sources that were seen."""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

from regard.contracts import SourceText
from regard.data.columns import TWO_COLUMNS, Columns, WrongColumns
from regard.data.corpus import Normalisation, Pair, stream_pairs
from regard.data.counts import CorpusCounts
from regard.data.source_text import flat
from regard.data.texts import Contents, recognise_texts, stream_texts
from regard.errors import UserError, plural

MOST_KEYS = 8192
"""Maximum number of source hashes that are stored, 4 bytes each; if there are more, a sample is stored."""
_ALL_HASHES = 1 << 32


class Sources:
    """The sources that a model was trained on, as hashes.

    If there are more than MOST_KEYS, only the smallest hashes are kept. Then a source can be checked only if its hash is in
    that range; such sources are a fair sample.
    """

    def __init__(self, sources: Iterable[SourceText] = ()) -> None:
        self._keys: set[int] = set()
        self._below = _ALL_HASHES
        """All hashes of training sources below this bound are stored."""
        for source in sources:
            self.add(source)

    def add(self, source: SourceText) -> None:
        """Adds a source of the training data."""
        key = _key(source)
        if key < self._below:
            self._keys.add(key)
            if len(self._keys) > 2 * MOST_KEYS:
                self._shrink()

    def update(self, other: Sources) -> None:
        """Adds the sources of another model, from which training started."""
        self._below = min(self._below, other._below)
        self._keys = {key for key in self._keys | other._keys if key < self._below}
        self._shrink()

    def describe_seen(self, sources: Sequence[SourceText]) -> str:
        """Returns a clause that says how many of these sources were seen in training; empty if none was."""
        keys = [key for key in map(_key, sources) if key < self._below]
        seen = sum(key in self._keys for key in keys)
        if not seen:
            return ""
        of = plural(len(keys), "source") + (" that can be checked" if len(keys) < len(sources) else "")
        were = "was" if seen == 1 else "were"
        return f"{seen:,} of {of} {were} seen in training; results on such sources say little about new ones"

    def to_facts(self) -> dict[str, Any]:
        """Returns the entry `training.sources` of config.json."""
        self._shrink()
        raw = struct.pack(f"<{len(self._keys)}I", *sorted(self._keys))
        return {"below": self._below, "hashes": base64.b64encode(raw).decode()}

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Sources:
        """Returns the sources that `to_facts` wrote."""
        sources = cls()
        sources._keys = {key for (key,) in struct.iter_unpack("<I", base64.b64decode(facts["hashes"], validate=True))}
        sources._below = int(facts["below"])
        return sources

    def _shrink(self) -> None:
        if len(self._keys) > MOST_KEYS:
            keys = sorted(self._keys)
            self._keys, self._below = set(keys[:MOST_KEYS]), keys[MOST_KEYS]


def _key(source: SourceText) -> int:
    return int.from_bytes(blake2b(flat(source).encode(), digest_size=4).digest())


@dataclass(frozen=True)
class TrainedOn:
    """The training data of a model, as recorded in its folder.

    source, target: the columns that the user chose, as typed; empty if they were detected.
    header: the names of all columns; empty if the file had no header.   sources: None if they were not recorded.
    contents, max_length: what the files held, and the maximum number of characters of a text.
    """

    source: tuple[str, ...] = ()
    target: str = ""
    header: tuple[str, ...] = ()
    sources: Sources | None = None
    contents: Contents = "pairs"
    max_length: int | None = None

    @classmethod
    def from_facts(cls, training: Mapping[str, Any]) -> TrainedOn:
        """Reads the entry `training` of config.json. Raises UserError if it is damaged.

        Folders of older versions, or from other sources, may lack parts of it.
        """
        try:
            data = training.get("settings", {}).get("data", {})
            return cls(
                tuple(map(str, data.get("source_columns", ()))),
                str(data.get("target_column", "")),
                tuple(map(str, training.get("header", ()))),
                Sources.from_facts(training["sources"]) if "sources" in training else None,
                contents if (contents := data.get("contents")) in ("lines", "paragraphs") else "pairs",
                int(data["max_length"]) if "max_length" in data else None,
            )
        except (AttributeError, KeyError, TypeError, ValueError, struct.error) as error:
            raise UserError(
                f"config.json: the description of the training data cannot be read: {error!r}; "
                "copy the folder again from its source"
            ) from None

    @property
    def one_reference(self) -> bool:
        """Whether a test file has a single column of references; its other columns are not references, because the model was
        trained on a selection of columns."""
        return bool(self.source or self.target or len(self.header) > 2)

    def texts(self, files: Sequence[Path], counts: CorpusCounts, normalisation: Normalisation) -> Iterator[Pair]:
        """Yields the texts of a file as pairs without a source, read as those that the model was trained on.

        Raises UserError if the file holds no texts.
        """
        contents = self.contents if self.contents != "pairs" else recognise_texts(files[0])[0]
        return stream_texts(files, contents, self.max_length, counts, normalisation)

    def columns(
        self,
        files: Sequence[Path],
        source: Sequence[str] = (),
        targets: Sequence[str] = (),
        *,
        header: bool | None = None,
        bad_lines: Literal["stop", "skip"] = "stop",
    ) -> ChosenColumns:
        """Returns the columns to read: those given, otherwise those that the model was trained on.

        The columns of the training data are found by name or, if the file has no header, by number. Raises UserError if the
        file lacks them. header, bad_lines: as in `Columns`.
        """
        given = ChosenColumns(
            tuple(source), tuple(targets), Columns(header=header, bad_lines=bad_lines, known_header=self.header)
        )
        if len(files) > 1 or (source and targets) or not (self.source or self.target):
            return given
        failure: UserError | None = None
        for convert in (self._name, self._number):
            wanted = self._as_in_training(given, convert)
            if wanted is None or (failure and _has_header(files, given)):  # the file has a header with other names
                continue
            try:
                _check_columns(files, wanted)
            except WrongColumns as error:
                failure = failure or error
            else:
                return wanted
        expected = self._as_in_training(given, self._name) or self._as_in_training(given, self._number)
        raise UserError(
            f"{failure}; expected the columns that the model was trained on, {expected}; choose others with --from and --to"
        )

    def _as_in_training(self, given: ChosenColumns, convert: Callable[[str], str | None]) -> ChosenColumns | None:
        """Returns `given`, completed with the columns of the training data; None if `convert` cannot express one of them."""
        source = given.source or [convert(column) for column in self.source]
        targets = given.targets or [convert(column) for column in (self.target,) if column]
        if None in (*source, *targets):
            return None
        chosen = tuple(filter(None, source)), tuple(filter(None, targets))
        return replace(given, source=chosen[0], targets=chosen[1], as_in_training=True)

    def _name(self, column: str) -> str | None:
        """Returns the name of a column of the training data, or None if it is unknown."""
        if not column.isdecimal():
            return column
        return self.header[int(column) - 1] if 0 < int(column) <= len(self.header) else None

    def _number(self, column: str) -> str | None:
        """Returns the number of a column of the training data, or None if it is unknown."""
        if column.isdecimal():
            return column
        return str(self.header.index(column) + 1) if column in self.header else None


@dataclass(frozen=True)
class ChosenColumns:
    """The columns of the sources and of their references, by name or number.

    table: how to read the table, apart from its columns.   as_in_training: whether the columns of the training data are used.
    """

    source: tuple[str, ...]
    targets: tuple[str, ...]
    table: Columns = TWO_COLUMNS
    as_in_training: bool = False

    def __str__(self) -> str:
        return f"source {', '.join(self.source) or 'any'} and target {', '.join(self.targets) or 'any'}"

    def describe(self) -> list[str]:
        """Returns a note if the columns are those of the training data, otherwise nothing."""
        return [f"columns as in training: {self} (choose others with --from and --to)"] if self.as_in_training else []

    @property
    def each(self) -> list[Columns]:
        """The columns to read, once for each column of references."""
        return [replace(self.table, source=self.source, target=target) for target in self.targets or ("",)]


def _check_columns(files: Sequence[Path], chosen: ChosenColumns) -> None:
    """Reads the first pair; raises WrongColumns if a column is missing."""
    for columns in chosen.each:
        next(stream_pairs(files, columns), None)


def _has_header(files: Sequence[Path], chosen: ChosenColumns) -> bool:
    next(stream_pairs(files, replace(chosen.table, source=("1",), target="2"), counts=(counts := CorpusCounts())), None)
    return bool(counts.header)
