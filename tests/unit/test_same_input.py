"""All views of a translation show the input that was translated: the encoder gets the same numbers, the tokens are the same."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from table import MODELS
from test_fusion import make_translator as make_fused
from typer.testing import CliRunner

import regard
from regard.checkpoint import folder
from regard.checkpoint.folder import Saved
from regard.cli.main import app
from regard.data.tokenizers.codec import Codec, TokenUnit
from regard.errors import UserError
from regard.inspection.align import align_pairs
from regard.inspection.capture import inspect
from regard.inspection.explain import explain
from regard.inspection.render import in_terminal
from regard.inspection.report import page_data, write_npz
from regard.models.build import build

TEXTS = ["walk\tV\tPST", "talk on\tV\tIMP\tSG", "walked on"]
TAGGED = {  # the text that a user types -> the tokens of a model of characters
    "walk\tV;IMP;SG": ("w", "a", "l", "k", "\tV", "\tIMP", "\tSG"),
    "walk\tV\tPST": ("w", "a", "l", "k", "\tV", "\tPST"),
    "walk\tV|FUT": ("w", "a", "l", "k", "\tV", "\tFUT"),  # an unseen feature
    "ox;\t V  SG ": ("o", "x", ";", "\tV", "\tSG"),
    "talk": ("t", "a", "l", "k"),
}


def make_saved(name: str, unit: TokenUnit = "characters") -> Saved:
    torch.manual_seed(5)
    source, target = Codec.train(TEXTS, unit, 300), Codec.train(["X Y Z"], "symbols")
    return Saved(build(MODELS[name], len(source), len(target)).eval(), MODELS[name], source, target, {}, "")


def make_translator(name: str, unit: TokenUnit = "characters") -> regard.Translator:
    saved = make_saved(name, unit)
    return regard.Translator.of_model(saved.model, saved.source, saved.target)


def everything(translator: regard.Translator, text: str) -> Iterator[object]:
    """Calls every entry point of the model with one text, one after the other."""
    yield (result := translator(text, max_length=3))
    yield list(translator.stream(text, max_length=3))
    yield translator.score([text], [text if translator.reader.traits.continues_text else "X Y"])
    if not translator.reader.traits.continues_text:
        yield result.attention()
        yield result.alignment()
        yield align_pairs(translator, [(translator.reader.line(text), "X Y")]) if isinstance(translator.source, Codec) else None
    yield inspect(translator, text, max_length=3)
    yield inspect(translator, text, output=(4, 5))
    yield explain(translator, text, max_length=3) if isinstance(translator.source, Codec) else None


def encoded(translator: regard.Translator, text: str, monkeypatch: pytest.MonkeyPatch) -> list[list[torch.Tensor]]:
    """The inputs of the encoder, for each entry point."""
    inputs: list[list[torch.Tensor]] = []
    encode = translator.model.encode

    def record(source, look=None):  # type: ignore[no-untyped-def]
        inputs[-1] = [source.values, *([] if source.auxiliary is None else [source.auxiliary.values])]
        return encode(source, look)

    monkeypatch.setattr(translator.model, "encode", record)
    steps = everything(translator, text)
    inputs.append([])
    for _ in steps:
        inputs.append([])
    return [tensors for tensors in inputs if tensors]


@pytest.mark.parametrize("unit", ["characters", "symbols", "words", "bpe", "unigram"])
@pytest.mark.parametrize("name", ["rnn additive", "transformer scaled_dot", "decoder only", "rnn language model"])
def test_every_entry_point_encodes_the_same(name: str, unit: TokenUnit, monkeypatch: pytest.MonkeyPatch) -> None:
    translator = make_translator(name, unit)
    for text in TAGGED:
        first, *others = encoded(translator, text, monkeypatch)
        assert len(others) >= 5
        assert all(one[0].equal(first[0]) for one in others), text
        if not translator.reader.traits.continues_text:
            assert first[0].tolist() == [[*translator.reader.segment(translator.reader.line(text)).request.source, 3]]
        monkeypatch.undo()


def test_every_entry_point_encodes_the_same_file_and_auxiliary_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("0-1.wav\tall digits", "0-1.wav\tall;new", "0-1.wav", "\tsay nine"):
        translator = make_fused(tmp_path)
        first, *others = encoded(translator, text, monkeypatch)
        assert len(others) >= 5
        for other in others:
            assert all(one.equal(two) for one, two in zip(first, other, strict=True)), text
        monkeypatch.undo()


@pytest.mark.parametrize("text", TAGGED)
def test_every_output_shows_what_was_translated(text: str, tmp_path: Path) -> None:
    translator = make_translator("transformer scaled_dot")
    result, tokens = translator(text, max_length=3), TAGGED[text]
    assert result.source_tokens == tokens
    labels = (*tokens, "<eos>")
    seen = inspect(translator, text, max_length=3)
    attention = result.attention()
    assert attention.source == seen.source == labels
    np.testing.assert_allclose(seen.layer("cross", -1).numbers["weights"].numpy(), attention.weights_HTS, atol=1e-6)
    assert tuple(page_data(seen)["source"]) == labels
    with np.load(write_npz(seen, tmp_path / "seen.npz")) as arrays:
        assert tuple(json.loads(bytes(arrays["tokens.json"]))["source"]) == labels
        np.testing.assert_array_equal(arrays["cross.1.weights"], seen.layer("cross", -1).numbers["weights"].numpy())
    lines = {line["name"]: line for line in explain(translator, text, max_length=3).as_dict()["lines"]}
    assert tuple(lines["keys"]["rows"]) == tuple(lines["weights"]["rows"]) == labels
    np.testing.assert_allclose(lines["weights"]["values"], attention.weights_HTS[0, 0], atol=1e-6)
    (aligned,) = align_pairs(translator, [(translator.reader.line(text), "X Y")])
    assert aligned.num_sources == len(tokens)
    head = in_terminal(attention).plain.splitlines()[0]
    assert head.split() == [token.strip("\t") if len(token) == 1 else f"[{token[1:]}]" for token in tokens] + ["<eos>"]


def test_commands_show_what_was_translated(tmp_path: Path) -> None:
    folder.save(make_saved("rnn additive"), tmp_path / "model")
    run = CliRunner().invoke
    model, text = str(tmp_path / "model"), " walk\tV;IMP;SG "
    page, arrays, drawing = (str(tmp_path / f"out{ending}") for ending in (".html", ".npz", ".svg"))
    expected = regard.load(model)("walk\tV;IMP;SG")
    for out in (page, arrays, drawing):
        shown = run(app, ["inspect", model, text, "--out", out])
        assert shown.exit_code == 0, shown.exception
        head, _, columns, *_ = shown.output.splitlines()
        assert head == f"walk [V] [IMP] [SG] -> {expected.text}"
        assert columns.split() == ["w", "a", "l", "k", "[V]", "[IMP]", "[SG]", "<eos>"]
    with np.load(arrays) as numbers:
        assert json.loads(bytes(numbers["tokens.json"]))["source"] == [*TAGGED["walk\tV;IMP;SG"], "<eos>"]
        np.testing.assert_allclose(numbers["cross.0.weights"], expected.attention().weights_HTS, atol=1e-6)
    for label in ("[V]", "[IMP]", "[SG]"):
        assert label in Path(drawing).read_text()
    explained = json.loads(run(app, ["explain", model, text, "--json"]).output)
    assert next(line for line in explained["lines"] if line["name"] == "keys")["rows"] == [*TAGGED["walk\tV;IMP;SG"], "<eos>"]
    assert "[IMP]" in run(app, ["explain", model, text]).output


def test_a_text_that_was_split_is_not_shown_as_one() -> None:
    for name in ("rnn additive", "transformer scaled_dot"):
        translator = make_translator(name)
        translator = replace(translator, reader=replace(translator.reader, max_source=6))
        text = "walk. Talk."
        assert len(translator(text, max_length=3).parts) == 2
        for function in (inspect, explain):
            with pytest.raises(UserError, match="is too long and was translated in 2 parts; inspect one sentence at a time"):
                function(translator, text, max_length=3)
        assert inspect(translator, text, output=(4,)).source == (*text, "<eos>")  # given an output, as `score` reads it
    with pytest.raises(UserError, match="a sentence has 8 tokens, but this model translates at most 6 at a time"):
        inspect(translator, "talkwalk")


def test_half_a_character_is_refused() -> None:
    for unit in ("characters", "bpe"):
        translator = make_translator("rnn additive", unit)
        for call in (translator, lambda text: inspect(translator, text), lambda text: explain(translator, text)):  # noqa: B023
            with pytest.raises(UserError, match="a lone surrogate"):
                call("a\udcff")
        with pytest.raises(UserError, match=r"pair 2: .*a lone surrogate"):
            translator.score(["a", "a"], ["X", "\ud800"])
        with pytest.raises(UserError, match="a lone surrogate"):
            translator.source.encode_batch(["a", "\ud800"])
