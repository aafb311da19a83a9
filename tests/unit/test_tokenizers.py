"""Vocabularies: units, features, round trips, files that other tools read, and subword dropout."""

import gzip
import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise, product
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from table import EOS, PAD, SOS, UNK
from tokenizers import Tokenizer, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from regard.data.source_text import flat
from regard.data.tokenizers import merges
from regard.data.tokenizers.byte_level import LETTERS, readable, spell, to_bytes
from regard.data.tokenizers.codec import REMARKS, SPECIALS, Codec, TokenUnit, _Reader
from regard.errors import UserError

UNITS: tuple[TokenUnit, ...] = get_args(TokenUnit)
DATA = Path(os.environ.get("REGARD_DATA", Path(__file__).parents[3] / "shared" / "data"))

TEXTS = [
    "Two young men are walking, and walking fast.",
    "A man's 3.14 e-mails (all of them) went to the old man!",
    "Zwei junge Männer gehen über die Straße; größer wäre schöner.",
    "नमस्ते दुनिया, 你好世界 你好, emoji 🙂🙂 👩‍👩‍👧 é é",
    "the the the theme of the men is <eos>, spelt '<eos>' and (<pad>)",
    "    four spaces  two \r\n lines\u2028 ▁low▁ \x00\x07",
]
FEATURES = ["walk\tV\tPST", "talk\tV;3\tPRS", "walk talk\tN", "talking 你好"]

characters = st.one_of(
    st.characters(exclude_categories=["Cs"]),
    st.sampled_from("\t\r\n \u2581\u0301\u200d\ufeff\x00🙂é你<>eos'.,1"),
)
unicode_texts = st.one_of(
    st.text(characters, max_size=40),
    st.lists(st.sampled_from([*SPECIALS, *TEXTS, "\t", "\tV", "\tVX", " ", "  ", "\r\n", "🙂", "ß", "👩‍👩‍👧"]), max_size=6).map(
        "".join
    ),
)


@pytest.fixture(scope="module")
def bpe() -> Codec:
    return Codec.train(TEXTS * 2, "bpe", 400)


@pytest.fixture(scope="module")
def codecs() -> dict[str, Codec]:
    """Every unit, with and without features."""
    plain: dict[str, Codec] = {unit: Codec.train(TEXTS, unit, 400) for unit in UNITS}
    return plain | {f"{unit} with features": Codec.train([*TEXTS, *FEATURES], unit, 400) for unit in UNITS}


def byte_level(codecs: dict[str, Codec]) -> list[Codec]:
    return [codec for name, codec in codecs.items() if name.startswith(("bpe", "unigram"))]


# --- units -------------------------------------------------------------------------------------------------------------------


@settings(max_examples=300)
@given(text=unicode_texts)
def test_byte_level_units_restore_every_text(codecs: dict[str, Codec], text: str) -> None:
    for codec in byte_level(codecs):
        ids = codec.encode(text)
        assert codec.decode(ids) == text
        assert not {PAD, UNK, SOS, EOS}.intersection(ids)
        assert "".join(codec.pieces(text)) == text
        assert len(codec.pieces(text)) == len(ids)


@given(texts=st.lists(unicode_texts, max_size=5), text=unicode_texts)
def test_bpe_trained_on_any_text_reads_every_text(texts: list[str], text: str) -> None:
    codec = Codec.from_json(Codec.train(texts, "bpe", 300).to_json())
    for one in (*texts, text):
        ids = codec.encode(one)
        assert codec.decode(ids) == one
        assert min(ids, default=EOS + 1) > EOS
        assert codec.bpe_dropout(ids, 0, random.Random(1)) == ids
    assert codec.unknown("".join(texts)) == () or any("\t" in one for one in texts)


def test_text_that_spells_a_special_is_text(codecs: dict[str, Codec]) -> None:
    text = "<pad> <unk><sos> <eos> \t<eos>\t<pad>"
    for name, codec in codecs.items():
        ids = codec.encode(text)
        assert not {PAD, SOS, EOS}.intersection(ids), name
    words = codecs["words"]
    assert words.tokens(words.encode("is <eos>")) == ("is", "<", "eos", ">")


def test_bpe_keeps_to_words(bpe: Codec) -> None:
    """No piece crosses from letters to digits or punctuation, and a space belongs to the word that follows."""
    assert bpe.pieces("the man, the men  the ")[:3] == ("the", " man", ",")
    names = {piece for piece in bpe.tokens(range(260, len(bpe))) if piece.isascii()}
    assert {" the", " man"} <= names
    assert all(piece.strip(" ").isalpha() for piece in names if any(map(str.isalpha, piece)))
    assert len(bpe) <= 400


def test_words_are_decoded_to_the_same_text() -> None:
    text = "Don't send 1,000.50 e-mails (or more): it's 50% wrong… isn't it?"
    codec = Codec.from_json(Codec.train([text, "he said so"], "words").to_json())
    ids = codec.encode(text)
    assert codec.tokens(ids) == (
        *(
            "Don't",
            "send",
            "1,000.50",
            "e-mails",
            "(",
            "or",
            "more",
            ")",
            ":",
            "it's",
            "50",
            "%",
            "wrong",
            "…",
            "isn't",
            "it",
            "?",
        ),
    )
    assert codec.decode(ids) == text
    assert codec.decode(codec.encode('said "so",  he said')) == "said <unk> so <unk>, he said".replace(",", " <unk>")
    assert codec.pieces('said  "so"') == ("said", '"', "so", '"')
    assert codec.unknown('said  "so" nothing') == ('"', '"', "nothing")
    assert codec.decode([]) == ""


def test_the_most_frequent_words_are_kept() -> None:
    codec = Codec.train(["b b b a a d", "c c c\tV", "e"], "words", 7)
    assert codec.tokens(range(len(codec))) == (*SPECIALS, "\tV", "a", "b", "c")
    assert codec.encode("a d e b") == [5, UNK, UNK, 6]


def test_a_symbol_that_spells_a_special_is_refused() -> None:
    with pytest.raises(UserError, match="the symbol '<eos>', which is reserved; replace it with another symbol"):
        Codec.train(["a <eos>"], "symbols")


def test_wrong_units_and_sizes() -> None:
    with pytest.raises(UserError, match=r"unknown unit 'word'; expected one of bpe, .*; did you mean \"words\"\?"):
        Codec.train(["a"], "word")  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"got a vocabulary of 259 ids for bpe, expected at least 260: .* all 256 bytes"):
        Codec.train(["a"], "bpe", 259)
    with pytest.raises(UserError, match="got a vocabulary of 4 ids for words, expected at least 5"):
        Codec.train(["a"], "words", 4)
    assert len(Codec.train([], "bpe", 260)) == 260
    assert list(REMARKS) == ["unigram"]
    assert "not reproducible" in REMARKS["unigram"]


@pytest.mark.parametrize("unit", ["bpe", "words", "characters", "symbols"])
def test_a_vocabulary_does_not_depend_on_the_order_of_its_texts(unit: TokenUnit) -> None:
    """So both sides of a pair can be read together for a shared vocabulary."""
    texts = [*TEXTS, *"to be or not to be that is a question".split()]
    assert Codec.train(iter(texts), unit, 400).to_json() == Codec.train(reversed(texts), unit, 400).to_json()


def test_texts_are_read_once_and_their_errors_are_raised() -> None:
    seen = []

    def stream() -> Iterator[str]:
        for text in TEXTS:
            seen.append(text)
            yield text
        raise UserError("the file ends too early")

    for unit in UNITS:
        with pytest.raises(UserError, match="the file ends too early"):
            Codec.train(stream(), unit)
        assert seen == TEXTS
        seen.clear()


# --- features ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", UNITS)
def test_a_feature_is_one_token(unit: TokenUnit) -> None:
    codec = Codec.from_json(Codec.train([*TEXTS, *FEATURES], unit, 400).to_json())
    ids = codec.encode("walk\tV\tPRS")
    assert codec.pieces("walk\tV\tPRS")[-2:] == ("\tV", "\tPRS")
    assert codec.tokens(ids)[-2:] == ("\tV", "\tPRS")
    assert len(ids) == 2 + len(codec.encode("walk"))
    assert ids == codec.encode("walk") + codec.encode("\tV") + codec.encode("\tPRS")
    assert codec.decode(ids) == "walk\tV\tPRS"
    assert codec.unknown("walk\tV\tPRS") == ()
    assert codec.unknown("walk\tX\tV\tPRSX") == ("\tX", "\tPRSX")
    lost = codec.encode("walk\tVX")[len(codec.encode("walk")) :]
    if unit in ("bpe", "unigram"):
        assert codec.decode(lost) == "\tVX"
        assert lost[0] == (codec.encode("\t")[0] if unit == "bpe" else codec.encode("\tV")[0])
    else:
        assert lost == [UNK]


@pytest.mark.parametrize("unit", UNITS)
def test_vocabularies_of_older_versions_have_whole_features(unit: TokenUnit) -> None:
    """They were trained on texts whose features were not split at plus signs."""
    source = ("a+b", "D+;V;IN+ESS")
    older, newer = (Codec.train([flat(source, parts=parts)] * 9, unit, 300) for parts in (False, True))
    assert older.pieces(flat(source))[-2:] == ("\tV", "\tIN+ESS")
    assert newer.pieces(flat(source))[-3:] == ("\tV", "\tIN", "\t+ESS")
    assert older.encode(flat(source)) == older.encode(flat(source, parts=False)) == older.encode_batch([flat(source)])[0]
    assert older.unknown(flat(source)) == newer.unknown(flat(source)) == ()
    assert newer.unknown(flat(("a+b", "V;IN+ALL"))) == ("\t+ALL",)


def test_without_features_a_tab_is_an_ordinary_character() -> None:
    pieces = {unit: Codec.train(["the men"] * 2, unit).pieces("the\tmen") for unit in UNITS}
    assert pieces["bpe"] == ("the", "\t", "men")
    assert pieces["characters"] == tuple("the\tmen")
    assert pieces["words"] == ("the", "men")
    assert pieces["symbols"] == ("the\tmen",)
    assert "\t" in pieces["unigram"]


@given(
    st.lists(st.tuples(st.text(characters, max_size=9), st.lists(st.text(characters, max_size=5), max_size=3)), max_size=5),
    st.sampled_from(["bpe", "characters", "symbols"]),
)
def test_texts_with_features_are_restored(rows: list[tuple[str, list[str]]], unit: TokenUnit) -> None:
    texts = ["\t".join(part.replace("\t", "") for part in (head, *features)) for head, features in rows]
    if unit == "symbols":  # which keeps only the text between spaces
        texts = [
            "\t".join((" ".join(filter(None, head.split(" "))), *rest)) for head, *rest in (one.split("\t") for one in texts)
        ]
    codec = Codec.train(texts, unit)
    for text in texts:
        ids = codec.encode(text)
        assert codec.decode(ids) == text
        assert UNK not in ids
        assert text.count("\t") == sum(token.startswith("\t") for token in codec.tokens(ids))


def test_tabs_that_separate_no_features_are_reported() -> None:
    with pytest.raises(
        UserError, match="more than 300 different features, such as 'cell 300': the text after a TAB is one token"
    ):
        Codec.train((f"text\tcell {number}" for number in range(999)), "bpe", 300)
    reader = _Reader(["ab\tV", "b\tV\tN", ""], 2)  # the library reads in its own thread, where coverage cannot follow
    assert list(reader) == ["ab", "b", ""]
    assert reader.features == {"\tV", "\tN"}
    assert reader.alphabet == {"a", "b"}
    with pytest.raises(UserError, match="more than 1 different features, such as 'N'"):
        list(_Reader(["b\tV\tN"], 1))


# --- pieces and unknown symbols ----------------------------------------------------------------------------------------------


def test_a_split_character_belongs_to_its_first_token() -> None:
    codec = Codec.train(["abc"], "bpe", 260)
    assert codec.pieces("a語🙂b") == ("a", "語", "", "", "🙂", "", "", "", "b")
    assert codec.tokens(codec.encode("語")[:2]) == ("\ufffd", "")
    assert codec.tokens([EOS, *codec.encode("é")]) == ("<eos>", "é", "")


@settings(max_examples=300)
@given(data=st.data())
def test_tokens_of_any_ids_join_to_the_decoded_text(codecs: dict[str, Codec], data: st.DataObject) -> None:
    for codec in byte_level(codecs):
        ids = data.draw(st.lists(st.integers(0, len(codec) - 1)))
        assert "".join(codec.tokens(ids)) == codec.decode(ids)
        assert len(codec.tokens(ids)) == len(ids)


def test_the_letters_of_bytes_are_those_of_the_library() -> None:
    assert set(LETTERS.values()) == set(pre_tokenizers.ByteLevel.alphabet())
    for text in ("\tV é語🙂\x00\x7f\xa0\xad", "".join(TEXTS)):
        ((spelt, _),) = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
        assert spell(text) == spelt
        assert to_bytes(spelt).decode() == text
    assert readable([b"\x80a", b"", b"\xc3", b"", b"\xa9"]) == ["\ufffda", "", "é", "", ""]


def test_characters_that_were_never_seen(bpe: Codec) -> None:
    again = Codec.from_json(bpe.to_json())
    assert again.unknown("the Қазақ men 🙂🙃 Қ") == ("Қ", "а", "з", "а", "қ", "🙃", "Қ")
    assert Codec.train(["ab"], "characters").unknown("abc a c") == ("c", " ", " ", "c")


# --- files -------------------------------------------------------------------------------------------------------------------


def test_other_tools_read_the_file(codecs: dict[str, Codec], tmp_path: Path) -> None:
    for name, codec in codecs.items():
        path = tmp_path / f"{name}.json"
        path.write_text(codec.to_json(), encoding="utf-8")
        library, fast = Tokenizer.from_file(str(path)), PreTrainedTokenizerFast(tokenizer_file=str(path))
        ours = Codec.from_json(path.read_text(encoding="utf-8"))
        assert ours.to_json() == codec.to_json()
        for text in (*TEXTS, *FEATURES, "unseen ħ\tX\tV"):
            if name.startswith("symbols") and "<" in text:
                continue  # only regard knows that this is text and no special
            ids = codec.encode(text)
            assert ours.encode(text) == ids
            assert library.encode(text).ids == ids
            assert fast(text)["input_ids"] == ids
            assert library.decode(ids, skip_special_tokens=False) == codec.decode(ids)
            assert fast.decode(ids) == codec.decode(ids)


TRAIN = """
import sys
from regard.data.tokenizers.codec import Codec
texts = sys.stdin.read().split("\\n\\n")
for unit in ("bpe", "characters", "words", "symbols"):
    print(Codec.train(iter(texts), unit, 500).to_json())
"""


def test_equal_texts_give_equal_files() -> None:
    """In other processes, with other hash seeds and numbers of threads. All counts tie."""
    words = ["".join(random.Random(number).choices("abcdefg", k=5)) for number in range(300)]
    texts = [*(f"{one} {one}" for one in words), *FEATURES]
    expected = "".join(Codec.train(texts, unit, 500).to_json() + "\n" for unit in ("bpe", "characters", "words", "symbols"))
    for seed, threads in (("0", "1"), ("1", "3"), ("77", "7")):
        env = {**os.environ, "PYTHONHASHSEED": seed, "RAYON_NUM_THREADS": threads}
        command = [sys.executable, "-c", TRAIN]
        done = subprocess.run(command, input="\n\n".join(texts), capture_output=True, text=True, check=True, env=env)
        assert done.stdout == expected
    bpe = json.loads(Codec.train(texts, "bpe", 500).to_json())["model"]
    assert len(bpe["merges"]) == 500 - 260


def test_a_batch_equals_texts_one_by_one(codecs: dict[str, Codec]) -> None:
    for codec in codecs.values():
        texts = [*TEXTS, *FEATURES, "", "<eos> ħ"]
        assert codec.encode_batch(texts) == [codec.encode(text) for text in texts]
        assert codec.encode_batch([]) == []


FORK = """
import os, signal
from regard.data.tokenizers.codec import Codec
codec = Codec.train(["some text", "more text"] * 50, "bpe", 300)
ids = codec.encode_batch(["some text"] * 1000)
child = os.fork()
if not child:
    signal.alarm(20)
    os._exit(0 if codec.encode_batch(["some text"] * 1000) == ids else 1)
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_fork_encodes_without_a_warning() -> None:
    env = {name: value for name, value in os.environ.items() if name != "TOKENIZERS_PARALLELISM"}
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=60, env=env)
    assert done.returncode == 0, done.stderr
    assert "parallelism" not in done.stderr


# --- subword dropout ---------------------------------------------------------------------------------------------------------


@settings(max_examples=300)
@given(text=unicode_texts, seed=st.integers(0, 9), p=st.sampled_from([0.01, 0.1, 0.5, 0.9, 1.0]))
def test_dropout_changes_the_segmentation_only(codecs: dict[str, Codec], text: str, seed: int, p: float) -> None:
    for name in ("bpe", "bpe with features"):
        codec = codecs[name]
        ids = codec.encode(text)
        assert codec.bpe_dropout(ids, 0, random.Random(seed)) == ids
        dropped = codec.bpe_dropout(ids, p, random.Random(seed))
        assert codec.decode(dropped) == text
        assert codec.bpe_dropout(dropped, 0, random.Random(seed)) == ids
        assert codec.bpe_dropout(ids, p, random.Random(seed)) == dropped


def test_all_merges_skipped_leaves_bytes(codecs: dict[str, Codec]) -> None:
    codec = codecs["bpe with features"]
    ids = codec.encode("talking 你好\tV\tPST")
    dropped = codec.bpe_dropout([SOS, *ids, EOS], 1, random.Random(3))
    assert dropped[0] == SOS
    assert dropped[-3:] == [*codec.encode("\tV\tPST"), EOS]
    assert len(dropped) == len("talking 你好".encode()) + 4
    assert codec.bpe_dropout([], 0.5, random.Random(3)) == []


def paper_dropout(ranks: dict[tuple[str, ...], int], text: str, p: float, chance: random.Random) -> tuple[str, ...]:
    """Algorithm 1 of Provilkov et al. 2020 on one word, as written in the paper."""
    split = list(text)
    while True:
        pairs = [(ranks[pair], index) for index, pair in enumerate(pairwise(split)) if pair in ranks]
        pairs = [pair for pair in pairs if chance.random() >= p]
        if not pairs:
            return tuple(split)
        _, index = min(pairs)
        split[index : index + 2] = ["".join(split[index : index + 2])]


@pytest.mark.parametrize("long", [merges.LONG, 0])
@pytest.mark.parametrize("p", [0.1, 0.5])
def test_dropout_is_that_of_the_paper(p: float, long: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compares the frequency of each segmentation with the paper's algorithm, with and without the cache."""
    monkeypatch.setattr(merges, "LONG", long)
    codec, number = Codec.train(["abcbab abcb bab cbab"] * 3, "bpe", 300), 6000
    ids, chance = codec.encode("abcbabcb"), random.Random(5)
    ours = Counter(codec.tokens(codec.bpe_dropout(ids, p, chance)) for _ in range(number))
    ranks = {tuple(pair): rank for rank, pair in enumerate(json.loads(codec.to_json())["model"]["merges"])}
    papers = Counter(paper_dropout(ranks, "abcbabcb", p, chance) for _ in range(number))
    assert len(ours) > 5
    for segmentation in ours | papers:
        share = (ours[segmentation] + papers[segmentation]) / 2 / number
        assert (
            abs(ours[segmentation] - papers[segmentation]) / number < 5 * (2 * share * (1 - share) / number) ** 0.5 + 1 / number
        )


def test_words_drop_independently() -> None:
    """One draw may be used for several words, which must be independent."""
    codec, number, chance = Codec.train(["ab,ab;ab"], "bpe", 261), 6000, random.Random(11)  # a vocabulary with one merge
    ids = codec.encode("ab,ab;ab")
    assert len(ids) == 5
    split = Counter(tuple(codec.bpe_dropout(ids, 0.3, chance)) for _ in range(number))
    assert len(split) == 8
    for segmentation, times in split.items():
        skipped = len(segmentation) - 5
        share = 0.3**skipped * 0.7 ** (3 - skipped)
        assert abs(times / number - share) < 5 * (share * (1 - share) / number) ** 0.5


def test_bytes_that_merge_in_words_do_not_merge_across_them() -> None:
    """The last byte of é and the first of ⴰ are merged in words; é… has the same bytes there, but at the end of a word."""
    words = ["".join(pair) for pair in product("éũƩ", "ⴰⵀⱠ")]
    for texts in (words, [*words, "a\tV"]):
        codec = Codec.train(texts * 2, "bpe", 261 + 3)
        assert "\xa9\xe2".encode("latin-1") in {to_bytes(one) for one in codec.tokenizer.get_vocab() if one not in SPECIALS}
        for text in ("éⴰ", "é…", "é…\té…", "é \té…\té…", "\té…", "…é…\tV"):
            ids = codec.encode(text)
            assert codec.bpe_dropout(ids, 0, random.Random(1)) == ids
            assert codec.bpe_dropout(codec.bpe_dropout(ids, 1, random.Random(1)), 0, random.Random(1)) == ids
    assert len(codec.encode("é…")) == len(codec.encode("\té…"))  # one merge in the feature, which is one word


@given(st.text("ab ", max_size=400), st.sampled_from([0, 0.2, 0.9]))
def test_long_words_have_the_same_segmentation(text: str, p: float) -> None:
    codec = Codec.train(["abaababbaab" * 3, "aaaaaaaa aaaa bbb bb", text], "bpe", 290)
    ids = codec.encode(text)
    assert codec.bpe_dropout(ids, 0, random.Random(1)) == ids
    dropped = codec.bpe_dropout(ids, p, random.Random(1))
    assert codec.decode(dropped) == text
    assert codec.bpe_dropout(dropped, 0, random.Random(1)) == ids


def test_a_full_cache_changes_nothing(monkeypatch: pytest.MonkeyPatch, bpe: Codec) -> None:
    texts = TEXTS * 5
    full, small = random.Random(2), random.Random(2)
    expected = [bpe.bpe_dropout(bpe.encode(text), 0.3, full) for text in texts]
    monkeypatch.setattr(merges, "MOST_STATES", 20)
    with_small_cache = Codec.from_json(bpe.to_json())
    assert [with_small_cache.bpe_dropout(bpe.encode(text), 0.3, small) for text in texts] == expected
    assert len(with_small_cache._merges._states) <= 20


def test_dropout_of_ids_that_are_not_valid_text(bpe: Codec) -> None:
    ids = [*bpe.encode("語")[1:], *bpe.encode(" the 語")[:-1], EOS]
    dropped = bpe.bpe_dropout(ids, 0.5, random.Random(3))
    assert bpe.decode(dropped) == bpe.decode(ids)


def test_wrong_uses_of_dropout(codecs: dict[str, Codec]) -> None:
    with pytest.raises(UserError, match=r"subword dropout is 1\.5, expected a probability from 0 to 1"):
        codecs["bpe"].bpe_dropout([5], 1.5, random.Random(1))
    for unit in ("unigram", "characters"):
        with pytest.raises(UserError, match="needs merges, which only the unit bpe has; use bpe, or set it to 0"):
            codecs[unit].bpe_dropout([5], 0.5, random.Random(1))


@pytest.mark.slow
@pytest.mark.skipif(not (DATA / "multi30k").exists(), reason="needs multi30k in $REGARD_DATA or ../shared/data")
def test_captions_in_two_languages() -> None:
    lines = []
    for side in ("en", "de"):
        with gzip.open(DATA / "multi30k" / f"train.{side}.gz", "rt", encoding="utf-8", newline="\n") as file:
            lines += file.read().split("\n")
    codec = Codec.train(iter(lines), "bpe", 8000)
    encoded = codec.encode_batch(lines)
    assert [codec.decode(ids) for ids in encoded] == lines
    chance = random.Random(7)
    assert [codec.bpe_dropout(ids, 0, chance) for ids in encoded] == encoded
    assert sum(map(len, encoded)) < 16 * len(lines)
    dropped = [codec.bpe_dropout(ids, 0.1, chance) for ids in encoded[::10]]
    assert [codec.decode(ids) for ids in dropped] == lines[::10]
    growth = sum(map(len, dropped)) / sum(map(len, encoded[::10]))
    assert 1.2 < growth < 1.4
