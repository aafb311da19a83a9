"""Settings of exact hard attention, and hard attention at evaluation: by edits, in Python and on the command line."""

import math
import re
from pathlib import Path

import pytest
import torch
from table import EOS, MODELS, SOURCE_VOCAB, TARGET_VOCAB, make_source, make_targets
from test_folder import make_saved

import regard
from regard.checkpoint import folder
from regard.checkpoint.folder import Saved
from regard.cli.evaluate import evaluate
from regard.core.source import Source
from regard.data.batch import source_batch
from regard.data.sources import auxiliary_vocabulary_size
from regard.data.tokenizers.codec import Codec
from regard.errors import UserError
from regard.look import Edit, Look, Tap
from regard.models.build import build
from regard.models.rnn_seq2seq import RnnSettings
from regard.pipeline import Translator
from regard.results import Result
from regard.training.settings import DataSettings, RunSettings

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


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"copy": True}, "copy=true adds a choice to a sum over all choices, but attention is soft; set attention=marginal or"),
        (
            {"copy": True, "attention": "monotone", "readout": "plain", "frontend": "sound"},
            "copy=true writes tokens of the source, but a sound has none; set copy=false",
        ),
        ({"features": "set", "frontend": "sound"}, "features=set reads the features of a text, but the frontend is sound; set"),
        (
            {"features": "set", "decoder": "bahdanau"},
            "features=set adds features to states that do not depend on a context, but decoder=bahdanau and input_feeding=f",
        ),
        ({"features": "bag"}, "there is no way 'bag' to read features; expected positions or set"),
    ],
)
def test_what_cannot_be_copied_or_be_a_set_is_refused(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        RnnSettings(**settings)  # type: ignore[arg-type]


def test_copying_needs_one_vocabulary() -> None:
    model = RnnSettings(copy=True, attention="monotone", readout="plain")
    with pytest.raises(
        UserError, match=r"copy=true requires one vocabulary for both sides; set data.shared=true, or copy=false"
    ):
        RunSettings(model=model)
    assert RunSettings(model=model, data=DataSettings(shared=True)).model == model


def inflecting(tmp_path: Path) -> Translator:
    """Returns a model of words and their features, as it is loaded from its folder."""
    codec = Codec.train(["ab\tN\tPL", "bca\tN\tSG"], "characters")
    settings = RnnSettings(
        width=10, embedding=6, score="general", attention="monotone", readout="plain", copy=True, features="set"
    )
    torch.manual_seed(1)
    model = build(settings, len(codec), len(codec), auxiliary=auxiliary_vocabulary_size(codec))
    for parameter in model.parameters():
        parameter.data.mul_(2)
    folder.save(Saved(model.eval(), settings, codec, codec, {}, ""), tmp_path / "m")
    return regard.load(tmp_path / "m")


def test_features_have_no_positions_but_matter(tmp_path: Path) -> None:
    translator = inflecting(tmp_path)
    plural, again, singular, unknown = translator.batch(
        [("abca", "N;PL"), ("abca", "PL;N"), ("abca", "N;SG"), ("abca", "N;PL;DUAL")], max_length=5, look=Look((Tap("cross"),))
    )
    assert plural.log_prob == pytest.approx(again.log_prob, abs=1e-4)
    assert plural.log_prob == pytest.approx(unknown.log_prob, abs=1e-4)
    assert abs(plural.log_prob - singular.log_prob) > 1e-3
    assert plural.seen[0].weights_BHTS.shape[-1] == 5  # four letters and <eos>
    assert plural.source_tokens == unknown.source_tokens == ("a", "b", "c", "a")
    assert translator.reader.labels(("abca", "N;PL;DUAL"), (5,)) == ("a", "b", "c", "a", "<eos>")
    assert all(source < 4 for source, _ in unknown.alignment(pieces=True))
    (scored,) = translator.score([("abca", "N;PL")], [plural.text])
    assert not plural.finished or scored.log_prob == pytest.approx(plural.log_prob, abs=1e-4)
    assert len(regard.explain(translator, ("abca", "N;PL"), 0)["gates"]) == 5
    assert regard.inspect(translator, ("abca", "N;DUAL")).source == ("a", "b", "c", "a", "<eos>")


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


SUMMED = ["rnn marginal", "rnn monotone"]
EDITS = {
    "off": (Edit.off("cross"),),
    "one step forced": (Edit.force(1, 0),),
    "one step cut": (Edit.cut(1, 1),),
    "cut, then the largest": (Edit.cut(None, 0), Edit.force(None, "largest")),
}


@pytest.mark.parametrize("edits", EDITS.values(), ids=EDITS)
@pytest.mark.parametrize("name", SUMMED)
def test_edits_mean_the_same_in_a_search_in_a_score_and_in_maps(name: str, edits: tuple[Edit, ...]) -> None:
    translator = make_translator(name)
    result = translator("abcab", beam=2, max_length=6, edits=edits, look=Look((Tap("cross"),)))
    (scored,) = translator.score(["abcab"], [result.text], edits=edits)
    if result.finished:
        assert result.log_prob == pytest.approx(scored.log_prob, abs=1e-9)
    written = torch.tensor([[2, *result.ids, *[3] * result.finished]])
    memory = translator.model.encode(source_batch([translator.source.encode("abcab")]))  # type: ignore[union-attr,list-item]
    decoded = translator.model.decode(written[:, :-1], memory, Look((Tap("cross"),), edits))
    assert result.log_prob == pytest.approx(decoded.log_probs(written[:, 1:]).sum().item(), abs=1e-9)
    (used,), (seen,) = decoded.seen, result.seen
    torch.testing.assert_close(torch.from_numpy(seen.weights_BHTS), used.weights_BHTS, check_dtype=False)
    if edits == EDITS["off"]:
        assert not result.attention().weights_HTS.any()
    if edits == EDITS["one step forced"]:
        assert result.attention().mean_TS[1].tolist() == [1.0, *[0.0] * 5]
    if edits == EDITS["cut, then the largest"]:
        assert (result.attention().weights_HTS == seen.weights_BHTS[0]).all()


@pytest.mark.parametrize("name", SUMMED)
def test_a_cut_key_is_left_out_of_the_sum(name: str) -> None:
    """By hand: the prior without the key sums to 1 again, and the posterior is proportional to it and to p(y | j)."""
    translator, ids = make_translator(name), torch.tensor([[2, 5, 4, 6, 5]])
    model, taps = translator.model, (Tap("cross"), Tap("cross", what="posterior"))
    memory = model.encode(source_batch([translator.source.encode("abcab")]))  # type: ignore[union-attr,list-item]
    plain, cut = model.decode(ids, memory, Look(taps)), model.decode(ids, memory, Look(taps, (Edit.cut(2, 1),)))
    each = [model.decode(ids, memory, Look((), (Edit.force(2, key),))).distribution()[0, 2].exp() for key in range(6)]
    (before, known), (prior, posterior) = ([seen.weights_BHTS[0, 0] for seen in decoded.seen] for decoded in (plain, cut))
    kept = before[2].clone()
    kept[1] = 0
    kept /= kept.sum()
    torch.testing.assert_close(prior[2], kept)
    mixed = sum(weight * probs for weight, probs in zip(kept, each, strict=True))
    torch.testing.assert_close(cut.distribution()[0, 2].exp(), mixed)
    others = [0, 1, 3, 4]
    torch.testing.assert_close(prior[others], before[others])
    torch.testing.assert_close(posterior[others], known[others])
    assert posterior[2, 1] == 0
    assert posterior[2].sum() == pytest.approx(1)
    if name == "rnn marginal":
        by_hand = kept * torch.stack([probs[6] for probs in each])
        torch.testing.assert_close(posterior[2], by_hand / by_hand.sum())
        assert not torch.allclose(posterior[2], prior[2])


@pytest.mark.parametrize("name", SUMMED)
def test_a_recurrent_encoder_has_read_what_is_to_be_removed(name: str) -> None:
    with pytest.raises(UserError, match=re.escape("Edit.cut(None, 1) hides position 1 from the decoder only")):
        make_translator(name)("abcab", edits=Edit.remove(1))


@pytest.mark.parametrize("name", SUMMED)
def test_links_are_those_of_the_posterior(name: str) -> None:
    translator = make_translator(name)
    result = translator("abcab", max_length=6)
    best = result.attention().mean_TS[: len(result.ids), :5].argmax(-1)
    assert result.ids
    assert result.alignment(pieces=True) == tuple(sorted((int(i), j) for j, i in enumerate(best)))
    logits = translator.model(torch.tensor([translator.source.encode("abcab")]), torch.tensor([[2, *result.ids]]))  # type: ignore[operator,union-attr,list-item]
    torch.testing.assert_close(logits.logsumexp(-1), torch.zeros_like(logits[..., 0]))


def test_special_tokens_are_not_copied() -> None:
    """Not even <eos> at the end of a source: it would end the output twice."""
    settings = RnnSettings(width=8, embedding=6, attention="monotone", readout="plain", copy=True)
    model = build(settings, SOURCE_VOCAB, TARGET_VOCAB).eval()
    source = make_source(5, 3)
    ids = source.values.clone()
    ids[0, 4] = ids[1, 2] = EOS
    decoded = model.decode(make_targets(2, 4), model.encode(Source(ids, source.allow)))
    copied = decoded.copied_BTS > -1e8
    assert torch.equal(copied, (ids > EOS).unsqueeze(1).expand_as(copied))
