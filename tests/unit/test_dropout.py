"""Dropout: how much it drops, how it scales the rest, that a seed reproduces it, and where models have it."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from table import MODELS, SOURCE_VOCAB, make_frontend_model, make_model, make_rows, make_source, make_targets
from torch import Tensor, nn

from regard.core.source import Source
from regard.data.batch import source_batch
from regard.layers.dropout import Dropout
from regard.layers.recurrent import CELLS, Cell, make_stack, run
from regard.models.contract import Model, ModelSettings
from regard.models.decoder_only import DecoderOnlySettings
from regard.models.encoder_only import EncoderOnly, EncoderOnlySettings
from regard.models.rnn_lm import RnnLmSettings
from regard.models.rnn_seq2seq import RnnSettings
from regard.models.stack import StackSettings
from regard.models.tagger import RnnTagger, RnnTaggerSettings
from regard.models.transformer import TransformerSettings


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_requested_share_is_dropped_and_the_rest_is_scaled(p: float) -> None:
    torch.manual_seed(0)
    x = torch.rand(501, 401) + 1  # the number of elements is not a multiple of four
    y = Dropout(p)(x)
    dropped = y == 0
    spread = math.sqrt(p * (1 - p) / x.numel())
    assert dropped.double().mean().item() == pytest.approx(p, abs=5 * spread)
    torch.testing.assert_close(y[~dropped], (x / (1 - p))[~dropped])
    for axis in (0, 1):  # no row, column or remainder of four is favoured
        assert (dropped.double().mean(axis) - p).abs().max() < 6 * math.sqrt(p * (1 - p) / 401)
    by_four = dropped.flatten()[: x.numel() // 4 * 4].view(-1, 4).double()
    assert (by_four.mean(0) - p).abs().max() < 10 * spread
    assert (torch.corrcoef(by_four.t()) - torch.eye(4)).abs().max() < 0.03


def test_the_gradient_flows_through_kept_numbers() -> None:
    x = torch.rand(7, 11, dtype=torch.float64) + 1
    x.requires_grad_()
    layer = Dropout(0.3)
    y = layer(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad, (y != 0).double() / 0.7)

    def drop(x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(3)
        dropped: torch.Tensor = layer(x)
        return dropped

    assert torch.autograd.gradcheck(drop, x)
    assert torch.autograd.gradgradcheck(drop, x)


def test_the_same_seed_drops_the_same_numbers() -> None:
    x, layer, found = torch.ones(97), Dropout(0.5), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(layer(x))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_nothing_is_dropped_outside_training_or_with_p_0() -> None:
    x = torch.randn(5)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0)(x) is x


@pytest.mark.parametrize("p", [-0.1, 1.0])
def test_invalid_probabilities_are_refused(p: float) -> None:
    with pytest.raises(ValueError, match=f"dropout is {p}; expected a probability of at least 0 and less than 1"):
        Dropout(p)


# --- where it acts -----------------------------------------------------------------------------------------------------------

# B3 sentences  S7 source positions  T6 target positions

Call = tuple[str, tuple[int, ...]]
"""Name of a dropout layer and the shape of its input."""


def recurrent_calls(settings: RnnSettings) -> list[Call]:
    """The source embeddings, what is between encoder layers, the memory, the target embeddings, and what the output reads."""
    layers = [("encoder.dropout", (3, 7, settings.memory_width))] * (settings.encoder_layers - 1)
    plain = settings.decoder == "bahdanau" or (settings.readout == "plain" and not settings.sums_choices)
    read = settings.width + (settings.memory_width if plain else 0)
    return [
        ("dropout", (3, 7, settings.embedding)),
        *layers,
        ("dropout", (3, 7, settings.memory_width)),
        ("dropout", (3, 1, 6, settings.embedding)),
        ("dropout", (3, 6, read)),
    ]


def stack_calls(stack: str, settings: StackSettings, layers: int, length: int, *, cross: bool = False) -> list[Call]:
    """The embeddings, and in each layer the output of every block and the hidden layer of the feed-forward block."""
    wide, inner = (3, length, settings.width), (3, length, settings.feed_forward)
    calls: list[Call] = [(f"{stack}.dropout", wide)]
    for number in range(layers):
        layer = f"{stack}.layers.{number}"
        calls.append((f"{layer}.around_attention.dropout", wide))
        calls += [(f"{layer}.around_cross.dropout", wide)] if cross else []
        calls.append((f"{layer}.feed_forward.{'dropout' if settings.activation == 'swiglu' else '2'}", inner))
        calls.append((f"{layer}.around_feed_forward.dropout", wide))
    return calls


def expected_calls(settings: ModelSettings) -> list[Call]:
    if isinstance(settings, RnnLmSettings):
        return [("dropout", (3, 1, 6, settings.embedding)), ("dropout", (3, 6, settings.width))]
    if isinstance(settings, RnnSettings):
        return recurrent_calls(settings)
    if isinstance(settings, DecoderOnlySettings):
        return stack_calls("decoder", settings, settings.layers, 6)
    assert isinstance(settings, TransformerSettings)
    return [
        *stack_calls("encoder", settings, settings.encoder_layers, 7),
        *stack_calls("decoder", settings, settings.decoder_layers, 6, cross=True),
    ]


class Recorder:
    """Records the calls of all dropout layers of a model; `changed` is the number of a call whose result is changed."""

    def __init__(self, model: nn.Module) -> None:
        self.calls: list[Call] = []
        self.changed: int | None = None
        for name, module in model.named_modules():
            if isinstance(module, Dropout):
                module.register_forward_hook(partial(self.record, name))

    def record(self, name: str, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        self.calls.append((name, tuple(inputs[0].shape)))
        return output.roll(1, -1) if self.changed == len(self.calls) - 1 else output

    def run(self, compute: Callable[[], Tensor], changed: int | None = None) -> Tensor:
        self.calls, self.changed = [], changed
        torch.manual_seed(1)
        return compute()


def assert_dropout_acts(model: nn.Module, compute: Callable[[], Tensor], expected: list[Call]) -> None:
    """The layers are called in this order, with probability 0.3, and the result depends on what each of them returns."""
    recorder = Recorder(model.train())
    usual = recorder.run(compute)
    assert recorder.calls == expected
    assert torch.equal(recorder.run(compute), usual)
    assert {module.p for module in model.modules() if isinstance(module, Dropout)} == {0.3}
    for number, call in enumerate(expected):
        assert not torch.allclose(recorder.run(compute, number), usual), call


def outputs_of(model: Model, source: Source) -> Tensor:
    memory = model.encode(source)
    logits = model.decode(make_targets(source.num_sentences, 6), memory).distribution()
    return torch.cat((memory.values_BSE.flatten(), logits.flatten()))


@pytest.mark.parametrize("name", MODELS)
def test_dropout_acts_wherever_a_model_has_it(name: str) -> None:
    model = make_model(name)
    assert_dropout_acts(model, lambda: outputs_of(model, make_source(7, 3, 5)), expected_calls(MODELS[name]))
    for module in model.modules():
        if isinstance(module, nn.RNNBase) and module.num_layers > 1:
            assert module.dropout == 0.3


def test_dropout_acts_on_the_memory_of_a_picture() -> None:
    """A grid has no recurrent encoder, so its cells are dropped once."""
    model = make_frontend_model("picture, luong")
    source = source_batch(make_rows("picture, luong"))
    memory = model.encode(source)
    batch, cells, width = memory.values_BSE.shape
    expected = [("dropout", (batch, cells, width)), ("dropout", (batch, 1, 6, 7)), ("dropout", (batch, 6, 20))]
    assert_dropout_acts(model, lambda: outputs_of(model, source), expected)


def test_dropout_acts_in_taggers_and_encoders() -> None:
    source = make_source(7, 3, 5)
    tagger = RnnTagger(RnnTaggerSettings(width=22, embedding=7, layers=2, dropout=0.3), SOURCE_VOCAB, 5)
    calls = [("dropout", (3, 7, 7)), ("encoder.dropout", (3, 7, 22)), ("dropout", (3, 7, 22))]
    assert_dropout_acts(tagger, lambda: tagger.tag(tagger.encode(source)), calls)
    settings = EncoderOnlySettings(width=20, heads=2, feed_forward=29, layers=2, dropout=0.3)
    encoder = EncoderOnly(settings, SOURCE_VOCAB, 5)
    assert_dropout_acts(encoder, lambda: encoder.tag(encoder.encode(source)), stack_calls("encoder", settings, 2, 7))


@pytest.mark.parametrize("name", MODELS)
def test_a_step_drops_where_the_whole_sequence_does(name: str) -> None:
    model, targets = make_model(name).train(), make_targets(3, 6)
    recorder, memory = Recorder(model), model.encode(make_source(7, 3, 5))
    recorder.run(lambda: model.decode(targets, memory).distribution())
    whole = [name for name, _ in recorder.calls]
    recorder.run(lambda: model.step(targets[:, :1], model.start(memory)).logits_BKV)
    assert [name for name, _ in recorder.calls] == whole


@pytest.mark.parametrize("cell", CELLS)
def test_dropout_between_recurrent_layers_leaves_the_input_alone(cell: Cell) -> None:
    """It is applied to the output of every layer but the last: the first state is as without dropout, the second is not."""
    for dtype in (torch.float32, torch.float64):  # the native kernels compute the first alone
        stack = make_stack(cell, 5, 11, layers=2, dropout=0.5).to(dtype).train()
        x = torch.randn(3, 7, 5, dtype=dtype)
        (_, state), (_, expected) = run(stack, x), run(stack.eval(), x)
        torch.testing.assert_close(state[0], expected[0])
        assert not torch.allclose(state[1], expected[1])
