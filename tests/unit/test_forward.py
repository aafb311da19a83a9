"""Models as PyTorch users expect them: a forward pass, and modes that translating respects without applying dropout."""

import threading

import pytest
import torch
from table import MODELS, PAD, looks_ahead, make_model, make_rows, make_source, make_targets, reads_source
from torch import nn

import regard
from regard.core.source import Source
from regard.data.batch import source_batch
from regard.data.tokenizers.codec import Codec
from regard.models.build import build
from regard.models.evaluation import device_of, in_evaluation
from regard.models.rnn_seq2seq import RnnSettings
from regard.models.transformer import TransformerSettings

every_model = pytest.mark.parametrize("name", MODELS)


@every_model
def test_forward_is_encode_and_decode(name: str) -> None:
    """Value and gradient; whether padding is given as a Source, a mask or an id."""
    model, source, targets = make_model(name), make_source(5, 3, 7), make_targets(3, 4)
    expected = model.decode(targets, model.encode(source)).distribution()
    logits = [
        model(source, targets),
        model(source.values, targets, allow=source.allow),
        model(source.values, targets, pad=PAD),
    ]
    for one in logits:
        torch.testing.assert_close(one.log_softmax(-1), expected)
    parameter = next(model.parameters())
    (ours,) = torch.autograd.grad(logits[2].log_softmax(-1)[..., 5].sum(), parameter)
    (theirs,) = torch.autograd.grad(expected[..., 5].sum(), parameter)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", [name for name in MODELS if not looks_ahead(name)])
def test_forward_step_by_step(name: str) -> None:
    """An independent way: each token after those before it. Without padding, ids are enough."""
    model, source, targets = make_model(name), make_source(5, 5), make_targets(2, 4)
    logits = model(source.values if reads_source(name) else None, targets)
    state = model.start(model.encode(source))
    for position in range(4):
        step = model.step(targets[:, position : position + 1], state)
        state = step.state
        torch.testing.assert_close(logits[:, position].log_softmax(-1), step.logits_BKV[:, 0].log_softmax(-1))


def test_forward_refuses_what_it_cannot_read() -> None:
    model, source, targets = make_model("rnn additive"), make_source(5, 3), make_targets(2, 4)
    with pytest.raises(ValueError, match="got no source, but models of the kind rnn read one"):
        model(None, targets)
    with pytest.raises(ValueError, match="got both allow and pad"):
        model(source.values, targets, allow=source.allow, pad=0)
    with pytest.raises(ValueError, match="a Source, which has its own mask"):
        model(source, targets, pad=0)
    with pytest.raises(ValueError, match="give pictures or sounds as a Source"):
        model(torch.randn(2, 5, 3), targets)


def test_forward_of_pictures() -> None:
    settings = RnnSettings(width=20, embedding=7, score_width=13, frontend="picture", channels=8, dropout=0.3)
    model = build(settings, 3, 19).eval()
    source = source_batch(make_rows("picture, luong"))
    assert model(source, make_targets(4, 5)).shape == (4, 5, 19)


def test_forward_in_torchs_own_wrappers() -> None:
    model, source, targets = make_model("transformer scaled_dot"), make_source(5, 3), make_targets(2, 4)
    expected = model(source.values, targets, pad=PAD)
    assert torch.equal(nn.DataParallel(model)(source.values, targets, pad=PAD), expected)
    called = torch.func.functional_call(model, dict(model.named_parameters()), (source.values, targets), {"pad": PAD})
    assert torch.equal(called, expected)


# --- evaluation mode ---------------------------------------------------------------------------------------------------------


def translator_of(settings: RnnSettings | TransformerSettings) -> regard.Translator:
    torch.manual_seed(3)
    source, target = Codec.train(["abcdefgh"], "characters"), Codec.train(["A B C D E F G H"], "symbols")
    return regard.Translator.of_model(build(settings, len(source), len(target)), source, target)


SETTINGS = [
    RnnSettings(width=8, embedding=5, encoder_layers=2, decoder_layers=2, score_width=5, dropout=0.5),
    RnnSettings(width=8, embedding=5, decoder="bahdanau", cell="lstm", decoder_layers=2, attention="hard", dropout=0.5),
    RnnSettings(width=8, embedding=5, cell="rnn_sigmoid", decoder_layers=2, decoder="fixed", dropout=0.5),
    TransformerSettings(width=8, heads=2, feed_forward=13, dropout=0.5),
]


@pytest.mark.parametrize("settings", SETTINGS, ids=["luong", "bahdanau hard", "fixed", "transformer"])
def test_translating_never_applies_dropout(settings: RnnSettings | TransformerSettings) -> None:
    """Translations, scores, attention and explanations are those of evaluation mode, and draw no random numbers; the mode of
    every module stays as it was."""
    model = translator_of(settings)
    texts = ["abc", "hgfedcba", "a"]

    def outcomes() -> list[object]:
        results = model.batch(texts, beam=3, max_length=9)
        explained = regard.explain(model, "abc", output=[5, 6])
        seen = regard.inspect(model, "abc", output=[5, 6])
        scored = model.score(texts, ["A B", "C", "D E F"])
        return [[(result.ids, result.log_prob) for result in results], scored, str(explained), seen.layers, seen.gates]

    model.eval()
    expected = outcomes()
    model.train()
    modes = {name: module.training for name, module in model.model.named_modules()}
    before = torch.get_rng_state()
    assert outcomes() == expected
    assert outcomes() == expected
    assert torch.equal(torch.get_rng_state(), before)
    fresh = translator_of(settings).train()  # it has not measured the memory of a request yet
    before = torch.get_rng_state()
    fresh.batch(texts, max_length=3)
    assert torch.equal(torch.get_rng_state(), before)
    assert {name: module.training for name, module in model.model.named_modules()} == modes
    assert all(modes.values())
    ids = torch.tensor([[4, 5, 6]])
    assert not torch.equal(model.model(ids, ids), model.model(ids, ids)), "dropout is off in training mode"


def test_a_running_search_is_not_disturbed_by_another_thread() -> None:
    """The mode changes while a search runs; each of its steps is still one of evaluation mode, and training keeps dropout."""
    model = translator_of(SETTINGS[3]).eval()
    expected = list(model.stream("abcdefgh", beam=2, max_length=20))
    stream = model.stream("abcdefgh", beam=2, max_length=20)
    first = next(stream)
    trained: list[bool] = []

    def train() -> None:
        model.train()
        ids = torch.tensor([[4, 5, 6]])
        trained.append(not torch.equal(model.model(ids, ids), model.model(ids, ids)))

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert [first, *stream] == expected
    assert trained == [True]


def test_the_view_shares_the_weights() -> None:
    """An update of the model is one of the view; modules that occur twice occur twice in the view, too."""
    model = build(TransformerSettings(width=8, heads=2, feed_forward=13, tie="output"), 7, 11)
    view = in_evaluation(model)
    assert [name for name, _ in view.named_modules()] == [name for name, _ in model.named_modules()]
    for (_, ours), (_, theirs) in zip(view.named_parameters(), model.named_parameters(), strict=True):
        assert ours is theirs
    assert not any(module.training for module in view.modules())
    assert all(module.training for module in model.modules())
    shared = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    both = nn.Sequential(shared, shared)
    assert (one := in_evaluation(both))[0] is one[1]  # type: ignore[type-var]
    model.half()
    assert next(view.parameters()).dtype == torch.float16


def test_the_device_is_that_of_the_model() -> None:
    model = translator_of(SETTINGS[0])
    assert model.device == torch.device("cpu")
    assert model.to("cpu") is model
    assert model.to(torch.device("cpu")) is model
    model.model.to("meta")
    assert model.device == model.torch_engine.device == torch.device("meta")
    source = model.torch_engine.collate([[4, 5]])
    assert isinstance(source, Source)
    assert source.values.device.type == "meta"
    assert device_of(object()) == torch.device("cpu")  # type: ignore[arg-type]
