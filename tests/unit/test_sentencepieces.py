"""The unit sentencepiece: training, ids and texts as by the library and by Hugging Face's Marian; files; what is refused."""

import json
import os
import random
import sys
import unicodedata
import warnings
from dataclasses import replace
from itertools import product
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import sentencepiece
from transformers import MarianTokenizer

import regard
from regard.contracts import OWN, Specials
from regard.data.tokenizers.sentencepieces import SentencePieces
from regard.data.tokenizers.spm import read_spm
from regard.data.tokenizers.units import read_codec, train_codec
from regard.errors import UserError
from regard.languages import Language
from regard.links import Units
from regard.models.build import build
from regard.models.transformer import PRESETS

TEXTS = [
    f"{subject} {verb} {what}."
    for subject, verb, what in product(
        ("The dog", "A red cat", "Nobody", "Zoë's über-fish"),
        ("sees", "reads", "carries", "doesn't like", "überquert"),
        ("the moon", "3 books", "a naïve idea", "the street", "1,000 cafés", "seventeen blue elephants"),
    )
]
HARD = [
    "A red  cat   sees\u00a0the moon. ",
    "ﬁsh ² ½ Ａ１",
    unicodedata.normalize("NFD", "Zoë überquert"),
    "unseen: 你好 🐘 \u200b x",
    "</s> <s> <unk> <pad> <0x41> ▁the",
    "",
    " ",
    "\u0301x",
]


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def codec(request: pytest.FixtureRequest) -> SentencePieces:
    return SentencePieces.train(TEXTS, request.param, 400, "nmt_nfkc")


@pytest.fixture(scope="module")
def unigram() -> SentencePieces:
    return SentencePieces.train(TEXTS, "unigram", 400, "nmt_nfkc")


def test_ids_and_texts_are_those_of_the_library(codec: SentencePieces) -> None:
    library = sentencepiece.SentencePieceProcessor(model_proto=codec.spm)
    assert codec.encode_batch([*TEXTS, *HARD]) == [library.encode(text) for text in (*TEXTS, *HARD)]
    for text in (*TEXTS, *HARD):
        ids = codec.encode(text)
        assert codec.decode(ids) == library.decode(ids)
        assert codec.normalised(text) == library.normalize(text).replace("▁", " ").removeprefix(" ")
    assert [codec.tokens((number,))[0] for number in range(4)] == ["<pad>", "<unk>", "<s>", "</s>"]
    assert len(codec) == library.get_piece_size()
    assert read_spm(codec.spm).pieces == tuple(library.id_to_piece(number) for number in range(len(codec)))
    assert codec.specials == OWN
    assert codec.decode([2, *codec.encode("the dog"), 3, 0]) == "the dog"


def test_pieces_join_to_the_normalised_text_and_nothing_is_unknown(codec: SentencePieces) -> None:
    for text in (*TEXTS, *HARD):
        pieces = codec.pieces(text)
        assert "".join(pieces) == codec.normalised(text)
        assert len(pieces) == len(codec.encode(text))
        assert codec.normalised(codec.normalised(text)) == codec.normalised(text)
        assert codec.unknown(text) == ()
    assert codec.labels("the dog")[-1] == "</s>"


def test_training_is_reproducible(codec: SentencePieces) -> None:
    algorithm = read_spm(codec.spm).algorithm
    again = train_codec(iter(TEXTS), "sentencepiece" if algorithm == "unigram" else "sentencepiece_bpe", 400, "nmt_nfkc")
    assert again.to_json() == codec.to_json()
    assert SentencePieces.train(TEXTS[1:], "unigram", 400, "nmt_nfkc").to_json() != codec.to_json()


@pytest.mark.parametrize(("rule", "text"), [("none", "A  ﬁ"), ("nfkc", "A fi"), ("nmt_nfkc_cf", "a fi")])
def test_rules_of_normalisation(rule: str, text: str) -> None:
    codec = SentencePieces.train(TEXTS, "bpe", 330, rule)  # type: ignore[arg-type]
    assert codec.normalised("A  ﬁ") == text
    assert codec.decode(codec.encode("A  ﬁ")) == text
    assert codec.normal_form == rule


def test_long_lines_count_too() -> None:
    codec = SentencePieces.train([*TEXTS, "qwxz " * 2000], "bpe", 400, "none")
    assert "▁qwxz" in codec.vocabulary


def test_a_rule_that_the_user_names() -> None:
    units = {"source_unit": "sentencepiece_bpe", "target_unit": "sentencepiece_bpe", "normalise": "nfkc_cf"}
    settings = {"kind": "rnn", "width": 8, "embedding": 4, "steps": 1, "vocabulary": 330, "quiet": True}
    model = regard.train(PAIRS, **units, **settings)  # type: ignore[arg-type]
    assert model("The DOG", max_length=2).source == "the dog"


def test_words_of_an_alignment(unigram: SentencePieces) -> None:
    text = "the seventeen  elephants."
    tokens = unigram.tokens(unigram.encode(text))
    units = unigram.units(unigram.decode(unigram.encode(text)), tokens)
    assert units.number == 3
    assert units.of_tokens == unigram.units(unigram.normalised(text), unigram.pieces(text)).of_tokens
    assert units == Units.words(unigram.normalised(text), unigram.pieces(text))  # as other codecs count them
    assert unigram.units(text, tokens, pieces=True) == Units.tokens(len(tokens))
    assert unigram.units("x  ⁇ ", (" x", " <unk>", " ", "y", "")).of_tokens == (0, 1, None, 2, 2)


# --- vocabularies of others --------------------------------------------------------------------------------------------------


MISSING = "Zoë"


def as_marian(folder: Path, source: SentencePieces, target: SentencePieces) -> tuple[list[str], MarianTokenizer]:
    """Returns a joint vocabulary as Marian has it, and Hugging Face's tokenizer of it: </s> first, <pad> last."""
    missing = source.vocabulary[source.encode(MISSING)[-1]]
    pieces = sorted({*source.vocabulary, *target.vocabulary} - {"<pad>", "<unk>", "<s>", "</s>", missing})
    random.Random(3).shuffle(pieces)
    tokens = ["</s>", "<unk>", *pieces, ">>deu<<", ">>fra<<", "<pad>"]
    (folder / "source.spm").write_bytes(source.spm)
    (folder / "target.spm").write_bytes(target.spm)
    (folder / "vocab.json").write_text(json.dumps({token: number for number, token in enumerate(tokens)}))
    files = {"source_spm": folder / "source.spm", "target_spm": folder / "target.spm", "vocab": folder / "vocab.json"}
    with warnings.catch_warnings(action="ignore"):  # it recommends sacremoses
        return tokens, MarianTokenizer(**{name: str(path) for name, path in files.items()})


@pytest.fixture(scope="module")
def marian(tmp_path_factory: pytest.TempPathFactory) -> tuple[SentencePieces, SentencePieces, MarianTokenizer]:
    first, second = (SentencePieces.train(TEXTS[start::2], "unigram", 350, "nmt_nfkc") for start in (0, 1))
    tokens, theirs = as_marian(tmp_path_factory.mktemp("marian"), first, second)
    pad = len(tokens) - 1
    specials = Specials(pad=pad, unk=1, start=pad, eos=0, never=(pad,))
    return SentencePieces(first.spm, tokens, specials), SentencePieces(second.spm, tokens, specials), theirs


def test_two_models_with_one_vocabulary_as_marian_has_them(
    marian: tuple[SentencePieces, SentencePieces, MarianTokenizer],
) -> None:
    source, target, theirs = marian
    for text in (*TEXTS[::7], *HARD[:4], *HARD[5:], ">>fra<< A red cat sees the moon."):
        assert [*source.encode(text), source.specials.eos] == theirs(text).input_ids
        assert [*target.encode(text), 0] == theirs(text_target=text).input_ids
        ids = target.encode(text)
        if target.specials.unk not in ids:
            assert target.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
        assert target.decode([target.specials.pad, *ids, 0]) == target.decode(ids)
    assert sum(target.specials.unk not in target.encode(text) for text in TEXTS) > 9
    (unknown,) = source.unknown(MISSING)  # the vocabulary lacks it
    assert unknown in MISSING
    assert source.encode(MISSING).count(source.specials.unk) == 1
    assert len(source.pieces(MISSING)) == len(source.encode(MISSING))
    assert source.pieces(">>fra<<  The dog")[0] == ">>fra<<"
    assert "".join(source.pieces(">>fra<<  The dog")) == source.normalised(">>fra<<  The dog") == ">>fra<< The dog"
    assert source.encode(">>xyz<< The dog")[0] != source.encode(">>fra<< The dog")[0]
    assert source.prefix_tokens == (">>deu<<", ">>fra<<")
    assert source.labels("the")[-1] == "</s>"


def test_special_tokens_that_the_spm_lacks_are_not_written_out(unigram: SentencePieces) -> None:
    filler = len(unigram)
    codec = SentencePieces(unigram.spm, (*unigram.vocabulary, "<filler>"), replace(OWN, pad=filler))
    assert codec.decode([filler, *codec.encode("the dog"), filler]) == "the dog"


def test_files_bring_back_the_same_codec(marian: tuple[SentencePieces, SentencePieces, MarianTokenizer]) -> None:
    for codec in marian[:2]:
        inside = read_codec(codec.to_json().encode())
        apart = read_codec(codec.to_json(attached=True).encode(), lambda suffix, codec=codec: codec.attachments[suffix])
        for again in (inside, apart):
            assert again.to_json() == codec.to_json()
            assert again.specials == codec.specials
            assert again.encode(TEXTS[0]) == codec.encode(TEXTS[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sha256": "0"}, "it belongs to another .spm: the sha256 differs"),
        ({"spm": "?"}, "its spm is '\\?', expected the content of a .spm in base 64"),
        ({"vocabulary": ["a", 3]}, "its vocabulary is \\['a', 3\\], expected a list of tokens"),
        ({"vocabulary": ["a", "a", "b", "c"]}, "duplicate tokens: 1"),
        ({"vocabulary": ["x1", "y1", "z1", "q1"]}, "its vocabulary contains no piece of the SentencePiece model"),
        ({"specials": {"pad": 3}}, "padding has the id 3, which is also that of <eos>"),
        ({"specials": {"eos": 7000}}, "a special token has the id 7000, but its vocabulary has ids 0 to"),
        ({"code": "x"}, "its code is unknown"),
    ],
)
def test_descriptions_that_are_wrong(unigram: SentencePieces, change: dict[str, object], message: str) -> None:
    content = json.loads(unigram.to_json()) | change
    with pytest.raises(UserError, match=message):
        read_codec(json.dumps(content).encode())


def test_damaged_models_end_in_an_error_or_work(unigram: SentencePieces) -> None:
    """The library reads only what our parser has accepted; it must then survive any text."""
    rng, refused = random.Random(5), 0
    small = SentencePieces.train(TEXTS, "bpe", 330, "none").spm
    for number in range(400):
        content = bytearray(unigram.spm if number % 8 == 0 else small)
        for _ in range(rng.choice((1, 1, 3))):
            content[rng.randrange(len(content))] = rng.randrange(256)
        damaged = bytes(content[: rng.randrange(len(content))]) if number % 5 == 0 else bytes(content)
        try:
            codec = SentencePieces(damaged)
        except (UserError, ValueError):
            refused += 1
            continue
        codec.decode(codec.encode(HARD[1] + TEXTS[3]))
    assert 100 < refused < 400


def test_a_table_that_points_outside_of_itself_is_refused(unigram: SentencePieces) -> None:
    start = unigram.spm.index(b"nmt_nfkc")
    table = unigram.spm.index((len(unigram.spm) // 1024).to_bytes(1, "little"), start)  # somewhere in the table
    damaged = bytearray(unigram.spm)
    for at in range(table + 64, table + 40_000, 4):
        damaged[at : at + 4] = b"\xff\xff\xff\x7f"
    with pytest.raises(UserError, match="the table of its normalisation is damaged"):
        read_spm(bytes(damaged))


# --- training and model folders ----------------------------------------------------------------------------------------------

PAIRS = [(text, text.replace("the", "die").replace("dog", "Hund")) for text in TEXTS]
SMALL = {"steps": 3, "vocabulary": 330, "width": 16, "heads": 2, "feed_forward": 16, "batch_tokens": 200}
LAYERS = {"encoder_layers": 1, "decoder_layers": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("portable") / "model"
    regard.train(PAIRS, path, portable=True, languages=("en", "de"), quiet=True, **SMALL, **LAYERS)  # type: ignore[arg-type]
    return path


def test_portable_training(folder: Path) -> None:
    model = regard.load(folder)
    settings = model.training["settings"]
    assert settings["data"]["source_unit"] == settings["data"]["target_unit"] == "sentencepiece"
    assert (settings["data"]["shared"], settings["data"]["normalise"]) == (True, "nmt_nfkc")
    assert (settings["model"]["norm_order"], settings["model"]["layout"], settings["model"]["tie"]) == ("post", "halves", "all")
    assert model.languages.target == (Language("de", "German"),)
    assert (folder / "source.spm").read_bytes() == (folder / "target.spm").read_bytes()
    result = model("The dog sees the moon.", max_length=5)
    assert result.alignment() is not None
    assert model.score(["The dog"], ["the moon"])[0].tokens == ("the", " moon") or len(model.target.encode("the moon")) != 2
    again = regard.train(PAIRS, portable=True, languages=("en", "de"), quiet=True, **SMALL, **LAYERS)  # type: ignore[arg-type]
    assert all((one == same).all() for one, same in zip(again.model.parameters(), model.model.parameters(), strict=True))


def test_a_model_goes_on_training_with_its_vocabulary(folder: Path, tmp_path: Path) -> None:
    model = regard.train(PAIRS, tmp_path / "more", start_from=folder, steps=2, quiet=True)
    assert model.target.to_json() == regard.load(folder).target.to_json()
    assert model.training["settings"]["data"]["normalise"] == "nmt_nfkc"


def test_a_converted_model_goes_on_training(
    marian: tuple[SentencePieces, SentencePieces, MarianTokenizer], tmp_path: Path
) -> None:
    """It has no settings of a run, and its ids are those of others."""
    source, target, _ = marian
    settings = replace(PRESETS["marian"], width=16, heads=2, feed_forward=16, encoder_layers=1, decoder_layers=1)
    model = build(settings, len(source), len(target), specials=target.specials)
    regard.Translator.of_model(model, source, target).save(tmp_path / "converted")
    trained = regard.train(PAIRS, tmp_path / "more", start_from=tmp_path / "converted", steps=2, batch_tokens=200, quiet=True)
    assert trained.target.specials == target.specials
    assert regard.load(tmp_path / "more", engine="torch")("The dog", max_length=4) == trained("The dog", max_length=4)


@pytest.mark.parametrize("name", ["source.spm", "target.spm"])
def test_a_changed_file_is_noticed(folder: Path, tmp_path: Path, name: str) -> None:
    model = regard.load(folder)
    model.save(tmp_path / "copy")
    path = tmp_path / "copy" / name
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(UserError, match=f"{name} is damaged: its sha256 differs"):
        regard.load(tmp_path / "copy")
    path.unlink()
    with pytest.raises(UserError, match=f"{name} cannot be read: No such file"):
        regard.load(tmp_path / "copy")


def test_texts_that_name_a_language(tmp_path: Path) -> None:
    pairs = [(f">>{code}<< {source}", target) for code in ("deu", "fra") for source, target in PAIRS]
    model = regard.train(pairs, tmp_path / "model", portable=True, quiet=True, **SMALL, **LAYERS)  # type: ignore[arg-type]
    model = regard.load(tmp_path / "model")
    assert [language.prefix for language in model.languages.target] == [">>deu<<", ">>fra<<"]
    source = model.languages.prefixed("The dog", "fr")
    assert "".join(model(source, max_length=3).source_tokens) == ">>fra<< The dog"
    assert len(model.source) == model.source.encode(">>fra<<")[0] + 1
    assert isinstance(model.source, SentencePieces)
    assert not any(">" in piece for piece in read_spm(model.source.spm).pieces if not piece.startswith("<"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "decoder_only", "target_unit": "sentencepiece"}, "continues texts, but SentencePiece puts a space"),
        ({"kind": "tagger", "source_unit": "sentencepiece", "target_unit": "sentencepiece"}, "set both to one of symbols"),
        ({"source_unit": "sentencepiece", "target_unit": "bpe"}, "set both to sentencepiece"),
        (
            {"source_unit": "sentencepiece", "target_unit": "sentencepiece", "normalise": "nfc"},
            "set normalise=nmt_nfkc, or none",
        ),
        ({"normalise": "nfkc"}, "normalise=nfkc is one of the unit sentencepiece, but the unit is"),
        (
            {"source_unit": "sentencepiece", "target_unit": "sentencepiece", "subword_dropout": 0.1},
            "only the unit bpe has merges",
        ),
        ({"portable": True, "kind": "rnn"}, "portable chooses model and vocabulary, but model.kind is rnn"),
    ],
)
def test_settings_that_do_not_fit(changes: dict[str, object], message: str) -> None:
    texts = [target for _, target in PAIRS] if changes.get("kind") == "decoder_only" else PAIRS
    with pytest.raises(UserError, match=message):
        regard.train(texts, quiet=True, **{"steps": 1, **changes})  # type: ignore[arg-type]


def test_what_cannot_be_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    for texts, vocabulary, message in (
        (["walk\tV"], 330, "a text contains a TAB, which separates columns: 'walk\\\\tV'"),
        (TEXTS, 20, "SentencePiece could not train 20 pieces"),
    ):
        with pytest.raises(UserError, match=message):
            SentencePieces.train(texts, "bpe", vocabulary, "none")
    codec = SentencePieces.train(TEXTS, "bpe", 330, "none")
    with pytest.raises(UserError, match="subword dropout needs merges, which only the unit bpe has"):
        codec.bpe_dropout([5], 0.1, random.Random(1))
    with pytest.raises(UserError, match="is not valid Unicode: it contains a lone surrogate"):
        codec.encode("a\ud800")
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(UserError, match=r'needs SentencePiece; type: pip install "regard\[interop\]"'):
        SentencePieces.train(TEXTS, "bpe", 330, "none")


def test_sources_of_files_are_refused(tmp_path: Path) -> None:
    from regard.training.settings import DataSettings, RunSettings
    from regard.training.suggest import Suggestion
    from regard.training.suggest_portable import suggest_portable

    settings = RunSettings()
    pictures = replace(settings, data=DataSettings(source_unit="picture"), model=replace(settings.model, frontend="picture"))  # type: ignore[call-arg]
    with pytest.raises(UserError, match="--portable trains models that read texts, but the sources are files"):
        suggest_portable(Suggestion(pictures, {}), 100)


def message(field: int, content: bytes) -> bytes:
    """Returns a field of a protobuf message."""
    return bytes([field << 3 | 2, len(content)]) + content


def piece(text: bytes, kind: int, score: bytes = b"\0\0\0\0") -> bytes:
    return message(1, message(1, text) + b"\x15" + score + bytes([3 << 3, kind]))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "it has 0 pieces for what is unknown, expected one"),
        (piece(b"a", 1), "it has 0 pieces for what is unknown, expected one"),
        (piece(b"<unk>", 2) + piece(b"a", 1) * 2, "its vocabulary contains duplicate pieces: 1"),
        (piece(b"<unk>", 2) + piece(b"<0x41>", 6), "it has 1 pieces for single bytes, expected all 256"),
        (piece(b"<unk>", 2) + piece(b"a", 9), "piece 1 is 'a' of type 9"),
        (piece(b"<unk>", 2) + piece(b"\xff", 1), "piece 1 is not valid UTF-8"),
        (piece(b"<unk>", 2, b"\0\0\xc0\x7f"), "the score of piece 0 is not finite"),
        (piece(b"<unk>", 2) + message(2, b"\x18\x04"), "its algorithm has the number 4, expected a model of the type unigram"),
        (piece(b"<unk>", 2) + message(3, message(2, b"\0\4\0\0" + b"\0" * 8)), "the table of its normalisation is damaged"),
        (piece(b"<unk>", 2)[:-3], "is damaged, or is not a SentencePiece model"),
        (b"\xff" * 12, "is damaged, or is not a SentencePiece model"),
        (b"PK\x03\x04", "is damaged, or is not a SentencePiece model"),
    ],
)
def test_what_no_sentencepiece_model_holds(content: bytes, expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        read_spm(content)
    assert read_spm(piece(b"<unk>", 2) + piece(b"a", 1)).pieces == ("<unk>", "a")
