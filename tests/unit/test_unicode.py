"""One text in several Unicode spellings (NFC, NFD) is one text: in vocabularies, in the data, and wherever a model reads."""

import io
import json
import shutil
import unicodedata
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import get_args

import pytest
import torch
from rich.console import Console
from table import UNK
from tokenizers import Tokenizer

from regard.data.corpus import Normalisation, Pair, stream_pairs
from regard.data.counts import CorpusCounts
from regard.data.held_out import is_held_out
from regard.data.sounds import Sounds
from regard.data.source_text import flat
from regard.data.test_set import read_test_set
from regard.data.tokenizers.codec import Codec, TokenUnit
from regard.data.tokenizers.normal import nfc
from regard.errors import UserError
from regard.models.build import build
from regard.models.rnn_seq2seq import RnnSettings
from regard.pipeline import Translator
from regard.training.data import StartCodecs, in_memory
from regard.training.settings import DataSettings
from regard.training.survey import names_files, survey
from regard.training.tokenise import from_files

WORDS = ["café", "naïve", "Ärger", "Žižek", "tiếng Việt", "한국어", "ñandú", "x̂ y̌ can be two", "plain"]


def nfd(text: str) -> str:
    return unicodedata.normalize("NFD", text)


ALONE = ["\u212b", "\u0958", "\u1112\u1161\u11ab", "\u0344", "\u2126", "\u037e", "\ufb1d", "\U0001d15e"]
"""Characters that NFC changes although they occur alone: the Ångström sign, a composition exclusion, decomposed Hangul, …"""


# --- vocabularies ------------------------------------------------------------------------------------------------------------


def test_the_library_and_python_agree_on_characters() -> None:
    for code in range(0x110000):
        char = chr(code)
        if not unicodedata.decomposition(char) and not 0xAC00 <= code <= 0xD7A3:
            continue
        assert nfc(char) == unicodedata.normalize("NFC", char), hex(code)
        if code != 0x11938 and unicodedata.unidata_version < "15.9":  # the library supports Unicode as of 2019
            assert nfc(nfd(char)) == unicodedata.normalize("NFC", char), hex(code)
    assert nfc("half \ud800 é") == "half \ud800 é"  # encoding it is an error, reported elsewhere


@pytest.mark.parametrize("unit", get_args(TokenUnit))
def test_both_spellings_are_the_same_tokens(unit: TokenUnit) -> None:
    codec = Codec.train([*WORDS, *map(nfd, WORDS)], unit, 400, normalise=True)
    kept = Codec.from_json(codec.to_json())
    other_tool = Tokenizer.from_str(codec.to_json())
    assert json.loads(codec.to_json())["normalizer"] == {"type": "NFC"}
    for text in WORDS:
        for one in (codec, kept):
            assert one.normalises
            assert one.encode(nfd(text)) == one.encode(text) == other_tool.encode(nfd(text)).ids
            assert one.encode_batch([nfd(text)]) == [one.encode(text)]
            assert one.pieces(nfd(text)) == one.pieces(text)
            assert one.labels(nfd(text)) == one.labels(text)
            assert one.unknown(nfd(text)) == ()
            assert UNK not in one.encode(nfd(text))
    unseen = codec.unknown("caf\u0065\u0302")
    assert unseen == (("café"[:3] + "ê",) if unit in ("words", "symbols", "labels") else ("ê",))


@pytest.mark.parametrize("unit", get_args(TokenUnit))
def test_a_vocabulary_without_a_normaliser_reads_as_before(unit: TokenUnit) -> None:
    codec = Codec.train(WORDS, unit, 400)
    assert json.loads(codec.to_json())["normalizer"] is None
    assert not codec.normalises
    assert codec.normalised(nfd("é")) == nfd("é")
    assert codec.encode(nfd("café")) != codec.encode("café")
    assert "".join(codec.pieces(nfd("café"))) == nfd("café")
    assert codec.unknown(nfd("café"))


@pytest.mark.parametrize("text", ALONE)
@pytest.mark.parametrize("unit", get_args(TokenUnit))
def test_pieces_are_those_of_the_normalised_text(unit: TokenUnit, text: str) -> None:
    codec = Codec.train([*ALONE, *WORDS], unit, 400, normalise=True)
    given = f"a{text}b"
    assert nfc(given) == unicodedata.normalize("NFC", given) != given
    assert len(codec.pieces(given)) == len(codec.encode(given))
    if unit != "words":
        assert "".join(codec.pieces(given)) == nfc(given)
    assert codec.decode(codec.encode(text)).replace(" ", "") == nfc(text)


@pytest.mark.parametrize("unit", get_args(TokenUnit))
def test_features_are_normalised_too(unit: TokenUnit) -> None:
    codec = Codec.train([f"aller\t{nfd('passé')}", "aller\tV"], unit, 400, normalise=True)
    assert codec.has_features
    assert codec.encode("aller\tpassé") == codec.encode(nfd("aller\tpassé"))
    assert codec.pieces(nfd("aller\tpassé"))[-1] == "\tpassé"
    assert codec.unknown("aller\tpassé") == codec.unknown(nfd("aller\tpassé")) == ()


def test_shared_vocabularies_and_subword_dropout() -> None:
    codec = Codec.train([*map(nfd, WORDS), *WORDS], "bpe", 400, normalise=True)
    assert codec.to_json() == Codec.train([*WORDS, *WORDS], "bpe", 400, normalise=True).to_json()
    assert codec.alphabet == "".join(sorted(set("".join(map(nfc, WORDS)))))
    for text in WORDS:
        ids = codec.encode(nfd(text))
        assert codec.bpe_dropout(ids, 0.0, Random(0)) == ids
        assert codec.decode(codec.bpe_dropout(ids, 0.5, Random(0))) == nfc(text)


# --- data --------------------------------------------------------------------------------------------------------------------


def write(path: Path, rows: list[tuple[str, ...]]) -> Path:
    path.write_text("".join("\t".join(row) + "\n" for row in rows))
    return path


def test_a_file_is_read_in_one_spelling_and_changes_are_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "p.tsv", [("café", "x"), (nfd("café"), "x"), ("a", nfd("é")), ("b", "c")])
    counts = CorpusCounts()
    pairs = list(stream_pairs(path, counts=counts, normalisation=Normalisation(True, True)))
    assert pairs == [("café", "x"), ("café", "x"), ("a", "é"), ("b", "c")]
    assert (counts.normalised, counts.not_normalised) == (2, 0)
    assert "Kept: 1 repeated pair. Normalised 2 lines to Unicode NFC." in counts.describe()
    counts = CorpusCounts()
    assert list(stream_pairs(path, counts=counts))[1].source == nfd("café")
    assert (counts.normalised, counts.not_normalised) == (0, 2)
    assert "Kept 2 lines that are not in Unicode NFC" in counts.describe()
    counts = CorpusCounts()
    assert list(stream_pairs(path, counts=counts, normalisation=Normalisation(target=True)))[1:3] == [
        (nfd("café"), "x"),
        ("a", "é"),
    ]
    assert (counts.normalised, counts.not_normalised) == (1, 1)


def test_invisible_characters_are_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "p.tsv", [("a\u200bb", "x"), ("c\ufeffd\ufeff", "x\u00a0y"), ("e\x07", "z\u200b"), ("é f", "g")])
    counts = CorpusCounts()
    first, *_ = stream_pairs(path, counts=counts)
    assert first.source == "a\u200bb"  # it is kept
    description = counts.describe()
    assert "(U+200B in 2 lines, U+FEFF in 1 line, U+00A0 in 1 line, U+0007 in 1 line)" in description
    path = write(tmp_path / "p.tsv", [("é f", "g")])
    list(stream_pairs(path, counts=(counts := CorpusCounts())))
    assert "invisible" not in counts.describe()


def test_a_character_that_becomes_a_semicolon_separates_features(tmp_path: Path) -> None:
    path = write(tmp_path / "p.tsv", [("aller", "va", "V\u037ePRS")])
    from regard.data.columns import Columns

    (pair,) = stream_pairs(path, Columns(("1", "3"), "2"), normalisation=Normalisation(True, True))
    assert pair == (("aller", "V;PRS"), "va")
    assert flat(pair.source) == "aller\tV\tPRS"


def test_file_names_are_not_normalised(tmp_path: Path) -> None:
    from regard.data.columns import Columns

    name = nfd("é.wav")
    path = write(tmp_path / "p.tsv", [(name, nfd("sagt é"), nfd("é"))])
    (pair,) = stream_pairs(path, Columns(("1", "2"), "3"), normalisation=Normalisation(True, True, names=True))
    assert pair == ((name, "sagt é"), "é")
    write(path, [(name, "x"), (nfd("ä.wav"), "y")])
    data = DataSettings(files=(str(path),))
    assert names_files(data)
    assert survey(data, names=True).sample[0].source == name
    assert not names_files(DataSettings(files=(str(write(tmp_path / "t.tsv", [("é", "x")])),)))
    codec = Sounds(rate=8000, auxiliary=Codec.train(["é"], "words", 400, normalise=True))
    assert codec.normalises
    assert codec.normalised((name, nfd("é"))) == (name, "é")
    assert codec.normalised(name) == name
    assert not Sounds(rate=8000).normalises


def pairs_in(spell: object) -> list[tuple[str, str]]:
    chance = Random(3)
    words = dict.fromkeys("".join(chance.choices("éäñabc", k=5)) for _ in range(80))
    return [(spell(word), spell(word[::-1])) for word in words]  # type: ignore[operator]


def training_data(tmp_path: Path, name: str, rows: list[tuple[str, str]], **data: object):  # type: ignore[no-untyped-def]
    path = write(tmp_path / f"{name}.tsv", rows)
    settings = DataSettings(files=(str(path),), held_out=0.3, **data)  # type: ignore[arg-type]
    console = Console(file=io.StringIO())
    return from_files(settings, survey(settings), tmp_path / f"{name}.run", console)


def test_data_in_either_spelling_is_the_same_data(tmp_path: Path) -> None:
    composed, decomposed = training_data(tmp_path, "c", pairs_in(nfc)), training_data(tmp_path, "d", pairs_in(nfd))
    assert composed.held_out == decomposed.held_out
    assert composed.examples[:] == decomposed.examples[:]
    assert composed.codecs.source.to_json() == decomposed.codecs.source.to_json()
    assert composed.codecs.target.normalises
    raw = training_data(tmp_path, "r", pairs_in(nfd), normalise="none")
    assert raw.held_out.pairs != composed.held_out.pairs
    assert not raw.codecs.source.normalises


def test_both_spellings_of_a_source_are_on_one_side_of_the_split(tmp_path: Path) -> None:
    rows = [*pairs_in(nfc), *pairs_in(nfd)]
    found = survey(DataSettings(files=(str(write(tmp_path / "p.tsv", rows)),)))
    threshold = found.counts.threshold(0.3)
    sides = {source: is_held_out(source, threshold) for source, _ in found.sample}
    assert len(sides) == len(pairs_in(nfc))
    assert found.counts.hashes.repeats().pairs == len(pairs_in(nfc))


def test_settings_without_normalisation_leave_the_fingerprint_of_older_runs(tmp_path: Path) -> None:
    """The stored fingerprint of a run that started before this setting existed still fits its data."""
    import hashlib
    from dataclasses import asdict, replace

    path = write(tmp_path / "p.tsv", pairs_in(nfc))
    data = DataSettings(files=(str(path),), held_out=0.3, header="usual", normalise="none")
    from_files(data, survey(data), tmp_path / "p.run", Console(file=io.StringIO()))
    facts = asdict(data) | {"files": (), "held_out_files": ()}
    for later in ("contents", "header", "bad_lines", "normalise", "max_frames", "languages"):
        facts.pop(later)
    digest = hashlib.sha256()
    for content in (path.read_bytes(), repr(facts).encode()):
        digest.update(hashlib.sha256(content).digest())
    from regard.data.store import Store

    def stored_fingerprint() -> str:
        return Store.open(tmp_path / "p.run" / "tokens.safetensors").metadata["training_data"]

    assert stored_fingerprint() == digest.hexdigest()
    normal = replace(data, normalise="nfc")
    from_files(normal, survey(normal), tmp_path / "p.run", Console(file=io.StringIO()))
    assert stored_fingerprint() != digest.hexdigest()  # the data was tokenised again


def test_codecs_of_an_older_model_are_kept() -> None:
    old = Codec.train(WORDS, "characters")
    pairs = [Pair(nfd(word), nfd(word)) for word in WORDS]
    found = in_memory("w", pairs, pairs, DataSettings(normalise="none"), StartCodecs(old, old))
    assert found.codecs.source is old
    assert found.unknown["\u0301"] > 0
    assert not found.codecs.target.normalises


# --- input of a model --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["characters", "bpe"])
def translator(request: pytest.FixtureRequest) -> Translator:
    torch.manual_seed(5)
    codec = Codec.train(WORDS, request.param, 300, normalise=True)
    model = build(RnnSettings(width=14, embedding=7, score_width=5, dropout=0.0), len(codec), len(codec)).eval()
    return Translator.of_model(model, codec, codec)


def test_a_model_translates_both_spellings_identically(translator: Translator) -> None:
    from regard.inspection.capture import inspect
    from regard.inspection.explain import explain

    for text in WORDS:
        one, other = translator(text, max_length=8), translator(nfd(text), max_length=8)
        assert (one.ids, one.log_prob, one.source_tokens) == (other.ids, other.log_prob, other.source_tokens)
        assert other.unknown == ()
        assert one.attention().source == other.attention().source
        assert [part.text for part in translator.stream(nfd(text), max_length=8)][-1] == one.text
    assert translator.score(["café"], ["naïve"]) == translator.score([nfd("café")], [nfd("naïve")])
    assert inspect(translator, nfd("café"), max_length=5).source == inspect(translator, "café", max_length=5).source
    one, other = (explain(translator, text, max_length=5) for text in ("café", nfd("café")))
    assert torch.equal(one["logits"], other["logits"])


def test_prefixes_and_banned_words_are_normalised(translator: Translator) -> None:
    options = translator.reader.options({"prefix": "é", "banned": ["ï"]})
    assert options == translator.reader.options({"prefix": nfd("é"), "banned": [nfd("ï")]})
    assert options.prefix
    assert options.search.banned
    assert translator("plain", prefix=nfd("é"), max_length=4).text.startswith("é")


def test_align_reads_both_spellings_identically(translator: Translator) -> None:
    from regard.inspection.align import align_pairs

    one, other = (align_pairs(translator, [(spell("café"), spell("naïve"))]) for spell in (nfc, nfd))
    assert one == other


# --- commands ----------------------------------------------------------------------------------------------------------------

SMALL = ["model.width=16", "model.embedding=8", "model.score_width=8", "train.steps=6", "train.checkpoint_every=4"]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs `regard train` on one thread and returns its output."""
    from regard.cli.train import train

    def call(file: Path, out: Path, *changes: str, **options: object) -> str:
        capsys.readouterr()
        train([file], out=out, set_=[*SMALL, *changes], device="cpu", threads=1, **options)  # type: ignore[arg-type]
        return capsys.readouterr().out

    return call


def weights(model: Path) -> bytes:
    return (model / "model.safetensors").read_bytes()


def test_a_run_records_its_normalisation(tmp_path: Path, command: Callable[..., str]) -> None:
    composed, decomposed = (write(tmp_path / f"{spell.__name__}.tsv", pairs_in(spell)) for spell in (nfc, nfd))
    assert "Normalised" not in command(composed, tmp_path / "c")
    assert f"Normalised {sum(nfc(a + b) != nfd(a + b) for a, b in pairs_in(nfc))} lines to Unicode NFC" in command(
        decomposed, tmp_path / "d"
    )
    assert weights(tmp_path / "c") == weights(tmp_path / "d")
    assert "\n  normalise: nfc " in (tmp_path / "d.run" / "run.yaml").read_text()
    printed = command(decomposed, tmp_path / "raw", "data.normalise=none")
    assert "lines that are not in Unicode NFC" in printed
    assert "\n  normalise: none " in (tmp_path / "raw.run" / "run.yaml").read_text()


def test_a_run_started_by_an_older_version_continues_unchanged(tmp_path: Path, command: Callable[..., str]) -> None:
    data, out, config = write(tmp_path / "d.tsv", pairs_in(nfd)), tmp_path / "m", tmp_path / "m.run" / "run.yaml"
    command(data, out, "data.normalise=none")
    before = weights(out)
    shutil.rmtree(out)
    lines = config.read_text().splitlines(keepends=True)
    config.write_text("".join(line for line in lines if "normalise:" not in line))
    assert "resuming after update 6" in command(data, out)
    assert weights(out) == before
    assert "resuming after update 6" in command(config, out)
    assert weights(out) == before
    with pytest.raises(UserError, match=r"data.normalise was none and is now nfc"):
        command(data, out, "data.normalise=nfc")


def test_a_model_that_starts_from_an_older_one_normalises_like_it(tmp_path: Path, command: Callable[..., str]) -> None:
    data, old = write(tmp_path / "d.tsv", pairs_in(nfd)), tmp_path / "old"
    command(data, old, "data.normalise=none")
    for option in ("start_from", "encoder_from"):
        printed = command(data, tmp_path / option, **{option: old})
        assert "data.normalise=none " in printed
        assert f"as {old} normalises texts" in printed
        assert json.loads((tmp_path / option / "target.tokenizer.json").read_text())["normalizer"] is None
        with pytest.raises(UserError, match=r"data.normalise is nfc, but .* was made with none"):
            command(data, tmp_path / "x", "data.normalise=nfc", **{option: old})
    run_file = tmp_path / "run.yaml"  # a run file of the older version too
    lines = (tmp_path / "old.run" / "run.yaml").read_text().replace('  model: ""', f'  model: "{old}"').splitlines()
    run_file.write_text("\n".join(line for line in lines if "normalise:" not in line))
    command(run_file, tmp_path / "from_file")
    assert json.loads((tmp_path / "from_file" / "source.tokenizer.json").read_text())["normalizer"] is None
    new = tmp_path / "new"
    command(data, new)
    assert f"as {new} normalises texts" in command(data, tmp_path / "from_new", start_from=new)
    assert json.loads((tmp_path / "from_new" / "source.tokenizer.json").read_text())["normalizer"] == {"type": "NFC"}
    with pytest.raises(UserError, match=r"data.normalise is none, but .* was made with nfc"):
        command(data, tmp_path / "y", "data.normalise=none", start_from=new)


def test_a_test_set_in_either_spelling_gives_the_same_measures(
    tmp_path: Path, command: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    from regard.cli.evaluate import evaluate

    command(write(tmp_path / "p.tsv", pairs_in(nfc)), tmp_path / "m")
    printed = []
    for spell in (nfc, nfd):
        write(tmp_path / "t.tsv", pairs_in(spell)[:20])
        evaluate(tmp_path / "m", [tmp_path / "t.tsv"], beam=1, max_length=8)
        printed.append(capsys.readouterr().out.splitlines())
    changed = [line for line in printed[1] if line.startswith("Normalised ")]
    assert len(changed) == 1
    assert printed[0] == [line for line in printed[1] if line not in changed]
    table = write(tmp_path / "r.tsv", [(nfd("é"), nfd("à"), "à"), ("é", nfd("ä"), "b")])
    data = read_test_set([table], normalisation=Normalisation(True, True))
    assert (data.sources, data.references) == (("é",), (("à", "ä", "b"),))
    assert data.notes == ("Normalised 2 lines to Unicode NFC",)
    assert read_test_set([table]).notes[0].startswith("Kept 2 lines that are not in Unicode NFC")


def test_translate_reports_how_many_lines_it_normalised(
    tmp_path: Path, translator: Translator, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from regard.cli import translate as command

    monkeypatch.setattr(command, "open_model", lambda *_, **options: translator)
    for options in ({}, {"stream": True}):
        path = tmp_path / "in.txt"
        path.write_text(f"{nfd('café')}\ncafé\nplain\n")
        with path.open() as file:
            monkeypatch.setattr("sys.stdin", file)
            command.translate(tmp_path, max_length=4, **options)  # type: ignore[arg-type]
        done = capsys.readouterr()
        first, second, *_ = done.out.split("\n")
        assert first == second
        assert "regard: 1 line normalised to Unicode NFC\n" in done.err
