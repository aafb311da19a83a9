"""Pairs in memory become a file that is read like any other."""

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.columns import Columns
from regard.data.corpus import read_pairs
from regard.errors import UserError
from regard.training.spool import Spool


def written(rows: Any, folder: Path, *, columns: tuple[str, ...] = (), target: str = "") -> tuple[Spool, list[tuple[Any, str]]]:
    """Returns the spool, and the pairs that are read from its file."""
    spool = Spool(folder / "m.run" / "data.jsonl", columns, target)
    spool.write(rows, resuming=False)
    chosen = Columns(spool.source_columns or columns, spool.target if spool.source_columns else target)
    return spool, [tuple(pair) for pair in read_pairs(spool.path, chosen).pairs]


def test_pairs_of_all_kinds_are_read_as_they_are(tmp_path: Path) -> None:
    pairs = [("a", "b"), ["c d", 'e "f"'], ("ü", "🙂"), ("x", "1.5")]
    assert written(pairs, tmp_path)[1] == [tuple(pair) for pair in pairs]
    assert written((pair for pair in pairs), tmp_path)[1] == [tuple(pair) for pair in pairs]
    assert os.listdir(tmp_path / "m.run") == ["data.jsonl"]


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip)


@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=5))
def test_any_text_is_handled_as_in_a_file(pairs: list[tuple[str, str]]) -> None:
    """White space at the ends is removed, and tabs and line breaks become a space: as in a .jsonl file that a user wrote."""
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        theirs = folder / "theirs.jsonl"
        theirs.write_text("".join(json.dumps({"source": a, "target": b}, ensure_ascii=False) + "\n" for a, b in pairs), "utf-8")
        assert written(pairs, folder)[1] == [tuple(pair) for pair in read_pairs(theirs).pairs]


def test_several_source_columns(tmp_path: Path) -> None:
    pairs = [(("walk", "V;PST"), "walked"), (("go", ""), "went")]
    spool, read = written(pairs, tmp_path)
    assert read == pairs
    assert spool.source_columns == ("source", "source 2")
    assert written(pairs, tmp_path, columns=("lemma", "tags"), target="form")[0].source_columns == ("lemma", "tags")
    assert json.loads(spool.path.read_text().splitlines()[0]) == {"lemma": "walk", "tags": "V;PST", "form": "walked"}
    with pytest.raises(UserError, match=r"row 3 of the data is .*with 1 source column; expected 2, as in the rows before it"):
        written([*pairs, ("be", "was")], tmp_path)


def test_dictionaries_are_rows_of_columns(tmp_path: Path) -> None:
    rows = [{"id": 7, "translation": {"en": "a", "de": "b"}}, {"id": 8, "translation": {"de": "d", "en": "c"}}]
    assert written(rows, tmp_path, columns=("en",), target="de")[1] == [("a", "b"), ("c", "d")]
    assert written([{"target": "b", "source": "a", "n": np.int64(3)}], tmp_path)[1] == [("a", "b")]


class Frame:
    """What a pandas DataFrame has: names of columns, and rows as tuples; a missing cell is NaN."""

    columns = np.array(["source", "target"], dtype=object)

    def itertuples(self, *, index: bool, name: str | None) -> Iterator[tuple[Any, ...]]:
        assert (index, name) == (False, None)
        return iter([("a", "b"), ("c", math.nan), ("d", "e")])


def test_a_table_and_missing_cells(tmp_path: Path) -> None:
    """A missing cell is empty, so its row is skipped and counted, as in a file; it is not the text "nan"."""
    spool, read = written(Frame(), tmp_path)
    assert read == [("a", "b"), ("d", "e")]
    assert read_pairs(spool.path).num_empty == 1
    assert written([("a", "b"), ("c", None), (None, "d")], tmp_path)[1] == [("a", "b")]


def test_names_of_files_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.png").touch()
    pairs = [("a.png", "one"), (Path("b.png"), "two"), ("c.png", "three")]
    absolute = [str(tmp_path / "a.png"), str(tmp_path / "b.png"), "c.png"]
    assert [source for source, _ in written(pairs, tmp_path)[1]] == absolute


@pytest.mark.parametrize("row", ["ab", ("a",), ("a", "b", "c"), 3, None, {"a", "b"}])
def test_what_is_no_pair_is_refused(tmp_path: Path, row: Any) -> None:
    with pytest.raises(UserError, match=r"row 2 of the data is .*; expected pairs \(source, target\) or dictionaries"):
        written([("a", "b"), row], tmp_path)
    with pytest.raises(UserError, match="expected texts, got bytes"):
        written([("a", b"b")], tmp_path)
    assert os.listdir(tmp_path / "m.run") == []


def test_a_value_that_is_no_text_is_no_column(tmp_path: Path) -> None:
    rows = [{"picture": object(), "source": "a", "target": "b"}]
    assert written(rows, tmp_path)[1] == [("a", "b")]
    with pytest.raises(UserError, match="none is called 'picture'"):
        written(rows, tmp_path, columns=("picture",), target="target")


def test_a_file_of_a_run_that_continues_does_not_change(tmp_path: Path) -> None:
    spool, _ = written([("a", "b"), ("c", "d")], tmp_path)
    before = spool.path.read_bytes()
    spool.write([["a", "b"], ("c", "d")], resuming=True)
    with pytest.raises(UserError, match="the training data changed since this run started; the run was not modified"):
        spool.write([("a", "b")], resuming=True)
    assert spool.path.read_bytes() == before
    spool.write([("a", "b")], resuming=False)
    assert spool.path.read_bytes() != before
    assert os.listdir(tmp_path / "m.run") == ["data.jsonl"]


def test_an_error_of_the_iterable_is_its_own(tmp_path: Path) -> None:
    def rows() -> Iterator[tuple[str, str]]:
        yield "a", "b"
        raise FileNotFoundError("no such shard")

    with pytest.raises(FileNotFoundError, match="no such shard"):
        written(rows(), tmp_path)
    assert os.listdir(tmp_path / "m.run") == []
