"""Results are plain data: as JSON and pickled they keep everything but the model, which can still inspect them."""

import copy
import dataclasses
import json
import pickle
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from test_pipeline import limited, make_listener, make_translator

from regard.data.tokenizers.codec import Codec
from regard.errors import UserError
from regard.look import Edit, Look, Tap
from regard.models.build import build
from regard.models.decoder_only import DecoderOnlySettings
from regard.models.rnn_seq2seq import RnnSettings
from regard.models.transformer import TransformerSettings
from regard.pipeline import Translator
from regard.results import AttentionMap, Result

SMALL = RnnSettings(width=8, embedding=3)


def make_inflector() -> Translator:
    """An untrained model that reads two columns."""
    torch.manual_seed(3)
    source, target = Codec.train(["walk\tV\tPST", "go\tV\tFUT"], "characters"), Codec.train(["X Y Z"], "symbols")
    return Translator.of_model(build(SMALL, len(source), len(target)).eval(), source, target)


@pytest.fixture(params=["text", "n-best", "split", "columns", "empty", "unfinished"])
def example(request: pytest.FixtureRequest) -> tuple[Translator, Result]:
    if request.param == "columns":
        translator = make_inflector()
        return translator, translator(("go", "V;PST"), max_length=3)
    translator = make_translator(TransformerSettings(width=8, heads=2))
    if request.param == "split":
        translator = limited(translator, 5)
        result = translator("ab a. Ba?", max_length=3)
        assert len(result.parts) == 2
        return translator, result
    text, options = {
        "text": ("ab?a", {}),
        "n-best": ("abc", {"beam": 3, "n_best": 3}),
        "empty": ("", {}),
        "unfinished": ("abc", {"min_length": 2, "max_length": 2}),
    }[request.param]
    return translator, translator(text, **{"max_length": 6, **options})


def test_a_result_is_equal_after_json(example: tuple[Translator, Result]) -> None:
    _, result = example
    plain = result.as_dict()
    assert set(plain) == {field.name for field in fields(Result)}
    again = Result.from_dict(json.loads(json.dumps(plain)))
    assert again == result
    assert again.ids == result.ids
    assert isinstance(again.source, type(result.source))
    assert again.as_dict() == plain
    assert json.loads(json.dumps(plain)) == plain  # lists, not tuples


def test_a_pickled_result_keeps_everything_but_its_model(example: tuple[Translator, Result]) -> None:
    translator, result = example
    stored = pickle.dumps(result)
    again = pickle.loads(stored)
    assert again == result
    assert repr(again) == repr(result)
    assert result._inspector is translator  # pickling does not change the original
    assert copy.copy(result)._inspector is copy.deepcopy(result)._inspector is translator
    assert dataclasses.asdict(result)["text"] == result.text  # without the model
    assert len(stored) < 5_000  # without the weights
    for one in (again, *again.parts, Result.from_dict(result.as_dict())):
        for name in ("attention", "alignment"):
            with pytest.raises(
                UserError,
                match=rf"this result was stored and no longer knows its model; load the model and call translator\.{name}\(res",
            ):
                getattr(one, name)()
    assert translator.alignment(again) == result.alignment()
    for mine, original in zip(again.parts or (again,), result.parts or (result,), strict=True):
        if original.tokens:
            assert translator.attention(mine) == original.attention()
            assert translator.attention(mine, "cross", 0) == original.attention("cross", 0)


def test_a_result_is_unpickled_without_torch(tmp_path: Path) -> None:
    result = make_inflector()(("go", "V;PST"), max_length=3)
    (tmp_path / "result").write_bytes(pickle.dumps(result))
    code = (
        "import pickle, sys; from pathlib import Path; result = pickle.loads(Path('result').read_bytes()); "
        "print(result.text, result.source, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == f"{result.text} ('go', 'V;PST') False\n", done.stderr


def test_a_result_of_a_normal_sentence_is_small_and_plain(tmp_path: Path) -> None:
    """Five outputs of 30 tokens each: pickled under 10 kB, and `dataclasses.asdict` is JSON; neither needs torch."""
    letters = [f"{first}{second}" for first in "abcdefghij" for second in "klmnopqrst"]
    codec = Codec.train([" ".join(letters)], "words")
    torch.manual_seed(1)
    translator = Translator.of_model(build(SMALL, len(codec), len(codec)).eval(), codec, codec)
    text = " ".join(letters[3:90:3])
    edits = Edit.force(3, 0), Edit.cut(None, 2)
    result = translator(text, beam=5, n_best=5, min_length=30, max_length=30, edits=edits, look=Look((Tap("cross"),)))
    assert [len(output.ids) for output in result.n_best] == [30] * 5
    stored, plain = pickle.dumps(result), json.dumps(dataclasses.asdict(result))
    assert len(stored) < 10_000
    assert Result.from_dict(json.loads(plain)) == result == pickle.loads(stored)
    (tmp_path / "result").write_bytes(stored)
    (tmp_path / "result.json").write_text(plain)
    code = (
        "import json, pickle, sys; from pathlib import Path; from regard.results import Result; "
        "one = pickle.loads(Path('result').read_bytes()); two = Result.from_dict(json.loads(Path('result.json').read_text())); "
        "print(one == two, one.edits[0].key, len(two.n_best[4].ids), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "True 0 30 False\n", done.stderr


def test_results_of_older_versions_still_load() -> None:
    """Without the ids of alternatives, and without edits."""
    translator = make_translator(SMALL)
    result = translator("abc", max_length=3)
    old = result.as_dict()
    del old["edits"], old["n_best"][0]["ids"]
    again = Result.from_dict(old)
    assert (again.ids, again.edits, again.n_best[0].ids) == (result.ids, (), ())
    unpickled = Result.__new__(Result)
    vars(unpickled).update({name: value for name, value in vars(again).items() if name != "edits"})  # as pickle does
    assert unpickled == again
    assert translator.attention([again, unpickled]) == translator.attention([result, result])


def test_parts_are_results_of_their_own() -> None:
    translator = limited(make_translator(SMALL), 5)
    whole = translator("ab a. Ba?", max_length=3)
    first, second = whole.parts
    assert (first.source, second.source, whole.source) == ("ab a.", "Ba?", "ab a. Ba?")
    alone = translator("ab a.", max_length=3)
    assert (first.text, first.ids, first.source_tokens) == (alone.text, alone.ids, alone.source_tokens)
    assert first.log_prob == pytest.approx(alone.log_prob, abs=1e-5)
    assert whole.ids == first.ids + second.ids
    assert whole.alignment() == (
        *first.alignment(),
        *((i + len(first.source_tokens), j + len(first.tokens)) for i, j in second.alignment()),
    )
    with pytest.raises(UserError, match="this text was translated in 2 parts; each part has its own attention, see `parts`"):
        translator.attention(whole)


def test_attention_is_an_array_that_is_compared_by_value() -> None:
    translator = make_translator(TransformerSettings(width=8, heads=2))
    attention = translator("abc", max_length=3).attention()
    assert isinstance(attention.weights_HTS, np.ndarray)
    assert isinstance(attention.mean_TS, np.ndarray)
    assert attention == translator("abc", max_length=3).attention()
    assert attention != replace(attention, weights_HTS=attention.weights_HTS + 1)
    assert pickle.loads(pickle.dumps(attention)) == attention
    given = torch.rand(2, 3, 4)
    assert isinstance(AttentionMap(given, tuple("abcd"), tuple("xyz"), "cross", 0).weights_HTS, np.ndarray)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="cross attention of this model has no maps: its source is not a picture or a grid"):
        _ = attention.maps_TRC


def test_a_notebook_shows_the_text_and_its_weights(tmp_path: Path) -> None:
    translator = make_translator(SMALL)
    result = translator("a<b", max_length=3)
    html = result._repr_html_()
    attention = result.attention()
    assert html.startswith(f"<p>a &lt; b → <b>{result.text}</b></p><table")
    assert html.endswith(attention._repr_html_())
    rows, columns = attention.mean_TS.shape
    assert html.count("<tr>") == rows + 1
    assert html.count("<td ") == rows * columns
    first = attention.mean_TS[0, 0]
    assert f'title="{attention.target[0]} ← a: {first:.4f}" style="background:rgba(43,111,143,{first:.3f})' in html
    assert "<script" not in html
    for without in (
        pickle.loads(pickle.dumps(result)),  # no model
        make_translator(DecoderOnlySettings(width=8, heads=2))("X Y", max_length=3),  # no cross-attention
        limited(translator, 5)("ab a. Ba?", max_length=3),  # in parts
        translator(""),
    ):
        assert without._repr_html_().endswith(f"→ <b>{without.text}</b></p>")
    assert "→ <b>" in make_listener(tmp_path)("0-1.wav", max_length=2)._repr_html_()


def test_a_notebook_shows_the_beginning_of_many_positions() -> None:
    long = AttentionMap(np.full((2, 100, 70), 1 / 70), ("a",) * 70, ("b",) * 100, "cross", 1)
    html = long._repr_html_()
    assert html.count("<td ") == 64 * 64
    assert html.endswith("<p>The first 64 positions; regard inspect shows all.</p>")
    assert 'title="cross attention, layer 1, average of 2 heads"' in html
    assert "regard inspect" not in replace(long, weights_HTS=long.weights_HTS[:, :64, :64])._repr_html_()
