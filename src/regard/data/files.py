"""Rows of cells from files: tables (TSV, CSV, plain text, .xlsx), JSON lines, two parallel files; texts may be .gz.

Files are read line by line, never whole, and in bounded memory: no line may be longer than `LONGEST_LINE`, and no .gz may
unpack to much more than its size. A bad line is an error with its number, or is left out and counted.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any, AnyStr, Literal, NamedTuple

from regard.data.header import NUMBERS, SOURCES, TARGETS, are_usual_names, evidence
from regard.data.labels import readable
from regard.errors import UserError, did_you_mean, plural

NumberedRow = tuple[int, list[str]]
"""The number of a line and its cells. Chosen cells are: the first source column, further ones, and last the target."""


@dataclass(frozen=True)
class BadLine:
    """A line that cannot be read like the others, and why."""

    number: int
    why: str


@dataclass(frozen=True)
class Columns:
    """Which columns to read, by name or by number from 1. Empty: there are only two, or the names say which.

    source: further columns join the first one as symbols (`join_columns`).
    header: whether the first row holds names. None: it does if a column is chosen by name; otherwise `header.evidence` decides,
    and a note says so. "usual": as before, but only well-known names are recognised, as they were before `evidence`.
    bad_lines: what to do with lines that have other columns than the first: stop, and report them all, or skip them.
    known_header: the header of another file; a first row that equals it is one too, however little there is below it.
    """

    source: tuple[str, ...] = ()
    target: str = ""
    header: bool | Literal["usual"] | None = None
    bad_lines: Literal["stop", "skip"] = "stop"
    known_header: tuple[str, ...] = ()

    @property
    def by_name(self) -> bool:
        return any(not want.isdecimal() for want in (*self.source, self.target) if want)


TWO_COLUMNS = Columns()


class WrongColumns(UserError):
    """A file does not have the columns that were chosen."""


@dataclass(kw_only=True)
class Report:
    """What was met while reading a file.

    notes: what was guessed about it, a clause for each.   header: the row that holds the names of the columns, if there is one.
    bad_lines: how many were left out because they cannot be read like the others; bad_lines_at: the numbers of the first few.
    header_again: how often the row of names was met again, as in files that were joined.
    """

    notes: list[str] = field(default_factory=list)
    header: tuple[str, ...] = ()
    bad_lines: int = 0
    bad_lines_at: list[int] = field(default_factory=list)
    header_again: int = 0

    def describe_bad_lines(self) -> list[str]:
        """What was left out, a clause for each reason."""
        said = []
        if self.bad_lines:
            where = list_lines(self.bad_lines_at, self.bad_lines)
            said.append(f"{plural(self.bad_lines, 'line')} left out because other columns were found ({where})")
        if self.header_again:
            said.append(f"{plural(self.header_again, 'line')} left out, like the names of the columns")
        return said

    def add_bad_line(self, number: int) -> None:
        self.bad_lines += 1
        if len(self.bad_lines_at) < SHOWN:
            self.bad_lines_at.append(number)


SHOWN = 5
"""Lines whose numbers are listed."""


def list_lines(numbers: Sequence[int], total: int) -> str:
    """ "line 7" or "lines 7, 9, …"."""
    return f"line{'s' * (total > 1)} {', '.join(map(str, numbers))}{', …' * (total > len(numbers))}"


def _in_and_out(line: str) -> tuple[str, str] | None:
    if not line.startswith("IN:"):
        return None
    at = line.find("OUT:", 4)
    while at > 0 and not line[at - 1].isspace():
        at = line.find("OUT:", at + 1)
    return (line[3:at].strip(), line[at + 4 :].lstrip()) if at > 0 else None


def _parted_at(sign: str) -> Callable[[str], tuple[str, str] | None]:
    def part(line: str) -> tuple[str, str] | None:
        before, found, behind = line.partition(sign)
        return (before.rstrip(), behind.lstrip()) if found else None

    return part


_PAIRS_OF_TEXT: dict[str, Callable[[str], tuple[str, str] | None]] = {
    "IN: … OUT: …": _in_and_out,
    "|||": _parted_at("|||"),
    "->": _parted_at("->"),
}
"""How text files without tabs separate the two sides: the SCAN commands, word aligners, lists of corrections."""

_NOT_TEXT = set(".xls .xlsb .ods .parquet .arrow .zip .tar .tgz .xz .bz2 .zst .7z .wav .flac .mp3 .png .jpg .jpeg .npy".split())
_MADE_OF = 'for pictures or sounds, a file that names them, such as lines of {"audio": "a.wav", "text": "what it says"}'
_SIGNS = {
    b"RIFF": ("WAV", "a sound"),
    b"fLaC": ("FLAC", "a sound"),
    b"\xff\xfb": ("MP3", "a sound"),
    b"\xff\xf3": ("MP3", "a sound"),
    b"ID3": ("MP3", "a sound"),
    b"OggS": ("Ogg", "a sound"),
    b"FORM": ("AIFF", "a sound"),
    b"RF64": ("RF64", "a sound"),
    b"\x89PNG": ("PNG", "a picture"),
    b"\xff\xd8\xff": ("JPEG", "a picture"),
    b"PK\x03\x04": ("ZIP", "an archive"),
}
"""How files begin that are no text: their format, and what that holds."""
_SAMPLE = 50
"""Lines from which the separator of a file is recognised."""
_ROWS = 1000
"""Rows with which the first is compared, to recognise a header."""
_LETTERS = 1_000_000
"""Characters after which a sample ends, whatever the number of its lines."""

LONGEST_LINE = 10_000_000
"""Bytes (characters of UTF-16)."""
MOST_BYTES = 2**30
"""Of a file that is read whole."""
_UNPACKED, _RATIO = 100_000_000, 200
"""A .gz may unpack to so many bytes, or to so many times its size. Text takes 3 to 30 times the size; a bomb 1,000 times."""
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


# --- bytes and lines ---------------------------------------------------------------------------------------------------------


def check_file(path: Path) -> None:
    """Raises if there is no such file, or something that may never end: a pipe, a device, a socket."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError):  # a ValueError: a name with a zero in it
        raise UserError(f"{path}: no such file") from None
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        what = "a pipe" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"
        raise UserError(
            f"{path}: this is {what}, expected a file, which can be read more than once; write what it gives to a file first, "
            "e.g. zcat pairs.tsv.gz > pairs.tsv"
        )


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """What the system says of this file becomes an error with its name; what is no file is refused before it is opened."""
    try:
        check_file(path)
        yield
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """A whole file of at most so many bytes."""
    with reading(path), open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise UserError(f"{path} has {size:,} bytes, expected at most {most:,}; is it the right file?")
        return file.read(size)


def read_lines(path: Path, notes: list[str] | None = None) -> Iterator[str]:
    """The lines of a text file: UTF-8, or UTF-16 that begins with a byte order mark, which is noted; optionally .gz."""
    with reading(path), open(path, "rb") as file:
        unpacked = gzip.GzipFile(fileobj=file) if _is_packed(path) else None
        most = max(_UNPACKED, _RATIO * os.fstat(file.fileno()).st_size) if unpacked else None
        content = unpacked or file
        if content.peek(2)[:2] not in _UTF16:
            yield from decode_lines(raw_lines(content.readline, str(path), most), str(path))
            return
        if notes is not None:
            notes.append("The text is UTF-16")
        try:
            text = io.TextIOWrapper(content, "utf-16", newline="\n")
            for line in raw_lines(text.readline, str(path), most):
                yield _without_end(line)
        except UnicodeError as error:
            raise UserError(
                f"{path}: the text begins like UTF-16, but cannot be read as such: {error}; save it as UTF-8"
            ) from None


def raw_lines(readline: Callable[[int], AnyStr], name: str, most: int | None = None) -> Iterator[AnyStr]:
    """Lines with their ends. A line longer than `LONGEST_LINE` is an error, and so is more than `most` in all."""
    number = total = 0
    while line := readline(LONGEST_LINE + 1):
        number += 1
        total += len(line)
        if len(line) > LONGEST_LINE:
            raise UserError(
                f"{name}:{number}: the line is longer than {LONGEST_LINE:,} bytes; expected lines of text; split it"
            )
        if most is not None and total > most:
            raise UserError(
                f"{name}: it unpacks to more than {most:,} bytes, over {_RATIO} times its size, as no text does; if it is the "
                "right file, unpack it first, e.g. with gunzip"
            )
        yield line


def _without_end(line: str) -> str:
    return line.removesuffix("\n").removesuffix("\r")


def decode_lines(raw_lines: Iterable[bytes], name: str) -> Iterator[str]:
    """UTF-8 lines without their ends (LF or CRLF). Other bytes are an error with the number of the line."""
    for number, raw in enumerate(raw_lines, start=1):
        if number == 1 and len(raw) > 3 and 0 in (any(raw[:100:2]), any(raw[1:100:2])) and any(raw[:100]):
            raise UserError(
                f"{name}: every second byte is 0, as in UTF-16; convert the text first, e.g. iconv -f utf-16le -t utf-8"
            )
        try:
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            position = error.start + len(raw) - len(error.object)  # a byte order mark is not part of what was decoded
            if number == 1 and (known := format_of(raw)):
                raise UserError(
                    f"{name}: this is {known[1]}, not a text; expected lines of text, or of the names of files, "
                    "e.g. ls *.wav | regard translate model"
                ) from None
            other = "utf-16" if raw[:2] in _UTF16 else "latin1"
            raise UserError(
                f"{name}:{number}: byte 0x{raw[position]:02x} at position {position + 1} is not UTF-8; "
                f"convert the text first, e.g. iconv -f {other} -t utf-8"
            ) from None
        yield _without_end(line)


def format_of(start: bytes) -> tuple[str, str] | None:
    """(the name of a format, what it holds) of what begins like this; None if it is none of those that are well known."""
    return next((known for sign, known in _SIGNS.items() if start.startswith(sign)), None)


def shorten(text: str, width: int = 60) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def read_rows(files: Sequence[Path], columns: Columns, report: Report) -> Iterator[NumberedRow]:
    """The chosen cells of every line but the header. What had to be guessed, and left out, is written to the report."""
    for path in files:
        if _kind(path) in _NOT_TEXT:
            hint = "save the table as .xlsx or .csv" if _kind(path) in (".xls", ".xlsb", ".ods") else _MADE_OF
            raise UserError(
                f"{path}: a {_kind(path)} file is not read; expected .tsv, .csv, .jsonl, .xlsx or plain text; {hint}"
            )
        if path.is_dir():
            raise UserError(f"{path}: a folder; expected a file of pairs: .tsv, .csv, .jsonl or plain text; {_MADE_OF}")
    if len(files) == 2:
        return _parallel_rows(files[0], files[1], columns, report)
    if len(files) != 1:
        raise UserError(
            f"got {len(files)} files, expected one that holds both sides, or two parallel ones, source and target; "
            "join files of one kind first, e.g. cat a.tsv b.tsv > all.tsv"
        )
    (path,) = files
    read = _json_rows if _kind(path) in _JSON else _table_rows
    return good_rows(path, read(path, columns, report), columns, report)


def good_rows(path: Path, rows: Iterable[NumberedRow | BadLine], columns: Columns, report: Report) -> Iterator[NumberedRow]:
    """Without the bad lines. If these are an error, the file is read to its end first, so that all of them are reported."""
    first: BadLine | None = None
    for row in rows:
        if isinstance(row, BadLine):
            report.add_bad_line(row.number)
            first = first or row
        elif first is None or columns.bad_lines == "skip":
            yield row
    if first and columns.bad_lines == "stop":
        others = report.bad_lines_at[1:], report.bad_lines - 1
        more = f"; {others[1]:,} more like it: {list_lines(*others)}" if others[1] else ""
        raise UserError(
            f"{path}:{first.number}: {first.why}{more}; correct the file, or leave such lines out: --skip-bad-lines"
        )


_JSON = (".json", ".jsonl", ".ndjson")


def _kind(path: Path) -> str:
    return Path(path.stem if _is_packed(path) else path.name).suffix.lower()


def _is_packed(path: Path) -> bool:
    return path.suffix.lower() == ".gz"


# --- two parallel files ------------------------------------------------------------------------------------------------------


def _parallel_rows(source: Path, target: Path, columns: Columns, report: Report) -> Iterator[NumberedRow]:
    for path in (source, target):
        if _kind(path) in (".tsv", ".csv", ".xlsx", *_JSON):
            raise UserError(
                f"{path}: two files are read as parallel texts, line n of the one with line n of the other, but this is a "
                f"table; give one table alone, or join tables of one kind first, e.g. cat a.tsv b.tsv > all.tsv"
            )
    if columns.source or columns.target or columns.header is True:
        raise UserError(
            f"columns were chosen, but {source} and {target} are parallel texts, which have none; leave the choice out"
        )
    lines, others = read_lines(source, report.notes), read_lines(target, report.notes)
    number = 0
    for number, line in enumerate(lines, start=1):
        other = next(others, None)
        if other is None:
            raise _unequal(source, number + sum(1 for _ in lines), target, number - 1)
        yield number, [line, other]
    if rest := sum(1 for _ in others):
        raise _unequal(source, number, target, number + rest)


def _unequal(source: Path, num_source: int, target: Path, num_target: int) -> UserError:
    return UserError(
        f"{source} has {plural(num_source, 'line')} and {target} has {num_target:,}, expected equally many: line n of the one "
        "translates line n of the other; find where they part"
    )


# --- tables ------------------------------------------------------------------------------------------------------------------


class Table(NamedTuple):
    """first: the first row that is not blank. named: whether it holds the names of the columns. rows: all others, and the first
    if it is data; blank ones have no cells."""

    first: list[str]
    named: bool
    rows: Iterator[NumberedRow | BadLine]


def open_table(path: Path, columns: Columns, report: Report) -> Table:
    """Decides whether the first row holds names, and notes what was guessed."""
    rows: Iterator[NumberedRow | BadLine]
    rows = _sheet_rows(path, report) if _kind(path) == ".xlsx" else _text_rows(path, report)
    head = list(_sample(rows, _ROWS + 1, lambda row: 0 if isinstance(row, BadLine) else sum(map(len, row[1]))))
    least = 2 if columns.bad_lines == "skip" else 1  # a title over the table is a bad line, too
    full = [row for row in head if not isinstance(row, BadLine) and any(cell.strip() for cell in row[1])]
    start = next((at for at, (_, cells) in enumerate(full) if len(cells) >= least), None)
    if start is None:
        return Table([], False, chain(head, rows))
    number, cells = full[start]
    similar = [other for _, other in full[start:] if len(other) == len(cells)]
    width = max(at for row in similar for at, cell in enumerate(row, start=1) if cell.strip())  # columns behind it are empty
    first, *below = (row[:width] for row in similar)
    if not _is_header(path, number, first, below, columns, report.notes):
        return Table(first, False, chain(head, rows))
    report.header = tuple(cell.strip() for cell in first)
    return Table(first, True, _without(number, cells, chain(head, rows), report))


def _sample(items: Iterator[Any], most: int, size: Callable[[Any], int]) -> Iterator[Any]:
    """The first items, fewer if they are large."""
    total = 0
    for item in islice(items, most):
        yield item
        total += size(item)
        if total > _LETTERS:
            return


def _without(
    number: int, header: list[str], rows: Iterable[NumberedRow | BadLine], report: Report
) -> Iterator[NumberedRow | BadLine]:
    """All rows but the header; where files were joined, it stands in the middle again."""
    for row in rows:
        if isinstance(row, BadLine) or row[1] != header:
            yield row
        elif row[0] != number:
            report.header_again += 1


def _is_header(path: Path, number: int, first: list[str], below: list[list[str]], columns: Columns, notes: list[str]) -> bool:
    if columns.header in (True, False):
        return bool(columns.header)
    if columns.by_name:
        return True
    usual = _kind(path) in (".csv", ".xlsx")
    if columns.header == "usual":
        found = float(are_usual_names(first))
    else:
        found = 1.0 if tuple(cell.strip() for cell in first) == columns.known_header else evidence(first, below, usual=usual)
    shown = f"Line {number} ({', '.join(readable(shorten(cell, 20)) for cell in first[:10])}{', …' * (len(first) > 10)})"
    if found >= 1:
        notes.append(f"{shown} was taken as the names of the columns (if it is data: --no-header)")
    elif (usual or found) and len(first) > 1:
        notes.append(f"{shown} was taken as data (if it holds the names of the columns: --header)")
    return found >= 1


def _table_rows(path: Path, columns: Columns, report: Report) -> Iterator[NumberedRow | BadLine]:
    table = open_table(path, columns, report)
    width, picks = len(table.first), list[int]()
    if width > 1:
        picks = _choose(path, table.first, table.named, columns, report.notes)
    for row in table.rows:
        if isinstance(row, BadLine):
            yield row
            continue
        number, cells = row
        if len(cells) > width and not any(cell.strip() for cell in cells[width:]):
            cells = cells[:width]  # cells that are empty at the end of a line are none
        if not any(cell.strip() for cell in cells):
            yield number, []
        elif width < 2:
            why = _ragged(path, cells, 2)
            raise UserError(f"{path}:{number}: {why}; give a table with both sides, or two parallel files, source and target")
        elif len(cells) == width:
            yield number, [cells[pick] for pick in picks]
        else:
            yield BadLine(number, _ragged(path, cells, width))


def _ragged(path: Path, cells: list[str], width: int) -> str:
    line = shorten("\t".join(cells))
    if width == 2 and _kind(path) not in (".csv", ".xlsx"):
        found = "no tab" if len(cells) == 1 else f"{len(cells) - 1} tabs"
        return f"expected source<TAB>target, found {found} in {line!r}"
    return f"expected {width} columns in every line, found {len(cells)} in {line!r}"


def _sheet_rows(path: Path, report: Report) -> Iterator[NumberedRow]:
    from regard.data.sheets import read_sheet

    with reading(path):
        yield from read_sheet(path, report.notes)


_NAMED_MARK = re.compile(r'"?sep=([,;\t|])"?', re.IGNORECASE)
"""The first line of a .csv that tells Excel what separates its columns."""


def _text_rows(path: Path, report: Report) -> Iterator[NumberedRow | BadLine]:
    """.tsv is split at tabs, without quotes, and .csv at commas, semicolons or tabs, with quotes. Any other text is split at
    tabs or, where its first line has none, at another sign: one of `_PAIRS_OF_TEXT`, or what a .csv is split at."""
    lines = read_lines(path, report.notes)
    head = list(_sample(lines, _SAMPLE, len))
    kind = _kind(path)
    named = _NAMED_MARK.fullmatch(head[0]) if kind == ".csv" and head else None
    if named:
        head[0] = ""  # the numbers of the other lines stay
    lines = chain(head, lines)
    first = next(filter(str.strip, head), "")
    if kind == ".csv":
        mark = named[1] if named else _separator(head)
        if mark != ",":
            report.notes.append(f"Columns were separated at {mark!r}")
        return _csv_rows(path, lines, mark)
    if kind != ".tsv" and "\t" not in first:
        if sign := next((sign for sign, part in _PAIRS_OF_TEXT.items() if part(first)), None):
            report.notes.append(f"Lines were separated at {sign!r}")
            return _parted_rows(lines, sign)
        if marks := [mark for mark in _widths(head) if mark == ";" or any(re.search(f"{mark}[^ ]", line) for line in head)]:
            mark = _separator(head)
            if mark in marks:
                report.notes.append(f"The text was read as .csv, with columns separated at {mark!r}")
                return _csv_rows(path, lines, mark)
    return ((number, line.split("\t")) for number, line in enumerate(lines, start=1))


def _parted_rows(lines: Iterable[str], sign: str) -> Iterator[NumberedRow | BadLine]:
    part = _PAIRS_OF_TEXT[sign]
    for number, line in enumerate(lines, start=1):
        if found := part(line):
            yield number, list(found)
        elif not line.strip():
            yield number, []
        else:
            yield BadLine(number, f"expected {sign!r} like the lines before, found none in {shorten(line)!r}")


def _csv_rows(path: Path, lines: Iterable[str], mark: str) -> Iterator[NumberedRow]:
    reader = csv.reader((line + "\n" for line in lines), delimiter=mark, strict=True)
    start = 1
    try:
        for cells in reader:
            yield start, cells
            start = reader.line_num + 1  # a cell in quotes may run over several lines
    except csv.Error as error:
        raise UserError(
            f"{path}:{start}: cannot be read as CSV: {str(error).expandtabs(1)}; is a quote missing, or one too many? "
            "A cell that holds quotes is written in quotes, with each of its own doubled; a file without any quoting is a .tsv"
        ) from None


def _separator(head: list[str]) -> str:
    """Comma, semicolon or tab: the one that gives every row of the sample equally many columns, best of all two. If more
    than one does, that which no space follows, as it would in prose; then the comma."""
    widths = _widths(head)
    first = next(filter(str.strip, head), "")
    guess = max(",;\t", key=first.count)
    return min(widths, key=lambda mark: (widths[mark] != 2, any(f"{mark} " in line for line in head)), default=guess)


def _widths(head: list[str]) -> dict[str, int]:
    """Of each sign that gives every row of the sample equally many columns, how many: at least 2."""
    widths = {}
    for mark in ",;\t":
        try:
            rows = [row for row in csv.reader((line + "\n" for line in head), delimiter=mark) if row]
        except csv.Error:
            continue
        sizes = {len(row) for row in (rows[:-1] if len(head) == _SAMPLE else rows)}  # the last row may have been cut
        if len(sizes) == 1 and sizes != {1}:
            widths[mark] = sizes.pop()
    return widths


def _choose(path: Path, labels: list[str], named: bool, columns: Columns, notes: list[str]) -> list[int]:
    """Which columns, the target last. `labels` are the names of all of them, or what stands in their first row."""
    labels = [label.strip() for label in labels]
    shown = ", ".join(f"{number} {shorten(label, 20)!r}" for number, label in enumerate(labels[:20], start=1))
    shown = f"{len(labels)} columns ({shown}{', …' if len(labels) > 20 else ''})"
    source = [_find(path, labels, shown, want) for want in columns.source]
    target = _find(path, labels, shown, columns.target) if columns.target else None
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
            f"{path} has {shown}; expected two, or a choice: say which to read and which to write by number or name, "
            "e.g. --from 1 --to 2, or --from 1,3 --to 2 for a text and its features, or a file and the text beside it"
        )
    if named and not (columns.source and columns.target):
        notes.append(f"Column {labels[source[0]]!r} was read as the source and {labels[target]!r} as the target")
    return [*source, target]


def _find(path: Path, labels: list[str], shown: str, want: str) -> int:
    if want.isdecimal():
        if len(want) > 9 or not 1 <= int(want) <= len(labels):
            raise WrongColumns(f"{path} has {shown}; there is no column {shorten(want, 20)}")
        return int(want) - 1
    lowered = [label.lower() for label in labels]
    for names, wanted in (
        (labels, want),
        (lowered, want.lower()),
        ([name.rpartition(".")[2] for name in lowered], want.lower()),
    ):
        if (found := names.count(wanted)) == 1:
            return names.index(wanted)
        if found:
            raise UserError(f"{path} has {shown}; {found} of them are called {want!r}: choose by number")
    raise WrongColumns(
        f"{path} has {shown}; none is called {shorten(want)!r}{did_you_mean(want, labels)}; "
        "where the first line holds no names, choose by number"
    )


# --- JSON lines --------------------------------------------------------------------------------------------------------------


def _json_rows(path: Path, columns: Columns, report: Report) -> Iterator[NumberedRow | BadLine]:
    """One object per line. Columns are what the first one holds as text, in its order; dots lead to nested keys."""
    picks: list[tuple[str, ...]] = []
    for number, line in enumerate(read_lines(path, report.notes), start=1):
        if not line.strip():
            yield number, []
            continue
        try:
            record = _record(line)
            if not picks:
                leaves = list(_leaves(record))
                picks = [leaves[at] for at in _choose(path, [".".join(leaf) for leaf in leaves], True, columns, report.notes)]
            several = len(picks) > 2  # sources, any of which a row may lack
            yield number, [_dig(record, pick, several and pick is not picks[-1]) for pick in picks]
        except BadRecord as error:
            yield BadLine(number, str(error))
        except RecursionError:
            yield BadLine(number, f"expected one JSON object per line, nested less deeply than this: {shorten(line)!r}")


class BadRecord(Exception):
    """A line of JSON that is not like the first."""


def _record(line: str) -> dict[str, Any]:
    try:  # numbers stay as they are written
        record = json.loads(line, parse_int=str, parse_float=str, parse_constant=str, object_pairs_hook=_distinct)
    except ValueError as error:
        record = error
    if isinstance(record, dict):
        return record
    what = f": {record}" if isinstance(record, Exception) else ""
    hint = "; make lines of a list with jq -c '.[]' list.json > lines.jsonl" if line.lstrip()[0] == "[" else ""
    raise BadRecord(f"expected one JSON object per line, got {shorten(line)!r}{what}{hint}")


def _distinct(items: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(items)
    if len(record) < len(items):
        keys = [key for key, _ in items]
        again = next(key for key in keys if keys.count(key) > 1)
        raise BadRecord(f"the key {shorten(again)!r} occurs twice in one object, expected each once")
    return record


def _leaves(record: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in record.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*above, key))
        elif _text(value) is not None:
            yield (*above, key)


def _dig(record: dict[str, Any], keys: tuple[str, ...], optional: bool = False) -> str:
    value: Any = record
    for key in keys:
        if optional and isinstance(value, dict) and key not in value:
            return ""
        if not isinstance(value, dict) or key not in value:
            raise BadRecord(
                f"expected a text {shorten('.'.join(keys))!r} as in the first object, "
                f"found {shorten(', '.join(map(repr, record)), 200) or 'nothing'}"
            )
        value = value[key]
    text = _text(value)
    if text is None:
        raise BadRecord(f"expected a text as {shorten('.'.join(keys))!r}, got {shorten(json.dumps(value))}")
    return text


def _text(value: Any) -> str | None:
    """A list of texts is joined by spaces; null is empty. None: this is no text."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return " ".join(value)
    return value if isinstance(value, str) else None
