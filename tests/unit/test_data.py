import csv
import errno
import gzip
import io
import json
import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations, pairwise
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from table import EOS, PAD, SOS, UNK

from regard.contracts import SourceText
from regard.data import arrangement
from regard.data import counts as counts_module
from regard.data import lines as lines_module
from regard.data.batch import Batches, BatchOrder, Example, collate, encode_pairs, lengths, source_batch
from regard.data.columns import Columns
from regard.data.corpus import Pair, read_pairs
from regard.data.counts import CorpusCounts, Hashes
from regard.data.dictionary import pronunciations, split_of
from regard.data.held_out import hash_fraction, is_held_out, source_hash
from regard.data.lengths import Lengths
from regard.data.lines import decode_lines
from regard.data.reader import Reader
from regard.data.seeds import derived_seed
from regard.data.source_text import flat
from regard.data.tokenizers.codec import SPECIALS, Codec
from regard.errors import UserError

# --- corpus ------------------------------------------------------------------------------------------------------------------


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_pairs_are_read_and_empty_sides_counted(tmp_path: Path, end: bytes) -> None:
    lines = ["\ufeffcat\tK AE T".encode(), b"", b"dog\t", b"\tx", "straße\tʃ t".encode(), b" a b \tc"]
    for path in (write(tmp_path / "a.tsv", end.join(lines)), write(tmp_path / "a.tsv.gz", gzip.compress(end.join(lines)))):
        corpus = read_pairs(path)
        assert corpus.pairs == (("cat", "K AE T"), ("straße", "ʃ t"), ("a b", "c"))
        assert corpus.num_empty == 3
        assert corpus.counts.describe() == f"{path.name}: 3 pairs in 6 lines. Skipped: 3 lines with an empty source or target."


def test_unusual_lines_are_counted_and_reported(tmp_path: Path) -> None:
    rows = ["en\tde", "a\tb", "a\tb", "a\tc", "x\ty", "a\tb", *(f"{'l' * 11}{n}\tb" for n in range(7)), "", "l\t" + "m" * 10]
    corpus = read_pairs([write(tmp_path / "a.tsv", "\n".join(rows).encode())], max_length=10)
    assert corpus.pairs == (("a", "b"), ("a", "b"), ("a", "c"), ("x", "y"), ("a", "b"), ("l", "m" * 10))
    assert corpus.counts.hashes.repeats() == (2, 3, 1)
    assert corpus.counts.describe() == (
        "a.tsv: 6 pairs in 15 lines. "
        "Skipped: 1 line with an empty source or target, 7 pairs longer than 10 characters (lines 7, 8, 9, 10, 11, …). "
        "Kept: 2 repeated pairs, 1 source with several targets. "
        "Line 1 (en, de) was read as a header (if it is data, use --no-header). "
        "Column 'en' was read as the source and 'de' as the target."
    )
    assert read_pairs(write(tmp_path / "b.tsv", b"abc\tb\nab\tc"), max_length=2).counts.describe() == (
        "b.tsv: 1 pair in 2 lines. Skipped: 1 pair longer than 2 characters (line 1)."
    )


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.tsv", b"a\tb\n" * 6 + b"no tab here\n", r"a.tsv:7: expected source<TAB>target, found no tab in 'no tab here'"),
        ("a.tsv", b"a\tb\nc\td\te\n", r"a.tsv:2: expected source<TAB>target, found 2 tabs"),
        ("a.tsv", b"a->b\n", r"a.tsv:1: expected source<TAB>target, found no tab in 'a->b'; give a table .* or two parallel"),
        ("a.txt", b"\na b\n", r"a.txt:2: expected source<TAB>target, found no tab in 'a b'"),
        ("a.txt", b"a->b\nc d\n", r"a.txt:2: expected '->' as in the first line, found none in 'c d'"),
        (
            "a.tsv",
            b"a\tb\tc\n",
            r"a.tsv has 3 columns \(1 'a', 2 'b', 3 'c'\); expected two columns, or a choice.*--from 1,3 --to 2",
        ),
        (
            "a.tsv",
            b"id\ten\tpt\tla\n",
            r"a.tsv has 4 columns \(1 'id', 2 'en', 3 'pt', 4 'la'\); expected two columns, or a choice",
        ),
        ("a.tsv", b"\t".join([b"x"] * 21), r"21 columns \(1 'x', .*20 'x', …\)"),
        ("a.csv", b"a,b\nc\n", r"a.csv:2: expected 2 columns in every line, found 1 in 'c'"),
        ("a.csv", b"a b\n", r"a.csv:1: expected 2 columns in every line, found 1 in 'a b'; give a table"),
        (
            "a.jsonl",
            b'{"source": "a", "' + b"t" * 3000 + b'": "b"}\n{"source": "a"}',
            r"a.jsonl:2: expected a text for the key 't{59}…' as in the first object",
        ),
        (
            "a.jsonl",
            b'{"source": "a", "' + b"t" * 3000 + b'": "b"}\n{"source": "a", "' + b"t" * 3000 + b'": {}}',
            r"for the key 't{59}…', got",
        ),
        ("a.csv", b'a,b\n"c\n",d\ne,"f\n\n', r"a.csv:4: cannot be read as CSV: unexpected end of data; is a quote missing"),
        ("a.csv", b'a,b\n"c"d,e\n', r"a.csv:2: cannot be read as CSV: ',' expected after '\"'; is a quote missing"),
        ("a.csv", b'a\tb\n"c"d\te\n', r"a.csv:2: cannot be read as CSV: ' ' expected after '\"'; is a quote missing"),
        ("a.csv", b"a,b\nc\rd,e\n", r"a.csv:2: cannot be read as CSV: new-line character"),
        ("a.jsonl", b'{"a": 1, "b": "c"}\n[1]', r"a.jsonl:2: expected one JSON object per line, got '\[1\]'; .*jq -c"),
        (
            "a.json",
            b'[\n{"a": 1}]',
            r"a.json:1: expected one JSON object per line, got '\[': .*; convert a list to lines with jq -c",
        ),
        (
            "a.json",
            b'{"a": ',
            r"a.json:1: expected one JSON object per line, got '{\"a\": ': Expecting value[^;]*; correct the file",
        ),
        ("a.json", b"[" * 100_000, r"a.json:1: expected one JSON object per line"),
        (
            "a.jsonl",
            b'{"a": "b", "c": "d"}\n{"a": "b", "e": "d"}',
            r"a.jsonl:2: expected a text for the key 'c' as in .* keys found: 'a', 'e'",
        ),
        (
            "a.jsonl",
            b'{"a": "b", "c": {"d": "e"}}\n{"a": "b", "c": "d"}',
            r"a.jsonl:2: expected a text for the key 'c.d' as in",
        ),
        (
            "a.jsonl",
            b'{"a": "b", "c": "d"}\n{}',
            r"a.jsonl:2: expected a text for the key 'a' as in the first object, keys found: none",
        ),
        (
            "a.jsonl",
            b'{"a": "b", "c": "d"}\n{"a": {"x": 1}, "c": 1}',
            r"a.jsonl:2: expected a text for the key 'a', got {\"x\": \"1\"}",
        ),
        (
            "a.jsonl",
            b'{"a": "\\ud83d", "b": "c"}',
            r"a.jsonl:1: a lone surrogate \(.ud83d\) in Pair.* expected valid Unicode",
        ),
        (
            "a.ods",
            b"PK",
            r"a.ods: pairs cannot be read from .ods files; expected .tsv, .* or plain text; save the table as .xlsx or .csv",
        ),
        ("a.tsv", b"a\tb\nd\xe9j\xe0\tc\n", r"a.tsv:2: byte 0xe9 at position 2 is not UTF-8; convert.*iconv -f latin1"),
        ("a.tsv", b"\xef\xbb\xbfab\xe9\tx\n", r"a.tsv:1: byte 0xe9 at position 6 is not UTF-8"),
        (
            "a.tsv",
            "a\tb\n".encode("utf-16")[:-1],
            r"a.tsv: the file starts with a UTF-16 byte order mark, but .*; save it as UTF-8",
        ),
        (
            "a.tsv",
            "a\tb\n".encode("utf-16le"),
            r"a.tsv: every second byte is 0, so this is probably UTF-16, .*iconv -f utf-16le",
        ),
        ("a.tsv", b"", r"a.tsv: expected pairs of texts \(lines of source<TAB>target\), found none in 0 lines"),
        ("a.tsv", b"\n\n", r"a.tsv: expected pairs .* found none in 2 lines: 2 with an empty source or target, 0 too long"),
        ("a.csv", b"", r"a.csv: expected pairs .* found none in 0 lines"),
    ],
)
def test_bad_files_get_a_clear_error(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    with pytest.raises(UserError, match=words):
        read_pairs(write(tmp_path / name, content))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere.tsv: no such file"):
        read_pairs(tmp_path / "nowhere.tsv")
    with pytest.raises(UserError, match=r"this is a folder, expected a file of pairs: .* e.g. lines of {\"audio\":"):
        read_pairs(tmp_path)
    with pytest.raises(UserError, match=r"a\.wav: pairs cannot be read from \.wav files; .* e.g. lines of {\"audio\":"):
        read_pairs(write(tmp_path / "a.wav", b"RIFF"))
    with pytest.raises(UserError, match=r"^standard input: this is a sound file, not text; .* file names"):
        list(decode_lines([b"RIFF\xac\x10\n"], "standard input"))
    with pytest.raises(UserError, match="cannot be read: Not a gzipped file"):
        read_pairs(write(tmp_path / "a.gz", b"a\tb"))
    with pytest.raises(UserError, match="cannot be read: Compressed file ended"):
        read_pairs(write(tmp_path / "b.gz", gzip.compress(b"a\tb" * 1000)[:-9]))


# --- columns -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "columns", "pair", "note"),
    [
        ("walk\twalked", Columns(), ("walk", "walked"), ""),
        ("walk\twalked", Columns(target="1"), ("walked", "walk"), ""),
        ("walk\twalked", Columns(source=("2",)), ("walked", "walk"), ""),
        ("walk\twalked\tV;PST", Columns(("1", "3"), "2"), (("walk", "V;PST"), "walked"), ""),
        ("walk\twalked\tV;PST", Columns(("1", "3")), (("walk", "V;PST"), "walked"), ""),
        ("walk\tV|PST\tSG 3\twalked", Columns(("1", "2", "3"), "4"), (("walk", "V|PST", "SG 3"), "walked"), ""),
        ("Lemma\tFeatures\tForm\nwalk\t V\twalked", Columns(("lemma", "features"), "form"), (("walk", "V"), "walked"), ""),
        ("form\tFORM\nwalk\twalked", Columns(("form",), "FORM"), ("walk", "walked"), ""),
        ("lemma\tform\tx\nwalk\twalked\t", Columns(("1",), "2"), ("walk", "walked"), None),
        ("x\ty\nwalk\twalked", Columns(header=True), ("walk", "walked"), "'x' was read as the source and 'y' as"),
        ("source\ttarget", Columns(header=False), ("source", "target"), ""),
        ("source\tsource", Columns(), ("source", "source"), ""),
        ("tgt\tsrc\nwalked\twalk", Columns(), ("walk", "walked"), "'src' was read as the source and 'tgt' as the target"),
        ("en_GB\tid\nwalk\tjalan", Columns(), ("walk", "jalan"), "Line 1 (en_GB, id) was read as a header"),
        ("id\ten\tde\n7\twalk\tgehen", Columns(), ("walk", "gehen"), "'en' was read as the source and 'de' as the target"),
        ("id\tText\tsource\toutput\n7\tx\ta\tb", Columns(), ("a", "b"), "'source' was read as the source and 'output'"),
    ],
)
def test_columns_by_name_by_number_and_by_guess(
    tmp_path: Path, first: str, columns: Columns, pair: tuple[SourceText, str], note: str | None
) -> None:
    corpus = read_pairs([write(tmp_path / "a.tsv", first.encode())], columns)
    if note is None:  # not recognised as names: "x" is not a usual column name
        assert corpus.pairs == (("lemma", "form"), pair)
    else:
        assert corpus.pairs == (pair,)
        assert note in corpus.counts.describe()
        assert bool(note) == bool(corpus.counts.notes)


@pytest.mark.parametrize(
    ("first", "columns", "words"),
    [
        ("lemma\tform", Columns(("lema",), "form"), r"none is called 'lema'; did you mean \"lemma\"\?; .*choose by number"),
        ("lemma\tform", Columns(("3",), "form"), r"a.tsv has 2 columns \(1 'lemma', 2 'form'\); there is no column 3"),
        ("lemma\tform", Columns(("0",), "form"), r"there is no column 0"),
        ("word\tword\tform", Columns(("word",), "form"), r"2 of them are called 'word'; choose by number"),
        ("a\tb\tc", Columns(("1",)), r"expected two columns, or a choice"),
        ("a\tb\tc", Columns(target="1"), r"expected two columns, or a choice"),
    ],
)
def test_an_invalid_choice_of_columns_lists_the_columns(tmp_path: Path, first: str, columns: Columns, words: str) -> None:
    with pytest.raises(UserError, match=words):
        read_pairs([write(tmp_path / "a.tsv", first.encode())], columns)


def test_joined_columns() -> None:
    assert flat("walk") == flat(("walk",)) == "walk"
    assert flat((" walk on ", " V;PST", "", "SG|3  X")) == "walk on\tV\tPST\tSG\t3\tX"
    assert flat(("a+b", "V;IN+ESS;+N+Pl;D+ |+")) == "a+b\tV\tIN\t+ESS\t+N\t+Pl\tD+\t+"
    assert flat(("a+b", "V;IN+ESS"), parts=False) == "a+b\tV\tIN+ESS"
    assert hash_fraction(("a+b", "V;IN+ESS")) == hash_fraction("a+b\tV\tIN+ESS")  # so begun runs hold out the same pairs


@given(st.lists(st.text("ab ;|\t\u3000"), min_size=1))
def test_joining_twice_changes_nothing(cells: list[str]) -> None:
    once = flat((cells[0].replace("\t", ""), *cells[1:]))
    assert flat(tuple(once.split("\t"))) == once


# --- formats -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "pairs", "note"),
    [
        (
            "a.txt",
            "IN: turn left OUT: I_TURN_LEFT\n\nIN: run OUT: I_RUN",
            [("turn left", "I_TURN_LEFT"), ("run", "I_RUN")],
            "'IN: ",
        ),
        ("a.txt", "abbout->about\nfo -> of, for,", [("abbout", "about"), ("fo", "of, for,")], "Lines were split at '->'."),
        ("a", "das Haus ||| the house", [("das Haus", "the house")], "Lines were split at '|||'."),
        ("a.txt", "a -> b\tc", [("a -> b", "c")], ""),
        ("a.csv", 'a,"b, ""c"""\n', [("a", 'b, "c"')], ""),
        ("a.csv", 'a;"b; c"\nd, e;f\n', [("a", "b; c"), ("d, e", "f")], r"Columns are separated by ';'."),
        (
            "a.csv",
            "Hi, you;Hallo, du\nOh, no;Ach, nein",
            [("Hi, you", "Hallo, du"), ("Oh, no", "Ach, nein")],
            "separated by ';'",
        ),
        ("a.csv", "a\tb,c\n", [("a\tb", "c")], "1 text whose tabs or line breaks became spaces"),
        ("a.csv", "a\tb\nc\td\n", [("a", "b"), ("c", "d")], r"Columns are separated by '\t'."),
        (
            "a.csv",
            'a,"b\nc"\n\nd,e',
            [("a", "b c"), ("d", "e")],
            "2 pairs in 4 lines. Skipped: 1 line with an empty source or target.",
        ),
        ("a.csv", "a,b\n" * 49 + '"c\nd",e', [("a", "b")] * 49 + [("c d", "e")], ""),
        ("a.jsonl", '{"translation": {"en": "a", "de": "b"}}', [("a", "b")], "Column 'translation.en' was read as the source"),
        ("a.json", '{"id": 1, "translation": {"en": "a", "de": "b"}}\n\n', [("a", "b")], "'translation.de' as the target"),
        (
            "a.jsonl",
            '{"b": "x", "a": 1.50}\n{"a": true, "b": ["y", "z"]}\n{"a": null, "b": "w"}',
            [("x", "1.50"), ("y z", "true")],
            "",
        ),
        ("a.ndjson", '{"target": "x", "k": [[1]], "source": "y", "more": "z"}', [("y", "x")], ""),
    ],
)
def test_formats(tmp_path: Path, name: str, content: str, pairs: list[tuple[str, str]], note: str) -> None:
    pairs = [(source.replace("\t", " "), target) for source, target in pairs]
    plain, packed = write(tmp_path / name, content.encode()), write(tmp_path / f"{name}.gz", gzip.compress(content.encode()))
    for path in (plain, packed):
        corpus = read_pairs(path)
        assert corpus.pairs == tuple(pairs)
        assert note in corpus.counts.describe()


def test_nested_keys_and_short_names(tmp_path: Path) -> None:
    line = b'{"meta": {"tags": ["V", "PST"], "lemma": "walk"}, "form": {"text": "walked"}, "n": 3}'
    path = write(tmp_path / "a.jsonl", line)
    for columns in (
        Columns(("meta.lemma", "meta.tags"), "form.text"),
        Columns(("lemma", "tags"), "text"),
        Columns(("2", "1"), "3"),
    ):
        assert read_pairs(path, columns).pairs == ((("walk", "V PST"), "walked"),)


def test_parallel_files(tmp_path: Path) -> None:
    english, german = (
        write(tmp_path / "a.en", b"one\ntwo\n\nfour\tt"),
        write(tmp_path / "a.de.gz", gzip.compress(b"eins\r\nzwei\n\nvier")),
    )
    corpus = read_pairs([english, german])
    assert corpus.pairs == (("one", "eins"), ("two", "zwei"), ("four t", "vier"))
    assert corpus.counts.describe() == (
        "a.en+a.de.gz: 3 pairs in 4 lines. Skipped: 1 line with an empty source or target. "
        "Kept: 1 text whose tabs or line breaks became spaces."
    )
    longer = write(tmp_path / "b.en", b"one\n" * 7)
    with pytest.raises(UserError, match=r"b.en has 7 lines and .*a.de.gz has 4, expected the same number"):
        read_pairs([longer, german])
    with pytest.raises(UserError, match=r"a.de.gz has 4 lines and .*b.en has 7, expected the same number"):
        read_pairs([german, longer])
    with pytest.raises(UserError, match=r"columns or a header were chosen, but .*a.en and .*a.de.gz are parallel texts"):
        read_pairs([english, german], Columns(target="1"))
    with pytest.raises(
        UserError, match=r"a.tsv: two files are read as parallel texts, .* but this is a table.*cat a.tsv b.tsv"
    ):
        read_pairs([english, tmp_path / "a.tsv"])
    for files in ([], [english] * 3):
        with pytest.raises(
            UserError, match=f"got {len(files)} files, expected one with source and target, or two parallel files"
        ):
            read_pairs(files)


cells = st.text(st.characters(exclude_categories=["Cs"])).filter(str.strip)
rows = st.lists(st.tuples(cells, cells), min_size=1, max_size=7)


def one_line(text: str) -> str:
    """A second implementation of how a cell is read: stripped, and each run of tabs and line breaks becomes a space."""
    kept = [" " if char in "\t\r\n" else char for char in text.strip()]
    spaced = [first in "\t\r\n" and second in "\t\r\n" for first, second in pairwise(text.strip())]
    return "".join(char for char, drop in zip(kept, [False, *spaced], strict=False) if not drop)


@given(rows, st.sampled_from([",", ";", "\t"]))
def test_any_text_survives_csv(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]], mark: str) -> None:
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    with open(path, "w", encoding="utf-8-sig", newline="") as file:
        csv.writer(file, delimiter=mark, quoting=csv.QUOTE_ALL).writerows([("source", "target"), *rows])
    assert read_pairs(path).pairs == tuple((one_line(source), one_line(target)) for source, target in rows)


@given(rows)
def test_any_text_survives_jsonl(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]) -> None:
    path = tmp_path_factory.mktemp("jsonl") / "a.jsonl"
    path.write_text("\n".join(json.dumps({"a": {"b": source}, "c": target}) for source, target in rows), encoding="utf-8-sig")
    assert read_pairs(path).pairs == tuple((one_line(source), one_line(target)) for source, target in rows)


@given(rows)
def test_any_text_survives_tsv_and_parallel_files(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]
) -> None:
    rows = [(one_line(source), one_line(target)) for source, target in rows]
    folder = tmp_path_factory.mktemp("tsv")

    def save(name: str, lines: list[str]) -> Path:
        return write(folder / name, "\n".join(lines).encode("utf-8-sig"))

    table = save("a.tsv", ["\t".join(row) for row in rows])
    sides = [save("a.source", [row[0] for row in rows]), save("a.target", [row[1] for row in rows])]
    assert read_pairs(table, Columns(header=False)).pairs == read_pairs(sides).pairs == tuple(rows)


@given(st.lists(st.tuples(st.sampled_from("abcdefg"), st.sampled_from("xyz")), max_size=40), st.lists(st.sampled_from("efghi")))
def test_repeats_and_shared_sources(pairs: list[tuple[str, str]], others: list[str]) -> None:
    counts, held = CorpusCounts("train.tsv"), CorpusCounts("dev.tsv")
    for pair in pairs:
        counts.add(*pair)
    for source in others:
        held.add(source, "x")
    targets = {source: {pair[1] for pair in pairs if pair[0] == source} for source, _ in pairs}
    several = sum(len(distinct) > 1 for distinct in targets.values())
    assert counts.hashes.repeats() == (len(pairs) - len(set(pairs)), len(targets), several)
    shared = len(targets.keys() & set(others))
    assert counts.hashes.shared_sources(held.hashes) == shared
    nouns = "source" if len(set(others)) == 1 else "sources"
    sentence = (
        f"{shared} of the {len(set(others))} {nouns} in dev.tsv also {'occurs' if shared == 1 else 'occur'} in train.tsv; "
    )
    assert counts.describe_shared(held).startswith(sentence if shared else "")
    assert bool(counts.describe_shared(held)) == bool(shared)


# --- held-out pairs ----------------------------------------------------------------------------------------------------------


def hold_out(pairs: Sequence[Pair], share: float) -> tuple[list[Pair], list[Pair]]:
    """Returns (training, held out), split as a run splits a stream that it reads twice."""
    counts = CorpusCounts()
    for pair in pairs:
        counts.add(*pair)
    threshold = counts.threshold(share)
    sides: tuple[list[Pair], list[Pair]] = ([], [])
    for pair in pairs:
        sides[is_held_out(pair.key, threshold)].append(pair)
    return sides


def test_the_split_is_a_share_of_the_sources() -> None:
    pairs = [Pair(f"word{number // 2}", f"said {number}") for number in range(20_000)]
    for share in (0.01, 0.1, 0.5):
        training, held = hold_out(pairs, share)
        num_sources = len({pair.source for pair in held})
        assert len(held) == 2 * num_sources  # both pairs of a source
        assert abs(num_sources - share * 10_000) < 4 * (10_000 * share * (1 - share)) ** 0.5  # four standard deviations
        sides = set(training), set(held)
        assert [[pair for pair in pairs if pair in side] for side in sides] == [training, held]  # in their order
    assert len(hold_out(pairs[:4], 1e-9)[1]) == 2  # at least one source, with both of its pairs
    assert len(hold_out(pairs[:4], 1 - 1e-9)[0]) == 2
    for few in (pairs[:2], []):
        with pytest.raises(UserError, match="found fewer than 2 distinct sources, expected at least 2"):
            hold_out(few, 0.5)


def test_the_hash_of_a_source_never_changes() -> None:
    """Otherwise a model could be measured on pairs that an earlier run trained on."""
    assert [hash_fraction(source) for source in ("cat", "straße", "")] == [
        0.19982702575690892,
        0.3842139197311111,
        0.8931675160897388,
    ]


@given(
    st.lists(st.tuples(st.text("abc", max_size=3), st.text("xy", max_size=2)), min_size=1, max_size=60),
    st.lists(st.tuples(st.text("abcd", max_size=4), st.text("xy", max_size=2)), max_size=20),
    st.floats(0.001, 0.999),
)
def test_the_split_depends_on_each_source_alone(
    first: list[tuple[str, str]], more: list[tuple[str, str]], share: float
) -> None:
    pairs = [Pair(*pair) for pair in (*first, ("a", "x"), ("b", "x"))]
    training, held = hold_out(pairs, share)
    assert sorted(training + held) == sorted(pairs)
    assert training
    assert held
    trained_on, unseen = ({pair.key for pair in side} for side in (training, held))
    assert trained_on.isdisjoint(unseen)
    assert [sorted(side) for side in hold_out(pairs[::-1], share)] == [sorted(training), sorted(held)]
    counts = CorpusCounts()
    for pair in pairs:
        counts.add(*pair)
    threshold = counts.threshold(share)  # as computed on a stream
    assert [pair for pair in pairs if is_held_out(pair.key, threshold)] == held
    if threshold == share:  # with enough sources, none changes sides when pairs are added
        training, held = hold_out([*pairs, *(Pair(*pair) for pair in more)], share)
        assert trained_on <= {pair.key for pair in training}
        assert unseen <= {pair.key for pair in held}


def test_the_dictionary_and_its_split() -> None:
    splits = {name: pronunciations(name) for name in ("train", "dev", "test")}
    words = {name: {pair.source for pair in pairs} for name, pairs in splits.items()}
    assert {name: len(split) for name, split in words.items()} == {"train": 104442, "dev": 1197, "test": 11854}
    assert words["train"].isdisjoint(words["test"] | words["dev"])
    everything = dict.fromkeys(pair for pairs in splits.values() for pair in pairs)
    assert Pair("abboud", "AH B UW D") in everything
    assert Pair("abboud", "AH B AW D") in everything
    assert split_of("abboud") in ("train", "dev", "test")
    assert {symbol for pair in everything for symbol in pair.target.split()} == set(
        "AA AE AH AO AW AY B CH D DH EH ER EY F G HH IH IY JH K L M N NG OW OY P R S SH T TH UH UW V W Y Z ZH".split()
    )


# --- tokens ------------------------------------------------------------------------------------------------------------------


@given(st.lists(st.text(st.characters(exclude_characters="\t", exclude_categories=["Cs"])), min_size=1))
def test_characters_survive_the_round_trip(texts: list[str]) -> None:
    codec = Codec.from_json(Codec.train(texts, "characters").to_json())
    for text in texts:
        ids = codec.encode(text)
        assert len(ids) == len(text)
        assert UNK not in ids
        assert codec.decode(ids) == text
        assert "".join(codec.tokens(ids)) == text


@given(
    st.lists(
        st.lists(st.text(st.characters(exclude_characters=" \t", exclude_categories=["Cs"]), min_size=1), min_size=1),
        min_size=1,
    )
)
def test_symbols_survive_the_round_trip(lines: list[list[str]]) -> None:
    lines = [[symbol for symbol in line if symbol not in SPECIALS] for line in lines]
    codec = Codec.from_json(Codec.train([" ".join(line) for line in lines], "symbols").to_json())
    for line in lines:
        ids = codec.encode("  ".join(line))
        assert codec.tokens(ids) == tuple(line)
        assert codec.decode(ids) == " ".join(line)


def test_symbols_outside_the_vocabulary_are_unknown() -> None:
    codec = Codec.train(["AH B", "B C"], "symbols")
    assert codec.tokens(range(len(codec))) == (*SPECIALS, "AH", "B", "C")
    assert codec.encode("AH X  <eos> <pad> C") == [4, UNK, UNK, UNK, 6]
    assert codec.pieces("AH X  <eos> <pad> C") == ("AH", "X", "<eos>", "<pad>", "C")
    assert Codec.train(["ab"], "characters").pieces("b語🙂 a") == ("b", "語", "🙂", " ", "a")
    with pytest.raises(UserError, match="symbol '<eos>', which is reserved"):
        Codec.train(["a <eos>"], "symbols")


# --- batches -----------------------------------------------------------------------------------------------------------------


def test_a_batch_by_hand() -> None:
    batch = collate([Example([7, 8, 9], [5]), Example([7], [6, 5])])
    assert batch.source.values.tolist() == [[7, 8, 9, EOS], [7, EOS, PAD, PAD]]
    assert batch.source.allow.int().tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert batch.target_in_BT.tolist() == [[SOS, 5, PAD], [SOS, 6, 5]]
    assert batch.target_out_BT.tolist() == [[5, EOS, PAD], [6, 5, EOS]]
    assert batch.num_targets == 5
    assert source_batch([[], [4]]).values.tolist() == [[EOS, PAD], [4, EOS]]


def test_repeats_are_counted_on_disk_as_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """At any number of pairs: the hashes in memory are moved to a file, also those of one bucket in several turns."""
    monkeypatch.setattr(counts_module, "MOST_IN_MEMORY", 70)
    pairs = [(f"s{number % 111}", f"t{number % 37 % 2}") for number in range(501)]
    few, many = Hashes(), Hashes()
    for source, target in pairs:
        many.add(source_hash(source), target)
    for source, target in pairs[:40]:
        few.add(source_hash(source), target)
    targets = {source: {other for name, other in pairs if name == source} for source, _ in pairs}
    expected = (501 - len(set(pairs)), 111, sum(len(several) > 1 for several in targets.values()))
    assert many.repeats() == many.repeats() == expected
    assert many.shared_sources(few) == few.shared_sources(many) == 40


def lengths_of(sizes: Sequence[tuple[int, int]]) -> Lengths:
    return Lengths.of(*zip(*sizes, strict=True))


SIZES = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1)


@contextmanager
def arranged_on_disk(on_disk: bool = True) -> Iterator[None]:
    with mock.patch.object(arrangement, "LARGE", 0 if on_disk else 1 << 20):
        yield


@given(SIZES, st.integers(1, 200), st.integers(0, 3), st.integers(1, 3), st.booleans())
def test_an_epoch_holds_every_example_once(
    sizes: list[tuple[int, int]], batch_tokens: int, epoch: int, accumulate: int, on_disk: bool
) -> None:
    with arranged_on_disk(on_disk):
        check_an_epoch(sizes, batch_tokens, epoch, accumulate)


def check_an_epoch(sizes: list[tuple[int, int]], batch_tokens: int, epoch: int, accumulate: int) -> None:
    order = BatchOrder(lengths_of(sizes), batch_tokens=batch_tokens, accumulate=accumulate, seed=7)
    updates = [order.update(epoch * order.epoch_length + number) for number in range(order.epoch_length)]
    batches = [batch for update in updates for batch in update]
    assert sorted(index for batch in batches for index in batch) == list(range(len(sizes)))
    assert all(len(update) == accumulate for update in updates[:-1])
    assert 1 <= len(updates[-1]) <= accumulate
    for batch in batches:
        assert len(batch) == 1 or len(batch) * (max(max(sizes[index]) for index in batch) + 1) <= batch_tokens
    again = BatchOrder(lengths_of(sizes), batch_tokens=batch_tokens, accumulate=accumulate, seed=7)
    last = epoch * order.epoch_length + order.epoch_length - 1
    assert again.update(last) == updates[-1]  # without computing the earlier ones


@given(SIZES, st.integers(1, 200))
def test_padding_is_counted_and_the_largest_batch_comes_first(sizes: list[tuple[int, int]], batch_tokens: int) -> None:
    order = BatchOrder(lengths_of(sizes), batch_tokens=batch_tokens, seed=3)
    examples = [Example([4] * source, [5] * target) for source, target in sizes]
    batches = [batch for number in range(order.epoch_length) for batch in Batches(examples, order)(number)]
    positions = [batch.source.values.numel() + batch.target_out_BT.numel() for batch in batches]
    real = sum(int(batch.source.allow.sum()) + batch.num_targets for batch in batches)
    assert order.padding() == pytest.approx(1 - real / sum(positions))
    largest = [max(batch.source.values.numel(), batch.target_out_BT.numel()) for batch in batches]
    assert largest[0] == max(largest)


def test_many_examples_are_arranged_on_disk_like_few_in_memory(tmp_path: Path) -> None:
    """The batches have the same sizes; examples of equal length are in a random order of its own."""
    sizes = [(number * number % 13 + 1, number % 17 + 1) for number in range(2000)]
    sources_N, targets_N = lengths_of(sizes).tensors
    lengths = Lengths(2000, lambda: zip(sources_N.split(300), targets_N.split(300), strict=True), tmp_path)
    in_memory = BatchOrder(lengths, batch_tokens=90, seed=3)
    with arranged_on_disk():
        on_disk, other = (BatchOrder(lengths, batch_tokens=90, seed=seed) for seed in (3, 4))
    assert list(tmp_path.iterdir()) == []  # the file has no name
    assert (on_disk.borders, on_disk.largest) == (in_memory.borders, in_memory.largest)
    assert on_disk.padding() == pytest.approx(in_memory.padding(), abs=0.02)
    widths = [sorted(max(sizes[index]) for index in order.update(0)[0]) for order in (on_disk, in_memory)]
    assert widths[0] == widths[1]
    numbers, lengths_of_sources, lengths_of_targets = on_disk.arranged.at(1, 500, 900)
    assert list(zip(lengths_of_sources.tolist(), lengths_of_targets.tolist(), strict=True)) == [sizes[at] for at in numbers]
    orders = [order.arranged.at(epoch, 0, 2000)[0] for order, epoch in ((on_disk, 0), (on_disk, 1), (other, 0))]
    assert all(sum(map(int.__eq__, one, two)) < 100 for one, two in combinations(orders, 2))
    falls = [sum(after < before for before, after in pairwise(order)) for order in orders]
    assert all(800 < number < 1200 for number in falls)  # as in a random order


def test_a_full_disk_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(dir: Path | None = None) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    monkeypatch.setattr(counts_module, "MOST_IN_MEMORY", 1)
    with pytest.raises(
        UserError, match=r"temporary files cannot be written: No space left.*, or set TMPDIR to a folder that has"
    ):
        Hashes().add(1, "a")
    lengths = Lengths(1, lambda: iter(Lengths.of([1], [1])), tmp_path)
    with arranged_on_disk(), pytest.raises(UserError, match=rf"^{tmp_path}: .* No space left on device; free some disk space$"):
        BatchOrder(lengths, batch_tokens=9, seed=1)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 64, 65, 1000])
def test_slots_are_permuted_one_by_one(size: int) -> None:
    everywhere = arrangement.permuted(np.arange(size, dtype=np.uint64), size, 1)
    assert sorted(everywhere.tolist()) == list(range(size))
    assert arrangement.permuted(np.array([size - 1], np.uint64), size, 1) == everywhere[-1:]
    if size > 60:
        assert (arrangement.permuted(np.arange(size, dtype=np.uint64), size, 2) != everywhere).mean() > 0.9


def test_the_first_epoch_can_go_from_short_to_long() -> None:
    sizes = [(number * 7 % 31, 1) for number in range(200)]
    order = BatchOrder(lengths_of(sizes), batch_tokens=50, seed=3, shortest_first=True)
    epochs = [[order.update(epoch * order.epoch_length + at)[0] for at in range(order.epoch_length)] for epoch in (0, 1)]
    longest = [[max(sizes[index][0] for index in batch) for batch in epoch] for epoch in epochs]
    assert longest[0][1:] == sorted(longest[0][1:])
    assert longest[1] != sorted(longest[1])
    assert sorted(index for batch in epochs[0] for index in batch) == list(range(200))


def test_the_order_depends_on_seed_and_epoch_with_little_padding() -> None:
    pairs = pronunciations("dev")
    source, target = (Codec.train([pair[side] for pair in pairs], unit) for side, unit in ((0, "characters"), (1, "symbols")))
    examples = encode_pairs(pairs, Reader(source, target))
    orders = [BatchOrder(lengths(examples), batch_tokens=512, seed=seed) for seed in (1, 2)]
    length = orders[0].epoch_length
    epochs = [[orders[0].update(epoch * length + number) for number in range(length)] for epoch in (0, 1, 2)]
    epochs.append([orders[1].update(number) for number in range(length)])
    assert all(epochs[later] != epochs[earlier] for later in range(4) for earlier in range(later))
    neighbours = [{frozenset(batch) for update in epoch for batch in update} for epoch in epochs]
    assert len(neighbours[1] & neighbours[2]) < 4  # examples of equal size are grouped differently in each epoch
    assert orders[0].padding() < 0.15


def test_every_part_of_a_run_has_its_own_seed() -> None:
    arguments = [
        (seed, what, update, part)
        for seed in (1, 2)
        for what in ("update", "epoch")
        for update in (0, 1, 12)
        for part in (0, 1)
    ]
    seeds = {derived_seed(*parts) for parts in arguments}
    assert len(seeds) == len(arguments)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert derived_seed(1, "update", 12, 0) == derived_seed(1, "update", 12, 0) != derived_seed(1, "update", 1, 20)


def test_segmentation_varies_with_the_update_but_not_with_the_run() -> None:
    examples = [Example([4] * 5, [5] * 5)] * 3

    def segment(example: Example, generator: random.Random) -> Example:
        return Example([4] * generator.randint(1, 30), example.target)

    order = BatchOrder(lengths(examples), batch_tokens=100, seed=3)
    found = [Batches(examples, order, segment)(number)[0].source.allow.sum(1).tolist() for number in (0, 1, 0)]
    assert found[0] == found[2] != found[1]
    assert len(set(found[0])) > 1


def test_the_longest_line_is_as_long_as_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Line ends included; so is the most that a file may unpack to."""
    monkeypatch.setattr(lines_module, "LONGEST_LINE", 6)
    content = b"12345\n123456\n"
    read = lines_module.raw_lines(io.BytesIO(content).readline, "f")
    assert next(read) == b"12345\n"
    with pytest.raises(UserError, match="f:2: the line is longer than 6 bytes"):
        next(read)
    short = b"12345\n1234\n"
    assert list(lines_module.raw_lines(io.BytesIO(short).readline, "f", most=11)) == [b"12345\n", b"1234\n"]
    with pytest.raises(UserError, match="f: the file unpacks to more than 10 bytes"):
        list(lines_module.raw_lines(io.BytesIO(short).readline, "f", most=10))
