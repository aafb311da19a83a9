"""Settings of models that leave out one part, or replace it: they reach every layer, and refuse what does not fit."""

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from table import SOURCE_VOCAB, TARGET_VOCAB, make_source
from torch import Tensor, nn
from typer.testing import CliRunner

import regard
from regard.cli.main import app
from regard.core.attention import ScaledDot
from regard.errors import UserError
from regard.layers.attention import MultiHeadAttention
from regard.layers.blocks import ResidualConnection, TransformerDecoderLayer
from regard.layers.scores import Basic, Concat, Cosine
from regard.look import Look, Tap
from regard.models.build import build
from regard.models.contract import Memory, Model, ModelSettings
from regard.models.decoder_only import DecoderOnlySettings
from regard.models.rnn_seq2seq import RnnSettings
from regard.models.transformer import TransformerSettings
from regard.training.overrides import override
from regard.training.settings import RunSettings

STACK = {"width": 20, "heads": 2, "feed_forward": 29, "dropout": 0.0}
PAIRS = [("cab", "C A B"), ("ad", "A D"), ("face", "F A C E"), ("bead", "B E A D")]
FAMILIES = TransformerSettings, DecoderOnlySettings


def make(settings: ModelSettings) -> Model:
    torch.manual_seed(5)
    return build(settings, SOURCE_VOCAB, TARGET_VOCAB).double().eval()


def attentions(model: nn.Module) -> list[MultiHeadAttention]:
    return [module for module in model.modules() if isinstance(module, MultiHeadAttention)]


# --- scores ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_settings_of_scores_reach_every_attention(family: type[ModelSettings]) -> None:  # SPEC A2.2 A2.7
    """By default they are those of the score: √d, and a temperature of 0.1."""
    for settings, expected in (
        ({}, ScaledDot()),
        ({"score_divisor": "d"}, ScaledDot(divide_by="d")),
        ({"score_divisor": 1}, ScaledDot(divide_by=1)),
        ({"score": "cosine"}, Cosine()),
        ({"score": "cosine", "score_temperature": 0.7}, Cosine(0.7)),
    ):
        found = attentions(make(family(**STACK, **settings)))
        assert len(found) == (6 if family is TransformerSettings else 4)
        assert all(attention.score == expected for attention in found)


@pytest.mark.parametrize(("name", "kind"), [("basic", Basic), ("concat", Concat)])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_attention_has_a_score_of_its_own(family: type[ModelSettings], name: str, kind: type) -> None:  # SPEC A2.9
    found = [attention.score for attention in attentions(make(family(**STACK, score=name)))]
    assert all(type(score) is kind for score in found)
    assert len(set(map(id, found))) == len(found)


def test_a_score_of_ones_own_gets_the_settings_that_are_given() -> None:
    """Its own default stays if the setting is left out."""

    class Mine(Cosine):
        name = "mine"

        def __init__(self, temperature: float = 0.31) -> None:
            super().__init__(temperature)

    for settings, expected in (({}, 0.31), ({"score_temperature": 0.5}, 0.5)):
        model = build(RnnSettings(width=8, score="mine", **settings), SOURCE_VOCAB, TARGET_VOCAB, {"mine": Mine})
        assert model.score.temperature == expected


@pytest.mark.parametrize(
    ("make_settings", "words"),
    [
        (
            lambda: RnnSettings(score_divisor="d"),
            "score_divisor is d, but only the score scaled_dot has one, and the score is additive; set score=scaled_dot",
        ),
        (lambda: TransformerSettings(score_temperature=0.5), "only the score cosine has one, and the score is scaled_dot"),
        (lambda: RnnSettings(score="cosine", score_temperature=0.0), "score_temperature is 0.0, expected a number above 0"),
        (lambda: TransformerSettings(score_divisor=-2.0), "score_divisor is -2.0, expected a number above 0"),
        (
            lambda: RnnSettings(readout_activation="tanh"),
            "readout_activation=tanh requires decoder=bahdanau, but the decoder is luong",
        ),
        (
            lambda: TransformerSettings(heads=2, project_values=False, project_output=False),
            "must have width 128, but 2 heads of width 128 have 256; set key_dim to width / heads",
        ),
        (
            lambda: TransformerDecoderLayer(20, 2, key_dim=7, project_output=False),
            "must have width 20, but 2 heads of width 7 have 14",
        ),
        (lambda: DecoderOnlySettings(norm="none", embedding_norm=True), "but norm=none leaves out all norms; set one of them"),
    ],
)
def test_wrong_settings_are_explained(make_settings, words: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=re.escape(words)):
        make_settings()


# --- the parts of a Transformer ----------------------------------------------------------------------------------------------


def layer_by_hand(layer: TransformerDecoderLayer, x: Tensor, memory: Tensor, options: dict[str, bool | str]) -> Tensor:
    """One decoder layer from torch's functions and einsum, without any function of the package."""

    def norm(x: Tensor, around: nn.Module) -> Tensor:
        if options.get("norm") == "none":
            return x
        return F.layer_norm(x, (20,), around.norm.weight, around.norm.bias)

    def attend(attention: MultiHeadAttention, x: Tensor, keys: Tensor, allow: Tensor) -> Tensor:
        q, k = (part(y).view(*y.shape[:2], 2, 10) for part, y in ((attention.query, x), (attention.key, keys)))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / 10**0.5
        weights = scores.masked_fill(~allow, -torch.inf).softmax(-1)
        if options.get("project_values", True):
            heads = torch.einsum("bhqk,bkhd->bqhd", weights, attention.value(keys).view(*keys.shape[:2], 2, 10))
        else:
            heads = torch.einsum("bhqk,bkd->bqhd", weights, keys)
        return attention.output(heads.flatten(2)) if options.get("project_output", True) else heads.flatten(2)

    def block(x: Tensor, around: nn.Module, f: Callable[[Tensor], Tensor]) -> Tensor:
        old = x if options.get("residual", True) else 0.0
        if options.get("norm_order") == "post":
            return norm(old + f(x), around)
        return old + f(norm(x, around))

    causal = torch.arange(x.shape[1])[:, None] >= torch.arange(x.shape[1])
    everything = torch.ones(x.shape[1], memory.shape[1]) > 0
    x = block(x, layer.around_attention, lambda y: attend(layer.attention, y, y, causal))
    x = block(x, layer.around_cross, lambda y: attend(layer.cross, y, memory, everything))
    first, _, _, second = layer.feed_forward
    return block(x, layer.around_feed_forward, lambda y: second(first(y).relu()))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"residual": False},
        {"residual": False, "norm_order": "post"},
        {"norm": "none"},
        {"norm": "none", "residual": False},
        {"project_values": False},
        {"project_output": False},
    ],
    ids=str,
)
def test_layers_without_a_part_equal_plain_torch(options: dict[str, bool | str]) -> None:  # SPEC A7.13 A6.5
    """Values and all gradients."""
    torch.manual_seed(3)
    layer = TransformerDecoderLayer(20, 2, feed_forward=29, dropout=0.0, **options).double()
    x, memory = (torch.randn(3, length, 20, dtype=torch.float64, requires_grad=True) for length in (5, 7))
    inputs = [x, memory, *layer.parameters()]
    results = [layer(x, memory), layer_by_hand(layer, x, memory, options)]
    torch.testing.assert_close(*results)
    direction = torch.randn_like(results[0])
    for mine, theirs in zip(*(torch.autograd.grad((one * direction).sum(), inputs) for one in results), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_switches_of_a_model_reach_every_layer() -> None:  # SPEC A7.13
    for family in FAMILIES:
        plain = family(**STACK)
        assert (plain.residual, plain.project_values, plain.project_output, plain.look_ahead_mask) == (True,) * 4
        model = make(family(**STACK, residual=False))
        connections = [module for module in model.modules() if isinstance(module, ResidualConnection)]
        assert len(connections) == (10 if family is TransformerSettings else 8)
        assert not any(connection.adds for connection in connections)
        assert not any(isinstance(module, nn.LayerNorm) for module in make(family(**STACK, norm="none")).modules())
        assert all(attention.value is None for attention in attentions(make(family(**STACK, project_values=False))))
        without = attentions(make(family(**STACK, project_output=False)))
        assert all(isinstance(attention.output, nn.Identity) for attention in without)
        assert make(family(**STACK, look_ahead_mask=False)).traits.looks_ahead


def test_a_decoder_without_look_ahead_mask_is_one_with_all_keys_allowed() -> None:  # SPEC A7.13
    """With the weights of a causal one; padding stays hidden."""
    for family in FAMILIES:
        ahead, causal = make(family(**STACK, look_ahead_mask=False)), make(family(**STACK))
        ids = torch.tensor([[2, 7, 5, 9, 11], [2, 8, 4, 0, 0]])
        memory = causal.encode(make_source(7, 3))
        look = Look((Tap("decoder"),))
        with_mask, without = (model.decode(ids, memory, look).seen[0].weights_BHTS for model in (causal, ahead))
        scores = [model.decode(ids, memory, Look((Tap("decoder", 0, what="scores"),))).seen[0] for model in (causal, ahead)]
        assert (with_mask[0, 0].triu(1) == 0).all()
        assert (without[0] > 0).all()
        assert (without[1, :, :, 3:] == 0).all()
        same = torch.ones(5, 5).tril() > 0  # the scores of what both may see are the same in the first layer
        torch.testing.assert_close(scores[0].weights_BHTS[0][:, same], scores[1].weights_BHTS[0][:, same])


@pytest.mark.parametrize("norm_order", ["pre", "post"])
def test_without_residual_connections_gradients_vanish_over_depth(norm_order: str) -> None:  # SPEC A7.13
    """Twelve layers without norms: with residual connections the gradient is about as large at the first layer as at the last;
    without them it falls with every layer. Norms alone prevent the worst."""
    settings = {"width": 32, "heads": 2, "feed_forward": 64, "encoder_layers": 12, "decoder_layers": 1, "dropout": 0.0}

    def norms(**switches: object) -> list[float]:
        model = regard.build("transformer", PAIRS, **settings, norm_order=norm_order, **switches)
        return regard.gradient_by_layer(model, PAIRS)["encoder"]

    kept, lost, normed = norms(norm="none"), norms(norm="none", residual=False), norms(residual=False)
    assert max(kept) / min(kept) < 4
    assert all(earlier < later / 4 for earlier, later in pairwise(lost))
    assert lost[0] < 1e-9 * lost[-1]
    assert normed[0] > 1e-3 * normed[-1]


def test_gradients_by_layer_are_those_of_the_mean_loss() -> None:  # SPEC A7.13
    """Compared with autograd on the inputs of layers that are called one by one; dropout and mode do not matter."""
    settings = {"width": 8, "heads": 2, "feed_forward": 11, "encoder_layers": 2, "decoder_layers": 1}
    model = regard.build("transformer", PAIRS, **settings, dropout=0.3).train()
    found = regard.gradient_by_layer(model, PAIRS)
    assert model.model.training
    assert not any(module._forward_pre_hooks for module in model.model.modules())
    model.eval()
    (batch,) = regard.batches(model, PAIRS, epochs=1)
    encoder = model.model.encoder
    x = encoder.embedding(batch.source.values, torch.arange(batch.source.values.shape[1]))
    inputs, allow = [x], batch.source.allow[:, None, None]
    for layer in encoder.layers:
        inputs.append(layer(inputs[-1], allow=allow))
    memory = Memory(encoder.norm(inputs[-1]), batch.source.allow, x[:, 0], (x.shape[1],))
    logits = model.model.decode(batch.target_in_BT, memory).logits_BTV
    loss = F.cross_entropy(logits.flatten(0, 1), batch.target_out_BT.flatten(), ignore_index=0)
    expected = [gradient.norm().item() for gradient in torch.autograd.grad(loss, inputs[:2])]
    assert found["encoder"] == pytest.approx(expected, rel=1e-4)
    assert regard.gradient_by_layer(model, PAIRS * 3)["encoder"] == pytest.approx([e / 3**0.5 for e in expected], rel=1e-4)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    assert regard.gradient_by_layer(model, PAIRS)["encoder"] == pytest.approx(expected, rel=1e-4)
    with pytest.raises(UserError, match="this model is a RnnSeq2Seq, which has no Transformer layers"):
        regard.gradient_by_layer(regard.build("rnn", PAIRS, width=8), PAIRS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "switch",
    [
        "score=dot",
        "look_ahead_mask=false",
        "positions=none",
        "residual=false",
        "norm=none",
        "heads=1",
        "project_output=false",
        "project_values=false",
    ],
)
def test_models_without_one_trick_train_by_the_command(switch: str, tmp_path: Path) -> None:  # SPEC A7.13
    data, out = tmp_path / "pairs.tsv", tmp_path / "model"
    data.write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS * 3))
    sizes = ["kind=transformer", "width=8", "heads=2", "feed_forward=11", "encoder_layers=1", "decoder_layers=1", switch]
    arguments = [part for setting in sizes for part in ("--set", f"model.{setting}")]
    result = CliRunner().invoke(app, ["train", str(data), "--out", str(out), *arguments, "--set", "train.steps=2"])
    assert result.exit_code == 0, result.output
    model = regard.load(out)
    name, _, value = switch.partition("=")
    assert str(getattr(model.settings, name)).lower() == value
    says = "look_ahead_mask=false: in training each position sees the tokens that it is to write"
    assert (says in " ".join(result.output.split())) == (says in model.card) == (name == "look_ahead_mask")
    assert isinstance(model("cab").text, str)


# --- errors ------------------------------------------------------------------------------------------------------------------


def test_wrong_values_on_the_command_line_are_explained() -> None:
    with pytest.raises(UserError) as raised:
        override(RunSettings(model=TransformerSettings()), ["model.score_divisor=x"])
    assert "--set model.score_divisor: input should be 'd', got 'x'" in str(raised.value)
    assert "score_divisor." not in str(raised.value)
    changed = override(RunSettings(model=TransformerSettings()), ["model.score_divisor=2.5"]).model
    assert changed == TransformerSettings(score_divisor=2.5)


def test_an_option_may_belong_to_the_fusion_alone() -> None:
    assert TransformerSettings(score="dot", fusion_score="cosine", score_temperature=0.5)
