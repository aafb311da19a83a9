import gzip
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.data.batch import Example, collate, encode_pairs, endless_batches, epoch_order, source_batch
from regard.data.corpus import Pair, hold_out, read_pairs
from regard.data.dictionary import pronunciations, split_of
from regard.data.tokenizers.codec import EOS, PAD, SOS, SPECIALS, UNK, Codec
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


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a\tb\n" * 6 + b"no tab here\n", r"a.tsv:7: expected source<TAB>target, found no tab in 'no tab here'"),
        (b"a\tb\nc\td\te\n", r"a.tsv:2: expected source<TAB>target, found 2 tabs"),
        (b"a\tb\nd\xe9j\xe0\tc\n", r"a.tsv:2: byte 0xe9 at place 2 is not UTF-8; convert.*iconv"),
        (b"\xef\xbb\xbfab\xe9\tx\n", r"a.tsv:1: byte 0xe9 at place 6 is not UTF-8"),
        (b"", r"a.tsv: expected lines of source<TAB>target, found none"),
        (b"\n\n", r"a.tsv: expected lines of source<TAB>target, found none in 2 lines"),
    ],
)
def test_bad_files_get_a_clear_error(tmp_path: Path, content: bytes, words: str) -> None:
    with pytest.raises(UserError, match=words):
        read_pairs(write(tmp_path / "a.tsv", content))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere.tsv: no such file"):
        read_pairs(tmp_path / "nowhere.tsv")
    with pytest.raises(UserError, match="Is a directory"):
        read_pairs(tmp_path)
    with pytest.raises(UserError, match="cannot be read: Not a gzipped file"):
        read_pairs(write(tmp_path / "a.gz", b"a\tb"))
    with pytest.raises(UserError, match="cannot be read: Compressed file ended"):
        read_pairs(write(tmp_path / "b.gz", gzip.compress(b"a\tb" * 1000)[:-9]))


def test_the_split_groups_sources_and_does_not_depend_on_order() -> None:
    pairs = [Pair(f"word{number // 2}", f"said {number}") for number in range(200)]
    training, held = hold_out(pairs, 0.1)
    assert len({pair.source for pair in held}) == 10
    assert {pair.source for pair in training}.isdisjoint(pair.source for pair in held)
    assert sorted(training + held) == sorted(pairs)
    assert {*hold_out(pairs[::-1], 0.1)[1]} == set(held)
    assert len(hold_out(pairs[:4], 0.001)[1]) == 2  # at least one source, with both of its pairs
    with pytest.raises(UserError, match="found 1 distinct source, expected at least 2"):
        hold_out(pairs[:2], 0.5)


def test_the_dictionary_and_its_split() -> None:
    splits = {name: pronunciations(name) for name in ("train", "dev", "test")}
    words = {name: {pair.source for pair in pairs} for name, pairs in splits.items()}
    assert {name: len(one) for name, one in words.items()} == {"train": 104442, "dev": 1197, "test": 11854}
    assert words["train"].isdisjoint(words["test"] | words["dev"])
    everything = dict.fromkeys(pair for pairs in splits.values() for pair in pairs)
    assert Pair("abboud", "AH B UW D") in everything
    assert Pair("abboud", "AH B AW D") in everything
    assert split_of("abboud") in ("train", "dev", "test")
    assert {symbol for pair in everything for symbol in pair.target.split()} == set(
        "AA AE AH AO AW AY B CH D DH EH ER EY F G HH IH IY JH K L M N NG OW OY P R S SH T TH UH UW V W Y Z ZH".split()
    )


# --- tokens ------------------------------------------------------------------------------------------------------------------


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1))
def test_characters_survive_the_round_trip(texts: list[str]) -> None:
    codec = Codec.from_json(Codec.learn(texts, "characters").to_json())
    for text in texts:
        ids = codec.encode(text)
        assert len(ids) == len(text)
        assert UNK not in ids
        assert codec.decode(ids) == text
        assert "".join(codec.tokens(ids)) == text


@given(
    st.lists(
        st.lists(st.text(st.characters(exclude_characters=" ", exclude_categories=["Cs"]), min_size=1), min_size=1), min_size=1
    )
)
def test_symbols_survive_the_round_trip(lines: list[list[str]]) -> None:
    lines = [[symbol for symbol in line if symbol not in SPECIALS] for line in lines]
    codec = Codec.from_json(Codec.learn([" ".join(line) for line in lines], "symbols").to_json())
    for line in lines:
        ids = codec.encode("  ".join(line))
        assert codec.tokens(ids) == tuple(line)
        assert codec.decode(ids) == " ".join(line)


def test_what_was_never_seen_is_unknown() -> None:
    codec = Codec.learn(["AH B", "B C"], "symbols")
    assert codec.tokens(range(len(codec))) == (*SPECIALS, "AH", "B", "C")
    assert codec.encode("AH X  <eos> <pad> C") == [4, UNK, UNK, UNK, 6]
    assert codec.pieces("AH X  <eos> <pad> C") == ("AH", "X", "<eos>", "<pad>", "C")
    assert Codec.learn(["ab"], "characters").pieces("b語🙂 a") == ("b", "語", "🙂", " ", "a")
    with pytest.raises(UserError, match="symbol '<eos>', which has a meaning of its own"):
        Codec.learn(["a <eos>"], "symbols")


# --- batches -----------------------------------------------------------------------------------------------------------------


def test_a_batch_by_hand() -> None:
    batch = collate([Example([7, 8, 9], [5]), Example([7], [6, 5])])
    assert batch.source.values.tolist() == [[7, 8, 9, EOS], [7, EOS, PAD, PAD]]
    assert batch.source.allow.int().tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert batch.target_in_BT.tolist() == [[SOS, 5, PAD], [SOS, 6, 5]]
    assert batch.target_out_BT.tolist() == [[5, EOS, PAD], [6, 5, EOS]]
    assert batch.num_targets == 5
    assert source_batch([[], [4]]).values.tolist() == [[EOS, PAD], [4, EOS]]


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1), st.integers(1, 200), st.integers(0, 3))
def test_an_epoch_holds_every_example_once(sizes: list[tuple[int, int]], batch_tokens: int, epoch: int) -> None:
    examples = [Example([4] * source, [4] * target) for source, target in sizes]
    batches = epoch_order(examples, batch_tokens=batch_tokens, seed=7, epoch=epoch)
    assert sorted(index for batch in batches for index in batch) == list(range(len(examples)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(examples[index].size for index in batch) <= batch_tokens
    assert batches == epoch_order(examples, batch_tokens=batch_tokens, seed=7, epoch=epoch)


def test_order_depends_on_seed_and_epoch_and_wastes_little() -> None:
    pairs = pronunciations("dev")
    source, target = (Codec.learn([pair[side] for pair in pairs], unit) for side, unit in ((0, "characters"), (1, "symbols")))
    examples = encode_pairs(pairs, source, target)
    orders = [epoch_order(examples, batch_tokens=512, seed=seed, epoch=epoch) for seed, epoch in ((1, 0), (1, 1), (2, 0))]
    assert orders[0] != orders[1] != orders[2] != orders[0]
    batches = [collate([examples[index] for index in batch]) for batch in orders[0]]
    padded = sum(batch.target_out_BT.numel() for batch in batches)
    assert sum(batch.num_targets for batch in batches) > 0.8 * padded
    endless = endless_batches(examples, batch_tokens=512, seed=1)
    for batch in batches:
        assert torch.equal(next(endless).target_out_BT, batch.target_out_BT)
    second = collate([examples[index] for index in orders[1][0]])
    assert torch.equal(next(endless).target_out_BT, second.target_out_BT)
