"""Reads Parquet and .zst files. Only this module and `bulk.formats` use pyarrow, which is an optional dependency."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.data.columns import Columns, choose_columns
from regard.data.files import reading
from regard.data.rows import BadLine, NumberedRow, Report
from regard.errors import UserError, shorten

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = 4096
"""The number of rows of a table that are in memory at a time."""
BUFFER = 1 << 20
"""The bytes of a packed column that are read at a time; by default, a whole row group would be."""


def check_pyarrow(path: Path) -> None:
    """Raises UserError if pyarrow is not installed."""
    if importlib.util.find_spec("pyarrow") is None:
        raise UserError(f'{path}: reading {path.suffix} needs pyarrow; type: pip install "regard[parquet]"')


def open_zst(path: Path) -> io.BufferedReader:
    """Opens a .zst file for reading what it unpacks to."""
    check_pyarrow(path)
    import pyarrow as pa

    return io.BufferedReader(pa.CompressedInputStream(pa.OSFile(str(path)), "zstd"))


def batches(path: Path) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a Parquet file, `ROWS` at a time. Raises UserError if it is damaged."""
    check_pyarrow(path)
    import pyarrow as pa
    import pyarrow.parquet

    with reading(path):
        try:
            with pyarrow.parquet.ParquetFile(path, buffer_size=BUFFER, pre_buffer=False) as file:
                yield from file.iter_batches(ROWS)
        except pa.ArrowException as error:
            raise UserError(f"{path}: cannot be read as Parquet: {shorten(' '.join(str(error).split()), 200)}") from None


def leaves(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """Returns the columns by name, without structs: dots join the names of nested columns, as in translation.en."""
    import pyarrow as pa

    table = pa.Table.from_batches([batch])
    while any(pa.types.is_struct(field.type) for field in table.schema):
        table = table.flatten()
    return dict(zip(table.column_names, table.columns, strict=True))


def parquet_rows(path: Path, columns: Columns, report: Report) -> Iterator[NumberedRow | BadLine]:
    """Yields a row of texts per row of the table. Missing values are empty, lists of texts are joined by spaces."""
    number, picks = 0, list[str]()
    for batch in batches(path):
        table = leaves(batch)
        if not picks:
            names = [name for name, column in table.items() if _is_text(column.type)]
            picks = [names[at] for at in choose_columns(path, names, True, columns, report.notes)]
        for cells in zip(*(table[name].to_pylist() for name in picks), strict=True):
            number += 1
            yield number, [as_text(cell) for cell in cells]


def _is_text(type: pa.DataType) -> bool:
    import pyarrow as pa

    if pa.types.is_list(type) or pa.types.is_large_list(type):
        type = type.value_type
    known = (pa.types.is_string, pa.types.is_large_string, pa.types.is_dictionary, pa.types.is_boolean)
    return any(is_known(type) for is_known in (*known, pa.types.is_integer, pa.types.is_floating, pa.types.is_null))


def as_text(value: Any) -> str:
    """Returns a value of a table as text."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return " ".join(map(as_text, value))
    return f"{value:.15g}" if isinstance(value, float) else str(value)
