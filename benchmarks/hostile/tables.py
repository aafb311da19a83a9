"""Tables and texts in every format and encoding, valid and damaged. The pairs that the package reads are compared with those
that were written, or with those that a slow reader finds, which shares no code with the package."""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import shutil
from pathlib import Path
from random import Random
from typing import Any

from hostile.area import Area, require
from hostile.changes import change_bytes, strange_text
from hostile.commands import FROZEN, SMALL, TRAIN, check_done, run_command

Rows = list[list[str]]
Pairs = list[tuple[str, str]]

FORMATS = (
    "tsv",
    "tsv",
    "csv,",
    "csv;",
    "csv\t",
    "txt\t",
    "txt|||",
    "txt->",
    "txtIN",
    "txt,",
    "txt;",
    "jsonl",
    "jsonl",
    "xlsx",
    "two",
)
ENCODINGS = ("utf-8",) * 6 + ("utf-8-sig", "utf-16", "utf-16-be-mark", "latin-1", "utf-16-le")


# --- writing -----------------------------------------------------------------------------------------------------------------


def make_rows(rng: Random, form: str) -> Rows:
    """Returns rows of two or more cells, few of them empty; cells contain line breaks only if the format can write them."""
    breaks = form[:3] == "csv" or form == "jsonl"
    width = rng.choice((2, 2, 2, 2, 3)) if form in ("tsv", "csv,", "csv;", "jsonl") else 2
    return [[strange_text(rng, breaks=breaks) for _ in range(width)] for _ in range(rng.choice((1, 2, 3, 5, 20, 60)))]


def written(form: str, rows: Rows, rng: Random) -> str:
    """Returns the rows as text, written without code of the package, so that it is not compared with itself."""
    end = rng.choice(("\n", "\n", "\r\n"))
    last = rng.choice((end, ""))
    if form[:3] == "csv":
        return end.join(form[3].join(_quoted(cell, form[3], rng) for cell in row) for row in rows) + last
    if form == "jsonl":
        return "\n".join(_object(row, rng) for row in rows) + last
    sign = {"txt|||": " ||| ", "txt->": " -> ", "txtIN": " OUT: ", "txt,": ",", "txt;": ";"}.get(form, "\t")
    return end.join(("IN: " if form == "txtIN" else "") + sign.join(row) for row in rows) + last


def _quoted(cell: str, mark: str, rng: Random) -> str:
    if set(cell) & {mark, '"', "\n", "\r"} or not cell or rng.random() < 0.2:
        return '"' + cell.replace('"', '""') + '"'
    return cell


def _object(row: list[str], rng: Random) -> str:
    record: dict[str, Any] = {"source": row[0], "target": row[1]}
    if len(row) > 2:
        record = {"id": rng.choice((1, 2.5, None, True)), **record, "more": {"deep": row[2]}}
    return json.dumps(record, ensure_ascii=rng.random() < 0.5)


def encoded(text: str, encoding: str) -> bytes:
    if encoding == "utf-16-be-mark":
        return b"\xfe\xff" + text.encode("utf-16-be", "surrogatepass")
    if encoding == "latin-1":
        return text.encode("latin-1", "replace")
    return text.encode(encoding, "surrogatepass")


# --- a slow reader -----------------------------------------------------------------------------------------------------------


class Unreadable(Exception):
    """It is not known what a reader should find in this file."""


def slow_lines(content: bytes) -> list[str]:
    try:
        if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
            text = content.decode("utf-16")
        else:
            text = content.decode("utf-8-sig")
            start = content.split(b"\n")[0][:100]
            if len(start) > 3 and (not any(start[::2]) or not any(start[1::2])):
                raise Unreadable  # it looks like UTF-16
    except UnicodeDecodeError:
        raise Unreadable from None
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return [line[:-1] if line.endswith("\r") else line for line in lines]


def slow_cells(form: str, content: bytes) -> Rows:
    lines = slow_lines(content)
    if form == "jsonl":
        return [_slow_record(line) for line in lines if line.strip()]
    rows = [line.split("\t") for line in lines]
    return _equal_rows([row for row in rows if any(cell.strip() for cell in row)])


def _equal_rows(rows: Rows) -> Rows:
    width = len(rows[0]) if rows else 0
    for row in rows:
        while len(row) > width and not row[-1].strip():
            row.pop()
        if len(row) != width or width < 2:
            raise Unreadable
    return rows


def _slow_record(line: str) -> list[str]:
    try:
        record = json.loads(line, parse_int=str, parse_float=str, parse_constant=str, object_pairs_hook=list)
    except (ValueError, RecursionError):
        raise Unreadable from None
    if not isinstance(record, list) or not all(isinstance(item, tuple) for item in record):
        raise Unreadable
    keys = [key for key, _ in record]
    values = dict(record)
    if len(values) < len(keys) or not all(isinstance(values.get(key), str) for key in ("source", "target")):
        raise Unreadable
    if any(isinstance(value, list) for value in values.values()):
        raise Unreadable
    return [values["source"], values["target"]]


def slow_pairs(rows: Rows) -> Pairs:
    pairs = []
    for row in rows:
        source, target = (re.sub(r"[\t\r\n]+", " ", cell.strip()) for cell in row[:2])
        if source and target:
            pairs.append((source, target))
    if not pairs or any("\ud800" <= one <= "\udfff" for pair in pairs for text in pair for one in text):
        raise Unreadable
    return pairs


# --- the area ----------------------------------------------------------------------------------------------------------------


class Tables(Area):
    """Files of pairs, read as the commands read them."""

    longest_line = 1000

    def load_modules(self) -> None:
        import openpyxl  # noqa: F401
        import sacrebleu.metrics.bleu
        import sacrebleu.significance  # noqa: F401

        import regard.cli.main
        import regard.evaluation
        import regard.training.run  # noqa: F401

    def prepare(self, root: Path) -> None:
        for name in ("transformer", "rnn-features"):
            shutil.copytree(FROZEN / name, root / name)

    def change(self, rng: Random, root: Path, folder: Path) -> str:
        form, encoding = rng.choice(FORMATS), rng.choice(ENCODINGS)
        rows = make_rows(rng, form)
        ways = []
        if rng.random() < 0.15:
            row = rng.choice(rows)
            row.append("more") if rng.random() < 0.5 or form in ("jsonl", "two") else row.pop()
            ways.append("ragged")
        if rng.random() < 0.1:
            rows.insert(0, rng.choice((["source", "target"], ["Falsch", "Richtig"], ["id", "word"], ["слово", "перевод"])))
        if form == "xlsx":
            names, contents = ["pairs.xlsx"], [_workbook(rows)]
        elif form == "two":
            names = ["text.de", "text.en"]
            contents = [encoded("\n".join(row[side] for row in rows) + "\n", encoding) for side in (0, 1)]
        else:
            ending = {"csv": "csv", "jso": "jsonl", "tsv": "tsv"}.get(form[:3], rng.choice(("txt", "dat")))
            names, contents = [f"pairs.{ending}"], [encoded(written(form, rows, rng), encoding)]
        if ways or rng.random() < 0.5:
            at = rng.randrange(len(contents))
            contents[at], way = self._changed(contents[at], rng)
            ways.append(way)
        case: dict[str, Any] = {"form": form, "names": names, "expected": _expected(form, contents, rows, encoding, bool(ways))}
        if rng.random() < 0.2 and form != "xlsx":
            at = rng.randrange(len(contents))
            names[at] += ".gz"
            contents[at] = gzip.compress(contents[at], mtime=0)
            if rng.random() < 0.4:
                contents[at], way = change_bytes(contents[at], rng)
                ways.append(f"packed: {way}")
                case["expected"] = None
        for name, content in zip(names, contents, strict=True):
            (folder / name).write_bytes(content)
        case["further"] = rng.choices(("", "train", "evaluate", "score", "align", "translate"), (92, 1, 1, 3, 2, 2))[0]
        case["skip"] = rng.random() < 0.2
        (folder / "case.json").write_text(json.dumps(case))
        return f"{names} as {form}, {encoding}, {case['further']}: {'; '.join(ways) or 'valid'}: {contents[0]!r:.300}"

    def _changed(self, content: bytes, rng: Random) -> tuple[bytes, str]:
        way = rng.random()
        if way < 0.4:
            return change_bytes(content, rng)
        at = rng.randrange(len(content) + 1)
        if way < 0.8:
            text = rng.choice((strange_text(rng, halves=True), "\t", '"', "\n", "\r", "\x00", "\ufeff", "{", "[" * 3000))
            return content[:at] + text.encode(errors="surrogatepass") + content[at:], f"{text!r:.40} put in at {at}"
        if way < 0.9:
            long = rng.choice((b"a", b"a ", b" ", b"\t", b'"', b",", b"9", b"\xcc\x81")) * rng.choice(
                (1000, 100_000, 1_000_000)
            )
            return content[:at] + long + content[at:], f"{long[:2]!r} × {len(long):,} put in at {at}"
        return content.replace(b"\n", rng.choice((b"\r", b"\n\n", b"\x0b", b"\xe2\x80\xa8", b""))), "changed line ends"

    def use(self, folder: Path) -> None:
        from regard.errors import UserError

        case = json.loads((folder / "case.json").read_text())
        files = [folder / name for name in case["names"]]
        with contextlib.chdir(folder):
            errors = []
            for use in (self._read, self._guess, self._further):
                try:
                    use(case, files)
                except UserError as error:
                    errors.append(error)
        if errors:
            raise max(errors, key=lambda error: len(str(error)) + 1000 * (not str(error).isprintable()))

    def _read(self, case: dict[str, Any], files: list[Path]) -> None:
        from regard.data.columns import Columns
        from regard.data.corpus import read_pairs
        from regard.errors import UserError

        columns = Columns(("source",), "target") if case["form"] == "jsonl" else Columns(("1",), "2", header=False)
        columns = Columns() if case["form"] == "two" else columns
        try:
            corpus = read_pairs(files, columns)
        except UserError as error:
            require(case["expected"] is None, f"refused, although it is readable: {error!s:.300}")
            raise
        expected = case["expected"]
        if expected is not None:
            found = [list(pair) for pair in corpus.pairs]
            at = next((at for at, (one, other) in enumerate(zip(found, expected, strict=False)) if one != other), -1)
            require(
                found == expected,
                f"{len(found)} pairs, expected {len(expected)}; {at}: {found[at]!a:.200} {expected[at]!a:.200}",
            )

    def _guess(self, case: dict[str, Any], files: list[Path]) -> None:
        """Reads the files as a command does when no columns are given."""
        from regard.data.columns import Columns
        from regard.data.corpus import read_pairs
        from regard.data.test_set import read_test_set
        from regard.training.settings import DataSettings
        from regard.training.suggest import suggest
        from regard.training.survey import survey

        columns = Columns(bad_lines="skip" if case["skip"] else "stop")
        corpus = read_pairs(files, columns)
        corpus.counts.describe()
        if case["expected"] is not None and not corpus.counts.header and not case["skip"]:
            require([list(pair) for pair in corpus.pairs] == case["expected"], "different pairs when no columns are given")
        test = read_test_set(files, [columns])
        sources = set(test.sources)
        require(
            sources <= {pair.source for pair in corpus.pairs} or ".tsv" in files[0].suffixes,
            "the test set has different sources",
        )
        found = survey(DataSettings(files=tuple(map(str, files)), bad_lines="skip" if case["skip"] else "stop"))
        suggest(found.sample, found.counts.pairs, files[0].parent)

    def _further(self, case: dict[str, Any], files: list[Path]) -> None:
        """Runs a command on the files: trains for one update, or uses a model."""
        command = case["further"]
        names = [file.name for file in files]
        model = str(files[0].parent.parent / "table" / ("rnn-features" if len(names[0]) % 2 else "transformer"))
        if command == "train":
            check_done(run_command(["train", *names, *TRAIN[1:], *SMALL]))
        elif command == "evaluate":
            check_done(run_command(["evaluate", model, *names, "--max-length", "4", "--beam", "2", "--threads", "1"]))
        elif command == "translate":
            check_done(run_command(["translate", model, *names, "--json", "--max-length", "4", "--threads", "1"]))
        elif command:
            check_done(run_command([command, model, *(names if command == "score" else names[:1]), "--threads", "1"]))


def _workbook(rows: Rows) -> bytes:
    """Returns the rows as an .xlsx file, without the characters that a workbook cannot hold."""
    import io

    from openpyxl import Workbook
    from openpyxl.cell.cell import ILLEGAL_CHARACTERS_RE

    book = Workbook()
    for row in rows:
        book.active.append(
            [
                re.sub("[\ud800-\udfff\ufffe\uffff]", "", ILLEGAL_CHARACTERS_RE.sub("", cell))[:32_000].lstrip("=")
                for cell in row
            ]
        )
    file = io.BytesIO()
    book.save(file)
    return file.getvalue()


def _expected(form: str, contents: list[bytes], rows: Rows, encoding: str, changed: bool) -> Pairs | None:
    """Returns the pairs of a file, or None if they are not known."""
    try:
        if form in ("tsv", "jsonl"):
            return slow_pairs(slow_cells(form, contents[0]))
        if form == "two":
            sides = [slow_lines(content) for content in contents]
            return slow_pairs([list(row) for row in zip(*sides, strict=True)])
        others = {",", ";", "\t"} - {form[3:]}
        if form[:3] == "csv" and not changed and encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-16-be-mark"):
            start = encoded(written(form, rows[:1], Random(0)), encoding)
            slow_lines(start)
            if not any(set(cell) & others for row in rows for cell in row):
                return slow_pairs(_equal_rows([row for row in rows if any(cell.strip() for cell in row)]))
    except (Unreadable, ValueError):
        pass
    return None
