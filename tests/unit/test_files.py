"""Files that users have: tables with and without headers, other encodings, spreadsheets, and files that are not tables."""

import gzip
import os
import random
import re
import socket
import tracemalloc
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.columns import Columns
from regard.data.corpus import read_pairs, stream_pairs
from regard.data.counts import CorpusCounts
from regard.data.files import read_bytes
from regard.data.header import evidence
from regard.data.labels import visible
from regard.data.lines import read_lines
from regard.data.pictures import open_picture
from regard.data.rows import BadLine, Report
from regard.data.separators import _PAIR_SPLITTERS
from regard.data.sound import read_sound
from regard.data.tables import open_table
from regard.data.test_set import read_test_set
from regard.errors import UserError
from regard.training.settings import DataSettings
from regard.training.tokenise import how_read

DATA = Path(os.environ.get("REGARD_DATA", Path(__file__).parents[3] / "shared" / "data"))


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


# --- headers -----------------------------------------------------------------------------------------------------------------

GERMAN = [("Hasu", "Haus"), ("Buam", "Baum"), ("Hudn", "Hund"), ("Ktaze", "Katze"), ("Tihsc", "Tisch"), ("Sthul", "Stuhl")]
GERMAN += [("Fnester", "Fenster"), ("Tür", "Türe"), ("Wgae", "Wage"), ("Lmape", "Lampe"), ("Bcuh", "Buch"), ("Strße", "Straße")]
ENGLISH = [
    (right[1:] + right[0], right) for right in "house tree hound kitten table chair window door scale lamp book way".split()
]
RUSSIAN = [("дом", "d o m"), ("кот", "k o t"), ("лес", "lʲ e s"), ("мир", "mʲ i r"), ("нос", "n o s"), ("год", "ɡ o t")]
RUSSIAN += [("рот", "r o t"), ("сон", "s o n"), ("том", "t o m"), ("лоб", "l o p"), ("бок", "b o k"), ("ток", "t o k")]
SENTENCES = [(f"This is the long sentence number {n}.", f"Dies ist der Satz Nummer {n}.") for n in range(20)]
NUMBERED = [(f"{n}", left, right) for n, (left, right) in enumerate(ENGLISH)]
ARPABET = [("cat", "K AE T"), ("dog", "D AO G"), ("sun", "S AH N"), ("bed", "B EH D"), ("cup", "K AH P"), ("pig", "P IH G")] * 2


def table(rows: list[tuple[str, ...]], separator: str) -> str:
    return "".join(separator.join(row) + "\n" for row in rows)


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
@pytest.mark.parametrize(
    ("header", "rows"),
    [
        (("Falsch", "Richtig"), GERMAN),
        (("correct", "wrong"), ENGLISH),
        (("слово", "произношение"), RUSSIAN),
        (("Неправильно", "Правильно"), [("харашо", "хорошо")]),
        (("Deutsch", "Englisch"), [("Haus", "house")]),
        (("input_text", "target text 2"), [("a", "b")]),
        (("Original sentence", "Übersetzungsvorschlag"), SENTENCES),
        (("ENTRADAX", "SALIDAX"), [("perro", "perros"), ("gato", "gatos")] * 6),
        (("1", "2"), SENTENCES),
        (("bad_form", "good_form"), ENGLISH),
        (("Wort", "Lautung"), ARPABET),
    ],
)
def test_names_of_columns_are_recognised(
    tmp_path: Path, name: str, header: tuple[str, str], rows: list[tuple[str, ...]]
) -> None:
    if (name, header) in [("a.tsv", ("Wort", "Lautung"))]:
        return  # evidence in one column is not enough in .tsv files, where headers are unusual
    path = write(tmp_path / name, table([header, *rows], ";" if name == "a.csv" else "\t"))
    corpus = read_pairs(path)
    assert corpus.pairs == tuple(rows)
    note = f"Line 1 ({header[0]}, {header[1]}) was read as a header (if it is data, use --no-header)".replace(
        "Übersetzungsvorschlag", "Übersetzungsvorsch…"
    )
    assert note[:40] in corpus.counts.describe()
    assert corpus.counts.header == header
    assert read_pairs(path, Columns(header=False)).pairs == (header, *rows)
    assert read_test_set([path]).sources == tuple(dict.fromkeys(source for source, _ in rows))
    assert read_test_set([path], [Columns(header=False)]).sources[0] == header[0]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
@pytest.mark.parametrize(
    "rows",
    [
        GERMAN,
        ENGLISH,
        RUSSIAN,
        SENTENCES,
        [("word", "Wort"), ("answer", "Antwort"), ("house", "Haus")],  # two languages: a dictionary entry
        [
            ("苹果", "apple"),
            *zip("一二三四五六七八九十", "one two three four five six seven eight nine ten".split(), strict=True),
        ],
        [("Hello", "Hallo"), ("world", "Welt")],
        [("1", "2"), ("3", "4")],
        [("Go.", "Geh."), *SENTENCES],
    ],
)
def test_data_is_not_taken_for_a_header(tmp_path: Path, name: str, rows: list[tuple[str, ...]]) -> None:
    path = write(tmp_path / name, table(rows, ";" if name == "a.csv" else "\t"))
    corpus = read_pairs(path)
    assert corpus.pairs == tuple(rows)
    if name == "a.csv":
        assert "was read as data (if it is a header, use --header)" in corpus.counts.describe()
    assert read_pairs(path, Columns(header=True)).pairs == tuple(rows[1:])


def test_a_note_contains_no_control_characters(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "a\u202eb,\x1b[31mc\nd,e\n")
    assert r"Line 1 (a\u202eb, \x1b[31mc) was read as data" in read_pairs(path).counts.describe()


def test_a_small_file_uses_the_header_of_a_large_one(tmp_path: Path) -> None:
    large = read_pairs(write(tmp_path / "a.tsv", table([("BADFORM", "GOODFORM"), *ENGLISH], "\t")))
    assert large.pairs == tuple(ENGLISH)
    small = write(tmp_path / "b.tsv", "BADFORM\tGOODFORM\na\tb\n")
    assert read_pairs(small).pairs == (("BADFORM", "GOODFORM"), ("a", "b"))
    assert read_pairs(small, Columns(known_header=large.counts.header)).pairs == (("a", "b"),)


def test_empty_columns_at_the_end_are_ignored(tmp_path: Path) -> None:
    rows = "".join(f"{source}\t{target}\t\n" for source, target in ENGLISH)
    assert read_pairs(write(tmp_path / "a.tsv", rows)).pairs == tuple(ENGLISH)
    assert read_pairs(write(tmp_path / "b.tsv", f"word\tform\t\n{rows}word\tform\t\n")).pairs == tuple(ENGLISH)
    with pytest.raises(UserError, match="3 columns"):
        read_pairs(write(tmp_path / "c.tsv", f"{rows}a\tb\tc\n"))


def test_wide_tables_with_numbers(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", table([("", "bad", "good"), *NUMBERED], ","))
    assert read_pairs(path, Columns(("2",), "3")).pairs == tuple(ENGLISH)


def test_repeated_headers_are_skipped(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "source\ttarget\na\tb\nsource\ttarget\nc\td\n")  # cat one.tsv two.tsv
    corpus = read_pairs(path)
    assert corpus.pairs == (("a", "b"), ("c", "d"))
    assert "Skipped: 1 line that repeats the header" in corpus.counts.describe()


def test_new_settings_do_not_change_how_older_versions_read() -> None:
    older = how_read(DataSettings(header="usual", normalise="none"))
    assert older == (  # as the first version wrote it
        "{'files': (), 'held_out_files': (), 'source_columns': (), 'target_column': '', 'source_unit': 'characters', "
        "'target_unit': 'characters', 'vocabulary': 8000, 'shared': False, 'subword_dropout': 0.0, 'held_out': 0.05, "
        "'max_length': 1000, 'picture_size': 128, 'augment': 0.0, 'bad_files': 'skip'}"
    )
    others = [DataSettings(), DataSettings(header="yes"), DataSettings(header="no"), DataSettings(bad_lines="skip")]
    assert len({older, *map(how_read, others)}) == 5


TABLES = [*DATA.glob("sigmorphon2021-g2p/*/*.tsv"), *DATA.glob("sigmorphon2022-inflection/*_*.train")]
TABLES += [DATA / "tatoeba-en-fr/fra.txt.gz", DATA / "debian-descriptions/train.en-de.tsv.gz"]
TABLES += [DATA / "debian-descriptions/dev.en-fr.tsv.gz", DATA / "google-ar2en/ar2en-train.txt"]
TABLES += [DATA / "codespell/dictionary.txt.gz", DATA / "scan/tasks_train_length.txt.gz"]


@pytest.mark.skipif(not DATA.is_dir(), reason="needs $REGARD_DATA or ../shared/data")
def test_no_line_of_real_data_is_taken_for_a_header() -> None:
    for path in filter(Path.exists, TABLES):
        report = Report()
        opened = open_table(path, Columns(), report)
        assert not opened.named, (path, opened.first)
        rows = [row[1] for row, _ in zip(opened.rows, range(300), strict=False) if not isinstance(row, BadLine)]
        rows = [row for row in rows if len(row) == len(opened.first)]
        generator = random.Random(0)
        for _ in range(20):  # whichever line is first
            generator.shuffle(rows)
            assert evidence(rows[0], rows[1:], usual=True) < 1, (path, rows[0])
    for name, header in (("bible-en-pt-la/verses.tsv.gz", ["id", "en", "pt", "la"]), ("tatoeba-en-de/deu.txt.gz", ["1", "2"])):
        opened = open_table(DATA / name, Columns(), Report())
        assert (opened.named, opened.first) == (True, header)


# --- lines with other columns ------------------------------------------------------------------------------------------------


def test_all_bad_lines_are_reported_together_or_skipped(tmp_path: Path) -> None:
    lines = ["a\tb\tc", "d\te", "f\tg\th", "i", "", "j\tk\tl\tm", *["n"] * 9, "o\tp\tq\t\t "]
    path = write(tmp_path / "a.tsv", "\n".join(lines))
    with pytest.raises(UserError) as caught:
        read_pairs(path, Columns(("1",), "3"))
    assert str(caught.value) == (
        f"{path}:2: expected 3 columns in every line, found 2 in 'd\\te'; 11 more bad lines: lines 4, 6, 7, 8, …; "
        "correct the file, or skip bad lines with --skip-bad-lines"
    )
    corpus = read_pairs(path, Columns(("1",), "3", bad_lines="skip"))
    assert corpus.pairs == (("a", "c"), ("f", "h"), ("o", "q"))
    assert corpus.counts.describe() == (
        "a.tsv: 3 pairs in 16 lines. Skipped: 1 line with an empty source or target, 12 bad lines (lines 2, 4, 6, 7, 8, …)."
    )


@pytest.mark.parametrize(
    ("name", "content", "number"),
    [
        ("a.txt", "a->b\nno\nc->d", 2),
        ("a.csv", "a,b\nc,d,e\nc,d", 2),
        ("a.tsv", "My words\na\tb\nc\td", 1),
        ("a.jsonl", '{"x": "a", "y": "b"}\n{"x": "c"}\n{"x": "c", "y": "d"}', 2),
        ("a.jsonl", '{"x": "a", "y": "b"}\n[1]\n{"x": "c", "y": "d"}', 2),
    ],
)
def test_bad_lines_of_every_format(tmp_path: Path, name: str, content: str, number: int) -> None:
    path = write(tmp_path / name, content)
    with pytest.raises(UserError, match=rf"{re.escape(name)}:{number}: "):
        read_pairs(path)
    counts = CorpusCounts()
    assert list(stream_pairs(path, Columns(bad_lines="skip"), counts=counts)) == [("a", "b"), ("c", "d")]
    assert (counts.bad_lines, counts.bad_lines_at) == (1, [number])
    found = read_test_set([path], [Columns(bad_lines="skip")])
    assert found.sources == ("a", "c")
    assert f"Skipped 1 bad line (line {number})" in found.notes


# --- other encodings and formats ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_utf16_with_a_byte_order_mark(tmp_path: Path, order: str, end: str) -> None:
    content = f"\ufeffgrün\tгод{end}𐌰\tb{end}".encode(order)
    for path in (write(tmp_path / "a.tsv", content), write(tmp_path / "A.TSV.GZ", gzip.compress(content))):
        corpus = read_pairs(path)
        assert corpus.pairs == (("grün", "год"), ("𐌰", "b"))
        assert corpus.counts.notes == ["The file is encoded as UTF-16"]


@pytest.mark.parametrize(
    ("content", "pairs", "note"),
    [
        ("a;b\nc;d", [("a", "b"), ("c", "d")], "The file was read as CSV with columns separated by ';'"),
        ('a,b\n"c, d",e', [("a", "b"), ("c, d", "e")], "The file was read as CSV with columns separated by ','"),
    ],
)
def test_commas_and_semicolons_in_plain_text(tmp_path: Path, content: str, pairs: list[tuple[str, str]], note: str) -> None:
    corpus = read_pairs(write(tmp_path / "a.txt", content))
    assert corpus.pairs == tuple(pairs)
    assert note in corpus.counts.notes


@pytest.mark.parametrize("content", ["Hello, world\nOh, no", "a;b\nc", "no comma\nnone, here"])
def test_prose_is_not_read_as_a_table(tmp_path: Path, content: str) -> None:
    with pytest.raises(UserError, match=r"a.txt:1: expected source<TAB>target, found no tab"):
        read_pairs(write(tmp_path / "a.txt", content))


def sheet(path: Path, *sheets: list[list[object]]) -> Path:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for at, rows in enumerate(sheets):
        page = book.active if at == 0 else book.create_sheet()
        for row in rows:
            page.append(row)
    book.save(path)
    return path


def test_spreadsheets(tmp_path: Path) -> None:
    import datetime

    rows: list[list[object]] = [
        ["Wort", "Wörter", None],
        [None],
        ["Haus", "Häuser"],
        [7, 1.5, " "],
        [True, datetime.date(2024, 1, 2)],
    ]
    corpus = read_pairs(sheet(tmp_path / "a.xlsx", rows, [["x"]]))
    assert corpus.pairs == (("Haus", "Häuser"), ("7", "1.5"), ("true", "2024-01-02"))
    note = corpus.counts.describe()
    assert note.startswith(
        "a.xlsx: 3 pairs in 5 lines. Skipped: 1 line with an empty source or target. Only the first sheet, 'Sheet', was read,"
    )
    assert "was read, not 'Sheet1'. Line 1 (Wort, Wörter) was read as a header" in note
    assert read_test_set([tmp_path / "a.xlsx"]).sources == ("Haus", "7", "true")
    with pytest.raises(UserError, match=r"a.xlsx:3: expected 2 columns in every line, found 3 in 'c\\td\\te'"):
        read_pairs(sheet(tmp_path / "a.xlsx", [["a", "b"], ["a"], ["c", "d", "e"]]))


def test_damaged_and_hostile_spreadsheets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = sheet(tmp_path / "a.xlsx", [["a", "b"]])
    with pytest.raises(UserError, match=r"^[^\n]*b.xlsx: cannot be read as .xlsx: [^\n]*$"):
        read_pairs(write(tmp_path / "b.xlsx", b"PK"))
    with zipfile.ZipFile(good) as old, zipfile.ZipFile(tmp_path / "c.xlsx", "w") as new:
        for part in old.namelist():
            content = old.read(part).replace(b'r="1"', b'r="99999999999"').replace(b'"A1"', b'"A99999999999"')
            new.writestr(part, content)
    monkeypatch.setattr("regard.data.sheets.MOST_ROWS", 1000)
    with pytest.raises(UserError, match=r"c.xlsx: "):  # the rows up to that one are not created
        read_pairs(tmp_path / "c.xlsx")
    monkeypatch.setattr("regard.data.sheets.MOST_BYTES", 1000)
    with pytest.raises(
        UserError, match=r"a.xlsx: the file unpacks to [\d,]+ bytes, expected at most 1,000; save the table as .csv"
    ):
        read_pairs(good)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r'a.xlsx: reading .xlsx needs openpyxl; type: pip install "regard\[xlsx\]"'):
        read_pairs(good)


# --- files that are too large or endless -------------------------------------------------------------------------------------

SLOW_PATTERNS = {
    "IN: … OUT: …": re.compile(r"IN:\s*(.*?)\s+OUT:\s*(.*)"),
    "|||": re.compile(r"(.*?)\s*\|\|\|\s*(.*)"),
    "->": re.compile(r"(.*?)\s*->\s*(.*)"),
}


@given(
    st.lists(st.sampled_from(["IN:", "OUT:", "|", "||", "|||", "-", "->", ">", " ", "\x1f", "\u3000", "\r", "a"])).map("".join)
)
def test_lines_are_split_as_by_the_slow_patterns(line: str) -> None:
    for sign, pattern in SLOW_PATTERNS.items():
        match = pattern.fullmatch(line)
        assert _PAIR_SPLITTERS[sign](line) == (match and match.groups())


def test_a_long_line_of_spaces_is_read_fast(tmp_path: Path) -> None:
    for line in ("IN:" + " " * 1_000_000, " " * 1_000_000 + "x", "IN:x" + "OUT:" * 200_000, "-" * 1_000_000):
        for part in _PAIR_SPLITTERS.values():
            assert part(line) is None
    with pytest.raises(UserError, match="found no tab in"):
        read_pairs(write(tmp_path / "a.txt", " " * 1_000_000 + "x"))


def test_damaged_gzip(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(random.Random(0).randbytes(2000)))
    packed[500:520] = bytes(20)
    damaged = bytearray(gzip.compress(b"a\tb\n" * 1000))
    damaged[10:14] = b"\xff\xff\xff\xff"
    for content in (packed, damaged):
        with pytest.raises(UserError, match=r"a.tsv.gz"):
            read_pairs(write(tmp_path / "a.tsv.gz", bytes(content)))


@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.jsonl", "a.txt"])
def test_a_bomb_is_refused_in_little_memory(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / f"{name}.gz", gzip.compress(bytes(60_000_000)))
    tracemalloc.start()
    with pytest.raises(UserError, match=rf"{name}.gz:1: the line is longer than 10,000,000 bytes"):
        read_pairs(path)
    assert tracemalloc.get_traced_memory()[1] < 50_000_000
    tracemalloc.stop()


def test_a_bomb_of_short_lines_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.data.lines._UNPACKED", 20_000)
    path = write(tmp_path / "a.tsv.gz", gzip.compress(b"a\tb\n" * 50_000))
    with pytest.raises(UserError, match=r"a.tsv.gz: the file unpacks to more than [\d,]+ bytes, over 200 times its size"):
        read_pairs(path)
    path = write(
        tmp_path / "b.tsv.gz",
        gzip.compress(random.Random(0).randbytes(40_000).hex(" ", 40).replace(" ", "\tb\n").encode() + b"\tb"),
    )
    assert len(read_pairs(path).pairs) == 1_000


@pytest.mark.parametrize("name", ["pipe", "socket", "/dev/zero", "/dev/stdin"])
def test_pipes_sockets_and_devices_are_refused_before_they_are_opened(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "pipe":
        os.mkfifo(path)
    elif name == "socket":
        with socket.socket(socket.AF_UNIX) as unix_socket:
            unix_socket.bind(str(path))
    elif name == "/dev/stdin" and os.path.isfile(path):
        pytest.skip("standard input is a file here")
    readers = [read_pairs, read_bytes, lambda path: list(read_lines(path)), lambda path: read_test_set([path])]
    for read in [*readers, open_picture, read_sound]:
        with pytest.raises(UserError, match=rf"{name}: this is a (pipe|socket|device), expected a file.*e.g. zcat"):
            read(path)


def test_files_that_are_too_large_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a", b"12345")
    assert read_bytes(path) == read_bytes(path, 5) == b"12345"
    with pytest.raises(UserError, match=r"a has 5 bytes, expected at most 4; is it the right file\?"):
        read_bytes(path, 4)
    with pytest.raises(UserError, match=r"no such file"):
        read_bytes(Path("a\0b"))


# --- choices and JSON --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (Columns(("9" * 5000,), "2"), r"there is no column 9{19}…$"),
        (Columns(("00",), "2"), r"there is no column 00$"),
        (Columns(("-1",), "2"), r"none is called '-1'; .*choose by number"),
        (Columns(("1", "1"), "2"), r"column 1 is chosen twice; choose each column once"),
        (Columns(("lemma",), "1"), r"column 1 is chosen twice"),
        (Columns(("x" * 5000,), "2"), r"none is called 'x{59}…'"),
    ],
)
def test_invalid_choices_of_columns_are_refused(tmp_path: Path, columns: Columns, words: str) -> None:
    with pytest.raises(UserError, match=words):
        read_pairs(write(tmp_path / "a.tsv", "lemma\tform\ta\nwalk\twalked\tb"), columns)


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ('{"a": "x", "a": "y", "b": "z"}', "the key 'a' occurs twice in one object"),
        ('{"a": ' + "[" * 100_000, "expected one JSON object per line"),
        ('{"a": ' * 900 + "1" + "}" * 900, "expected "),
        ('{"b": "y", "a": ' + "[" * 600 + "]" * 600 + "}", "expected a text for the key 'a', got"),
        ('{"a": {"x": NaN}, "b": "y"}', "expected a text for the key 'a', got"),
    ],
)
@pytest.mark.parametrize("at", [1, 2])
def test_invalid_objects_are_refused(tmp_path: Path, second: str, words: str, at: int) -> None:
    lines = ['{"a": "b", "b": "d"}', second] if at == 2 else [second]
    if at == 1 and words.startswith("expected a text"):
        words = "expected two columns, or a choice"
        if "NaN" in second:
            return
    with pytest.raises(UserError, match=words) as caught:
        read_pairs(write(tmp_path / "a.jsonl", "\n".join(lines)))
    assert len(str(caught.value)) < 1000


def test_numbers_in_objects_stay_as_they_are_written(tmp_path: Path) -> None:
    line = '{"a": ' + "9" * 5000 + ', "b": NaN}'
    assert read_pairs(write(tmp_path / "a.jsonl", line)).pairs == (("9" * 5000, "NaN"),)


def test_long_lines_are_an_error_or_skipped(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a.csv:2: cannot be read as CSV: field larger than field limit"):
        read_pairs(write(tmp_path / "a.csv", "a,b\n" + "x" * 200_000 + ",y"))
    for name, line in (("a.tsv", "%s\tb"), ("a.jsonl", '{"a": "%s", "b": "b"}')):
        with pytest.raises(UserError, match=r":2: the line is longer than 10,000,000 bytes"):
            read_pairs(write(tmp_path / name, line % "a" + "\n" + line % ("x" * 10_000_000)))
        corpus = read_pairs(write(tmp_path / name, line % "a" + "\n" + line % ("x" * 1_000_000)), max_length=1000)
        assert (corpus.pairs, corpus.counts.too_long_at) == ((("a", "b"),), [2])


def test_invisible_symbols_are_shown() -> None:
    assert visible(["a", " ", "\u0301", "\t", "ß", "e\u0301", "\u200b", "New York", "\x1b[31m", "\ud83d"]) == (
        "a ␣ ◌\u0301 ⇥ ß e\u0301 \\u200b New York \\x1b[31m \\ud83d"
    )


def test_the_separator_line_of_excel_is_understood(tmp_path: Path) -> None:
    corpus = read_pairs(write(tmp_path / "a.csv", "\ufeffsep=;\r\nsource;target\r\nHaus, das;Häuser\r\nBaum, der;Bäume\r\n"))
    assert corpus.pairs == (("Haus, das", "Häuser"), ("Baum, der", "Bäume"))
    assert corpus.counts.header == ("source", "target")
    assert any(note.startswith("Line 2 (source, target) was read as a header") for note in corpus.counts.notes)
    corpus = read_pairs(write(tmp_path / "b.csv", "sep=\t\nsource\ttarget\na,b\tc\n"))
    assert corpus.pairs == (("a,b", "c"),)
