import itertools
import pickle
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sacrebleu
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from test_folder import make_saved
from tones import write_wav, write_words

import regard
from regard import evaluation
from regard.data import reader
from regard.data.columns import Columns
from regard.data.reader import sentences
from regard.data.sounds import Sounds
from regard.data.test_set import read_test_set
from regard.data.tokenizers.codec import Codec
from regard.decoding.workers import Workers
from regard.errors import UserError
from regard.evaluation import by_length, error_rates, measures
from regard.inspection import render
from regard.models.build import build
from regard.models.contract import ModelSettings
from regard.models.decoder_only import DecoderOnlySettings
from regard.models.rnn_lm import RnnLmSettings
from regard.models.rnn_seq2seq import RnnSettings
from regard.models.transformer import TransformerSettings
from regard.pipeline import Translator
from regard.results import AttentionMap, Refused, Result
from regard.signatures import signature

every_family = pytest.mark.parametrize("settings", [RnnSettings(width=8, embedding=3), TransformerSettings(width=8, heads=2)])


def make_translator(settings: ModelSettings) -> regard.Translator:
    saved = make_saved(settings)
    return regard.Translator.of_model(saved.model, saved.source, saved.target)


def limited(translator: Translator, max_source: int) -> Translator:
    return replace(translator, reader=replace(translator.reader, max_source=max_source))


@every_family
def test_results_have_the_order_of_the_texts(settings: ModelSettings) -> None:
    translator = make_translator(settings)
    texts = ["abc", "", "a", "cab?", "bb", "", "abcabcabc"] * 40
    results = translator.batch(texts, max_length=6)
    assert len(results) == len(texts)
    for text, result in list(zip(texts, results, strict=True))[:7]:
        alone = translator(text, max_length=6)
        assert (alone.text, alone.tokens, alone.finished) == (result.text, result.tokens, result.finished)
        assert result.log_prob == pytest.approx(alone.log_prob, abs=1e-5)
        assert result.unknown == ("?",) * text.count("?")
        assert [(alternative.text, alternative.log_prob) for alternative in result.n_best] == [(result.text, result.log_prob)]
        assert text or (result.text, result.log_prob, result.finished) == ("", 0.0, True)
        assert len(result.tokens) <= 6
    assert translator.batch([]) == []
    for wrong in ("abc", ["abc", None]):
        with pytest.raises(TypeError, match=r"batch takes a list of texts, got .*; for one text call the model itself"):
            translator.batch(wrong)
    with pytest.raises(TypeError, match=r"a call of the model takes one text, got \['abc'\]; for a list of texts call batch"):
        translator(["abc"])
    with pytest.raises(TypeError, match=r"stream takes one text, got the path 'a.wav', but this model reads no files"):
        next(translator.stream(Path("a.wav")))
    with pytest.raises(TypeError, match=r"score takes lists of texts, got 'abc'; put a single text into a list too"):
        translator.score("abc", ["X"])


@every_family
def test_attention_of_a_result(settings: ModelSettings) -> None:
    result = make_translator(settings)("abcab", max_length=4)
    written = (*result.tokens, "<eos>") if result.finished else result.tokens
    attention = result.attention()
    assert attention.source == ("a", "b", "c", "a", "b", "<eos>")
    assert attention.target == written
    assert make_translator(settings)("a?").attention().source == ("a", "?", "<eos>")
    assert attention.weights_HTS.shape[1:] == (len(written), 6)
    np.testing.assert_allclose(attention.mean_TS.sum(-1), 1.0, rtol=1e-5)
    if settings.kind == "transformer":
        decoder, encoder = result.attention("decoder", 0), result.attention("encoder", 1)
        assert decoder.source == ("<sos>", *written[:-1])
        assert encoder.target == encoder.source == attention.source
        assert decoder.weights_HTS.shape == (2, len(written), len(written))
        assert (decoder.layer, encoder.layer, attention.layer) == (0, 1, 1)
        with pytest.raises(UserError, match="there is no encoder attention in layer 7: this model has layers 0 to 1"):
            result.attention("encoder", 7)
    else:
        with pytest.raises(
            UserError, match="this model has no encoder attention; models that attend to their source have kind cross"
        ):
            result.attention("encoder")
    with pytest.raises(ValueError, match="unknown kind of attention 'self'; expected one of encoder, decoder, cross"):
        result.attention("self")


def test_unknown_options_are_named() -> None:
    with pytest.raises(TypeError, match=r"unknown search option 'max_lenght'; expected one of beam, .*; did you mean"):
        make_translator(RnnSettings(width=8))("abc", max_lenght=3)


@every_family
@settings(max_examples=40)
@given(texts=st.lists(st.text(max_size=30), max_size=5))
def test_any_text_gives_a_result(settings: ModelSettings, texts: list[str]) -> None:
    """Control characters, other scripts, lone accents: as many results as texts, and unseen symbols are counted."""
    results = make_translator(settings).batch(texts, max_length=3, beam=2)
    assert len(results) == len(texts)
    for text, result in zip(texts, results, strict=True):
        assert len(result.unknown) == sum(symbol not in "abc" for symbol in text)
        assert text or (result.text, result.log_prob, result.alignment()) == ("", 0.0, ())


def test_long_texts_are_split_into_sentences_or_refused() -> None:
    translator = limited(make_translator(RnnSettings(width=8, embedding=3)), 9)
    text = "ab a. Ba cab! Ab"
    assert sentences('He said "no." Then i.e. this… And 3.5 is. yes? 你好。再见。') == [
        'He said "no."',
        "Then i.e. this…",
        "And 3.5 is. yes?",
        "你好。",
        "再见。",
    ]
    whole, *alone = translator.batch([text, "ab a.", "Ba cab!", "Ab"], max_length=4)
    assert whole.text == " ".join(sentence.text for sentence in alone)
    assert [part.text for part in whole.parts] == [sentence.text for sentence in alone]
    assert whole.log_prob == pytest.approx(sum(sentence.log_prob for sentence in alone), abs=1e-5)
    assert whole.source_tokens == tuple("ab a.Ba cab!Ab")
    assert whole.unknown == (" ", ".", "B", " ", "!", "A")
    links = whole.alignment()
    assert list(links) == sorted(links)
    assert sorted(target for _, target in links) == list(range(len(whole.tokens)))
    assert {source for source, target in links if target < len(alone[0].tokens)} <= set(range(5))
    assert all(source >= 12 for source, target in links if target >= len(alone[0].tokens) + len(alone[1].tokens))
    with pytest.raises(UserError, match="this text was translated in 3 parts; each part has its own attention"):
        whole.attention()
    with pytest.raises(UserError, match="the text is empty, so there is no attention to show"):
        translator("").attention()
    with pytest.raises(
        UserError, match="text 2: a sentence has 10 tokens, but this model translates at most 9 at a time; split"
    ):
        translator.batch(["ab", "abcabcabca"])
    _, refused = translator.translate(["ab", "a" * 1_000_000])
    assert isinstance(refused, Refused)
    assert "a sentence has 1,000,000 tokens, but this model translates at most 9 at a time" in refused.reason
    *_, last = translator.stream(text, max_length=4)
    assert last.result is not None
    assert last.text == last.result.text == whole.text


def test_texts_longer_than_max_positions_are_refused_before_decoding() -> None:
    settings = TransformerSettings(width=8, heads=2, positions="learned", max_positions=7)
    translator = make_translator(settings)
    assert len(translator("abcabc").tokens) <= 6  # and no error, although max_length is 256
    with pytest.raises(UserError, match="a sentence has 7 tokens, but this model translates at most 6"):
        translator("abcabca")


def test_a_text_that_is_certainly_too_long_is_refused_before_it_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refusing a line of 100 MB once took a minute and 4 GB."""
    translator = make_translator(RnnSettings(width=8, embedding=3))
    encode, encoded = Codec.encode, list[int]()
    monkeypatch.setattr(Codec, "encode", lambda codec, text: encoded.append(len(text)) or encode(codec, text))
    monkeypatch.setattr(reader, "MAX_SOURCE", 9)
    translator = limited(translator, 9)
    accepted, long, refused = translator.translate(["Ab. " * 3000, "a" * 9000, "a" * 9001], max_length=1)
    assert isinstance(accepted, Result)
    assert len(accepted.parts) == 3000
    assert isinstance(long, Refused)
    assert "a sentence has 9,000 tokens, but this model translates at most 9" in long.reason
    assert isinstance(refused, Refused)
    assert refused.reason == (
        "a sentence has 9,001 characters, but this model translates at most 9 tokens at a time; "
        "split it with line breaks or full stops"
    )
    assert 9000 in encoded
    assert 9001 not in encoded
    with pytest.raises(UserError, match="a sentence has 9,001 characters"):
        list(translator.stream("a" * 9001))
    prompted = limited(make_translator(DecoderOnlySettings(width=8, heads=2)), 9)
    with pytest.raises(UserError, match="a sentence has 9,001 characters"):
        prompted("ab. " * 2250 + "a")


def test_a_file_of_too_many_positions_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listener = make_listener(tmp_path)
    monkeypatch.setattr(reader, "MAX_POSITIONS", 1)
    (refused,) = listener.translate(["0-1.wav"])
    assert isinstance(refused, Refused)
    assert re.fullmatch(r"it has \d+ positions, the maximum is 1; split it into shorter files", refused.reason)


def test_half_a_character_is_named() -> None:
    """A lone surrogate, which sys.argv and "surrogateescape" contain where bytes are not UTF-8."""
    translator = make_translator(RnnSettings(width=8, embedding=3))
    words = r"the text '.*a\\udcff' is not valid Unicode: it contains a lone surrogate; pass it as UTF-8"
    for call in (translator, lambda text: translator.batch(["ab", text]), lambda text: list(translator.stream(text))):
        with pytest.raises(UserError, match=words):
            call("a\udcff")
    for sources, outputs in ((["a\udcff"], ["X"]), (["a"], ["a\udcff"])):
        with pytest.raises(UserError, match=words):
            translator.score(sources, outputs)
    for option in ({"prefix": "a\udcff"}, {"banned": ["a\udcff"]}):
        with pytest.raises(UserError, match=words):
            translator("ab", **option)


def test_prefix_and_prompt_leave_room_for_an_output() -> None:
    settings = TransformerSettings(width=8, heads=2, positions="learned", max_positions=7)
    translator = make_translator(settings)
    assert translator("abc", prefix="X Y X Y X").tokens[:5] == ("X", "Y", "X", "Y", "X")
    for prefix in ("X Y X Y X Y", "X Y X Y X Y X Y"):
        with pytest.raises(
            UserError, match=r"the prefix has . tokens, but this model supports outputs of up to 6 tokens .*; give a sh"
        ):
            translator("abc", prefix=prefix)
    with pytest.raises(UserError, match="the prefix has 300 tokens, but max_length is 256; raise max_length"):
        make_translator(settings)("abc", prefix="X " * 300)
    prompted = DecoderOnlySettings(width=8, heads=2, positions="learned", max_positions=7)
    continuer = make_translator(prompted)
    for text in ("", "X", "X Y X Y X"):
        assert len(continuer(text, min_length=6).tokens) <= 6
    *prediction, refused = continuer.translate(["X Y X Y", "X Y X Y X Y"])
    assert isinstance(prediction[0], Result)
    assert isinstance(refused, Refused)
    assert refused.reason == (
        "text and prefix have 6 tokens, but this model supports 6 tokens in total, of which it must write at least one; "
        "shorten them"
    )
    with pytest.raises(UserError, match="text and prefix have 7 tokens, but this model supports 6 tokens in total"):
        continuer("X Y", prefix="X Y X Y X")


@every_family
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"prefix": (10**6,)}, "prefix or banned contains the token id 1000000, but the vocabulary has ids 0 to 6"),
        ({"banned": [(4, 10**6)]}, "prefix or banned contains the token id 1000000"),
        ({"banned": [5]}, r"banned is \(5,\), expected a list of lists of token ids"),
        ({"banned": None}, "banned is None, expected a list of"),
        ({"prefix": None}, "prefix is None, expected a list of token ids"),
        ({"sample": True, "temperature": "1"}, "temperature is '1', expected a number"),
        ({"beam": 10**6}, "beam is 1000000, expected a whole number from 1 to 1,000"),
        ({"length_penalty": float("inf")}, "length_penalty is inf, expected a number"),
    ],
)
def test_invalid_options_are_user_errors(settings: ModelSettings, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        make_translator(settings)("ab", **options)


@every_family
def test_prefix_and_banned_are_given_as_words(settings: ModelSettings) -> None:
    translator = make_translator(settings)
    prefixed = translator("abc", prefix="X Y", max_length=5)
    assert prefixed.tokens[:2] == ("X", "Y")
    banned = translator.batch(["abc", "bca", "cab"], banned=["X", "Q"], beam=3, max_length=5)
    assert all("X" not in result.tokens for result in banned)
    with pytest.raises(UserError, match="the prefix 'Q' contains symbols that the model cannot write"):
        translator("abc", prefix="Q")
    with pytest.raises(TypeError, match="banned takes a list of words, got 'X'"):
        translator("abc", banned="X")
    several = translator("abc", beam=4, n_best=3, max_length=5)
    assert len({alternative.text for alternative in several.n_best}) == 3
    assert several.n_best[0].text == several.text
    weights_TS = several.attention().mean_TS[: len(several.tokens), :3]
    assert several.alignment() == tuple(sorted((row.argmax().item(), number) for number, row in enumerate(weights_TS)))


@every_family
def test_streams_and_scores(settings: ModelSettings) -> None:
    translator = make_translator(settings)
    for options in ({}, {"beam": 3}):
        *growing, last = translator.stream("abcab", max_length=6, **options)
        expected = translator("abcab", max_length=6, **options)
        assert last.result is not None
        assert last.text == expected.text
        for earlier, later in itertools.pairwise((*growing, last)):
            assert later.text.startswith(earlier.text)
    texts = ["abc", "", "cab", "a"]
    results = translator.batch(texts, beam=2, max_length=30)
    scored = translator.score(texts, [result.text for result in results])
    for result, one in zip(results, scored, strict=True):
        if result.tokens and result.finished:
            assert one.log_prob == pytest.approx(result.log_prob, abs=1e-5)
            assert one.token_log_probs == pytest.approx(result.n_best[0].token_log_probs, abs=1e-5)
    assert translator.score(["abc"], ["X Q"])[0].unknown == ("Q",)
    with pytest.raises(ValueError, match=r"two lists of texts of the same length, .*, got 1 sources and 0 outputs"):
        translator.score(["abc"], [])
    short = limited(translator, 4)
    one, refused = short.score_each(["abc", "abcab"], ["X", "X"])
    assert one == short.score(["abc"], ["X"])[0]
    assert isinstance(refused, Refused)
    with pytest.raises(UserError, match=r"pair 2: it has 5 source and 1 target tokens, the maximum is 4 each"):
        short.score(["abc", "abcab"], ["X", "X"])


@pytest.mark.parametrize("settings", [RnnLmSettings(width=8, embedding=3), DecoderOnlySettings(width=8, heads=2)])
def test_language_models_continue_a_text(settings: ModelSettings) -> None:
    translator = make_translator(settings)
    results = translator.batch(["X Y", "", "Y"], beam=2, max_length=4)
    for text, result in zip(["X Y", "", "Y"], results, strict=True):
        assert result.tokens[: len(text.split())] == tuple(text.split())
        assert len(result.tokens) <= len(text.split()) + 4
    assert translator.score([""], ["X Y"])[0].log_prob < 0


@pytest.mark.parametrize("settings", [RnnLmSettings(width=8, embedding=3), DecoderOnlySettings(width=8, heads=2)])
def test_the_source_of_a_scored_text_is_its_beginning(settings: ModelSettings) -> None:
    """A source was once ignored without saying so."""
    translator = make_translator(settings)
    sources, outputs = ["", "X", "X Y", "X Y Z"], ["X Y Z"] * 4
    free, *continued = translator.score(sources, outputs)
    assert continued == [free] * 3  # the tokens of the source are scored, too, as in a result
    assert free.tokens == ("X", "Y", "Z")
    results = [result for result in translator.batch(sources, beam=3, max_length=40) if result.finished]
    assert results
    scored = translator.score([result.source for result in results], [result.text for result in results])
    assert [one.log_prob for one in scored] == pytest.approx([result.log_prob for result in results], abs=1e-5)
    first, refused, last = translator.score_each(["X", "Y", "Z"], ["X Y", "X Y", "Z"])
    assert [first, last] == translator.score(["X", ""], ["X Y", "Z"])
    assert refused == Refused(
        "this is a language model, which continues its source, but the output 'X Y' does not start with 'Y'; give the whole "
        "text as the output, or leave the source empty"
    )
    with pytest.raises(UserError, match="pair 2: this is a language model, which continues its source, but the output 'X'"):
        translator.score(["", "Y"], ["X", "X"])
    unknown = translator("X Q", max_length=3)  # the model spells Q as <unk>
    (scored,) = translator.score(["X Q"], [unknown.text])
    expected = unknown.n_best[0].token_log_probs
    assert scored.token_log_probs[: len(unknown.ids)] == pytest.approx(expected[: len(unknown.ids)], abs=1e-5)
    assert scored.tokens[:2] == ("X", "Q")


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked, which only Linux does safely")
def test_workers_find_what_one_process_finds() -> None:
    translator = make_translator(TransformerSettings(width=8, heads=2))
    texts = ["".join("abc"[number * position % 3] for position in range(1 + number % 9)) for number in range(150)]
    options = {"beam": 2, "n_best": 2, "max_length": 7}
    workers = Workers(translator.engine, 2)
    workers.start()
    try:
        shared = list(translator.translate(texts, workers=workers, **options))
        unfinished = translator.translate(iter(texts), workers=workers, **options)
        next(unfinished)
        with pytest.raises(RuntimeError, match="these workers are in use by another run; finish or close it first"):
            next(translator.translate(texts, workers=workers, **options))
        unfinished.close()  # type: ignore[attr-defined]
        again = list(translator.translate(texts[:130], workers=workers, **options))
        assert [result.text for result in again] == [result.text for result in shared[:130]]
        with pytest.raises(ValueError, match="these workers run another model; use those of this Translator"):
            next(make_translator(RnnSettings(width=8)).translate(texts, workers=workers))
    finally:
        workers.close()
    alone = translator.batch(texts, **options)
    assert [[alternative.text for alternative in result.n_best] for result in shared] == [
        [alternative.text for alternative in result.n_best] for result in alone
    ]
    for one, other in zip(shared, alone, strict=True):
        assert one.n_best[1].token_log_probs == pytest.approx(other.n_best[1].token_log_probs, abs=1e-4)


def test_sources_that_need_no_search_are_answered_while_more_are_read() -> None:
    translator = make_translator(RnnSettings(width=8, embedding=3))
    assert next(translator.translate("" for _ in itertools.count())).text == ""
    results = translator.translate((("a", "b") if number % 2 else "" for number in itertools.count()), max_length=2)
    assert [isinstance(next(results), Refused) for _ in range(4)] == [False, True, False, True]


def test_a_translator_can_be_pickled() -> None:
    """For processes that another library starts."""
    translator = make_translator(RnnSettings(width=8, embedding=3))
    again = pickle.loads(pickle.dumps(translator))
    assert again.batch(["abc", "b"], max_length=4) == translator.batch(["abc", "b"], max_length=4)


# --- sources that are files --------------------------------------------------------------------------------------------------


def make_listener(folder: Path, auxiliary: Codec | None = None) -> Translator:
    """An untrained model of sounds; 0-1.wav and 1-1.wav are written to the folder."""
    write_words(folder, ["ab", "cab"])
    source, target = Sounds(8000, root=folder, auxiliary=auxiliary), Codec.train(["a b c"], "words")
    small = RnnSettings(width=8, embedding=4, score_width=4, frontend="sound", channels=4)
    model = build(small, len(source), len(target), auxiliary=0 if auxiliary is None else len(auxiliary)).eval()
    return Translator.of_model(model, source, target)


def test_sources_may_be_paths_or_names(tmp_path: Path) -> None:
    listener = make_listener(tmp_path)
    names, paths = ["0-1.wav", "1-1.wav"], [Path("0-1.wav"), tmp_path / "1-1.wav"]
    expected = listener.batch(names, max_length=3)
    assert [result.log_prob for result in listener.batch(paths, max_length=3)] == [result.log_prob for result in expected]
    assert listener(paths[0], max_length=3).log_prob == pytest.approx(expected[0].log_prob, abs=1e-5)
    *_, last = listener.stream(paths[0], max_length=3)
    assert last.text == expected[0].text
    assert listener.score(paths, ["a b", "c"]) == listener.score(names, ["a b", "c"])
    with pytest.raises(TypeError, match=r"score takes lists of texts, got \[PosixPath\('a'\)\]"):
        listener.score(paths[:1], [Path("a")])


def test_files_that_cannot_be_read_do_not_stop_the_others(tmp_path: Path) -> None:
    listener = make_listener(tmp_path)
    good, bad, other = listener.score_each(["0-1.wav", "none.wav", "1-1.wav"], ["a", "a", "b"])
    assert [good, other] == listener.score(["0-1.wav", "1-1.wav"], ["a", "b"])
    assert bad == Refused(f"{tmp_path / 'none.wav'}: no such file")


def test_errors_for_malformed_lines_show_the_right_form(tmp_path: Path) -> None:
    """SPEC A6.4: an auxiliary text for a model that reads none, and one that is not separated by a TAB."""
    plain = make_listener(tmp_path)
    with pytest.raises(UserError, match=r"reads no auxiliary text with its sounds, got 'a b' with 0-1.wav; give file names"):
        plain("0-1.wav\ta b")
    both = make_listener(tmp_path, Codec.train(["say a b"], "words"))
    assert both("0-1.wav\tsay a", max_length=2).tokens
    for wrong in ("0-1.wav say a", "say a"):
        with pytest.raises(
            UserError, match=f"{wrong}: no such file; .* expected a line such as a.wav<TAB>every second, which starts"
        ):
            both(wrong)
    with pytest.raises(UserError, match=r"none.wav: no such file$"):
        both("none.wav\tsay a")


# --- measures ----------------------------------------------------------------------------------------------------------------


def test_test_sets_hold_several_references(tmp_path: Path) -> None:
    path = tmp_path / "test.tsv"
    path.write_text("a\tX\tY\n\nb\tZ\t\na\tX\tW\n\tV\n")
    data = read_test_set([path])
    assert (data.sources, data.references, data.num_empty) == (("a", "b"), (("X", "Y", "W"), ("Z",)), 2)
    assert (data.lines, data.num_repeats) == (((1, 4), (3,)), 1)
    assert (data.only([1]).sources, data.only([1]).references, data.only([1]).num_repeats) == (("b",), (("Z",),), 0)
    path.write_text("word\tipa\na\tX\nword\tipa\n")
    data = read_test_set([path])
    assert data.sources == ("a",)
    assert data.notes[0].startswith("Line 1 (word, ipa) was read as a header")
    assert data.notes[1] == "Skipped 1 line that repeats the header"
    path.write_text("a\tb\nno tab\n")
    with pytest.raises(UserError, match=r"test.tsv:2: expected source<TAB>reference, found no tab in 'no tab'"):
        read_test_set([path])
    path.write_text("\n\n")
    with pytest.raises(UserError, match=r"test.tsv: expected sources with references, found none in 2 lines"):
        read_test_set([path])


def test_test_sets_are_read_in_all_formats_of_training_data(tmp_path: Path) -> None:
    rows = [("a b", "X", "Y"), ("c", "Z", "Z")]
    table = tmp_path / "test.csv"
    table.write_text("id,lemma,one,two\n" + "".join(f"{number},{','.join(row)}\n" for number, row in enumerate(rows)))
    lines = tmp_path / "test.jsonl"
    lines.write_text("".join(f'{{"source": "{row[0]}", "target": "{row[1]}"}}\n' for row in rows))
    parallel = [tmp_path / "test.en", tmp_path / "test.de"]
    for side, path in enumerate(parallel):
        path.write_text("".join(f"{row[side]}\n" for row in rows))
    one_reference = (("a b", "c"), (("X",), ("Z",)))
    for data in (read_test_set([lines]), read_test_set(parallel), read_test_set([table], [Columns(("lemma",), "3")])):
        assert (data.sources, data.references) == one_reference
    both = read_test_set([table], [Columns(("lemma",), "one"), Columns(("lemma",), "two")])
    assert (both.sources, both.references) == (("a b", "c"), (("X", "Y"), ("Z",)))
    assert (both.lines, both.num_repeats) == (((2,), (3,)), 0)  # two columns of a line are not repeats


def test_measures_by_hand() -> None:
    outputs = ["the cat sat", "a dog", "yes indeed it is so", "no"]
    references = [("the cat sat", "a cat sat"), ("the dog runs",), ("yes it is so",), ("no",)]
    found = {measure.name: measure for measure in measures(outputs, references, list)}
    assert found["word error rate"].value == pytest.approx((0 + 2 + 1 + 0) / (3 + 3 + 4 + 1))
    assert found["symbol error rate"].value == pytest.approx((0 + 8 + 7 + 0) / (11 + 12 + 12 + 2))
    assert found["exact match"].value == 0.5
    columns = [[one[0] for one in references], [one[1] if len(one) > 1 else None for one in references]]
    assert found["BLEU"].value == pytest.approx(sacrebleu.corpus_bleu(outputs, columns).score)
    assert found["chrF"].value == pytest.approx(sacrebleu.corpus_chrf(outputs, columns).score)
    assert found["BLEU"].how.startswith("nrefs:var|bs:1000|seed:12345|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert all(measure.low <= measure.value <= measure.high for measure in found.values() if measure.percent)
    assert re.match(r"exact match +50\.00% \[0\.00, 100\.00\]  bs:1000", str(found["exact match"]))
    (exact,) = (measure for measure in measures(["yes"], [("yes",)], list) if measure.name == "exact match")
    assert (exact.value, exact.low, exact.high) == (1.0, 1.0, 1.0)


def test_bleu_needs_four_tokens() -> None:
    """A BLEU of 0 for correct outputs would mislead, so shorter texts have none."""
    assert [one.name for one in measures(["so it is"] * 2, [("so it is",)] * 2, list, ["so"] * 2)][:2] == [
        "chrF",
        "word error rate",
    ]
    (found, *_) = measures(["so it is."] * 2, [("so it is.",)] * 2, list)  # its full stop is a token
    assert (found.name, found.value) == ("BLEU", pytest.approx(100))
    assert evaluation.bleu(["so"], [("so",)]) == 0


def test_a_paired_test_distinguishes_better_from_equal() -> None:
    references = [(f"number {number} of many words",) for number in range(60)]
    good = [texts[0] if number % 10 else "wrong" for number, texts in enumerate(references)]
    bad = [texts[0] if number % 2 else "wrong" for number, texts in enumerate(references)]
    for measure in measures(good, references, list, against=bad):
        assert measure.p_value is not None
        assert measure.p_value < 0.01, measure.name
    for measure in measures(good, references, list, against=good):
        assert measure.p_value == 1.0, measure.name
    plain = {measure.name: measure for measure in measures(good, references, list)}
    share = torch.tensor([number % 10 > 0 for number in range(60)]).double()
    error = (share.var() / 60).sqrt().item()  # the standard error of the mean
    width = plain["exact match"].high - plain["exact match"].low
    assert width == pytest.approx(2 * 1.96 * error, rel=0.15)


def test_without_sacrebleu_there_are_error_rates_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "can_use_sacrebleu", lambda: False)
    assert [one.name for one in measures(["a"], [("a",)], list)] == ["word error rate", "symbol error rate", "exact match"]


def test_groups_by_length() -> None:
    groups = by_length([5, 1, 2, 3, 9, 9, 9, 12])
    assert groups == [("1-2", [1, 2]), ("3-8", [0, 3]), ("9-12", [4, 5, 6, 7])]
    assert by_length([4, 4]) == [("4", [0, 1])]


def test_error_rates_by_hand() -> None:
    outputs = [("A", "B"), ("A",), ("X", "Y", "Z")]
    references = [[("A", "B")], [("B", "C", "D"), ("A", "B")], [("A", "B", "C", "D"), ("X", "Q", "Z")]]
    rates = error_rates(outputs, references)
    assert rates.sequence == pytest.approx(2 / 3)
    assert rates.symbol == pytest.approx((0 + 1 + 1) / (2 + 2 + 3))
    assert str(rates) == "symbol error rate 28.57%, sequence error rate 66.67% on 3 outputs"
    assert signature({"data": "x", "seed": 7}).startswith("data:x | seed:7 | regard:")


# --- pictures ----------------------------------------------------------------------------------------------------------------


def make_map() -> AttentionMap:
    weights = torch.tensor([[[1.0, 0.0, 0.0], [0.0, 0.55, 0.55]], [[0.8, 0.2, 0.0], [0.0, 0.65, 0.35]]])
    return AttentionMap(weights, ("ph", "語", "<eos>"), ("F", "<eos>"), "cross", 0)


def test_a_picture_shows_the_weights(tmp_path) -> None:  # type: ignore[no-untyped-def]
    import matplotlib.image

    rare = replace(make_map(), source=("ph", "\U0001e290", "<eos>"))  # a letter of Toto, which no font has
    with pytest.warns(UserWarning, match=r"no installed font has \S+ \(U\+1E290\), so \S+map.png shows boxes there"):
        path = render.draw(rare, tmp_path / "new" / "map.png")
    pixels = matplotlib.image.imread(path)
    assert pixels.shape[0] > 100
    darkest = pixels[..., 0].min()
    assert darkest < 0.2  # weight 0.9 is dark blue on white
    assert (pixels[..., :3] > 0.99).all(-1).mean() > 0.2
    svg = render.draw([make_map()] * 4, tmp_path / "four.svg").read_text()  # text stays text, whatever fonts there are
    assert svg.count("語") >= 4
    assert [entry.name for entry in (tmp_path / "new").iterdir()] == ["map.png"]
    math = AttentionMap(torch.ones(1, 1, 1), ("$_$",), ("$x^$",), "cross", 0)
    assert "$_$" in render.draw(math, tmp_path / "math.svg").read_text()  # text, not a formula
    long = AttentionMap(torch.full((1, 300, 300), 1 / 300), ("a",) * 300, ("b",) * 300, "cross", 0)
    assert matplotlib.image.imread(render.draw(long, tmp_path / "long.png")).shape[0] < 4000
    with pytest.raises(ValueError, match="no map to draw"):
        render.draw([], tmp_path / "none.png")
    with pytest.raises(UserError, match=r"map.xyz: the file extension selects the format; expected one of .png, .svg, .pdf"):
        render.draw(make_map(), tmp_path / "map.xyz")


def test_a_terminal_shows_the_weights() -> None:
    text = render.in_terminal(make_map())
    assert text.plain.splitlines() == ["      ph 語 <eos> ", "F     ██          ", "<eos>    ▓▓ ▒▒▒▒▒ "]
    console = Console(force_terminal=True, color_system="truecolor", width=80)
    with console.capture() as captured:
        console.print(text)
    assert "\x1b[38;2;206;230;190;48;2;206;230;190m██" in captured.get()  # 0.9, a full cell


def test_many_positions_get_narrow_cells() -> None:
    """One cell per position, and as many labels as fit, each starting at its position; the largest weight is the darkest."""
    weights = torch.zeros(1, 2, 30)
    weights[0, 0, 3], weights[0, 0, 4], weights[0, 1, 29] = 0.2, 0.1, 0.05
    times = tuple(f"{0.04 * position:.2f} s" for position in range(30))
    head, *rows = render.in_terminal(AttentionMap(weights, times, ("one", "<eos>"), "cross", 0)).plain.splitlines()
    assert head == "      " + "0.00 s  0.32 s  0.64 s  0.96 s"
    assert rows == ["one   " + "   █▒" + " " * 25, "<eos> " + " " * 29 + "░"]


def test_positions_that_do_not_fit_share_a_cell() -> None:
    """25 seconds in 60 columns: a cell shows the largest weight of twelve positions, and a note says so."""
    weights = torch.full((1, 2, 625), 1e-4)
    weights[0, 0, 400], weights[0, 1, 624] = 0.04, 0.03
    times = tuple(f"{0.04 * position:.2f} s" for position in range(625))
    cross = AttentionMap(weights, times, ("one", "<eos>"), "cross", 0, seconds=0.04)
    head, *rows, note = render.in_terminal(cross, 60).plain.splitlines()
    assert max(map(len, (head, *rows))) <= 60
    assert head.startswith("      0.00 s  3.84 s  7.68 s  ")
    assert rows == ["one   " + " " * 33 + "█" + " " * 19, "<eos> " + " " * 52 + "▓"]
    assert note == "each cell shows the largest weight of 12 positions; the darkest is 0.04"
    fusion = AttentionMap(weights.transpose(1, 2), ("say", "<eos>"), times, "fusion", 0, seconds=0.04)
    assert [row[:6] for row in render.in_terminal(fusion, 60).plain.splitlines()[1:3]] == ["say   ", "<eos> "]
    within = render.in_terminal(AttentionMap(torch.eye(625)[None], times, times, "encoder", 0, seconds=0.04), 60).plain
    assert len(within.splitlines()) == 2 + 49
    assert max(map(len, within.splitlines()[:-1])) <= 60
    assert "of 13 x 13 positions" in within


def texts_of(svg: Path) -> list[str]:
    return re.findall(r"<text [^>]*>([^<]*)</text>", svg.read_text())


def test_maps_over_a_sound_have_an_axis_of_seconds(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """About ten ticks for any length; rows are words; the largest weight is dark, however small, and its value is printed."""
    import matplotlib.image

    positions = torch.arange(625.0)
    weights = torch.stack([(-((positions - centre) ** 2) / 200).softmax(0) for centre in (100, 500)])[None]
    times = tuple(f"{0.04 * position:.2f} s" for position in range(625))
    cross = AttentionMap(weights, times, ("one", "<eos>"), "cross", 0, seconds=0.04)
    alone = matplotlib.image.imread(render.draw(cross, tmp_path / "alone.png"))
    assert alone.shape[1] == 1500
    assert alone.shape[0] < 600
    dark = (alone[..., 2] - alone[..., 0] > 0.3) & (alone[..., 0] < 0.1)
    columns = dark[:, :1380].any(0).nonzero()[0]  # without the colour bar
    shares = (columns - columns.min()) / 1290
    assert shares.max() == pytest.approx(400 / 625, abs=0.06)
    texts = texts_of(render.draw(cross, tmp_path / "alone.svg"))
    assert texts.count("seconds") == 1
    assert {"0.0", "2.5", "25.0", "one", "&lt;eos&gt;", "weight", "0.04"} <= set(texts)
    assert len(texts) < 22

    write_wav(tmp_path / "a.wav", torch.sin(torch.arange(200_000) / 3) * torch.linspace(0, 1, 200_000))
    above = matplotlib.image.imread(render.draw(cross, tmp_path / "above.png", over=tmp_path / "a.wav"))
    wave = (abs(above[..., :3] - [0x1F / 255, 0x6F / 255, 0x8B / 255]) < 0.01).all(-1)
    assert above.shape[0] > alone.shape[0] + 250
    assert wave[:, 1000:1380].sum() > 2 * wave[:, 100:480].sum() > 0  # the sound grows louder

    fusion = AttentionMap(weights.transpose(1, 2), ("say", "nine"), times, "fusion", 0, seconds=0.04)
    assert {"say", "nine", "25.0", "seconds"} <= set(texts_of(render.draw(fusion, tmp_path / "fusion.svg")))
    within = AttentionMap(torch.eye(625)[None], times, times, "encoder", 0, seconds=0.04)
    texts = texts_of(render.draw([within, cross], tmp_path / "within.svg"))
    assert texts.count("seconds") == 2
    assert len(texts) < 40
    minute = AttentionMap(torch.rand(1, 1, 1500).softmax(-1), times * 3, ("one",), "cross", 0, seconds=0.04)
    assert "60" in texts_of(render.draw(minute, tmp_path / "minute.svg"))
    assert render.merge(torch.tensor([[1.0, 3.0, -2.0, -5.0, -4.0]]), 2).tolist() == [[3.0, -2.0, -4.0]]


def test_drawing_without_matplotlib_says_what_to_type(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(render, "can_draw", lambda: False)
    with pytest.raises(UserError, match=r'pip install "regard\[plot\]"'):
        render.draw(make_map(), tmp_path / "map.png")


def test_columns_are_given_as_in_the_table() -> None:
    """A model trained on "walk<TAB>V;PST" reads exactly that form; any other model leaves tabs alone."""
    with_features = ["walk\tV\tPST", "go\tV\tFUT"]
    for texts, tokens in (
        (with_features, ("g", "o", "\tV", "\tPST")),
        (["go V;PST"], ("g", "o", "\t", "V", ";", "P", "S", "T")),
    ):
        source = Codec.train(texts, "characters")
        target = Codec.train(["ab"], "characters")
        small = RnnSettings(width=8, embedding=4, score_width=4)
        translator = Translator.of_model(build(small, len(source), len(target)).eval(), source, target)
        assert translator("go\tV;PST", max_length=3).source_tokens == tokens
        joined, plain = translator.score(["go\tV;PST", "go\tV\tPST"], ["ab", "ab"])
        assert (joined == plain) == (texts is with_features)
