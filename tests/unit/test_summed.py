"""Settings of exact hard attention, and hard attention at evaluation: by edits, in Python and on the command line."""

import math
import re
from pathlib import Path

import pytest
import torch
from table import MODELS
from test_folder import make_saved

from regard.checkpoint import folder
from regard.cli.evaluate import evaluate
from regard.errors import UserError
from regard.look import Edit, Look, Tap
from regard.models.rnn_seq2seq import RnnSettings
from regard.pipeline import Translator, source_batch
from regard.results import Result

LARGEST = Edit("cross", key="largest")


@pytest.mark.parametrize("attention", ["marginal", "monotone"])
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"decoder": "bahdanau"}, "but decoder=bahdanau and input_feeding=false; set decoder=luong"),
        ({"decoder": "fixed"}, "but decoder=fixed and input_feeding=false; set decoder=luong"),
        ({"input_feeding": True}, "but decoder=luong and input_feeding=true; set decoder=luong and input_feeding=false"),
        ({"readout": "mixed"}, "needs logits without a tanh of state and source, but readout is mixed; set readout=plain"),
    ],
)
def test_decoders_that_see_the_choice_are_refused(attention: str, settings: dict[str, object], words: str) -> None:
    # SPEC A0.12
    with pytest.raises(ValueError, match=re.escape(f"attention={attention} sums over all choices")) as raised:
        RnnSettings(attention=attention, **settings)  # type: ignore[arg-type]
    assert words in str(raised.value)


def test_a_fixed_decoder_needs_its_initial_state() -> None:
    with pytest.raises(ValueError, match=r"decoder=fixed sees the source through its initial state only, .*set bridge=learned"):
        RnnSettings(decoder="fixed", bridge="zero")
    assert RnnSettings(decoder="fixed", bridge="zero", every_step=True).every_step


def test_a_picture_has_no_order_to_move_along() -> None:
    with pytest.raises(ValueError, match="attention=monotone moves from left to right, but a picture has no such order; set"):
        RnnSettings(attention="monotone", readout="plain", frontend="picture")


def make_translator(name: str) -> Translator:
    torch.manual_seed(5)
    saved = make_saved(MODELS[name])
    for parameter in saved.model.parameters():
        parameter.data.mul_(3)  # so that soft and hard attention differ clearly
    return Translator.of_model(saved.model.double(), saved.source, saved.target)


@pytest.mark.parametrize("name", ["rnn marginal", "rnn monotone", "rnn additive", "transformer alibi"])
def test_a_search_with_edits_is_scored_by_a_pass_with_edits(name: str) -> None:
    translator, texts = make_translator(name), ["abcab", "ca", "bbbbbbb"]
    results = list(translator.translate(texts, edits=(LARGEST,), beam=2, max_length=6))
    usual = list(translator.translate(texts, beam=2, max_length=6))
    for text, result, soft in zip(texts, results, usual, strict=True):
        assert isinstance(result, Result)
        assert isinstance(soft, Result)
        written = [*result.ids, *[3] * result.finished]
        look = Look((Tap("cross"),), (LARGEST,))
        memory = translator.model.encode(source_batch([translator.source.encode(text)]))  # type: ignore[union-attr,list-item]
        decoded = translator.model.decode(torch.tensor([[2, *written[:-1]]]), memory, look)
        assert result.log_prob == pytest.approx(decoded.log_probs(torch.tensor([written])).sum().item(), abs=1e-9)
        assert all(set(seen.weights_BHTS.unique().tolist()) == {0.0, 1.0} for seen in decoded.seen)
        assert not math.isclose(result.log_prob, soft.log_prob, abs_tol=1e-3)


def test_evaluate_measures_hard_attention(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # SPEC A3.2
    torch.manual_seed(2)
    saved = make_saved(RnnSettings(width=10, embedding=6, score="general", attention="monotone", readout="plain"))
    for parameter in saved.model.parameters():
        parameter.data.mul_(2)
    folder.save(saved, tmp_path / "m")
    translator = Translator.of_model(saved.model, saved.source, saved.target)
    texts = ["abcab", "ca", "bbbb", "acb", "cccab"]
    hard = [result.text for result in translator.translate(texts, edits=(LARGEST,), beam=1, max_length=5)]  # type: ignore[union-attr]
    soft = [result.text for result in translator.batch(texts, beam=1, max_length=5)]
    assert hard != soft
    (tmp_path / "t.tsv").write_text("".join(f"{text}\tX Y\n" for text in texts))
    for option, expected in ((True, hard), (False, soft)):
        evaluate(tmp_path / "m", [tmp_path / "t.tsv"], beam=1, max_length=5, hard=option, outputs=True)
        printed = capsys.readouterr().out
        rows = [line.split("\t") for line in printed.splitlines() if line.count("\t") == 2]
        assert {row[0]: row[1] for row in rows} == dict(zip(texts, expected, strict=True))
        assert ("max_length=5,hard" in printed.splitlines()[-1]) == option


def test_there_must_be_attention_to_make_hard(tmp_path: Path) -> None:
    folder.save(make_saved(RnnSettings(width=10, embedding=6, decoder="fixed")), tmp_path / "m")
    (tmp_path / "t.tsv").write_text("abc\tX Y\n")
    with pytest.raises(UserError, match="--hard changes attention to the source, but this model has none; leave it out"):
        evaluate(tmp_path / "m", [tmp_path / "t.tsv"], beam=1, max_length=5, hard=True)
