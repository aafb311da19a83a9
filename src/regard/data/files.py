"""Reads rows of cells from tables (TSV, CSV, plain text, .xlsx), JSON lines and pairs of parallel files; text may be gzipped.

Text files are read line by line in bounded memory: lines longer than `LONGEST_LINE` and .gz files that unpack to far more than
their size are errors. A bad line is either an error that gives its line number, or is skipped and counted.
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
"""A line number and the cells of that line. Chosen cells are ordered: first source column, further source columns, target."""


@dataclass(frozen=True)
class BadLine:
    """A line that does not fit the format of the file, and the reason."""

    number: int
    why: str


@dataclass(frozen=True)
class Columns:
    """The columns to read, by name or by number from 1. Empty: the file has only two columns, or their names say which to use.

    source: the source columns; all but the first are joined to it as symbols (`join_columns`).
    target: the target column.
    header: whether the first row is a header. None: it is if a column is chosen by name; otherwise `header.evidence` decides,
    and a note reports the decision. "usual": like None, but recognises only well-known names, as before `evidence` existed.
    bad_lines: "stop" raises an error that counts all bad lines and lists the first few; "skip" skips and counts them.
    known_header: the header of another file; a first row equal to it is a header too, however few rows are below it.
    """

    source: tuple[str, ...] = ()
    target: str = ""
    header: bool | Literal["usual"] | None = None
    bad_lines: Literal["stop", "skip"] = "stop"
    known_header: tuple[str, ...] = ()

    @property
    def by_name(self) -> bool:
        """Whether any column is chosen by name."""
        return any(not column.isdecimal() for column in (*self.source, self.target) if column)


TWO_COLUMNS = Columns()


class WrongColumns(UserError):
    """The file lacks one of the chosen columns."""


@dataclass(kw_only=True)
class Report:
    """Findings about a file, collected while it is read.

    notes: guesses about its format, one sentence each, without a full stop.   header: the column names, if there is a header.
    bad_lines: how many lines do not fit the format; bad_lines_at: the numbers of the first few.
    repeated_headers: how many later rows repeat the header, as in concatenated files.
    """

    notes: list[str] = field(default_factory=list)
    header: tuple[str, ...] = ()
    bad_lines: int = 0
    bad_lines_at: list[int] = field(default_factory=list)
    repeated_headers: int = 0

    def describe_bad_lines(self) -> list[str]:
        """Returns a sentence about each kind of line that was skipped, without a full stop."""
        return [f"Skipped {lines}" for lines in self.skipped_lines()]

    def skipped_lines(self) -> list[str]:
        """Returns a noun phrase for each kind of line that was skipped, such as "1 bad line (line 7)"."""
        skipped = []
        if self.bad_lines:
            where = list_lines(self.bad_lines_at, self.bad_lines)
            skipped.append(f"{plural(self.bad_lines, 'bad line')} ({where})")
        if self.repeated_headers:
            skipped.append(plural(self.repeated_headers, "line that repeats the header", "lines that repeat the header"))
        return skipped

    def add_bad_line(self, number: int) -> None:
        """Counts a bad line, and keeps its number if it is one of the first."""
        self.bad_lines += 1
        if len(self.bad_lines_at) < MAX_LISTED:
            self.bad_lines_at.append(number)


MAX_LISTED = 5
"""How many line numbers a message lists."""


def list_lines(numbers: Sequence[int], total: int) -> str:
    """Returns "line 7" or "lines 7, 9, …"."""
    return f"line{'s' * (total > 1)} {', '.join(map(str, numbers))}{', …' * (total > len(numbers))}"


def _split_in_out(line: str) -> tuple[str, str] | None:
    if not line.startswith("IN:"):
        return None
    at = line.find("OUT:", 4)
    while at > 0 and not line[at - 1].isspace():
        at = line.find("OUT:", at + 1)
    return (line[3:at].strip(), line[at + 4 :].lstrip()) if at > 0 else None


def _split_at(divider: str) -> Callable[[str], tuple[str, str] | None]:
    def split(line: str) -> tuple[str, str] | None:
        before, found, after = line.partition(divider)
        return (before.rstrip(), after.lstrip()) if found else None

    return split


_PAIR_SPLITTERS: dict[str, Callable[[str], tuple[str, str] | None]] = {
    "IN: … OUT: …": _split_in_out,
    "|||": _split_at("|||"),
    "->": _split_at("->"),
}
"""How text files without tabs separate source and target: SCAN, word aligners, lists of corrections. Each returns None for a
line in another format."""

_NOT_TEXT = set(".xls .xlsb .ods .parquet .arrow .zip .tar .tgz .xz .bz2 .zst .7z .wav .flac .mp3 .png .jpg .jpeg .npy".split())
_MEDIA_HINT = (
    'for pictures or sounds, give a file that lists them, e.g. lines of {"audio": "a.wav", "text": "the words spoken"}'
)
_MAGIC = {
    b"RIFF": ("WAV", "a sound file"),
    b"fLaC": ("FLAC", "a sound file"),
    b"\xff\xfb": ("MP3", "a sound file"),
    b"\xff\xf3": ("MP3", "a sound file"),
    b"ID3": ("MP3", "a sound file"),
    b"OggS": ("Ogg", "a sound file"),
    b"FORM": ("AIFF", "a sound file"),
    b"RF64": ("RF64", "a sound file"),
    b"\x89PNG": ("PNG", "a picture"),
    b"\xff\xd8\xff": ("JPEG", "a picture"),
    b"PK\x03\x04": ("ZIP", "an archive"),
}
"""Magic numbers of binary files: the name of the format, and what it contains."""
_SAMPLE_LINES = 50
"""Number of lines from which the separator of a file is guessed."""
_SAMPLE_ROWS = 1000
"""Number of rows with which the first row is compared to recognise a header."""
_SAMPLE_CHARS = 1_000_000
"""Number of characters after which a sample ends, however few lines it has."""

LONGEST_LINE = 10_000_000
"""Maximum length of a line, in bytes (in characters for UTF-16)."""
MOST_BYTES = 2**30
"""Maximum size of a file that is read as a whole."""
_UNPACKED, _RATIO = 100_000_000, 200
"""A .gz file may unpack to this many bytes or this many times its size, whichever is more. Text unpacks to 3 to 30 times its
size, a zip bomb to 1,000 times."""
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


# --- bytes and lines ---------------------------------------------------------------------------------------------------------


def check_file(path: Path) -> None:
    """Raises UserError if the file does not exist, or is a pipe, device or socket, which may never end."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: the name contains a null character
        raise UserError(f"{path}: no such file") from None
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        what = "a pipe" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"
        raise UserError(
            f"{path}: this is {what}, expected a file that can be read more than once; save its contents to a file first, "
            "e.g. zcat pairs.tsv.gz > pairs.tsv"
        )


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Context that checks the file with `check_file` and turns errors of the system into a UserError with the file's name."""
    try:
        check_file(path)
        yield
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """Returns the contents of a file; raises UserError if it has more than `most` bytes."""
    with reading(path), open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise UserError(f"{path} has {size:,} bytes, expected at most {most:,}; is it the right file?")
        return file.read(size)


def read_lines(path: Path, notes: list[str] | None = None) -> Iterator[str]:
    """Yields the lines of a text file, without line ends. The file may be gzipped.

    The encoding is UTF-8, or UTF-16 if the file starts with its byte order mark; `notes` then receives a note.
    """
    with reading(path), open(path, "rb") as file:
        unpacked = gzip.GzipFile(fileobj=file) if _is_gzip(path) else None
        most = max(_UNPACKED, _RATIO * os.fstat(file.fileno()).st_size) if unpacked else None
        content = unpacked or file
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
                "text; if it is the right file, unpack it first, e.g. with gunzip"
            )
        yield line


def _strip_line_end(line: str) -> str:
    return line.removesuffix("\n").removesuffix("\r")


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


def format_of(start: bytes) -> tuple[str, str] | None:
    """Returns (name of the format, what it contains) for a file that starts with these bytes; None if the format is unknown."""
    return next((known for magic, known in _MAGIC.items() if start.startswith(magic)), None)


def shorten(text: str, width: int = 60) -> str:
    """Returns the text, cut to `width` characters with an ellipsis if it is longer."""
    return text if len(text) <= width else text[: width - 1] + "…"


def read_rows(files: Sequence[Path], columns: Columns, report: Report) -> Iterator[NumberedRow]:
    """Yields the chosen cells of every line except the header. Guesses and skipped lines are recorded in `report`."""
    for path in files:
        if _suffix(path) in _NOT_TEXT:
            hint = "save the table as .xlsx or .csv" if _suffix(path) in (".xls", ".xlsb", ".ods") else _MEDIA_HINT
            raise UserError(
                f"{path}: pairs cannot be read from {_suffix(path)} files; "
                f"expected .tsv, .csv, .jsonl, .xlsx or plain text; {hint}"
            )
        if path.is_dir():
            raise UserError(
                f"{path}: this is a folder, expected a file of pairs: .tsv, .csv, .jsonl or plain text; {_MEDIA_HINT}"
            )
    if len(files) == 2:
        return _parallel_rows(files[0], files[1], columns, report)
    if len(files) != 1:
        raise UserError(
            f"got {len(files)} files, expected one with source and target, or two parallel files, first source, then target; "
            "concatenate files of the same format first, e.g. cat a.tsv b.tsv > all.tsv"
        )
    (path,) = files
    read = _json_rows if _suffix(path) in _JSON else _table_rows
    return good_rows(path, read(path, columns, report), columns, report)


def good_rows(path: Path, rows: Iterable[NumberedRow | BadLine], columns: Columns, report: Report) -> Iterator[NumberedRow]:
    """Yields the rows without the bad lines. If these are an error, reads to the end of the file and then raises it."""
    first: BadLine | None = None
    for row in rows:
        if isinstance(row, BadLine):
            report.add_bad_line(row.number)
            first = first or row
        elif first is None or columns.bad_lines == "skip":
            yield row
    if first and columns.bad_lines == "stop":
        others = report.bad_lines_at[1:], report.bad_lines - 1
        more = f"; {plural(others[1], 'more bad line')}: {list_lines(*others)}" if others[1] else ""
        raise UserError(f"{path}:{first.number}: {first.why}{more}; correct the file, or skip bad lines with --skip-bad-lines")


_JSON = (".json", ".jsonl", ".ndjson")


def _suffix(path: Path) -> str:
    return Path(path.stem if _is_gzip(path) else path.name).suffix.lower()


def _is_gzip(path: Path) -> bool:
    return path.suffix.lower() == ".gz"


# --- two parallel files ------------------------------------------------------------------------------------------------------


def _parallel_rows(source: Path, target: Path, columns: Columns, report: Report) -> Iterator[NumberedRow]:
    for path in (source, target):
        if _suffix(path) in (".tsv", ".csv", ".xlsx", *_JSON):
            raise UserError(
                f"{path}: two files are read as parallel texts, line n of one with line n of the other, but this is a table; "
                "give a single table, or concatenate tables of the same format first, e.g. cat a.tsv b.tsv > all.tsv"
            )
    if columns.source or columns.target or columns.header is True:
        raise UserError(
            f"columns or a header were chosen, but {source} and {target} are parallel texts, which have neither; "
            "remove --from, --to and --header"
        )
    lines, others = read_lines(source, report.notes), read_lines(target, report.notes)
    number = 0
    for number, line in enumerate(lines, start=1):
        other = next(others, None)
        if other is None:
            raise _different_lengths(source, number + sum(1 for _ in lines), target, number - 1)
        yield number, [line, other]
    if rest := sum(1 for _ in others):
        raise _different_lengths(source, number, target, number + rest)


def _different_lengths(source: Path, num_source: int, target: Path, num_target: int) -> UserError:
    return UserError(
        f"{source} has {plural(num_source, 'line')} and {target} has {num_target:,}, expected the same number: line n of one "
        "translates line n of the other; find the first lines that do not match"
    )


# --- tables ------------------------------------------------------------------------------------------------------------------


class Table(NamedTuple):
    """A table whose first rows have been examined.

    first: the first row that is not blank.   named: whether that row is a header.
    rows: all rows except the header; blank rows have no cells.
    """

    first: list[str]
    named: bool
    rows: Iterator[NumberedRow | BadLine]


def open_table(path: Path, columns: Columns, report: Report) -> Table:
    """Opens a table and decides whether its first row is a header. Guesses are recorded in `report`."""
    rows: Iterator[NumberedRow | BadLine]
    rows = _sheet_rows(path, report) if _suffix(path) == ".xlsx" else _text_rows(path, report)
    head = list(_sample(rows, _SAMPLE_ROWS + 1, lambda row: 0 if isinstance(row, BadLine) else sum(map(len, row[1]))))
    least = 2 if columns.bad_lines == "skip" else 1  # a title above the table is a bad line too
    full = [row for row in head if not isinstance(row, BadLine) and any(cell.strip() for cell in row[1])]
    start = next((at for at, (_, cells) in enumerate(full) if len(cells) >= least), None)
    if start is None:
        return Table([], False, chain(head, rows))
    number, cells = full[start]
    similar = [other for _, other in full[start:] if len(other) == len(cells)]
    width = max(at for row in similar for at, cell in enumerate(row, start=1) if cell.strip())  # further columns are empty
    first, *below = (row[:width] for row in similar)
    if not _is_header(path, number, first, below, columns, report.notes):
        return Table(first, False, chain(head, rows))
    report.header = tuple(cell.strip() for cell in first)
    return Table(first, True, _without_header(number, cells, chain(head, rows), report))


def _sample(items: Iterator[Any], most: int, size: Callable[[Any], int]) -> Iterator[Any]:
    """Yields the first `most` items, or fewer if they exceed `_SAMPLE_CHARS` in size."""
    total = 0
    for item in islice(items, most):
        yield item
        total += size(item)
        if total > _SAMPLE_CHARS:
            return


def _without_header(
    number: int, header: list[str], rows: Iterable[NumberedRow | BadLine], report: Report
) -> Iterator[NumberedRow | BadLine]:
    """Yields all rows except the header and its repetitions, which occur in concatenated files."""
    for row in rows:
        if isinstance(row, BadLine) or row[1] != header:
            yield row
        elif row[0] != number:
            report.repeated_headers += 1


def _is_header(path: Path, number: int, first: list[str], below: list[list[str]], columns: Columns, notes: list[str]) -> bool:
    if columns.header in (True, False):
        return bool(columns.header)
    if columns.by_name:
        return True
    usual = _suffix(path) in (".csv", ".xlsx")
    if columns.header == "usual":
        strength = float(are_usual_names(first))
    else:
        strength = 1.0 if tuple(cell.strip() for cell in first) == columns.known_header else evidence(first, below, usual=usual)
    shown = f"Line {number} ({', '.join(readable(shorten(cell, 20)) for cell in first[:10])}{', …' * (len(first) > 10)})"
    if strength >= 1:
        notes.append(f"{shown} was read as a header (if it is data, use --no-header)")
    elif (usual or strength) and len(first) > 1:
        notes.append(f"{shown} was read as data (if it is a header, use --header)")
    return strength >= 1


def _table_rows(path: Path, columns: Columns, report: Report) -> Iterator[NumberedRow | BadLine]:
    table = open_table(path, columns, report)
    width, picks = len(table.first), list[int]()
    if width > 1:
        picks = _choose_columns(path, table.first, table.named, columns, report.notes)
    for row in table.rows:
        if isinstance(row, BadLine):
            yield row
            continue
        number, cells = row
        if len(cells) > width and not any(cell.strip() for cell in cells[width:]):
            cells = cells[:width]  # empty cells at the end of a line do not count
        if not any(cell.strip() for cell in cells):
            yield number, []
        elif width < 2:
            why = _ragged(path, cells, 2)
            raise UserError(f"{path}:{number}: {why}; give a table with source and target, or two parallel files")
        elif len(cells) == width:
            yield number, [cells[pick] for pick in picks]
        else:
            yield BadLine(number, _ragged(path, cells, width))


def _ragged(path: Path, cells: list[str], width: int) -> str:
    line = shorten("\t".join(cells))
    if width == 2 and _suffix(path) not in (".csv", ".xlsx"):
        found = "no tab" if len(cells) == 1 else f"{len(cells) - 1} tabs"
        return f"expected source<TAB>target, found {found} in {line!r}"
    return f"expected {width} columns in every line, found {len(cells)} in {line!r}"


def _sheet_rows(path: Path, report: Report) -> Iterator[NumberedRow]:
    from regard.data.sheets import read_sheet

    with reading(path):
        yield from read_sheet(path, report.notes)


_SEPARATOR_LINE = re.compile(r'"?sep=([,;\t|])"?', re.IGNORECASE)
"""The first line of a .csv file that gives Excel the separator of the columns."""


def _text_rows(path: Path, report: Report) -> Iterator[NumberedRow | BadLine]:
    """Returns the rows of a text file, split according to its suffix.

    .tsv is split at tabs, without quoting; .csv at commas, semicolons or tabs, with quoting. Any other text is split at tabs;
    if its first line has none, by one of the `_PAIR_SPLITTERS` or like a .csv.
    """
    lines = read_lines(path, report.notes)
    head = list(_sample(lines, _SAMPLE_LINES, len))
    suffix = _suffix(path)
    named = _SEPARATOR_LINE.fullmatch(head[0]) if suffix == ".csv" and head else None
    if named:
        head[0] = ""  # keeps the line numbers of the other lines
    lines = chain(head, lines)
    first = next(filter(str.strip, head), "")
    if suffix == ".csv":
        sep = named[1] if named else _guess_separator(head)
        if sep != ",":
            report.notes.append(f"Columns are separated by {sep!r}")
        return _csv_rows(path, lines, sep)
    if suffix != ".tsv" and "\t" not in first:
        if form := next((form for form, split in _PAIR_SPLITTERS.items() if split(first)), None):
            report.notes.append(f"Lines were split at {form!r}")
            return _split_rows(lines, form)
        if likely := [sep for sep in _widths(head) if sep == ";" or any(re.search(f"{sep}[^ ]", line) for line in head)]:
            sep = _guess_separator(head)
            if sep in likely:
                report.notes.append(f"The file was read as CSV with columns separated by {sep!r}")
                return _csv_rows(path, lines, sep)
    return ((number, line.split("\t")) for number, line in enumerate(lines, start=1))


def _split_rows(lines: Iterable[str], form: str) -> Iterator[NumberedRow | BadLine]:
    split = _PAIR_SPLITTERS[form]
    for number, line in enumerate(lines, start=1):
        if pair := split(line):
            yield number, list(pair)
        elif not line.strip():
            yield number, []
        else:
            yield BadLine(number, f"expected {form!r} as in the first line, found none in {shorten(line)!r}")


def _csv_rows(path: Path, lines: Iterable[str], sep: str) -> Iterator[NumberedRow]:
    reader = csv.reader((line + "\n" for line in lines), delimiter=sep, strict=True)
    start = 1
    try:
        for cells in reader:
            yield start, cells
            start = reader.line_num + 1  # a quoted cell may span several lines
    except csv.Error as error:
        raise UserError(
            f"{path}:{start}: cannot be read as CSV: {str(error).expandtabs(1)}; is a quote missing, or one too many? "
            "A cell that contains quotes must be quoted, with each inner quote doubled; a tab-separated file without quoting "
            "must be named .tsv"
        ) from None


def _guess_separator(head: list[str]) -> str:
    """Returns comma, semicolon or tab: the one that gives every row of the sample the same number of columns, preferably two.

    If several do, prefers one that is never followed by a space, as it would be in prose, and then the comma.
    """
    widths = _widths(head)
    first = next(filter(str.strip, head), "")
    guess = max(",;\t", key=first.count)
    return min(widths, key=lambda sep: (widths[sep] != 2, any(f"{sep} " in line for line in head)), default=guess)


def _widths(head: list[str]) -> dict[str, int]:
    """Returns the number of columns for each separator that gives every row of the sample the same number, at least 2."""
    widths = {}
    for sep in ",;\t":
        try:
            rows = [row for row in csv.reader((line + "\n" for line in head), delimiter=sep) if row]
        except csv.Error:
            continue
        sizes = {len(row) for row in (rows[:-1] if len(head) == _SAMPLE_LINES else rows)}  # the last row may be cut off
        if len(sizes) == 1 and sizes != {1}:
            widths[sep] = sizes.pop()
    return widths


def _choose_columns(path: Path, labels: list[str], named: bool, columns: Columns, notes: list[str]) -> list[int]:
    """Returns the indices of the columns to read, the target last.

    labels: the cells of the first row, which are the names of the columns if `named`.
    """
    labels = [label.strip() for label in labels]
    shown = ", ".join(f"{number} {shorten(label, 20)!r}" for number, label in enumerate(labels[:20], start=1))
    shown = f"{plural(len(labels), 'column')} ({shown}{', …' if len(labels) > 20 else ''})"
    source = [_find_column(path, labels, shown, column) for column in columns.source]
    target = _find_column(path, labels, shown, columns.target) if columns.target else None
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
            f"{path} has {shown}; expected two columns, or a choice of source and target by number or name, "
            "e.g. --from 1 --to 2, or --from 1,3 --to 2 for a text and its features, or a file and its auxiliary text"
        )
    if named and not (columns.source and columns.target):
        notes.append(f"Column {labels[source[0]]!r} was read as the source and {labels[target]!r} as the target")
    return [*source, target]


def _find_column(path: Path, labels: list[str], shown: str, column: str) -> int:
    if column.isdecimal():
        if len(column) > 9 or not 1 <= int(column) <= len(labels):
            raise WrongColumns(f"{path} has {shown}; there is no column {shorten(column, 20)}")
        return int(column) - 1
    lowered = [label.lower() for label in labels]
    for names, wanted in (
        (labels, column),
        (lowered, column.lower()),
        ([name.rpartition(".")[2] for name in lowered], column.lower()),
    ):
        if (count := names.count(wanted)) == 1:
            return names.index(wanted)
        if count:
            raise UserError(f"{path} has {shown}; {count} of them are called {column!r}; choose by number")
    raise WrongColumns(
        f"{path} has {shown}; none is called {shorten(column)!r}{did_you_mean(column, labels)}; "
        "if the first line is not a header, choose by number"
    )


# --- JSON lines --------------------------------------------------------------------------------------------------------------


def _json_rows(path: Path, columns: Columns, report: Report) -> Iterator[NumberedRow | BadLine]:
    """Yields a row per line, a JSON object. The columns are the texts of the first object, in order; dots join nested keys."""
    picks: list[tuple[str, ...]] = []
    for number, line in enumerate(read_lines(path, report.notes), start=1):
        if not line.strip():
            yield number, []
            continue
        try:
            record = _record(line)
            if not picks:
                leaves = list(_leaves(record))
                picks = [
                    leaves[at] for at in _choose_columns(path, [".".join(leaf) for leaf in leaves], True, columns, report.notes)
                ]
            several = len(picks) > 2  # several source columns, any of which a row may lack
            yield number, [_get_text(record, pick, several and pick is not picks[-1]) for pick in picks]
        except BadRecord as error:
            yield BadLine(number, str(error))
        except RecursionError:
            yield BadLine(number, f"expected one JSON object per line, got one that is nested too deeply: {shorten(line)!r}")


class BadRecord(Exception):
    """A line of JSON that does not fit the first one."""


def _record(line: str) -> dict[str, Any]:
    try:  # keeps numbers as they are written
        record = json.loads(line, parse_int=str, parse_float=str, parse_constant=str, object_pairs_hook=_unique_keys)
    except ValueError as error:
        record = error
    if isinstance(record, dict):
        return record
    what = f": {record}" if isinstance(record, Exception) else ""
    hint = "; convert a list to lines with jq -c '.[]' list.json > lines.jsonl" if line.lstrip()[0] == "[" else ""
    raise BadRecord(f"expected one JSON object per line, got {shorten(line)!r}{what}{hint}")


def _unique_keys(items: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(items)
    if len(record) < len(items):
        keys = [key for key, _ in items]
        again = next(key for key in keys if keys.count(key) > 1)
        raise BadRecord(f"the key {shorten(again)!r} occurs twice in one object, expected each key once")
    return record


def _leaves(record: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in record.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*above, key))
        elif _text(value) is not None:
            yield (*above, key)


def _get_text(record: dict[str, Any], keys: tuple[str, ...], optional: bool = False) -> str:
    value: Any = record
    for key in keys:
        if optional and isinstance(value, dict) and key not in value:
            return ""
        if not isinstance(value, dict) or key not in value:
            raise BadRecord(
                f"expected a text for the key {shorten('.'.join(keys))!r} as in the first object, "
                f"keys found: {shorten(', '.join(map(repr, record)), 200) or 'none'}"
            )
        value = value[key]
    text = _text(value)
    if text is None:
        raise BadRecord(f"expected a text for the key {shorten('.'.join(keys))!r}, got {shorten(json.dumps(value))}")
    return text


def _text(value: Any) -> str | None:
    """Returns a JSON value as text, or None if it is not text. A list of texts is joined by spaces; null is empty."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return " ".join(value)
    return value if isinstance(value, str) else None
