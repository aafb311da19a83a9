"""Reads the lines of text files, which may be compressed (.gz, .zst): UTF-8, or UTF-16 with a byte order mark.

Memory is bounded: lines longer than `LONGEST_LINE` and compressed files that unpack to far more than their size are errors.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import AnyStr, TypeVar

from regard.data.arrow import open_zst
from regard.data.files import format_of, packed_as, reading
from regard.errors import UserError

Item = TypeVar("Item")

LONGEST_LINE = 10_000_000
"""Maximum length of a line, in bytes (in characters for UTF-16)."""

_UNPACKED, _RATIO = 100_000_000, 200
"""A compressed file may unpack to this many bytes or this many times its size, whichever is more. Text unpacks to 3 to 30
times its size, a zip bomb to 1,000 times."""

_UTF16 = (b"\xff\xfe", b"\xfe\xff")

_SAMPLE_CHARS = 1_000_000
"""Number of characters after which a sample ends, however few lines it has."""


def read_lines(path: Path, notes: list[str] | None = None) -> Iterator[str]:
    """Yields the lines of a text file, without line ends. The file may be compressed.

    The encoding is UTF-8, or UTF-16 if the file starts with its byte order mark; `notes` then receives a note.
    """
    with reading(path), _open(path) as content:
        most = max(_UNPACKED, _RATIO * path.stat().st_size) if packed_as(path) else None
        if content.peek(2)[:2] not in _UTF16:
            yield from decode_lines(raw_lines(content.readline, str(path), most), str(path))
            return
        if notes is not None:
            notes.append("The file is encoded as UTF-16")
        try:
            text = io.TextIOWrapper(content, "utf-16", newline="\n")
            for line in raw_lines(text.readline, str(path), most):
                yield _strip_line_end(line)
        except UnicodeError as error:
            raise UserError(
                f"{path}: the file starts with a UTF-16 byte order mark, but is not valid UTF-16: {error}; save it as UTF-8"
            ) from None


def _open(path: Path) -> io.BufferedReader | gzip.GzipFile:
    """Opens a file for reading; unpacks it if it is compressed."""
    if packed_as(path) == ".zst":
        return open_zst(path)
    return gzip.GzipFile(path) if packed_as(path) else open(path, "rb")


def raw_lines(readline: Callable[[int], AnyStr], name: str, most: int | None = None) -> Iterator[AnyStr]:
    """Yields lines with their line ends. Raises UserError after `LONGEST_LINE` bytes in one line, or `most` bytes in total."""
    number = total = 0
    while line := readline(LONGEST_LINE + 1):
        number += 1
        total += len(line)
        if len(line) > LONGEST_LINE:
            raise UserError(
                f"{name}:{number}: the line is longer than {LONGEST_LINE:,} bytes; expected a text file with shorter lines; "
                "split the line"
            )
        if most is not None and total > most:
            raise UserError(
                f"{name}: the file unpacks to more than {most:,} bytes, over {_RATIO} times its size, which is unusual for "
                "text; if it is the right file, unpack it first, e.g. with gunzip or unzstd"
            )
        yield line


def decode_lines(raw_lines: Iterable[bytes], name: str) -> Iterator[str]:
    """Yields UTF-8 lines without their line ends (LF or CRLF). Raises UserError with the line number for other bytes."""
    for number, raw in enumerate(raw_lines, start=1):
        if number == 1 and len(raw) > 3 and 0 in (any(raw[:100:2]), any(raw[1:100:2])) and any(raw[:100]):
            raise UserError(
                f"{name}: every second byte is 0, so this is probably UTF-16, expected UTF-8; convert the text first, "
                "e.g. iconv -f utf-16le -t utf-8"
            )
        try:
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            position = error.start + len(raw) - len(error.object)  # the decoded bytes do not include a byte order mark
            if number == 1 and (known := format_of(raw)):
                raise UserError(
                    f"{name}: this is {known[1]}, not text; expected lines of text or of file names, "
                    "e.g. ls *.wav | regard translate model"
                ) from None
            other = "utf-16" if raw[:2] in _UTF16 else "latin1"
            raise UserError(
                f"{name}:{number}: byte 0x{raw[position]:02x} at position {position + 1} is not UTF-8; "
                f"convert the text first, e.g. iconv -f {other} -t utf-8"
            ) from None
        yield _strip_line_end(line)


def _strip_line_end(line: str) -> str:
    return line.removesuffix("\n").removesuffix("\r")


def sample(items: Iterator[Item], most: int, size: Callable[[Item], int]) -> Iterator[Item]:
    """Yields the first `most` items, or fewer if they exceed `_SAMPLE_CHARS` in size."""
    total = 0
    for item in islice(items, most):
        yield item
        total += size(item)
        if total > _SAMPLE_CHARS:
            return
