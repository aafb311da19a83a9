"""Reads the rows of .xlsx files. Only this module uses openpyxl, which is an optional dependency."""

from __future__ import annotations

import importlib.util
import warnings
import zipfile
from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

from regard.errors import UserError

MOST_ROWS = 2**20
"""Maximum number of rows in a sheet, as in Excel. A file can claim more, and openpyxl would create all of them."""
MOST_BYTES = 500_000_000
"""Maximum size of an unpacked file."""
_CHUNK = 1000
"""Number of rows that are read at a time."""


def read_sheet(path: Path, notes: list[str]) -> Iterator[tuple[int, list[str]]]:
    """Yields (number, cells) for every row of the first sheet. If there are other sheets, `notes` receives a note.

    A formula gives the result that was saved with it. Short rows are padded with empty cells to the width of the first row
    that is not blank. Blank rows have no cells.
    """
    if importlib.util.find_spec("openpyxl") is None:
        raise UserError(f'{path}: reading .xlsx needs openpyxl; type: pip install "regard[xlsx]", or save the table as .csv')
    width = 0
    for number, values in enumerate(_values(path, notes), start=1):
        cells = [_text(value) for value in values]
        while cells and not cells[-1].strip():
            cells.pop()
        width = width or len(cells)
        yield number, cells + [""] * (width - len(cells)) if cells else []


def _values(path: Path, notes: list[str]) -> Iterator[tuple[Any, ...]]:
    from openpyxl import load_workbook

    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(part.file_size for part in archive.infolist())  # zipfile reads no more of each part than this
        if size > MOST_BYTES:
            raise UserError(
                f"{path}: the file unpacks to {size:,} bytes, expected at most {MOST_BYTES:,}; save the table as .csv"
            )
        with _quiet():
            book = load_workbook(path, read_only=True, data_only=True, keep_links=False)
        try:
            sheet, *others = book.worksheets
            if others:
                names = ", ".join(repr(other.title) for other in others[:5]) + ", …" * (len(others) > 5)
                notes.append(f"Only the first sheet, {sheet.title!r}, was read, not {names}")
            sheet.reset_dimensions()  # the dimensions that a file states are often wrong
            rows = sheet.iter_rows(max_row=MOST_ROWS, values_only=True)
            while chunk := _next_chunk(rows):
                yield from chunk
        finally:
            book.close()
    except (UserError, OSError):
        raise
    except Exception as error:  # openpyxl raises many kinds of exceptions for damaged files
        raise UserError(
            f"{path}: cannot be read as .xlsx: {' '.join(str(error).split())}; save it again as .xlsx or .csv"
        ) from None


def _next_chunk(rows: Iterator[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    with _quiet():
        return list(islice(rows, _CHUNK))


def _quiet() -> warnings.catch_warnings[None]:
    """Suppresses warnings about styles and charts, which are not read."""
    return warnings.catch_warnings(action="ignore")


def _text(value: object) -> str:
    """Returns a cell as Excel shows it in the general format."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.15g}"
    if isinstance(value, datetime):
        return str(value).removesuffix(" 00:00:00")
    return str(value)
