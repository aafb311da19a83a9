"""The formats of shards: lines of text, JSON lines, Parquet. Each reads rows, and writes them with their translations."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TextIO

from regard.contracts import SourceText
from regard.data.arrow import as_text, batches, check_pyarrow, leaves
from regard.data.files import packed_as, suffix_of
from regard.data.header import SOURCES
from regard.data.json_lines import JSON_SUFFIXES
from regard.data.lines import read_lines
from regard.data.reader import Reader
from regard.errors import UserError, did_you_mean, plural
from regard.results import Refused, Result

if TYPE_CHECKING:
    import pyarrow as pa

TRANSLATION = "translation"
"""The column, or the key, of the output; `ERROR` is that of the reason why a row has none."""
ERROR = "error"


class Row(NamedTuple):
    """A source, and what the writer needs apart from its translation: the record, or the batch and the position in it."""

    source: SourceText
    record: Any = None


Outcome = Result | Refused
Put = Callable[[Row, Outcome], None]
"""Writes a row with its translation. Rows come in the order in which they were read."""


class Format(Protocol):
    """Reads and writes shards. columns: the names of the source columns, if they were chosen."""

    def rows(self, path: Path, reader: Reader, columns: Sequence[str]) -> Iterator[Row]: ...

    @contextmanager
    def writer(self, path: Path) -> Iterator[Put]: ...


class Lines:
    """One source per line; several columns are separated by TABs. One translation per line, empty where there is none."""

    def rows(self, path: Path, reader: Reader, columns: Sequence[str]) -> Iterator[Row]:
        if columns:
            raise UserError(f"{path} has lines of text; leave out --from, which chooses columns of .jsonl and .parquet files")
        for line in read_lines(path):
            yield Row(reader.line(line))

    @contextmanager
    def writer(self, path: Path) -> Iterator[Put]:
        with written_text(path) as file:

            def put(row: Row, outcome: Outcome) -> None:
                text = "" if isinstance(outcome, Refused) else outcome.text
                file.write(" ".join(text.splitlines()) + "\n")

            yield put


class JsonLines:
    """One object per line. The translation is added to it."""

    def rows(self, path: Path, reader: Reader, columns: Sequence[str]) -> Iterator[Row]:
        for number, line in enumerate(read_lines(path), start=1):
            if not line.strip():
                raise UserError(f"{path}:{number}: got an empty line, expected a JSON object in every line")
            try:
                record = json.loads(line)
            except ValueError as error:
                raise UserError(f"{path}:{number}: this is not valid JSON: {error}") from None
            if not isinstance(record, dict):
                raise UserError(f"{path}:{number}: expected a JSON object, got {line[:40]!r}")
            texts = {name: as_text(value) for name, value in flattened(record).items() if not isinstance(value, dict)}
            columns = columns or source_columns(path, list(texts))
            if missing := [name for name in columns if name not in texts]:
                raise UserError(f"{path}:{number}: the object has no {missing[0]!r}{did_you_mean(missing[0], list(texts))}")
            check_free(path, record)
            yield Row(joined([texts[name] for name in columns]), record)

    @contextmanager
    def writer(self, path: Path) -> Iterator[Put]:
        with written_text(path) as file:

            def put(row: Row, outcome: Outcome) -> None:
                added = {TRANSLATION: ""} if isinstance(outcome, Refused) else {TRANSLATION: outcome.text}
                if isinstance(outcome, Refused):
                    added[ERROR] = outcome.reason
                file.write(json.dumps({**row.record, **added}, ensure_ascii=False) + "\n")

            yield put


class Parquet:
    """A table. The translation is added as a column, which is null where there is none."""

    def rows(self, path: Path, reader: Reader, columns: Sequence[str]) -> Iterator[Row]:
        for batch in batches(path):
            table = leaves(batch)
            columns = columns or source_columns(path, list(table))
            if missing := [name for name in columns if name not in table]:
                raise UserError(f"{path} has no column {missing[0]!r}{did_you_mean(missing[0], list(table))}")
            check_free(path, batch.schema.names)
            last = batch.num_rows - 1
            for at, cells in enumerate(zip(*(table[name].to_pylist() for name in columns), strict=True)):
                yield Row(joined([as_text(cell) for cell in cells]), batch if at == last else None)

    @contextmanager
    def writer(self, path: Path) -> Iterator[Put]:
        check_pyarrow(path)
        import pyarrow as pa
        import pyarrow.parquet

        waiting: list[str | None] = []
        writer: pyarrow.parquet.ParquetWriter | None = None

        def put(row: Row, outcome: Outcome) -> None:
            nonlocal writer
            waiting.append(None if isinstance(outcome, Refused) else outcome.text)
            if row.record is not None:
                batch: pa.RecordBatch = row.record.append_column(TRANSLATION, pa.array(waiting, pa.string()))
                writer = writer or pyarrow.parquet.ParquetWriter(path, batch.schema)
                writer.write_batch(batch)
                waiting.clear()

        try:
            yield put
            if writer is None:
                raise UserError("the table has no rows, so there is nothing to translate; remove it")
        finally:
            if writer:
                writer.close()


FORMATS: dict[str, Format] = {**dict.fromkeys(JSON_SUFFIXES, JsonLines()), ".parquet": Parquet()}
"""The formats by the suffix of the file; any other file has lines of text."""


def format_of_shard(path: Path) -> Format:
    return FORMATS.get(suffix_of(path), Lines())


def source_columns(path: Path, names: list[str]) -> Sequence[str]:
    """Returns the source column of a table without a choice: the only one, or the one whose name says so."""
    likely = [name for name in names if name.lower().rpartition(".")[2] in SOURCES]
    if len(names) == 1 or len(likely) == 1:
        return (likely or names)[:1]
    shown = ", ".join(names[:10])
    raise UserError(f"{path} has {plural(len(names), 'column')} ({shown}); say which is the source, e.g. --from {names[0]}")


def check_free(path: Path, names: Any) -> None:
    if TRANSLATION in names:
        raise UserError(f"{path} has a column {TRANSLATION!r} already, which this command would write; rename it")


def flattened(record: dict[str, Any], above: str = "") -> dict[str, Any]:
    """Returns the values of nested objects by name: dots join nested keys."""
    flat: dict[str, Any] = {}
    for key, value in record.items():
        flat |= flattened(value, f"{above}{key}.") if isinstance(value, dict) else {f"{above}{key}": value}
    return flat


def joined(cells: list[str]) -> SourceText:
    return cells[0] if len(cells) == 1 else tuple(cells)


@contextmanager
def written_text(path: Path) -> Iterator[TextIO]:
    """Opens a text file for writing, compressed as its name says."""
    with open(path, "wb") as raw:
        if packed_as(path) == ".zst":
            check_pyarrow(path)
            import pyarrow as pa

            packed: Any = pa.CompressedOutputStream(raw, "zstd")
        else:
            packed = gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) if packed_as(path) else raw
        file = io.TextIOWrapper(packed, encoding="utf-8", newline="\n")
        yield file
        file.flush()
        if packed is not raw:
            packed.close()
