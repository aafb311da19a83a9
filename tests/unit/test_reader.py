"""The Reader: whatever a user gives becomes requests, once; what cannot be read is refused with words."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest
import torch
from table import EOS
from test_pipeline import make_listener, make_translator
from test_results import make_inflector
from tones import write_words

from regard.contracts import FileAndText, Request, SourceText, Traits
from regard.data.batch import encode_pairs
from regard.data.corpus import Pair
from regard.data.reader import PART_BIT, Reader, RequestOptions, line_of
from regard.data.seeds import derived_seed
from regard.data.sounds import Sounds
from regard.data.source_text import as_line
from regard.data.tokenizers.codec import Codec
from regard.errors import UserError
from regard.models.decoder_only import DecoderOnlySettings
from regard.models.rnn_seq2seq import RnnSettings
from regard.options import SearchOptions
from regard.results import Refused, Result

TARGET = Codec.train(["X Y Z"], "symbols")
LIMITED = Traits(max_positions=7)
CONTINUES = Traits(continues_text=True)


def of_text(traits: Traits | None = None, max_source: int = 1024) -> Reader:
    return Reader(Codec.train(["abc. AB"], "characters"), TARGET, traits or Traits(), max_source)


def of_columns() -> Reader:
    return Reader(Codec.train(["walk\tV\tPST", "go\tV\tFUT"], "characters"), TARGET)


def of_files(folder: Path, auxiliary: str = "") -> Reader:
    write_words(folder, ["abc", "h"])  # 0-1.wav, 1-1.wav
    return Reader(Sounds(8000, root=folder, auxiliary=Codec.train([auxiliary], "words") if auxiliary else None), TARGET)


# --- what a user gives -------------------------------------------------------------------------------------------------------


def test_a_row_of_columns_is_read_in_every_form() -> None:
    reader = of_columns()
    expected: SourceText = ("walk", "V;PST")
    assert reader.accept(expected, "x") == reader.accept("walk\tV;PST", "x") == reader.line(" walk \t V;PST\r") == expected
    assert reader.accept(("walk",), "x") == reader.accept("walk", "x") == reader.line("walk ") == "walk"
    assert reader.line("walk\t") == ("walk", "")
    assert reader.line(" \t ") == ""
    (trained,) = encode_pairs([Pair(expected, "X")], reader)
    ids = [*reader.source.encode("walk"), *reader.source.encode("\tV\tPST")]  # type: ignore[misc]
    for source in (expected, ("walk", "V", "PST"), ("walk", " V | PST "), "walk\tV\tPST"):
        assert reader.segment(source).request.source == trained.source == ids
        assert reader.pieces(source) == ("w", "a", "l", "k", "\tV", "\tPST")
    assert reader.rows(["go", expected]) == [reader.source.encode("go"), ids]
    segment = reader.segment(expected)
    assert (segment.source, segment.request.num_positions) == (expected, 6)


def test_a_column_that_contains_a_tab_is_refused() -> None:
    """A TAB marks a feature for the tokenizer, so it would separate what the user gave as one column."""
    for source in (("walk\tV", "PST"), ("walk", "V\tPST")):
        with pytest.raises(UserError, match=r"a column of \('walk.*\) contains a TAB, which separates columns; remove it"):
            of_columns().segment(source)


def test_a_source_is_printed_as_it_stands_in_its_table() -> None:
    assert as_line(("a.wav", "every second; one")) == "a.wav\tevery second; one"
    assert as_line("walk; on") == "walk; on"


def test_a_text_keeps_its_tabs_if_the_model_reads_one_column() -> None:
    for reader in (of_text(), replace(of_columns(), traits=CONTINUES)):
        assert reader.accept("a\tb", "x") == "a\tb"
        assert reader.line(" a\tb ") == "a\tb"
        for call in (reader.segment, reader.segments, lambda source: reader.given_output(source, "X")):  # noqa: B023
            with pytest.raises(UserError, match=r"this model reads one column, but got 2: \('a', 'b'\); give a text only"):
                call(("a", "b"))  # type: ignore[operator]


def test_a_file_is_read_in_every_form(tmp_path: Path) -> None:
    reader = of_files(tmp_path)
    expected = reader.source.encode("0-1.wav")
    for given in ("0-1.wav", Path("0-1.wav"), tmp_path / "0-1.wav", PurePosixPath("0-1.wav"), ("0-1.wav",), ("0-1.wav", "")):
        source = reader.accept(given, "x")
        (segment,) = reader.segments(source)
        np.testing.assert_array_equal(segment.request.source, expected, strict=True)
        assert segment.request.num_positions == math.ceil(len(expected) / 4)
        assert (reader.pieces(source), reader.unknown(source)) == ((), ())
    assert reader.segments("") == []
    (tmp_path / "0-1.wav").rename(tmp_path / "a\tb.wav")
    assert reader.accept(Path("a\tb.wav"), "x") == "a\tb.wav"  # a path has no columns
    elsewhere = reader.at(tmp_path / "none")
    with pytest.raises(UserError, match=r"none/1-1\.wav: no such file"):
        elsewhere.segment("1-1.wav")
    with pytest.raises(UserError, match=r"reads no auxiliary text with its sounds, got 'b c' with 1-1\.wav; give file names"):
        reader.segment(("1-1.wav", "b  c"))


def test_a_file_and_its_text_are_read_in_every_form(tmp_path: Path) -> None:
    reader = of_files(tmp_path, "say all; digits")
    words = reader.source.auxiliary.encode("say all; digits")  # type: ignore[union-attr]
    for given in (("0-1.wav", "say all; digits"), (tmp_path / "0-1.wav", "say  all; digits"), "0-1.wav\tsay all; digits"):
        row = reader.segment(reader.accept(given, "x")).request.source
        assert isinstance(row, FileAndText)
        assert len(row.file)
        assert row.text == words  # a ; in an auxiliary text is a part of it
    assert reader.line("0-1.wav\t say all; digits ") == ("0-1.wav", "say all; digits")
    assert reader.line("\tsay all ") == ("", "say all")
    without = reader.segment(("", "say all")).request.source
    assert isinstance(without, FileAndText)
    assert (len(without.file), len(without.text)) == (0, 2)
    assert reader.segments(("", " ")) == []
    assert reader.unknown(("0-1.wav", "say it")) == ("it",)
    assert reader.title(("0-1.wav", "say  all")) == "0-1.wav + say all"


@pytest.mark.parametrize("wrong", [None, 5, b"ab", ["ab"], (), ("ab", 5), {"ab": 1}, torch.tensor(4), Path("ab")])
def test_other_types_are_refused(wrong: Any) -> None:
    reader = of_text()
    with pytest.raises(
        TypeError, match=r"^stream takes one text, got .*(; for a list of texts call batch|, but this model re)"
    ):
        reader.accept(wrong, "stream")
    for call, words in (
        ("batch", "batch takes a list of texts, got .*; for one text call the model itself"),
        ("score", "score takes lists of texts, got .*; put a single text into a list too"),
    ):
        with pytest.raises(TypeError, match=words):
            list(reader.accept_all(["ab", wrong], call))
        if not isinstance(wrong, (list, tuple, dict)):
            with pytest.raises(TypeError, match=words):
                list(reader.accept_all(wrong, call))
    with pytest.raises(TypeError, match="batch takes a list of texts, got 'ab'"):
        reader.accept_all("ab", "batch")


def test_any_iterable_is_a_list_and_none_a_pause() -> None:
    reader = of_text()
    assert list(reader.accept_all((text for text in ("a", "b")), "batch")) == ["a", "b"]
    assert list(reader.accept_all({"a": 1, "b": 2}, "batch")) == ["a", "b"]
    assert list(reader.accept_all(["a", None, "b"], "translate")) == ["a", None, "b"]


# --- requests ----------------------------------------------------------------------------------------------------------------


def test_a_request_holds_all_that_an_engine_needs() -> None:
    reader = of_text()
    search = SearchOptions(beam=3, max_length=9)
    segment = reader.segment("abc", RequestOptions(search, (4, 5), 7), line=11, part=2)
    assert segment.request == Request(
        id=11 | 2 << PART_BIT,
        source=reader.source.encode("abc"),  # type: ignore[arg-type]
        options=search,
        num_positions=3,
        prefix=(4, 5),
        limit=9,
        seed=derived_seed(7, "sample", 11, 2),
    )
    assert line_of(segment.request.id) == 11
    continued = replace(reader, traits=CONTINUES).segment("X Y", RequestOptions(search, (6,)))
    assert (continued.request.source, continued.request.prefix) == ([], (*TARGET.encode("X Y"), 6))
    assert (continued.request.num_positions, continued.request.limit) == (2, 9 + 3)


def test_seeds_and_ids_differ_by_line_and_part() -> None:
    reader = of_text(max_source=6)
    requests = [
        segment.request
        for seed in (0, 1)
        for line in range(3)
        for segment in reader.segments("ab a. Ab. Ba.", RequestOptions(seed=seed), line)
    ]
    assert len(requests) == 2 * 3 * 3
    assert len({request.seed for request in requests}) == len(requests)
    assert len({request.id for request in requests}) == 3 * 3
    assert [line_of(request.id) for request in requests[:9]] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    again = reader.segments("ab a. Ab. Ba.", RequestOptions(seed=1), 2)
    assert [segment.request for segment in again] == requests[-3:]


def test_samples_depend_on_the_number_of_the_text_alone() -> None:
    translator = make_translator(RnnSettings(width=8, embedding=3))
    options = {"sample": True, "max_length": 12, "seed": 3}
    texts = ["abc"] * 6
    together = [result.text for result in translator.batch(texts, **options)]
    assert len(set(together)) > 1
    later = [outcome.text for outcome in translator.translate(texts[:3], first=3, **options)]  # type: ignore[union-attr]
    assert later == together[3:]
    assert [result.text for result in translator.batch(texts, **{**options, "seed": 4})] != together


def test_texts_that_are_too_long_are_split() -> None:
    reader = of_text(max_source=6)
    assert reader.segments("") == []
    (whole,) = reader.segments("a. b. ")
    assert whole.source == "a. b. "
    assert [segment.source for segment in reader.segments("ab a. Ab. B")] == ["ab a.", "Ab.", "B"]
    assert reader.segments(" " * 7) == []  # no sentence
    with pytest.raises(
        UserError, match="a sentence has 7 tokens, but this model translates at most 6 at a time; split it with"
    ):
        reader.segments("ab. Abcabca")
    assert reader.segment("abcabcabc").request.num_positions == 9  # never split
    short = replace(of_columns(), max_source=5)
    with pytest.raises(UserError, match="a sentence has 6 tokens, but this model translates at most 5 at a time"):
        short.segments(("walk", "V;PST"))  # columns are not split
    continues = replace(of_text(CONTINUES), max_source=2)
    with pytest.raises(UserError, match="it has 3 tokens, but this model continues texts of up to 2 tokens; shorten it"):
        continues.segments("X Y Z")
    (empty,) = continues.segments("")  # a language model continues nothing, too
    assert empty.request.prefix == ()


def test_learned_positions_limit_texts_and_outputs() -> None:
    reader = of_text(LIMITED)
    assert (reader.max_tokens, reader.max_output) == (6, 6)
    assert reader.segment("abc").request.limit == 6
    assert reader.segment("abc", reader.options({"max_length": 4})).request.limit == 4
    with pytest.raises(UserError, match="a sentence has 7 tokens, but this model translates at most 6"):
        reader.segments("abcabca")
    with pytest.raises(UserError, match=r"it has 3 source and 7 target tokens, the maximum is 6 each; shorten it"):
        reader.given_output("abc", "X " * 7)
    continues = of_text(replace(LIMITED, continues_text=True))
    assert continues.segment("X Y").request.limit == 6
    assert continues.segment("X Y", continues.options({"max_length": 3})).request.limit == 5
    with pytest.raises(UserError, match="text and prefix have 6 tokens, but this model supports 6 tokens in total, of which"):
        continues.segment("X Y X", continues.options({"prefix": "X Y X"}))
    assert of_text(Traits(max_positions=1)).max_output == 1


def test_the_limit_of_a_language_model_counts_what_follows_the_prompt() -> None:
    reader = of_text(CONTINUES)
    options = reader.options({"max_length": 100_000, "prefix": "X"})
    assert reader.segment("X Y " * 250, options).request.limit == 100_501
    assert reader.segment("", reader.options({"prefix": "X " * 300, "max_length": 2})).request.limit == 302


# --- options -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"seed": -1}, "seed is -1, expected a whole number from 0"),
        ({"seed": True}, "seed is True, expected a whole number from 0"),
        ({"seed": 2**63}, "seed is 9223372036854775808, expected a whole number from 0 to 9,223,372,036,854,775,807"),
        ({"seed": 10**5000}, "seed is a number of more than 4,300 digits, expected a whole number from 0"),
        ({"prefix": 5}, "prefix is 5, expected a list of token ids"),
        ({"prefix": [4, -1]}, r"prefix is \[4, -1\], expected a list of token ids"),
        ({"prefix": torch.tensor(4)}, r"prefix is tensor\(4\), expected a list of token ids"),
        ({"prefix": [4.0]}, r"prefix is \[4\.0\], expected a list of token ids"),
        ({"prefix": ["X"]}, r"prefix is \['X'\], expected a list of token ids"),
        ({"prefix": [7]}, "prefix or banned contains the token id 7, but the vocabulary has ids 0 to 6; give words, or ids of"),
        ({"prefix": "X Q"}, "the prefix 'X Q' contains symbols that the model cannot write; remove them"),
        ({"prefix": [4, 4], "max_length": 2}, "the prefix has 2 tokens, but max_length is 2; raise max_length"),
        ({"banned": [[]]}, "banned holds an empty sequence, which every output contains; leave it out"),
        ({"banned": [[4], [7]]}, "prefix or banned contains the token id 7, but"),
        ({"banned": [4]}, r"banned is \(4,\), expected a list of lists of token ids"),
        ({"min_length": 9, "max_length": 2}, "min_length 9 is more than max_length 2"),
    ],
)
def test_invalid_options_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        of_text().options(given)


def test_unknown_options_are_refused() -> None:
    for name in ("stream", "Beam", "look", "limit"):
        with pytest.raises(TypeError, match=rf"unknown search option '{name}'; expected one of beam, .*, prefix, seed"):
            of_text().options({name: 1})
    with pytest.raises(TypeError, match="banned takes a list of words, got 'X'"):
        of_text().options({"banned": "X"})


def test_options_become_plain_numbers() -> None:
    reader, x = of_text(), tuple(TARGET.encode("X"))
    given = {"beam": np.int64(4), "prefix": np.array([4, 5]), "seed": np.int32(7), "banned": ["Y", "Q", (4, 6)]}
    chosen = reader.options(given)
    assert chosen == RequestOptions(SearchOptions(beam=4, banned=(tuple(TARGET.encode("Y")), (4, 6))), (4, 5), 7)
    assert all(type(number) is int for number in (chosen.search.beam, *chosen.prefix, chosen.seed))
    assert reader.options({"prefix": "X"}).prefix == reader.options({"prefix": list(x)}).prefix == x
    assert reader.options({}) == RequestOptions()
    assert reader.options({"seed": 2**63 - 1}).seed == 2**63 - 1
    short = of_text(LIMITED)
    with pytest.raises(UserError, match="min_length is 7, but this model supports outputs of up to 6 tokens; lower min_length"):
        short.options({"min_length": 7})
    with pytest.raises(UserError, match="the prefix has 6 tokens, but this model supports outputs of up to 6 tokens and must"):
        short.options({"prefix": "X " * 6})


# --- given outputs -----------------------------------------------------------------------------------------------------------


def test_an_output_is_read_with_its_source() -> None:
    pair = of_text().given_output("abc", "X Y", 5)
    assert (pair.request.id, pair.texts, pair.written) == (5, ("X Y",), (*TARGET.encode("X Y"), EOS))
    assert of_columns().given_output(("go", "V"), "").written == (EOS,)


def test_the_output_of_a_language_model_starts_with_its_source() -> None:
    """The tokens of the prompt stay as they are: that of a model of subwords may end inside a token of the whole text."""
    merged = Codec.train(["concatenate", "cat con"] * 4, "bpe", 280)
    reader = Reader(merged, merged, CONTINUES)
    whole = reader.given_output("concatenate", "concatenate con")
    assert (whole.texts, whole.written) == (("concatenate", " con"), (*merged.encode("concatenate con"), EOS))
    inside = reader.given_output("conc", "concatenate")
    assert len(merged.encode("concatenate")) == 1
    assert inside.texts == ("conc", "atenate")
    assert inside.written == (*merged.encode("conc"), *merged.encode("atenate"), EOS)
    for pair in (whole, inside):
        assert pair.written[: len(pair.request.prefix)] == pair.request.prefix != ()
    assert reader.given_output("", "cat").texts == ("", "cat")
    for source, output in (("cat", "con"), ("cat", ""), ("concat", "con")):
        with pytest.raises(
            UserError,
            match=f"this is a language model, which continues its source, but the output '{output}' does not start with "
            f"'{source}'; give the whole text as the output, or leave the source empty",
        ):
            reader.given_output(source, output)
    assert Reader(merged, merged).given_output("cat", "con").texts == ("con",)  # any other model


# --- a row that fails is an error of that row --------------------------------------------------------------------------------


def test_numbers_that_are_not_finite_fail_one_row() -> None:
    translator = make_translator(RnnSettings(width=8, embedding=3))
    unknown = translator.source.encode("c")[0]  # type: ignore[union-attr]
    with torch.no_grad():
        translator.model.get_parameter("source_embedding.weight")[unknown] = torch.nan  # type: ignore[attr-defined]
    texts = ["ab", "ac", "", "ba", "c"] * 20
    for options in ({}, {"beam": 3}, {"sample": True}):
        results = list(translator.translate(texts, max_length=4, **options))
        for text, result in zip(texts, results, strict=True):
            if "c" in text:
                assert isinstance(result, Refused)
                assert "its weights are damaged or too large" in result.reason
            else:
                assert isinstance(result, Result)
    good, bad, other = translator.score_each(["ab", "c", "ba"], ["X", "X", "Y"])
    assert [good, other] == translator.score(["ab", "ba"], ["X", "Y"])
    assert isinstance(bad, Refused)
    with pytest.raises(UserError, match="text 2: this model computed a log-probability of nan"):
        translator.batch(["ab", "c"])
    calls: tuple[Callable[[str], object], ...] = (translator, lambda text: list(translator.stream(text)))
    for call in calls:
        with pytest.raises(UserError, match=r"^this model computed a log-probability of nan"):
            call("c")


def test_files_that_cannot_be_read_fail_their_row(tmp_path: Path) -> None:
    listener = make_listener(tmp_path)
    (tmp_path / "bad.wav").write_bytes(b"RIFF")
    first, missing, second, damaged, empty = listener.translate(["0-1.wav", "none.wav", "1-1.wav", "bad.wav", ""], max_length=3)
    assert isinstance(first, Result)
    assert isinstance(second, Result)
    assert isinstance(empty, Result)
    assert missing == Refused(f"{tmp_path / 'none.wav'}: no such file")
    assert isinstance(damaged, Refused)
    assert str(tmp_path / "bad.wav") in damaged.reason
    with pytest.raises(UserError, match=r"text 2: .*none\.wav: no such file"):
        listener.batch(["0-1.wav", "none.wav"])


def test_columns_fail_their_row() -> None:
    plain = make_translator(RnnSettings(width=8, embedding=3))
    first, refused, last = plain.translate(["ab", ("ab", "V"), "ba"], max_length=2)
    assert isinstance(first, Result)
    assert isinstance(last, Result)
    assert refused == Refused("this model reads one column, but got 2: ('ab', 'V'); give a text only")
    assert isinstance(make_inflector()(("walk", "V"), max_length=2), Result)
    continues = make_translator(DecoderOnlySettings(width=8, heads=2))
    with pytest.raises(UserError, match="this model reads one column, but got 2"):
        continues(("X", "Y"))
