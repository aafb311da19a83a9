"""Bulk translation: each input file becomes one output file, and nothing is lost or doubled."""

from __future__ import annotations

import gzip
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

import regard
from regard.bulk import on_ray
from regard.bulk import shards as bulk
from regard.bulk.formats import Row, format_of_shard
from regard.cli.bulk import check_bulk
from regard.core.devices import settings_restored
from regard.data.columns import Columns
from regard.data.corpus import read_pairs
from regard.errors import UserError
from regard.pipeline.translator import Translator
from regard.results import Result

WORDS = ["cab", "ad", "bad", "dab", "bead", "", "add"]
SEARCH = {"sample": True, "seed": 3, "max_length": 5}  # the model is untrained, so only its samples differ


@pytest.fixture(scope="module")
def translator() -> Translator:
    pairs = [(word, " ".join(word.upper())) for word in WORDS if word]
    return regard.build("rnn", pairs, width=16)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the words in every format."""
    given = tmp_path / "in"
    given.mkdir()
    text = "".join(f"{word}\n" for word in WORDS).encode()
    (given / "a.txt").write_bytes(text)
    (given / "b.txt.gz").write_bytes(gzip.compress(text))
    with pa.CompressedOutputStream(str(given / "c.txt.zst"), "zstd") as file:
        file.write(text)
    rows = [{"id": number, "translation_of": {"source": word}} for number, word in enumerate(WORDS)]
    (given / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pa.parquet.write_table(pa.Table.from_pylist(rows), given / "e.parquet", row_group_size=3)
    (given / ".hidden").write_text("x")
    return tmp_path


def written(path: Path) -> list[str]:
    """Returns the translations in an output file."""
    if path.suffix == ".parquet":
        return pa.parquet.read_table(path)["translation"].to_pylist()
    if path.suffix == ".gz":
        return gzip.decompress(path.read_bytes()).decode().split("\n")[:-1]
    if path.suffix == ".zst":
        return pa.CompressedInputStream(str(path), "zstd").read().decode().split("\n")[:-1]
    lines = path.read_text().split("\n")[:-1]
    return [json.loads(line)["translation"] for line in lines] if path.suffix == ".jsonl" else lines


def run(translator: Translator, folder: Path, search: dict[str, object] | None = None) -> list[bulk.Done]:
    out = folder / "out"
    shards = bulk.find_shards([folder / "in"], out)
    bulk.prepare(out, bulk.signature_of(translator, search or SEARCH, ()))
    return list(bulk.translate_shards(translator, [one for one in shards if not one.output.exists()], search or SEARCH))


def test_every_format_has_the_translations_that_the_model_gives(translator: Translator, folder: Path) -> None:
    expected = [result.text for result in translator.batch(WORDS, **SEARCH)]
    assert len(set(expected)) > 2
    done = run(translator, folder)
    names = ["a.txt", "b.txt.gz", "c.txt.zst", "d.jsonl", "e.parquet"]
    assert [(one.name, one.rows, one.refused) for one in done] == [(name, len(WORDS), 0) for name in names]
    for name in names:
        assert written(folder / "out" / name) == expected
    table = pa.parquet.read_table(folder / "out" / "e.parquet")
    assert table.drop_columns("translation").equals(pa.parquet.read_table(folder / "in" / "e.parquet"))
    record = json.loads((folder / "out" / "d.jsonl").read_text().splitlines()[1])
    assert record == {"id": 1, "translation_of": {"source": "ad"}, "translation": expected[1]}


def test_a_run_goes_on_where_it_was_killed(translator: Translator, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is killed while it writes the second file."""
    out, translate = folder / "out", bulk.translate_shard

    class Killed(BaseException):
        pass

    def killed(translator: Translator, shard: bulk.Shard, *rest: object) -> bulk.Done:
        if shard.source.name == "b.txt.gz":
            (out / ".unfinished" / "b.txt.gz").write_bytes(b"half")
            (out / "..regard.json-new-01234567").write_bytes(b"half")
            raise Killed
        return translate(translator, shard, *rest)

    monkeypatch.setattr(bulk, "translate_shard", killed)
    with pytest.raises(Killed):
        run(translator, folder)
    first = (out / "a.txt").stat()
    assert not (out / "b.txt.gz").exists()
    monkeypatch.undo()
    assert [one.name for one in run(translator, folder)] == ["b.txt.gz", "c.txt.zst", "d.jsonl", "e.parquet"]
    assert (out / "a.txt").stat() == first
    assert run(translator, folder) == []
    names = [path.name for path in (folder / "in").glob("[a-e]*")]
    assert sorted(path.name for path in out.iterdir()) == sorted([".regard.json", *names])


def test_two_attempts_at_a_shard_do_not_disturb_each_other(translator: Translator, folder: Path) -> None:
    """As of an actor whose driver was killed, and of the next run."""
    (folder / "out").mkdir()
    shard, attempts = bulk.Shard(folder / "in" / "a.txt", folder / "out" / "a.txt"), list[bulk.Done]()

    def again(rows: int) -> None:
        if rows == 3 and not attempts:
            attempts.append(bulk.Done("a.txt", 0, 0))
            attempts.append(bulk.translate_shard(translator, shard, SEARCH))

    done = bulk.translate_shard(translator, shard, SEARCH, progress=again)
    assert attempts[1] == done
    assert written(shard.output) == [result.text for result in translator.batch(WORDS, **SEARCH)]
    assert list((folder / "out" / ".unfinished").iterdir()) == []


def test_outputs_of_other_models_and_options_are_not_mixed(translator: Translator, folder: Path) -> None:
    run(translator, folder)
    with pytest.raises(UserError, match="made with other options; repeat the command"):
        run(translator, folder, {**SEARCH, "seed": 4})
    other = regard.build("rnn", [("ab", "A B"), ("cd", "C D")], width=16, seed=2)
    with pytest.raises(UserError, match="made with another model; repeat the command"):
        run(other, folder)
    (folder / "mine").mkdir()
    (folder / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(UserError, match="holds other files; choose an empty folder"):
        bulk.prepare(folder / "mine", {})


def test_rows_without_a_translation_are_counted_and_kept(translator: Translator, folder: Path) -> None:
    long = "ab" * 3000
    for file in (folder / "in").iterdir():
        file.unlink()
    (folder / "in" / "a.txt").write_text(f"cab\n{long}\nad\n")
    (folder / "in" / "b.txt").write_text(f"{long}\n{long}\n")
    (folder / "in" / "d.jsonl").write_text("".join(json.dumps({"text": word}) + "\n" for word in ("cab", long, "ad")))
    rows = pa.table({"text": ["cab", long, "ad"]})
    pa.parquet.write_table(rows, folder / "in" / "e.parquet")
    done = run(translator, folder)
    assert [(one.rows, one.refused) for one in done] == [(3, 1), (2, 2), (3, 1), (3, 1)]
    assert done[0].reason.startswith("a.txt:2: ")
    assert done[1].reason.startswith("b.txt:1: ")  # the first of several
    expected = [one.text for one in translator.translate(["cab", long, "ad"], **SEARCH) if isinstance(one, Result)]
    assert expected[0] != expected[1]
    assert written(folder / "out" / "a.txt") == [expected[0], "", expected[1]]
    assert written(folder / "out" / "e.parquet") == [expected[0], None, expected[1]]
    refused = json.loads((folder / "out" / "d.jsonl").read_text().splitlines()[1])
    assert (refused["translation"], refused["error"]) == ("", done[0].reason.removeprefix("a.txt:2: "))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"source": "a"}\n\n', r"a.jsonl:2: got an empty line"),
        ("a.jsonl", '{"source": "a"}\n[1]\n', r"a.jsonl:2: expected a JSON object"),
        ("a.jsonl", '{"source": "a"}\n{"x": "a"}\n', r"a.jsonl:2: the object has no 'source'"),
        ("a.jsonl", '{"source": "a", "translation": "b"}\n', r"a column 'translation' already"),
        ("a.jsonl", '{"x": "a", "y": "b"}\n', r"has 2 columns \(x, y\); say which is the source, e.g. --from x"),
        ("a.parquet", "no table", r"a.parquet: cannot be read as Parquet"),
    ],
)
def test_files_that_cannot_be_read_give_one_error_and_no_output(
    translator: Translator, tmp_path: Path, name: str, content: str, message: str
) -> None:
    (tmp_path / name).write_text(content)
    shard = bulk.Shard(tmp_path / name, tmp_path / "out" / name)
    (tmp_path / "out").mkdir()
    with pytest.raises(UserError, match=message):
        bulk.translate_shard(translator, shard, SEARCH)
    assert [path for path in (tmp_path / "out").rglob("*") if path.is_file()] == []


def test_columns_are_chosen_by_name(translator: Translator, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": "cab", "y": "ad"}\n')
    rows = list(format_of_shard(tmp_path / "a.jsonl").rows(tmp_path / "a.jsonl", translator.reader, ["y", "x"]))
    assert rows[0].source == ("ad", "cab")
    (tmp_path / "b.jsonl").write_text('{"id": 1, "a": {"b": {"en": "cab"}, "c": "x"}}\n')
    (row,) = format_of_shard(tmp_path / "b.jsonl").rows(tmp_path / "b.jsonl", translator.reader, ["a.b.en"])
    assert row.source == "cab"


def test_a_translation_with_line_breaks_stays_one_line(translator: Translator, tmp_path: Path) -> None:
    row, outcome = Row("cab"), replace(translator("cab"), text="A\nB\u2028C\r\n")
    with format_of_shard(tmp_path / "a.txt").writer(tmp_path / "a.txt") as put:
        put(row, outcome)
        put(row, outcome)
    assert (tmp_path / "a.txt").read_bytes() == b"A B C\n" * 2


def test_folders_that_cannot_work_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="found no files to translate"):
        bulk.find_shards([tmp_path], tmp_path / "out")
    for name in ("x", "y"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text("a\n")
    with pytest.raises(UserError, match=r"two files are called a.txt"):
        bulk.find_shards([tmp_path / "x", tmp_path / "y"], tmp_path / "out")
    with pytest.raises(UserError, match="is the folder of the input"):
        bulk.find_shards([tmp_path / "x"], tmp_path / "y" / ".." / "x")
    with pytest.raises(UserError, match="--n-best is about what is printed"):
        check_bulk([tmp_path], stream=False, json=False, align=False, n_best=3)
    with pytest.raises(UserError, match="none is given"):
        check_bulk([], stream=False, json=False, align=False, n_best=1)


def test_parquet_files_give_the_pairs_of_a_table(tmp_path: Path) -> None:
    rows = [("cab", "C A B"), ("ad", "A D"), ("a", "")]
    (tmp_path / "pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in rows))
    nested = [{"id": 7, "translation": {"en": source, "de": target or None}} for source, target in rows]
    pa.parquet.write_table(pa.Table.from_pylist(nested), tmp_path / "pairs.parquet")
    expected, read = (
        read_pairs(tmp_path / name, columns)
        for name, columns in (("pairs.tsv", Columns()), ("pairs.parquet", Columns(("en",), "de")))
    )
    assert read.pairs == expected.pairs
    assert read.num_empty == expected.num_empty == 1


class RayError(Exception):
    """Stands in for the base class of Ray's errors; those of a failed task have a cause."""

    def __init__(self, text: str, cause: Exception | None = None) -> None:
        super().__init__(text)
        self.cause = cause


class FakeRay(ModuleType):
    """Stands in for Ray, which tests do not install (`benchmarks/scale.py ray` runs the real one): maps in this process."""

    def __init__(self) -> None:
        super().__init__("ray")
        self.__spec__ = ModuleSpec("ray", None)
        self.data: Any = self
        self.exceptions = SimpleNamespace(RayError=RayError)
        self.calls: list[str] = []
        self.failure: Exception | None = None

    def init(self, address: str | None, **options: object) -> None:
        assert options["include_dashboard"] is False
        self.calls.append(f"init {address}")

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 5.0}

    def shutdown(self) -> None:
        self.calls.append("shutdown")

    def ActorPoolStrategy(self, size: int) -> int:
        self.calls.append(f"{size} actors")
        return size

    def from_items(self, rows: list[dict[str, str]], override_num_blocks: int) -> FakeRay:
        assert override_num_blocks == len(rows)
        self.rows = rows
        return self

    def map(self, actor: Callable[..., Any], fn_constructor_args: tuple[object, ...], **options: object) -> FakeRay:
        assert options == {"compute": min(2, len(self.rows)), "num_cpus": 2}
        self.actor = actor(*fn_constructor_args)
        return self

    def iter_rows(self) -> Iterator[dict[str, Any]]:
        for row in self.rows:
            if self.failure:
                raise self.failure
            yield self.actor(row)


@pytest.fixture
def fake_ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setitem(sys.modules, "ray.data", fake)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "1")
    monkeypatch.delenv("RAY_USAGE_STATS_ENABLED")  # as before again at the end
    return fake


def test_ray_translates_what_one_process_would(translator: Translator, folder: Path, fake_ray: FakeRay) -> None:
    out = folder / "ray"
    out.mkdir()
    shards = bulk.find_shards([folder / "in"], out)
    with settings_restored(1):
        done = list(on_ray.translate_on_ray("10.0.0.1:6379", lambda: translator, shards, SEARCH, threads=2))
    assert done == run(translator, folder)
    for shard in shards:
        assert written(shard.output) == written(folder / "out" / shard.output.name)
    assert fake_ray.calls == ["init 10.0.0.1:6379", "2 actors", "shutdown"]
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"


def test_ray_gives_up_a_shard_whose_actors_end(translator: Translator, folder: Path, fake_ray: FakeRay) -> None:
    """Each of them leaves an unfinished file; those of other shards do not count."""
    unfinished = folder / "ray" / ".unfinished"
    unfinished.mkdir(parents=True)
    shards = bulk.find_shards([folder / "in" / "a.txt"], folder / "ray")
    for number in range(9):
        (unfinished / f"{number:08x}-x-a.txt").touch()
    for number in range(3):
        (unfinished / f"{number:08x}-a.txt").touch()
    with settings_restored(1):
        assert len(list(on_ray.translate_on_ray("local", lambda: translator, shards, SEARCH, threads=2))) == 1
        (unfinished / "0000000a-a.txt").touch()
        with pytest.raises(UserError, match=r"in/a.txt: the actor that translated it ended unexpectedly 4 times"):
            list(on_ray.translate_on_ray("local", lambda: translator, shards, SEARCH, threads=2))


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (RayError("…", cause=UserError("a.txt: no such column")), "^a.txt: no such column$"),
        (RayError("The actor died.\nIt was killed."), "a Ray actor failed: It was killed.. Run the same command to go on"),
    ],
)
def test_failures_on_ray_are_reported(
    translator: Translator, folder: Path, fake_ray: FakeRay, failure: Exception, message: str
) -> None:
    fake_ray.failure = failure
    shards = bulk.find_shards([folder / "in"], folder / "ray")
    with settings_restored(1), pytest.raises(UserError, match=message):
        list(on_ray.translate_on_ray("local", lambda: translator, shards, SEARCH, threads=2))
    assert fake_ray.calls == ["init None", "2 actors", "shutdown"]
