"""Rows of cells from text files: tables (TSV, CSV, plain text), JSON lines, two parallel files; each may be .gz.

Files are read line by line, never whole. A bad line is an error with its number.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from regard.errors import UserError, did_you_mean

Row = tuple[int, list[str]]
"""The number of a line and its cells. Chosen cells are: the first source column, further ones, and last the target."""


@dataclass(frozen=True)
class Columns:
    """Which columns to read, by name or by number from 1. Empty: there are only two, or the names say which.

    source: further columns join the first one as symbols (`join_columns`).
    header: whether the first row holds names. None: it does if a column is asked for by name; otherwise it is taken for one if
    all its cells are different words that name columns (source, target, src, tgt, word, lemma, en, de, …), and a note says so.
    """

    source: tuple[str, ...] = ()
    target: str = ""
    header: bool | None = None

    @property
    def by_name(self) -> bool:
        return any(not want.isdecimal() for want in (*self.source, self.target) if want)


TWO_COLUMNS = Columns()


_SOURCES = set("source src input image picture img photo audio sound wav path file filename clip recording".split())
_TARGETS = set("target tgt trg output caption transcript".split())
_NUMBERS = set("id idx index no. nr number".split())
"""Columns that are neither, unless asked for."""
_LANGUAGES = set(
    "ar bg bn ca cs da de el en es et eu fa fi fr ga gl he hi hr hu id is it ja ka ko la lt lv nl no pl pt ro ru sk sl sr "
    "sv sw ta th tr uk ur vi zh ara deu eng fra fre ger ita jpn lat por rus spa zho arabic chinese dutch english french german "
    "italian japanese latin portuguese russian spanish".split()
)
_CONTENTS = set(
    "answer correction features form grapheme graphemes ipa lemma letters misspelling phoneme phonemes pronunciation question "
    "reference sentence sentence1 sentence2 spelling tags text translation word words".split()
)
_NAMES = _SOURCES | _TARGETS | _NUMBERS | _LANGUAGES | _CONTENTS

_PAIRS_OF_TEXT = {
    "IN: … OUT: …": re.compile(r"IN:\s*(.*?)\s+OUT:\s*(.*)"),
    "|||": re.compile(r"(.*?)\s*\|\|\|\s*(.*)"),
    "->": re.compile(r"(.*?)\s*->\s*(.*)"),
}
"""How text files without tabs part the two sides: the SCAN commands, word aligners, lists of corrections."""

_NOT_TEXT = set(".xlsx .xls .ods .parquet .arrow .zip .tar .tgz .xz .bz2 .zst .7z .wav .flac .mp3 .png .jpg .jpeg .npy".split())
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
"""Lines from which the separator of a .csv file is told."""

LONGEST_LINE = 10_000_000
"""Bytes."""


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """What the system says of this file becomes an error with its name."""
    try:
        yield
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (OSError, EOFError) as error:
        raise UserError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


def read_bytes(path: Path) -> bytes:
    """A whole file."""
    with reading(path):
        return path.read_bytes()


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a text file, optionally .gz."""
    with reading(path), gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
        yield from decode_lines(raw_lines(file.readline, str(path)), str(path))


def raw_lines(readline: Callable[[int], bytes], name: str) -> Iterator[bytes]:
    """Lines with their ends. A line longer than `LONGEST_LINE` is an error."""
    number = 0
    while line := readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            raise UserError(
                f"{name}:{number}: the line is longer than {LONGEST_LINE:,} bytes; expected lines of text; split it"
            )
        yield line


def decode_lines(raw_lines: Iterable[bytes], name: str) -> Iterator[str]:
    """UTF-8 lines without their ends (LF or CRLF). Other bytes are an error with the number of the line."""
    for number, raw in enumerate(raw_lines, start=1):
        try:
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            place = error.start + len(raw) - len(error.object)  # a byte order mark is not part of what was decoded
            if number == 1 and (known := format_of(raw)):
                raise UserError(
                    f"{name}: this is {known[1]}, not a text; expected lines of text, or of the names of files, "
                    "e.g. ls *.wav | regard translate model"
                ) from None
            other = "utf-16" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "latin1"
            raise UserError(
                f"{name}:{number}: byte 0x{raw[place]:02x} at place {place + 1} is not UTF-8; "
                f"convert the text first, e.g. iconv -f {other} -t utf-8"
            ) from None
        yield line.removesuffix("\n").removesuffix("\r")


def format_of(start: bytes) -> tuple[str, str] | None:
    """(the name of a format, what it holds) of what begins like this; None if it is none of those that are well known."""
    return next((known for sign, known in _SIGNS.items() if start.startswith(sign)), None)


def shorten(text: str, width: int = 60) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def read_rows(files: Sequence[Path], columns: Columns, notes: list[str]) -> Iterator[Row]:
    """The chosen cells of every line but the header. What had to be guessed is written to `notes`, a clause for each."""
    for path in files:
        if _kind(path) in _NOT_TEXT:
            raise UserError(
                f"{path}: a {_kind(path)} file is not read; expected .tsv, .csv, .jsonl or plain text, each may be .gz; "
                f"{_MADE_OF}"
            )
        if path.is_dir():
            raise UserError(f"{path}: a folder; expected a file of pairs: .tsv, .csv, .jsonl or plain text; {_MADE_OF}")
    if len(files) == 2:
        return _parallel_rows(files[0], files[1], columns)
    if len(files) != 1:
        raise UserError(
            f"got {len(files)} files, expected one that holds both sides, or two parallel ones, source and target; "
            "join files of one kind first, e.g. cat a.tsv b.tsv > all.tsv"
        )
    (path,) = files
    if _kind(path) in (".json", ".jsonl", ".ndjson"):
        return _json_rows(path, columns, notes)
    return _table_rows(path, columns, notes)


def _kind(path: Path) -> str:
    return Path(path.stem if path.suffix == ".gz" else path.name).suffix.lower()


# --- two parallel files ------------------------------------------------------------------------------------------------------


def _parallel_rows(source: Path, target: Path, columns: Columns) -> Iterator[Row]:
    for path in (source, target):
        if _kind(path) in (".tsv", ".csv", ".json", ".jsonl", ".ndjson"):
            raise UserError(
                f"{path}: two files are read as parallel texts, line n of the one beside line n of the other, but this is a "
                f"table; give one table alone, or join tables of one kind first, e.g. cat a.tsv b.tsv > all.tsv"
            )
    if columns != TWO_COLUMNS:
        raise UserError(
            f"columns were chosen, but {source} and {target} are parallel texts, which have none; leave the choice out"
        )
    lines, others = read_lines(source), read_lines(target)
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
        f"{source} has {num_source:,} lines and {target} has {num_target:,}, expected equally many: line n of the one "
        "translates line n of the other; find where they part"
    )


# --- tables ------------------------------------------------------------------------------------------------------------------


def _table_rows(path: Path, columns: Columns, notes: list[str]) -> Iterator[Row]:
    picks: list[int] = []
    width = 0
    for number, cells in _csv_rows(path, notes) if _kind(path) == ".csv" else _text_rows(path, notes):
        if len(cells) == width:
            yield number, [cells[pick] for pick in picks]
        elif not any(cell.strip() for cell in cells):
            yield number, []
        elif picks:
            raise _ragged(path, number, cells, width)
        else:
            width = len(cells)
            if width < 2:
                raise UserError(
                    f"{_ragged(path, number, cells, 2)}; give a table with both sides, or two parallel files, source and target"
                )
            header, guessed = is_header(cells, columns)
            picks = _choose(path, cells, header, columns, notes)
            if not header:
                yield number, [cells[pick] for pick in picks]
            elif guessed:
                notes.append(header_note(number, cells))


def _ragged(path: Path, number: int, cells: list[str], width: int) -> UserError:
    line = shorten("\t".join(cells))
    if width == 2 and _kind(path) != ".csv":
        found = "no tab" if len(cells) == 1 else f"{len(cells) - 1} tabs"
        return UserError(f"{path}:{number}: expected source<TAB>target, found {found} in {line!r}")
    return UserError(f"{path}:{number}: expected {width} columns in every line, found {len(cells)} in {line!r}")


def _text_rows(path: Path, notes: list[str]) -> Iterator[Row]:
    """Split at tabs, without quoting; where the first line of a file other than .tsv has none, at another well-known sign."""
    sign: str | None = None
    for number, line in enumerate(read_lines(path), start=1):
        if sign is None and line.strip():
            sign = "\t"
            if "\t" not in line and _kind(path) != ".tsv":
                sign = next((name for name, form in _PAIRS_OF_TEXT.items() if form.fullmatch(line)), sign)
            if sign != "\t":
                notes.append(f"Lines were parted at {sign!r}")
        form = _PAIRS_OF_TEXT.get(sign or "")
        if form is None:
            yield number, line.split("\t")
        elif match := form.fullmatch(line):
            yield number, list(match.groups())
        elif not line.strip():
            yield number, []
        else:
            raise UserError(f"{path}:{number}: expected {sign!r} like the lines before, found none in {shorten(line)!r}")


def _csv_rows(path: Path, notes: list[str]) -> Iterator[Row]:
    lines = read_lines(path)
    head = list(islice(lines, _SAMPLE))
    mark = _separator(head)
    if mark != ",":
        notes.append(f"Columns were parted at {mark!r}")
    reader = csv.reader((line + "\n" for line in chain(head, lines)), delimiter=mark, strict=True)
    start = 1
    try:
        for cells in reader:
            yield start, cells
            start = reader.line_num + 1  # a cell in quotes may run over several lines
    except csv.Error as error:
        raise UserError(
            f"{path}:{start}: cannot be read as CSV: {error}; is a quote missing, or one too many? "
            "A cell that holds quotes is written in quotes, with each of its own doubled; a file without any quoting is a .tsv"
        ) from None


def _separator(head: list[str]) -> str:
    """Comma, semicolon or tab: the one that gives every row of the sample equally many columns, best of all two. If more
    than one does, that which no space follows, as it would in prose; then the comma."""
    widths = {}
    for mark in ",;\t":
        try:
            rows = [row for row in csv.reader((line + "\n" for line in head), delimiter=mark) if row]
        except csv.Error:
            continue
        sizes = {len(row) for row in (rows[:-1] if len(head) == _SAMPLE else rows)}  # the last row may have been cut
        if len(sizes) == 1 and sizes != {1}:
            widths[mark] = sizes.pop()
    first = next(filter(str.strip, head), "")
    guess = max(",;\t", key=first.count)
    return min(widths, key=lambda mark: (widths[mark] != 2, any(f"{mark} " in line for line in head)), default=guess)


def is_header(cells: list[str], columns: Columns) -> tuple[bool, bool]:
    """(whether these are names, whether that was guessed)"""
    if columns.header is not None:
        return columns.header, False
    if columns.by_name:
        return True, False
    names = {cell.strip().lower() for cell in cells}
    return len(names) == len(cells) and all(re.split("[-_]", name)[0] in _NAMES for name in names), True


def header_note(number: int, cells: list[str]) -> str:
    return f"Line {number} ({', '.join(cells)}) was taken as the names of the columns"


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
        free = [at for at in free if roles[at] not in _NUMBERS]
    if not source:
        likely = [at for at in free if roles[at] in _SOURCES]
        source = likely if len(likely) == 1 else free[:1] if len(free) == 1 + (target is None) else []
    if target is None:
        left = [at for at in free if at not in source]
        likely = [at for at in left if roles[at] in _TARGETS]
        target = likely[0] if len(likely) == 1 else left[0] if len(left) == 1 else None
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
            raise UserError(f"{path} has {shown}; there is no column {shorten(want, 20)}")
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
    raise UserError(
        f"{path} has {shown}; none is called {want!r}{did_you_mean(want, labels)}; "
        "where the first line holds no names, choose by number"
    )


# --- JSON lines --------------------------------------------------------------------------------------------------------------


def _json_rows(path: Path, columns: Columns, notes: list[str]) -> Iterator[Row]:
    """One object per line. Columns are what the first one holds as text, in its order; dots lead to nested keys."""
    picks: list[tuple[str, ...]] = []
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            yield number, []
            continue
        record = _record(path, number, line)
        if not picks:
            leaves = list(_leaves(record))
            picks = [leaves[at] for at in _choose(path, [".".join(leaf) for leaf in leaves], True, columns, notes)]
        several = len(picks) > 2  # sources, any of which a row may lack
        yield number, [_dig(path, number, record, pick, several and pick is not picks[-1]) for pick in picks]


def _record(path: Path, number: int, line: str) -> dict[str, Any]:
    try:  # numbers stay as they are written
        record = json.loads(line, parse_int=str, parse_float=str, parse_constant=str)
    except (ValueError, RecursionError) as error:
        record = error
    if isinstance(record, dict):
        return record
    what = f": {record}" if isinstance(record, Exception) else ""
    hint = "; make lines of a list with jq -c '.[]' list.json > lines.jsonl" if line.lstrip()[0] == "[" else ""
    raise UserError(f"{path}:{number}: expected one JSON object per line, got {shorten(line)!r}{what}{hint}")


def _leaves(record: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in record.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*above, key))
        elif _text(value) is not None:
            yield (*above, key)


def _dig(path: Path, number: int, record: dict[str, Any], keys: tuple[str, ...], optional: bool = False) -> str:
    value: Any = record
    for key in keys:
        if optional and isinstance(value, dict) and key not in value:
            return ""
        if not isinstance(value, dict) or key not in value:
            raise UserError(
                f"{path}:{number}: expected a text {'.'.join(keys)!r} as in the first object, "
                f"found {', '.join(map(repr, record)) or 'nothing'}"
            )
        value = value[key]
    text = _text(value)
    if text is None:
        raise UserError(f"{path}:{number}: expected a text as {'.'.join(keys)!r}, got {shorten(json.dumps(value))}")
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
