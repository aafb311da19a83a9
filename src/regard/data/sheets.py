"""Rows of an .xlsx file. The only home of openpyxl, which is optional."""

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
"""Of a sheet, as in Excel. A file can claim more; openpyxl would make all of them."""
MOST_BYTES = 500_000_000
"""To which a file may unpack."""
_TOGETHER = 1000


def read_sheet(path: Path, notes: list[str]) -> Iterator[tuple[int, list[str]]]:
    """(number, cells) of every row of the first sheet, of formulas what they last gave. Further sheets are noted.

    Cells that a row lacks at its end are empty, so that no row has fewer than the first one that is not blank.
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
            size = sum(part.file_size for part in archive.infolist())  # zipfile reads no more of a part than that
        if size > MOST_BYTES:
            raise UserError(f"{path}: it unpacks to {size:,} bytes, expected at most {MOST_BYTES:,}; save the table as .csv")
        with _quiet():
            book = load_workbook(path, read_only=True, data_only=True, keep_links=False)
        try:
            sheet, *others = book.worksheets
            if others:
                left = ", ".join(repr(other.title) for other in others[:5]) + ", …" * (len(others) > 5)
                notes.append(f"Sheet {sheet.title!r} was read, and not the other {'sheets' if others[1:] else 'sheet'} {left}")
            sheet.reset_dimensions()  # what a file says of them is often wrong
            rows = sheet.iter_rows(max_row=MOST_ROWS, values_only=True)
            while some := _next(rows):
                yield from some
        finally:
            book.close()
    except (UserError, OSError):
        raise
    except Exception as error:  # openpyxl has many for damaged files
        raise UserError(f"{path}: cannot be read as .xlsx: {' '.join(str(error).split())}; save it again, or as .csv") from None


def _next(rows: Iterator[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    with _quiet():
        return list(islice(rows, _TOGETHER))


def _quiet() -> warnings.catch_warnings[None]:
    """Warnings about styles and charts, which are not read."""
    return warnings.catch_warnings(action="ignore")


def _text(value: object) -> str:
    """A cell as Excel shows it without a format of its own."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.15g}"
    if isinstance(value, datetime):
        return str(value).removesuffix(" 00:00:00")
    return str(value)
