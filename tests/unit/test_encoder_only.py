"""Models without a decoder: classifiers, taggers and models that fill blanks; and the encoder of any model alone."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from table import EOS, PAD, SOS, UNK
from test_command_line import run
from torch import Tensor, nn

import regard
from regard.contracts import OWN
from regard.core.positions import sinusoidal
from regard.data.batch import Example, source_batch
from regard.data.blanks import BLANK, BlankCodec, masked
from regard.data.tokenizers.codec import Codec
from regard.errors import UserError
from regard.models.build import build
from regard.models.contract import ModelSettings
from regard.models.encoder_only import ClassifierSettings, LabelModel, MaskedSettings, TaggerSettings

WORDS = {"red": "ADJ", "blue": "ADJ", "cat": "N", "dog": "N", "ran": "V", "sat": "V"}
SIZES: dict[str, Any] = {"width": 24, "heads": 2, "feed_forward": 28, "layers": 2, "dropout": 0.0}
TINY: dict[str, Any] = {**SIZES, "steps": 60, "learning_rate": 0.01, "quiet": True, "threads": 1}


def sentences(number: int) -> list[str]:
    rng = random.Random(1)
    return [" ".join(rng.choices(list(WORDS), k=rng.randint(2, 6))) for _ in range(number)]


TAGGED = [(text, " ".join(WORDS[word] for word in text.split())) for text in sentences(200)]
LABELLED = [(text, "a long one" if len(text.split()) > 3 else "short") for text in sentences(200)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the models tagger, classifier and masked, trained for a few seconds each."""
    here = tmp_path_factory.mktemp("models")
    torch.set_num_threads(1)
    regard.train(TAGGED, here / "tagger", kind="tagger", **TINY)
    regard.train(LABELLED, here / "classifier", kind="classifier", **TINY)
    texts = ["red dog ran home", "blue cat sat down", "old man said no", "one fish swam away"] * 10
    regard.train(texts, here / "masked", held_out=texts, kind="masked", mask=0.3, target_unit="words", **{**TINY, "steps": 100})
    return here


# --- against plain torch ---------------------------------------------------------------------------------------------------


class PlainEncoder(nn.Module):
    """Embedding · √d + sinusoids, nn.TransformerEncoder, and a linear layer."""

    def __init__(self, model: LabelModel, vocab: int, labels: int) -> None:
        super().__init__()
        ours = regard.TransformerEncoder(24, 2, 2, feed_forward=28, activation="gelu", norm_order="pre", dropout=0.0).double()
        state = {name: tensor for name, tensor in model.encoder.state_dict().items() if not name.startswith("embedding")}
        ours.load_state_dict(state)
        self.layers = ours.to_torch().eval()
        self.embedding = nn.Embedding(vocab, 24, dtype=torch.float64)
        self.embedding.weight = model.encoder.embedding.tokens.weight  # type: ignore[union-attr]
        self.head = nn.Linear(24, labels, dtype=torch.float64)
        self.head.load_state_dict(model.head.state_dict())

    def states(self, ids_BS: Tensor) -> Tensor:
        positions = sinusoidal(torch.arange(ids_BS.shape[1]), 24, dtype=torch.float64)
        states: Tensor = self.layers(self.embedding(ids_BS) * 24**0.5 + positions, src_key_padding_mask=ids_BS == PAD)
        return states


@pytest.mark.parametrize("kind", ["classifier", "tagger", "masked"])
def test_labels_are_those_of_plain_torch(kind: str) -> None:  # SPEC A7.7
    """Value of every log-probability, and gradient of the loss, with nn.TransformerEncoder; padding and <eos> included."""
    settings = {"classifier": ClassifierSettings, "tagger": TaggerSettings, "masked": MaskedSettings}[kind](**SIZES)
    model = build(settings, 13, 11 if kind != "masked" else 13).double().eval()
    assert isinstance(model, LabelModel)
    plain = PlainEncoder(model, 13, model.head.out_features)
    rows = [[5, 6, 7, 8, 9], [10, 11], [7]]
    if kind == "masked":
        rows = [[5, UNK, 7, 8, UNK], [UNK, 11], [7]]
    source = source_batch(rows)
    states = plain.states(source.values)
    memory = model.encode(source)
    for row, length in enumerate((6, 3, 2)):
        torch.testing.assert_close(memory.values_BSE[row, :length], states[row, :length])
    targets = torch.tensor([[5, 6, 7, 8, 9, EOS], [10, 4, EOS, PAD, PAD, PAD], [7, EOS, PAD, PAD, PAD, PAD]])
    if kind == "classifier":
        targets = torch.tensor([[5, EOS], [10, EOS], [7, EOS]])
        states = torch.stack([states[row, :length].mean(0, keepdim=True) for row, length in enumerate((6, 3, 2))])
    logits = plain.head(states)
    logits[..., [PAD, UNK, SOS, EOS]] = float("-inf")
    log_probs = logits.log_softmax(-1)
    decoded = model.decode(torch.full_like(targets, SOS), memory)
    ours = decoded.distribution()
    for row, ids in enumerate(rows):
        number = 1 if kind == "classifier" else len(ids)
        for position in range(targets.shape[1]):
            expected = torch.full((ours.shape[-1],), float("-inf"), dtype=torch.float64)
            if position >= number:
                expected[EOS] = 0.0
            elif kind == "masked" and ids[position] != UNK:
                expected[ids[position]] = 0.0
            else:
                expected = log_probs[row, position]
            known = [token for token in range(ours.shape[-1]) if token != UNK]
            torch.testing.assert_close(ours[row, position][known], expected[known])
    if kind == "masked":
        targets = torch.tensor([[PAD, 6, PAD, PAD, 9], [10, PAD, PAD, PAD, PAD], [PAD] * 5])
        decoded = model.decode(torch.full_like(targets, SOS), memory)
        log_probs = log_probs[:, :5]
    wanted = (targets != PAD) & (targets != EOS)
    expected_loss = F.nll_loss(
        log_probs[:, : wanted.shape[1]][wanted[:, : log_probs.shape[1]]], targets[wanted], reduction="sum"
    )
    loss = decoded.loss(targets, pad=PAD)
    torch.testing.assert_close(loss, expected_loss)
    (ours_grad,) = torch.autograd.grad(loss, model.head.weight)
    (plain_grad,) = torch.autograd.grad(expected_loss, plain.head.weight)
    torch.testing.assert_close(ours_grad, plain_grad)
    smoothed = decoded.loss(targets, pad=PAD, smoothing=0.1)
    assert smoothed.isfinite()
    assert smoothed > loss * 0.9


@pytest.mark.parametrize("settings", [ClassifierSettings(**SIZES), TaggerSettings(**SIZES), MaskedSettings(**SIZES)])
def test_laws_of_models_without_a_decoder(settings: ModelSettings) -> None:
    """Step by step = at once, in any batch, with rows that leave and join; taps change nothing, bit for bit."""
    model = build(settings, 13, 13).double().eval()
    rows, targets = [[5, UNK, 7, 8], [10, UNK], [7]], torch.full((3, 6), 7)
    memory = model.encode(source_batch(rows))
    whole = model.decode(targets, memory).distribution()
    state = model.start(memory)
    steps = []
    for position in range(6):
        step = model.step(targets[:, position : position + 1], state)
        steps.append(step.logits_BKV.log_softmax(-1))
        state = step.state
    torch.testing.assert_close(torch.cat(steps, dim=1), whole)
    prefilled = model.step(targets[:, 2:3], model.start(memory, targets[:, :2])).logits_BKV.log_softmax(-1)
    torch.testing.assert_close(prefilled[:, 0], whole[:, 2])
    for row, ids in enumerate(rows):
        alone = model.decode(targets[:1], model.encode(source_batch([ids]))).distribution()
        torch.testing.assert_close(alone[0], whole[row])
    short, long = (model.start(model.encode(source_batch([ids]))) for ids in (rows[1], rows[0]))
    joined = short.join(long).keep(torch.tensor([1, 0])).select(torch.zeros(2, 2, dtype=torch.long))
    both = model.step(torch.full((2, 2), SOS), joined).logits_BKV.log_softmax(-1)
    torch.testing.assert_close(both[:, 1], whole[:2, 0])
    look = regard.Look(taps=regard.Tap("encoder"))
    seen = model.encode(source_batch(rows), look)
    assert len(seen.seen) == 2
    assert torch.equal(seen.values_BSE, memory.values_BSE)
    weights_BHTS = seen.seen[0].weights_BHTS
    torch.testing.assert_close(weights_BHTS[0].sum(-1), torch.ones(2, 5, dtype=torch.float64))
    assert (weights_BHTS[2, :, :, 2:] == 0).all()


# --- trained, loaded and used by the commands ------------------------------------------------------------------------------


def test_a_tagger_writes_a_tag_for_each_token(folders: Path, tmp_path: Path) -> None:  # SPEC A7.7
    model = regard.load(folders / "tagger")
    assert [result.text for result in model.batch(["red dog sat", "cat", "blue cat ran ran"])] == ["ADJ N V", "N", "ADJ N V V"]
    probabilities = model.probabilities("red dog")
    assert [next(iter(labels)) for labels in probabilities] == ["ADJ", "N"]
    assert all(sum(labels.values()) == pytest.approx(1) for labels in probabilities)
    (scored,) = model.score(["red dog"], ["ADJ N"])
    assert scored.log_prob == pytest.approx(np.log(probabilities[0]["ADJ"]) + np.log(probabilities[1]["N"]), abs=1e-5)
    assert model("red dog", beam=4).log_prob == pytest.approx(scored.log_prob, abs=1e-5)
    with pytest.raises(UserError, match="it has 2 tokens in the source, but 1 in the output; expected equal numbers"):
        model.score(["red dog"], ["N"])
    (tmp_path / "test.tsv").write_text("red dog\tADJ N\ncat sat\tN N\n")
    out = run("evaluate", f"{folders}/tagger", f"{tmp_path}/test.tsv", "--threads", "1").out
    assert "symbol error rate   25.00%" in out
    assert "exact match         50.00%" in out


def test_long_texts_get_all_their_tags_and_no_second_label(folders: Path) -> None:
    result = regard.load(folders / "tagger")(" ".join(["red", "dog"] * 200))
    assert result.finished
    assert len(result.tokens) == 400
    with pytest.raises(UserError, match="but this model reads texts of up to 1,024 tokens, each of which gets one label"):
        regard.load(folders / "classifier")(" ".join(["red"] * 1100))


def test_the_number_of_tags_must_be_that_of_the_tokens(tmp_path: Path) -> None:
    (tmp_path / "tags.tsv").write_text("".join(f"{text}\t{tags}\n" for text, tags in TAGGED[:9]) + "red cat\tN\n")
    with pytest.raises(
        UserError, match=r"tags.tsv:10: 2 tokens in the source, but 1 tag; expected a tag for each token \(symb"
    ):
        regard.train(tmp_path / "tags.tsv", kind="tagger", **TINY)
    with pytest.raises(UserError, match=r"kind=tagger writes one tag for each source token, but the units are bpe"):
        regard.train(TAGGED, kind="tagger", source_unit="bpe", **TINY)


def test_a_classifier_gives_one_label(folders: Path, tmp_path: Path) -> None:  # SPEC A7.7
    model = regard.load(folders / "classifier")
    texts = ["red dog", "red dog ran cat sat blue"]
    assert [result.text for result in model.batch(texts)] == ["short", "a long one"]
    (labels,) = model.probabilities(texts[1])
    assert list(labels) == ["a long one", "short"]
    best, second = model(texts[1], beam=2, n_best=2).n_best
    assert np.exp([best.log_prob, second.log_prob]) == pytest.approx(list(labels.values()), abs=1e-5)
    (tmp_path / "test.tsv").write_text(f"{texts[0]}\tshort\n{texts[1]}\ta long one\nred\ta long one\n")
    out = run("evaluate", f"{folders}/classifier", f"{tmp_path}/test.tsv", "--threads", "1").out
    assert "exact match         66.67%" in out
    attention = model(texts[0]).attention("encoder", layer=0)
    assert attention.weights_HTS.shape == (2, len(attention.source), len(attention.source))
    with pytest.raises(UserError, match=r"kind=classifier writes one label for each source, but data.target_unit is words"):
        regard.train(LABELLED, kind="classifier", target_unit="words", **TINY)


def test_a_masked_model_fills_blanks(folders: Path, tmp_path: Path) -> None:  # SPEC A7.7
    model = regard.load(folders / "masked")
    text = "red <mask> ran home"
    assert model(text).text == "red dog ran home"
    assert model.encode(text).tokens == ("red", BLANK, "ran", "home", "<eos>")
    (labels,) = model.probabilities(text)
    assert next(iter(labels)) == "dog"
    (scored,) = model.score([text], ["red dog ran home"])
    assert scored.log_prob == pytest.approx(np.log(labels["dog"]), abs=1e-5)
    with pytest.raises(UserError, match="the output differs from the source in other tokens than those that are missing"):
        model.score([text], ["red dog sat home"])
    (tmp_path / "test.txt").write_text("red dog ran home\n")
    out = run("evaluate", f"{folders}/masked", f"{tmp_path}/test.txt", "--threads", "1").out
    assert "perplexity/token" in out
    assert "perplexity/word" not in out
    assert "masked:0.3" in out.splitlines()[-1]


def test_an_encoder_that_fills_blanks_is_used_again(folders: Path) -> None:  # SPEC A7.7
    before = regard.load(folders / "masked").model.state_dict()
    options = {name: value for name, value in TINY.items() if name not in SIZES}
    frozen = regard.train(TAGGED, kind="tagger", encoder_from=folders / "masked", freeze=True, **{**options, "steps": 3})
    assert isinstance(frozen.settings, TaggerSettings)
    assert (frozen.settings.layers, frozen.settings.width, frozen.settings.activation) == (2, 24, "gelu")
    after = frozen.model.state_dict()
    names = [name for name in after if name.startswith("encoder.")]
    assert len(names) > 20
    assert all(torch.equal(after[name], before[name]) for name in names)
    tuned = regard.train(TAGGED, kind="transformer", encoder_from=folders / "masked", **{**options, "steps": 1})
    assert tuned.settings.encoder_layers == 2  # type: ignore[attr-defined]


def test_blanks_are_a_share_of_the_tokens_and_drawn_anew() -> None:
    example = Example([], list(range(4, 24)))
    drawn = [masked(example, 0.15, random.Random(seed), OWN) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    for source, target in drawn:
        assert isinstance(source, list)
        assert source.count(UNK) == 3
        assert [own if own != PAD else token for token, own in zip(source, target, strict=True)] == example.target
        assert [own != PAD for own in target] == [token == UNK for token in source]
    assert masked(Example([], [5]), 0.15, random.Random(1), OWN) == Example([UNK], [5])
    assert masked(Example([], [UNK, 5]), 0.9, random.Random(1), OWN) == Example([UNK, UNK], [PAD, 5])


def test_blanks_in_texts() -> None:
    texts = ["the cat sat", "the dog sat"] * 3
    for unit, text, expected in (
        ("words", "the <mask> sat", ("the", BLANK, "sat")),
        ("characters", "c<mask>t", ("c", BLANK, "t")),
        ("bpe", "the <mask> sat", ("the", BLANK, " sat")),
    ):
        plain = Codec.train(texts, unit, 300)  # type: ignore[arg-type]
        codec = BlankCodec.of(plain)
        assert codec.pieces(text) == expected
        ids = codec.encode(text)
        assert ids.count(UNK) == 1
        assert codec.encode_batch([text, "the cat"]) == [ids, plain.encode("the cat")]
        assert codec.unknown(text) == ()


def weights(model: regard.Translator) -> dict[str, Tensor]:
    return dict(model.model.state_dict())


def test_a_masked_run_continues_exactly(tmp_path: Path) -> None:
    """Law 6: which tokens are missing depends on the update alone."""
    texts = sentences(60)
    settings: dict[str, Any] = {**TINY, "kind": "masked", "steps": 6, "dropout": 0.2, "batch_tokens": 64}
    whole = regard.train(texts, tmp_path / "whole", **settings)
    regard.train(texts, tmp_path / "parts", on_update=lambda update: update.number < 2, **settings)
    continued = regard.train(texts, tmp_path / "parts", **settings)
    assert all(torch.equal(one, weights(whole)[name]) for name, one in weights(continued).items())


# --- the encoder alone -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tagger", "classifier", "masked"])
def test_encode_gives_the_states_of_the_encoder(name: str, folders: Path) -> None:  # SPEC A7.7
    model = regard.load(folders / name)
    texts = ["red dog ran", "cat", "blue cat sat ran"]
    for text, encoded in zip(texts, model.encode(texts), strict=True):
        ids = torch.tensor([[*model.source.encode(text), EOS]])  # type: ignore[arg-type]
        memory = model.model.encode(regard.Source(ids, ids != PAD))
        np.testing.assert_allclose(encoded.states, memory.values_BSE[0].detach().numpy(), atol=1e-5)
        np.testing.assert_allclose(encoded.vector, encoded.states.mean(0), atol=1e-5)
        assert encoded.tokens == model.reader.labels(text, ())
        alone = model.encode(text)
        np.testing.assert_allclose(alone.states, encoded.states, atol=1e-5)
        assert encoded.axes == (len(encoded.tokens),)


def test_encode_of_recurrent_models_and_pictures(tmp_path: Path) -> None:
    rnn = regard.build("rnn", [("ab", "x"), ("ba", "y")], width=8)
    ids = torch.tensor([[*rnn.source.encode("aab"), EOS]])  # type: ignore[arg-type]
    memory = rnn.model.encode(regard.Source(ids, ids > 0))
    np.testing.assert_allclose(rnn.encode("aab").vector, memory.summary_BE[0].detach().numpy(), atol=1e-6)
    pillow = pytest.importorskip("PIL.Image")
    sizes = {"wide.png": (40, 16), "small.png": (16, 24)}
    for name, size in sizes.items():
        pillow.fromarray(np.random.default_rng(1).integers(0, 255, (size[1], size[0]), dtype=np.uint8)).save(tmp_path / name)
    rows = [(str(tmp_path / name), label) for name, label in zip(sizes, ("x", "y"), strict=True)]
    model = regard.build("classifier", rows, **SIZES)
    wide, small = model.encode([tmp_path / name for name in sizes])
    assert (wide.axes, small.axes) == ((2, 5), (3, 2))
    assert (wide.states.shape, small.states.shape) == ((10, 24), (6, 24))
    assert small.tokens[:3] == ("0,0", "0,1", "1,0")
    np.testing.assert_allclose(model.encode(tmp_path / "small.png").states, small.states, atol=1e-4)
    np.testing.assert_allclose(small.vector, small.states.mean(0), atol=1e-5)


def test_encode_refuses_what_it_cannot_read() -> None:
    with pytest.raises(UserError, match="this model has no encoder of its own: it is a language model"):
        regard.build("decoder_only", ["a b", "b a"], width=8, heads=2).encode("a")
    model = regard.build("rnn", [("ab", "x"), ("ba", "y")], width=8)
    with pytest.raises(UserError, match="text 2: the text is empty; give a text"):
        model.encode(["ab", ""])
    with pytest.raises(UserError, match="a sentence has 2,000 tokens"):
        model.encode("a" * 2000)
    with pytest.raises(TypeError, match="encode takes a list of texts, got 3"):
        model.encode(3)  # type: ignore[call-overload]
    with pytest.raises(UserError, match="this model writes texts, token after token, so labels have no probabilities"):
        model.probabilities("ab")
