import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from regard.data import store as store_module
from regard.data.batch import Example
from regard.data.store import Store, write_store
from regard.errors import UserError
from regard.signatures import file_fingerprint

EXAMPLES = [Example([5, 4, 250], [7]), Example([], [6, 299]), Example([4], [])]


def save(path: Path, source_size: int = 251, target_size: int = 300) -> Path:
    assert write_store(path, iter(EXAMPLES), source_size, target_size, {"data": "é 1"}) == 3
    return path


def test_a_store_is_read_as_it_was_written(tmp_path: Path) -> None:
    store = Store.open(save(tmp_path / "tokens.safetensors"))
    assert len(store) == 3
    assert list(store) == EXAMPLES
    assert store[-1] == EXAMPLES[2]
    assert store[1:] == EXAMPLES[1:]
    assert isinstance(store[0], Example)
    assert store.metadata == {"data": "é 1"}
    source, target = store.lengths().tensors
    assert (source.tolist(), target.tolist()) == ([3, 0, 1], [1, 2, 0])
    with pytest.raises(IndexError):
        store[3]
    assert [path.name for path in tmp_path.iterdir()] == ["tokens.safetensors"]
    write_store(tmp_path / "none", [], 7, 7)
    assert list(Store.open(tmp_path / "none")) == []
    assert [len(lengths) for lengths in Store.open(tmp_path / "none").lengths().tensors] == [0, 0]


@pytest.mark.parametrize(
    ("size", "dtype"), [(256, torch.uint8), (257, torch.uint16), (1 << 16, torch.uint16), ((1 << 16) + 1, torch.int32)]
)
def test_ids_take_the_smallest_integers(tmp_path: Path, size: int, dtype: torch.dtype) -> None:
    """The safetensors library reads them too, also after a narrower side of an odd number of bytes."""
    for sizes in ((11, size), (size, 11)):
        examples = [Example([one % sizes[0]] * 3, [one % sizes[1]] * 5) for one in (0, 10, size - 1)]
        write_store(tmp_path / "a", examples, *sizes)
        assert list(Store.open(tmp_path / "a")) == examples
        tensors = load_file(tmp_path / "a")
        wide = tensors["source_ids" if sizes[0] == size else "target_ids"]
        assert wide.dtype == dtype
        assert int(wide[-1]) == size - 1
        assert tensors["source_offsets"].tolist() == [0, 3, 6, 9]
        assert tensors["target_offsets"].dtype == torch.int64


side = st.lists(st.integers(0, 70_000), max_size=9)


@given(st.lists(st.tuples(side, side), max_size=9), st.dictionaries(st.text(st.characters(codec="utf-8")), st.text('aé"\\')))
def test_any_examples(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[list[int], list[int]]], metadata: dict[str, str]
) -> None:
    path = tmp_path_factory.mktemp("store") / "a"
    largest = [max((max(pair[at], default=0) for pair in pairs), default=0) for at in (0, 1)]
    write_store(path, [Example(*pair) for pair in pairs], largest[0] + 1, largest[1] + 1, metadata)
    store = Store.open(path)
    assert list(store) == pairs
    assert store.metadata == metadata
    lengths = [[len(pair[at]) for pair in pairs] for at in (0, 1)]
    for size in (2, 1 << 17):
        with mock.patch.object(store_module, "BLOCK", size):
            assert [side.tolist() for side in store.lengths().tensors] == lengths
    longest, mean = [max(side, default=0) for side in lengths], sum(lengths[1]) / max(1, len(pairs))
    assert list(store.lengths().longest) == longest
    assert not pairs or store.lengths().mean_target == mean


@pytest.mark.parametrize(
    ("example", "words"),
    [
        (
            Example([3, 7], [0]),
            r"example 1 has source ids from 3 to 7, but the vocabulary has 7 entries; was the text encoded with",
        ),
        (Example([3], [-1, 2]), r"example 1 has target ids from -1 to 2, but the vocabulary has 11 entries"),
    ],
)
def test_an_interrupted_write_leaves_the_old_store(tmp_path: Path, example: Example, words: str) -> None:
    path = save(tmp_path / "a")
    before = path.read_bytes()
    with pytest.raises(ValueError, match=words):
        write_store(path, [Example([1], [1]), example], 7, 11)

    def stopped() -> Iterator[Example]:
        yield Example([1], [1])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_store(path, stopped(), 7, 11)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(
        UserError, match=r"nowhere/a cannot be written: No such file or directory; free some disk space, or choose"
    ):
        write_store(tmp_path / "nowhere" / "a", EXAMPLES, 251, 300)


def test_a_damaged_store_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "a")
    whole = path.read_bytes()
    for length in (*range(0, len(whole), 7), len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(
            UserError, match=r"a is damaged or not a token store: .*; delete it; it will be rebuilt from the data"
        ):
            Store.open(path)
    key = range(whole.index(b'"regard.sha256": "'), whole.index(b'"regard.sha256": "') + 18)
    for at in (at for at in range(8, len(whole)) if at not in key):  # without its key it is a store of an earlier version
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(UserError, match=r"a is (damaged|not a token store)"):
            Store.open(path)
    with pytest.raises(UserError, match="nowhere: no such file"):
        Store.open(tmp_path / "nowhere")
    with pytest.raises(UserError, match="is damaged or not a token store"):
        Store.open(tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"source_ids": None}, r"expected source_ids, .*, found source_offsets, target_ids, target_offsets; delete it"),
        ({"more": torch.tensor([1])}, r"found more, source_ids"),
        ({"source_offsets": torch.tensor([0, 3, 3, 5])}, r"the source offsets do not match its 4 ids"),
        ({"target_offsets": torch.tensor([1, 1, 3, 3])}, r"the target offsets do not match its 3 ids"),
        ({"target_offsets": torch.tensor([], dtype=torch.int64)}, r"the target offsets do not match its 3 ids"),
        ({"target_offsets": torch.tensor([0, 1, 3, 3], dtype=torch.int32)}, r"the target offsets do not match its 3 ids"),
        ({"target_offsets": torch.tensor([0, 1, 3])}, r"its sides have 3 and 4 offsets, expected equal numbers"),
    ],
)
def test_a_store_that_contradicts_itself_is_refused(
    tmp_path: Path, changes: dict[str, torch.Tensor | None], words: str
) -> None:
    changed = {**load_file(save(tmp_path / "a")), **changes}
    save_file({name: tensor for name, tensor in changed.items() if tensor is not None}, tmp_path / "b", {"regard.store": "1"})
    with pytest.raises(UserError, match=rf"b is damaged: .*{words}"):
        Store.open(tmp_path / "b")


def test_other_files_and_decreasing_offsets(tmp_path: Path) -> None:
    tensors = load_file(save(tmp_path / "a"))
    for metadata in (None, {"regard.store": "2"}):
        save_file(tensors, tmp_path / "b", metadata)
        with pytest.raises(UserError, match=r"b is not a token store of this version: expected .*regard.store.*, got {"):
            Store.open(tmp_path / "b")
    save_file({**tensors, "target_offsets": torch.tensor([0, 3, 1, 3])}, tmp_path / "b", {"regard.store": "1"})
    with pytest.raises(UserError, match="b is damaged: its offsets decrease"):
        list(Store.open(tmp_path / "b").lengths())


def test_a_fingerprint_changes_with_everything(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_text("a\tb")
    second.write_text("a\tc")
    prints = [
        file_fingerprint(*parts)
        for parts in ((first,), (second,), (first, second), (first, "x"), ("x", first), (first, "x", ""))
    ]
    assert len(set(prints)) == len(prints)
    assert file_fingerprint(first, "x") == file_fingerprint(first, "x")


MILLION = """
import json, sys
from pathlib import Path
from random import Random

from regard.data.corpus import stream_pairs
from regard.data.counts import CorpusCounts
from regard.data.store import Store, write_store
from regard.data import arrangement
from regard.data.batch import BatchOrder, Example

table, path = map(Path, sys.argv[1:])

def megabytes(name):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(name)) / 1024

def kept():
    return megabytes("RssAnon")  # pages of a mapped file are not counted: the system may drop them

rss = {"start": kept()}
highest = 0.0
counts = CorpusCounts()
def examples():
    global highest
    for number, pair in enumerate(stream_pairs(table, counts=counts)):
        if number % 10_000 == 0:
            highest = max(highest, kept())
        yield Example(list(pair.source.encode()), list(pair.target.encode()))
write_store(path, examples(), 1000, 1000)
rss["written"] = max(highest, kept())
rss["counted"] = counts.hashes.repeats() and kept()
store = Store.open(path)
chance = Random(7)
for _ in range(10_000):
    number = chance.randrange(len(store))
    example = store[number]
    assert bytes(example.source).decode() == f"word {number}" and bytes(example.target).decode() == f"Wort {number % 1000}"
rss["read"] = kept()
arrangement.LARGE = 0
order = BatchOrder(store.lengths(), batch_tokens=4096, seed=1)
for number in (0, order.epoch_length):
    assert order.update(number)
rss["ordered"] = kept()
print(json.dumps({**rss, "pairs": len(store), "size": path.stat().st_size / 2**20}))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the memory of a process from Linux's /proc")
def test_a_million_pairs_need_little_memory(tmp_path: Path) -> None:
    """From text to store to examples. Lists of Python numbers would take several hundred megabytes."""
    with open(tmp_path / "a.tsv", "w") as file:
        file.writelines(f"word {number}\tWort {number % 1000}\n" for number in range(1_000_000))
    command = [sys.executable, "-c", MILLION, str(tmp_path / "a.tsv"), str(tmp_path / "store")]
    alone = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}  # which takes memory too
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=alone)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["pairs"] == 1_000_000
    assert found["size"] > 50
    assert found["written"] - found["start"] < 24  # 8 bytes per pair, the reserve of growing arrays, and buffers
    assert found["counted"] - found["written"] < 4
    assert found["read"] - found["start"] < 26
    assert found["ordered"] - found["read"] < 16  # a block, and as much again to sort it
