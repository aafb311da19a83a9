"""Reads the rows of a file of pairs, or of two parallel files, in the format that the suffix says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from regard.data.arrow import parquet_rows
from regard.data.columns import Columns
from regard.data.files import suffix_of
from regard.data.json_lines import JSON_SUFFIXES, json_rows
from regard.data.parallel import parallel_rows
from regard.data.rows import NumberedRow, Report, good_rows
from regard.data.tables import table_rows
from regard.errors import UserError

_NOT_TEXT = set(".xls .xlsb .ods .arrow .zip .tar .tgz .xz .bz2 .7z .wav .flac .mp3 .png .jpg .jpeg .npy".split())

_MEDIA_HINT = (
    'for pictures or sounds, give a file that lists them, e.g. lines of {"audio": "a.wav", "text": "the words spoken"}'
)

_READERS = {**dict.fromkeys(JSON_SUFFIXES, json_rows), ".parquet": parquet_rows}
"""How a file with this suffix is read; other files are tables."""


def read_rows(files: Sequence[Path], columns: Columns, report: Report) -> Iterator[NumberedRow]:
    """Yields the chosen cells of every line except the header. Guesses and skipped lines are recorded in `report`."""
    for path in files:
        if suffix_of(path) in _NOT_TEXT:
            hint = "save the table as .xlsx or .csv" if suffix_of(path) in (".xls", ".xlsb", ".ods") else _MEDIA_HINT
            raise UserError(
                f"{path}: pairs cannot be read from {suffix_of(path)} files; "
                f"expected .tsv, .csv, .jsonl, .parquet, .xlsx or plain text; {hint}"
            )
        if path.is_dir():
            raise UserError(
                f"{path}: this is a folder, expected a file of pairs: .tsv, .csv, .jsonl, .parquet or plain text; {_MEDIA_HINT}"
            )
    if len(files) == 2:
        return parallel_rows(files[0], files[1], columns, report)
    if len(files) != 1:
        raise UserError(
            f"got {len(files)} files, expected one with source and target, or two parallel files, first source, then target; "
            "concatenate files of the same format first, e.g. cat a.tsv b.tsv > all.tsv"
        )
    (path,) = files
    read = _READERS.get(suffix_of(path), table_rows)
    return good_rows(path, read(path, columns, report), columns, report)
