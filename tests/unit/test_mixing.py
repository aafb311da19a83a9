"""Convolution and dense mixing: attention whose weights are fixed by position."""

import re
from itertools import permutations
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from typer.testing import CliRunner

import regard
from regard.cli.main import app
from regard.core import masks
from regard.core.attention import attend, attention_weights
from regard.core.score import Score
from regard.core.source import Source
from regard.core.window import Window
from regard.errors import UserError
from regard.layers.blocks import TransformerDecoderLayer, TransformerEncoderLayer
from regard.layers.fixed import FixedMixing
from regard.layers.mixing import Convolution, Dense
from regard.models.build import build
from regard.models.transformer import TransformerSettings


def random_sequences(batch: int, length: int, width: int) -> Tensor:
    return torch.randn(batch, length, width, dtype=torch.float64, requires_grad=True)


def assert_same(one: Tensor, other: Tensor, *inputs: Tensor) -> None:
    """Compares values, and gradients with respect to the inputs."""
    torch.testing.assert_close(one, other)
    direction = torch.randn_like(one)
    gradients = [torch.autograd.grad((result * direction).sum(), inputs) for result in (one, other)]
    for mine, theirs in zip(*gradients, strict=True):
        assert mine.abs().sum() > 0
        torch.testing.assert_close(mine, theirs)


def attend_with_heads(x_BLD: Tensor, matrix_HDV: Tensor, allow_HLL: Tensor, allow_BL: Tensor) -> Tensor:
    """Σ_h softmax(…) x W_h: multi-head attention whose output projection is part of W_h.

    Each head may attend to at most one key, so queries and keys do not matter: here they are random.
    """
    heads, length = allow_HLL.shape[:2]
    query, key = (torch.randn(heads, length, 3, dtype=x_BLD.dtype) for _ in range(2))
    allow = masks.both(allow_HLL, allow_BL[:, None, None])
    return attend(query, key, x_BLD[:, None] @ matrix_HDV, allow=allow).sum(1)


def test_convolution_is_attention_fixed_by_distance() -> None:  # SPEC A10.5
    """One head per offset o: its weights are 1 where j − i = o; at the ends there is no such key, and the row is 0."""
    reach, length = 2, 7
    layer = Convolution(5, 11, reach, bias=False).double()
    x_BLD, allow_BL = random_sequences(3, length, 5), masks.first(torch.tensor([7, 4, 1]), length)
    positions = torch.arange(length)
    allow_HLL = torch.stack([positions == positions[:, None] + offset for offset in range(-reach, reach + 1)])
    assert torch.equal(allow_HLL.any(0), masks.window(length, width=reach))
    weight_VDH = layer.convolution.weight
    heads = attend_with_heads(x_BLD, weight_VDH.permute(2, 1, 0), allow_HLL, allow_BL)
    assert_same(layer(x_BLD, allow_BL), heads, x_BLD, weight_VDH)


def test_dense_mixing_is_attention_fixed_by_both_positions() -> None:  # SPEC A10.5
    """One head per pair (i, j): its weights are 1 there and 0 elsewhere."""
    length = 5
    layer = Dense(length, 3, 7, bias=False).double()
    x_BLD, allow_BL = random_sequences(2, length, 3), masks.first(torch.tensor([5, 2]), length)
    allow_HLL = torch.eye(length * length).bool().view(length * length, length, length)
    weight = layer.linear.weight
    matrix_HDV = weight.view(length, 7, length, 3).permute(0, 2, 3, 1).flatten(0, 1)
    heads = attend_with_heads(x_BLD, matrix_HDV, allow_HLL, allow_BL)
    assert_same(layer(x_BLD, allow_BL), heads, x_BLD, weight)


class Fixed(Score):
    """Scores that depend on nothing but the positions."""

    name = "fixed"

    def __init__(self, weights_LL: Tensor) -> None:
        self.weights_LL = weights_LL

    def scores(self, query: Tensor, prepared: Tensor) -> Tensor:
        return self.weights_LL


def test_convolution_by_numbers_is_attention_with_weights_of_distance() -> None:  # SPEC A10.5
    """y_i = Σ_o w_o x_{i+o} + b: the weight of key j for query i is w_{j−i}, whatever they contain."""
    length, reach = 7, 2
    layer = Convolution(5, 5, reach, weights="scalar").double()
    w, b = layer.convolution.weight, layer.convolution.bias
    assert (w.numel(), b.numel()) == (5, 1)
    x_BLD, allow_BL = random_sequences(3, length, 5), masks.first(torch.tensor([7, 4, 1]), length)
    offset_LL = torch.arange(length) - torch.arange(length)[:, None]
    weights_LL = torch.where(offset_LL.abs() <= reach, w.flatten()[(offset_LL + reach).clamp(0, 2 * reach)], 0.0)
    fixed = attend(x_BLD, x_BLD, x_BLD, score=Fixed(weights_LL), attention="unnormalised", allow=allow_BL[:, None]) + b
    assert_same(layer(x_BLD, allow_BL), fixed, x_BLD, w, b)


def test_convolution_by_channel_has_weights_of_its_own_in_every_channel() -> None:  # SPEC A10.5
    """It equals one convolution by numbers per channel, and one with diagonal matrices."""
    layer, matrices = Convolution(5, 5, 2, weights="channel").double(), Convolution(5, 5, 2).double()
    w_D1H, b_D = layer.convolution.weight, layer.convolution.bias
    x_BLD = random_sequences(3, 7, 5)
    channels = []
    for channel in range(5):
        alone = Convolution(1, 1, 2, weights="scalar").double()
        alone.load_state_dict({"convolution.weight": w_D1H[channel][None], "convolution.bias": b_D[channel][None]})
        channels.append(alone(x_BLD[..., channel : channel + 1]))
    torch.testing.assert_close(layer(x_BLD), torch.cat(channels, dim=-1))
    matrices.load_state_dict({"convolution.weight": torch.diag_embed(w_D1H[:, 0].T).permute(1, 2, 0), "convolution.bias": b_D})
    assert_same(layer(x_BLD), matrices(x_BLD), x_BLD)
    assert sum(parameter.numel() for parameter in layer.parameters()) == 5 * 5 + 5


def test_dense_mixing_by_numbers_is_attention_with_weights_of_the_pair() -> None:  # SPEC A10.5
    """y_i = Σ_j w_ij x_j + b_i."""
    layer = Dense(7, 5, 5, weights="scalar").double()
    w_LL, b_L = layer.linear.weight, layer.linear.bias
    x_BLD, allow_BL = random_sequences(3, 7, 5), masks.first(torch.tensor([7, 4, 1]), 7)
    fixed = attend(x_BLD, x_BLD, x_BLD, score=Fixed(w_LL), attention="unnormalised", allow=allow_BL[:, None])
    assert_same(layer(x_BLD, allow_BL), fixed + b_L[:, None], x_BLD, w_LL, b_L)


def test_attention_with_fixed_weights_is_dense_mixing() -> None:  # SPEC A10.5
    """The converse: H heads with fixed weights A_h (rows sum to 1) are dense mixing with W_ij = Σ_h A_h[i, j] W_h."""
    length, heads = 5, 2
    query, key = (torch.randn(heads, length, 13, dtype=torch.float64) for _ in range(2))
    x_BLD, matrix_HDV = random_sequences(2, length, 3), torch.randn(heads, 3, 7, dtype=torch.float64)
    layer = Dense(length, 3, 7, bias=False).double()
    with torch.no_grad():
        mixed = torch.einsum("hij,hdv->ivjd", attention_weights(query, key), matrix_HDV)
        layer.linear.weight.copy_(mixed.reshape(length * 7, length * 3))
    assert_same(layer(x_BLD), attend(query, key, x_BLD[:, None] @ matrix_HDV).sum(1), x_BLD)


def test_convolution_takes_any_length() -> None:  # SPEC A0.7
    layer = Convolution(5, 11, 2).double()
    weight_VDH, bias_V = layer.convolution.weight, layer.convolution.bias
    for length in (1, 5, 17):
        x_BLD = random_sequences(3, length, 5)
        by_hand = torch.stack(
            [
                bias_V + sum(x_BLD[:, j] @ weight_VDH[..., j - i + 2].T for j in range(length) if abs(j - i) <= 2)
                for i in range(length)
            ],
            dim=1,
        )
        assert_same(layer(x_BLD), by_hand, x_BLD, weight_VDH)
    assert layer(random_sequences(3, 0, 5)).shape == (3, 0, 11)


def test_a_token_attends_to_itself_too() -> None:  # SPEC A0.7
    """Only token i's value changes, by δ; its output then changes by weights_ii · δ, and weights_ii is not 0."""
    x = torch.randn(7, 11).double()
    weights = attention_weights(x, x)
    assert (weights.diagonal() > 0).all()
    before = attend(x, x, x)
    for i in range(7):
        value, change = x.clone(), torch.randn(11).double()
        value[i] += change
        torch.testing.assert_close(attend(x, x, value)[i] - before[i], weights[i, i] * change)
    others = ~torch.eye(7).bool()
    assert ((attend(x, x, x, allow=others) - before).abs() > 1e-3).any(-1).all()  # "all other inputs", taken literally
    torch.testing.assert_close(attend(x[:1], x[:1], x[:1]), x[:1])  # a single token has only itself


@pytest.mark.parametrize(
    "layer",
    [
        Convolution(5, 11, 2),
        Convolution(5, 5, 2, weights="channel"),
        Convolution(5, 5, 2, weights="scalar"),
        Dense(7, 5, 11),
        Dense(7, 5, 5, weights="scalar"),
    ],
    ids=["convolution", "by channel", "by numbers", "dense", "dense by numbers"],
)
def test_padding_counts_as_zeros(layer: Convolution | Dense) -> None:
    """Values at padding, even NaN, never affect a real position, nor their gradients a weight."""
    layer = layer.double()
    x_BLD, allow_BL = random_sequences(3, 7, 5), masks.first(torch.tensor([7, 4, 1]), 7)
    clean = layer(torch.where(allow_BL[..., None], x_BLD, 0.0))
    dirty = layer(torch.where(allow_BL[..., None], x_BLD, torch.nan), allow_BL)
    assert torch.equal(clean, dirty)
    dirty.sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())
    assert (x_BLD.grad[~allow_BL] == 0).all()


def test_convolution_does_not_depend_on_the_amount_of_padding() -> None:
    layer = Convolution(5, 11, 2).double()
    x_BLD = random_sequences(1, 5, 5)
    alone = layer(x_BLD)
    for before, after in ((0, 1), (0, 12), (3, 0), (1, 2)):
        padded = torch.randn(1, before + 5 + after, 5, dtype=torch.float64)
        padded[:, before : before + 5] = x_BLD
        positions = torch.arange(before + 5 + after)[None]
        result = layer(padded, masks.both(positions >= before, positions < before + 5))
        torch.testing.assert_close(result[:, before : before + 5], alone)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: Dense(7, 5, 11)(x), "x has 13 positions, but this layer has weights for exactly 7; pad shorter inputs"),
        (lambda x: Dense(13, 3, 11)(x), "x has shape (2, 13, 5), expected (batch, length, 3)"),
        (lambda x: Convolution(3, 11, 2)(x), "x has shape (2, 13, 5), expected (batch, length, 3)"),
        (
            lambda x: Convolution(5, 11, 2)(x[0]),
            "x has shape (13, 5), expected (batch, length, 5); pass one sequence as x[None]",
        ),
        (
            lambda x: Convolution(5, 11, 2, weights="scalar"),
            "weights=scalar keeps the channels apart, but width is 5 and value_width is 11; make them equal, or use weights=",
        ),
        (lambda x: Convolution(5, 5, 2, weights="number"), "weights is 'number', expected one of matrix, channel, scalar"),
        (lambda x: Dense(7, 5, 5, weights="channel"), "weights is 'channel', expected one of matrix, scalar"),
        (lambda x: Convolution(5, 11, -1), "reach is -1, expected a whole number, 0 or more"),
        (
            lambda x: Convolution(5, 11, 2)(x, torch.ones(2, 13)),
            "allow_BL is torch.float32 of shape (2, 13), expected torch.bool of shape (2, 13)",
        ),
        (
            lambda x: Convolution(5, 11, 2)(x, torch.ones(2, 1, 13).bool()),
            "of shape (2, 1, 13), expected torch.bool of shape (2, 13) with True at real positions; masks.first(lengths, 13)",
        ),
    ],
)
def test_errors_say_what_was_passed_and_what_to_do(call, words: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=re.escape(words)):
        call(torch.randn(2, 13, 5))


# --- instead of self-attention ------------------------------------------------------------------------------------------------


def by_hand(layer: FixedMixing, x: Tensor, weights_HLL: Tensor) -> Tensor:
    """W_O [W_V^h x mixed by the weights of each head], with plain torch."""
    values = layer.value(x).unflatten(-1, (layer.kv_heads, -1)).repeat_interleave(layer.heads // layer.kv_heads, dim=2)
    return layer.output(torch.einsum("hij,bjhv->bihv", weights_HLL, values).flatten(2))


def test_a_convolution_instead_of_attention_is_a_convolution() -> None:  # SPEC A10.5
    """torch's own conv1d, whose kernel is W_O^h w^h_o W_V^h, summed over the heads; values and all gradients."""
    layer = TransformerEncoderLayer(6, 2, mixing="convolution", reach=2, dropout=0.0).double().attention
    x = random_sequences(3, 9, 6)
    output_HvD, value_HvD = layer.output.weight.t().view(2, 3, 6), layer.value.weight.view(2, 3, 6)
    kernel = torch.einsum("hvo,hk,hvi->oik", output_HvD, layer.score.weight, value_HvD)
    bias = torch.einsum("hvo,hk,hv->ko", output_HvD, layer.score.weight, layer.value.bias.view(2, 3))
    inside = (torch.arange(9)[:, None] + torch.arange(-2, 3)).clamp(-1, 9)
    bias_LD = ((inside >= 0) & (inside < 9)).double() @ bias + layer.output.bias
    convolved = F.conv1d(x.transpose(1, 2), kernel, padding=2).transpose(1, 2) + bias_LD
    assert_same(layer(x), convolved, x, layer.score.weight, layer.value.weight, layer.value.bias)


@pytest.mark.parametrize("mixing", ["convolution", "dense"])
@pytest.mark.parametrize("causal", [False, True])
def test_weights_by_position_equal_a_matrix_product(mixing: str, causal: bool) -> None:  # SPEC A10.5
    """Values and gradients, over many blocks of a window, with grouped values; the weights are those that a tap shows."""
    layer = TransformerDecoderLayer(
        8, 4, kv_heads=2, cross=False, mixing=mixing, reach=2, max_positions=13, dropout=0.0
    ).double()
    mix = layer.attention
    x, i = random_sequences(2, 11, 8), torch.arange(11)

    def weights() -> Tensor:
        if mixing == "dense":
            found = mix.score.weight[:, :11, :11]
        else:
            offset = i - i[:, None]
            found = mix.score.weight[:, (offset + 2).clamp(0, 4)] * (offset.abs() <= 2)
        return found.tril() if causal else found

    allow = masks.causal(11) if causal else None
    assert_same(mix(x, allow=allow), by_hand(mix, x, weights()), x, mix.score.weight, mix.value.weight)
    near = Window(2, causal=causal) if mixing == "convolution" else None
    blocks = mix.attend(mix.queries(x), *mix.keys_values(x), None if near else allow, None, window=near).context
    assert_same(blocks, by_hand(mix, x, weights()), x, mix.score.weight, mix.value.weight)
    _, seen = mix(x, allow=allow, weights=True)
    torch.testing.assert_close(seen, weights().expand(2, 4, 11, 11))


def test_a_convolution_computes_only_what_it_reaches() -> None:
    settings = TransformerSettings(mixing="convolution", reach=5)
    assert (settings.near, build(settings, 17, 19).encoder.window) == (5, 5)
    assert (TransformerSettings(mixing="dense").near, TransformerSettings(window=4).near) == (None, 4)


def test_a_dense_table_has_as_many_positions_as_it_was_made_for() -> None:
    settings = TransformerSettings(width=8, heads=2, feed_forward=11, mixing="dense", max_positions=7, dropout=0.0)
    assert settings.traits.max_positions == 7
    model = build(settings, 17, 19).eval()
    ids = torch.full((1, 8), 5)
    with pytest.raises(UserError, match="there are 8 positions, but this model mixes them with a dense table of 7"):
        model.encode(Source(ids, ids > 0))
    memory = model.encode(Source(ids[:, :7], ids[:, :7] > 0))
    state = model.start(memory, ids[:, :7])
    with pytest.raises(UserError, match="there are 8 positions"):
        model.step(ids[:, :1], state)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_long_sequences_in_any_precision(dtype: torch.dtype) -> None:
    """bfloat16 cannot count to 300: positions are kept in another type."""
    layer = TransformerEncoderLayer(8, 2, mixing="dense", max_positions=300, dropout=0.0).to(dtype).attention
    query = layer.queries(torch.zeros(1, 300, 8, dtype=dtype))
    assert query[0, 1, :, 0].tolist() == list(range(300))
    assert torch.equal(layer.score.scores(query, torch.arange(300)[:, None]), layer.score.weight[None])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: TransformerSettings(mixing="dense", positions="alibi"), "positions=alibi change the scores of self-attention"),
        (lambda: TransformerSettings(mixing="convolution", window=2), "window is 2, but a convolution has its own, reach=3"),
        (lambda: TransformerEncoderLayer(8, 2, mixing="dense", positions="rotary"), "but mixing=dense has none"),
        (lambda: TransformerEncoderLayer(8, 2, mixing="convolutoin"), 'did you mean "convolution"?'),
    ],
)
def test_what_does_not_fit_is_explained(make, words: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=re.escape(words)):
        make()


def test_layers_with_fixed_weights_say_what_torch_has_not() -> None:
    layer = TransformerEncoderLayer(8, 2, mixing="convolution")
    assert "weights by position (convolution)" in layer.beyond_torch()
    assert "weights=convolution" in repr(layer)
    assert not any("query" in name or "key" in name for name, _ in layer.named_parameters())


@pytest.mark.slow
@pytest.mark.parametrize("mixing", ["attention", "convolution", "dense"])
def test_models_with_fixed_weights_train_by_the_command(mixing: str, tmp_path: Path) -> None:
    """And learn to spell: every letter becomes a capital, whatever mixes them."""
    data, out = tmp_path / "pairs.tsv", tmp_path / "model"
    words = sorted({"".join(letters) for letters in permutations("abcd", 3)})
    data.write_text("".join(f"{word}\t{' '.join(word.upper())}\n" for word in words))
    sizes = ["kind=transformer", "width=32", "heads=2", "feed_forward=64", "encoder_layers=1", "decoder_layers=1"]
    arguments = [part for setting in [*sizes, f"mixing={mixing}"] for part in ("--set", f"model.{setting}")]
    steps = ["--set", "train.steps=250", "--set", "train.learning_rate=0.003"]
    result = CliRunner().invoke(app, ["train", str(data), "--out", str(out), *arguments, *steps, "--threads", "1"])
    assert result.exit_code == 0, result.output
    model = regard.load(out)
    right = [model(word).text == " ".join(word.upper()) for word in words]
    assert sum(right) > 0.8 * len(words)
