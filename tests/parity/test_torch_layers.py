"""Conversion from and to the layers of torch.nn: equal weights, outputs and gradients."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import regard
from regard.core import masks
from regard.layers.torch_layers import our_parameters

BATCH, QUERIES, KEYS, WIDTH, HEADS = 2, 5, 7, 12, 3


def assert_same(ours: Tensor, theirs: Tensor, pairs: list[tuple[Tensor, Tensor]], tolerance: float) -> None:
    """Compares values, and gradients with respect to each pair (our tensor, their tensor)."""
    torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance)
    direction = torch.randn_like(ours)
    mine = torch.autograd.grad(ours, [pair[0] for pair in pairs], direction)
    other = torch.autograd.grad(theirs, [pair[1] for pair in pairs], direction)
    for gradient, their_gradient in zip(mine, other, strict=True):
        torch.testing.assert_close(gradient, their_gradient, rtol=tolerance, atol=10 * tolerance)


def assert_equal_weights(one: nn.Module, other: nn.Module) -> None:
    mine, theirs = one.state_dict(), other.state_dict()
    assert list(mine) == list(theirs)
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


# --- attention ---------------------------------------------------------------------------------------------------------------

OPTIONS: list[dict[str, object]] = [
    {},
    {"bias": False},
    {"kdim": 11, "vdim": 7},
    {"kdim": 11},
    {"vdim": 7, "bias": False},
    {"dropout": 0.3},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("masked", [False, True])
def test_attention_equals_torch(options: dict[str, object], batch_first: bool, masked: bool) -> None:
    theirs = nn.MultiheadAttention(WIDTH, HEADS, batch_first=batch_first, **options).eval()
    if theirs.in_proj_bias is not None:
        nn.init.normal_(theirs.in_proj_bias)
    ours = regard.MultiHeadAttention.from_torch(theirs)
    for name, tensor in our_parameters(theirs).items():
        assert torch.equal(ours.get_parameter(name), tensor), name
    assert len(list(ours.parameters())) == len(our_parameters(theirs))
    query, key, value = (
        torch.randn(BATCH, length, width, requires_grad=True)
        for length, width in ((QUERIES, WIDTH), (KEYS, theirs.kdim), (KEYS, theirs.vdim))
    )
    hidden, padding = torch.rand(QUERIES, KEYS) < 0.3, ~masks.first(torch.tensor([KEYS, 3]), KEYS)
    hidden[:, 0] = False
    mine, weights = ours(query, key, value, allow=~(hidden | padding[:, None]) if masked else None, weights=True)
    given = [tensor if batch_first else tensor.transpose(0, 1) for tensor in (query, key, value)]
    their_masks = {"attn_mask": hidden, "key_padding_mask": padding} if masked else {}
    other, their_weights = theirs(*given, average_attn_weights=False, **their_masks)
    torch.testing.assert_close(weights, their_weights, rtol=0, atol=1e-6)
    pairs = [(tensor, tensor) for tensor in (query, key, value)]
    pairs += [(ours.output.weight, theirs.out_proj.weight)]
    assert_same(mine, other if batch_first else other.transpose(0, 1), pairs, 1e-6)
    assert ours.dropout == theirs.dropout
    assert not ours.training
    back = ours.to_torch()
    assert_equal_weights(back, theirs)
    assert (back.dropout, back.batch_first, back.training) == (theirs.dropout, True, False)
    assert_equal_weights(regard.MultiHeadAttention.from_torch(back), ours)
    again, _ = back(query, key, value, **their_masks)
    torch.testing.assert_close(again, mine, rtol=0, atol=1e-6)


def test_gradients_of_joined_projections_equal_torch() -> None:
    theirs = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    ours, x = regard.MultiHeadAttention.from_torch(theirs), torch.randn(BATCH, QUERIES, WIDTH)
    direction = torch.randn(BATCH, QUERIES, WIDTH)
    ours(x).backward(direction)
    theirs(x, x, x)[0].backward(direction)
    mine = [linear.weight.grad for linear in (ours.query, ours.key, ours.value)]
    torch.testing.assert_close(torch.cat(mine), theirs.in_proj_weight.grad, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtype_device_and_frozen_weights_are_kept(dtype: torch.dtype) -> None:
    theirs = nn.MultiheadAttention(WIDTH, HEADS).to(dtype)
    theirs.in_proj_weight.requires_grad_(False)
    state = torch.get_rng_state()
    ours = regard.MultiHeadAttention.from_torch(theirs)
    assert torch.equal(torch.get_rng_state(), state)  # no random numbers are used
    assert {parameter.dtype for parameter in ours.parameters()} == {dtype}
    assert {name for name, tensor in ours.named_parameters() if not tensor.requires_grad} == {
        "query.weight",
        "key.weight",
        "value.weight",
    }
    assert ours.training
    assert_equal_weights(ours.to_torch(), theirs)
    assert ours.to_torch().in_proj_weight.dtype == dtype
    on_meta = regard.MultiHeadAttention.from_torch(nn.MultiheadAttention(WIDTH, HEADS, device="meta"))
    assert on_meta.query.weight.device.type == on_meta.to_torch().in_proj_weight.device.type == "meta"
    before = theirs.out_proj.weight.clone()
    with torch.no_grad():
        ours.output.weight.zero_()
    assert torch.equal(theirs.out_proj.weight, before)  # a copy


def test_parts_that_we_have_not_are_refused_together() -> None:
    theirs = nn.MultiheadAttention(WIDTH, HEADS, add_bias_kv=True, add_zero_attn=True)
    with pytest.raises(regard.UserError, match=r"cannot be converted: add_bias_kv=True .*; add_zero_attn=True"):
        regard.MultiHeadAttention.from_torch(theirs)
    for wrong in (torch.ao.nn.quantizable.MultiheadAttention(WIDTH, HEADS), nn.Linear(3, 3), None):
        with pytest.raises(TypeError, match=r"expected a torch.nn.MultiheadAttention, not .*, which may compute something"):
            regard.MultiHeadAttention.from_torch(wrong)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's quantisation
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_parts_that_torch_has_not_are_refused_together() -> None:
    layer = regard.MultiHeadAttention(
        12,
        6,
        score=regard.scores.Cosine(),
        kv_heads=3,
        rotary="halves",
        alibi=True,
        key_dim=4,
        value_dim=5,
        project_output=False,
    )
    with pytest.raises(regard.UserError) as caught:
        layer.to_torch()
    assert str(caught.value) == (
        "torch.nn.MultiheadAttention cannot express this layer: its score is cosine, not s·h / √d; rotary positions (halves); "
        "ALiBi; 3 key-value heads for 6 heads; key_dim=4, not width / heads; value_dim=5, not width / heads; "
        "no output projection"
    )
    for layer, words in (
        (regard.MultiHeadAttention(12, 3, project_values=False), "values without a projection"),
        (regard.MultiHeadAttention(12, 3, score=regard.scores.ScaledDot("d")), "its score is scaled_dot, not"),
        (regard.MultiHeadAttention(12, 3, score=regard.scores.Location(4, 9)), "its score is location, not"),
        (
            torch.ao.quantization.quantize_dynamic(regard.MultiHeadAttention(12, 3), {nn.Linear}),
            "quantised projections",
        ),
    ):
        with pytest.raises(regard.UserError, match=words):
            layer.to_torch()
    same = regard.MultiHeadAttention(12, 3, score=regard.scores.ScaledDot(2.0))  # 2 = √4
    x = torch.randn(2, 5, 12)
    torch.testing.assert_close(same.to_torch()(x, x, x)[0], same(x), rtol=0, atol=1e-6)


# --- blocks ------------------------------------------------------------------------------------------------------------------

ACTIVATIONS = ["relu", "gelu", nn.GELU("tanh"), nn.SiLU(), nn.ReLU(), nn.GELU()]


def their_layer(cls: type[nn.Module], **options: object) -> nn.Module:
    layer = cls(WIDTH, HEADS, 29, **{"dropout": 0.0, "batch_first": True} | options).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)  # biases and gains too
    return layer


def their_stack(cls: type[nn.Module], layer: nn.Module, norm: nn.Module | None) -> nn.Module:
    options = {"enable_nested_tensor": False} if cls is nn.TransformerEncoder else {}
    stack = cls(layer, 2, norm, **options)
    for parameter in stack.parameters():
        nn.init.normal_(parameter, std=0.5)
    return stack.double()


def check_encoder(ours: nn.Module, theirs: nn.Module) -> None:
    x = torch.randn(BATCH, KEYS, WIDTH, dtype=torch.float64, requires_grad=True)
    padding, hidden = ~masks.first(torch.tensor([KEYS, 3]), KEYS), torch.rand(KEYS, KEYS) < 0.3
    hidden[:, 0] = False
    their_mask = {"mask" if isinstance(theirs, nn.TransformerEncoder) else "src_mask": hidden}
    mine = ours(x, allow=~(hidden | padding[:, None]))
    pairs = [(x, x), *parameter_pairs(ours, theirs)]
    assert_same(mine, theirs(x, src_key_padding_mask=padding, **their_mask), pairs, 1e-9)
    assert_same(ours(x), theirs(x), pairs, 1e-9)


def check_decoder(ours: nn.Module, theirs: nn.Module) -> None:
    x = torch.randn(BATCH, QUERIES, WIDTH, dtype=torch.float64, requires_grad=True)
    memory = torch.randn(BATCH, KEYS, WIDTH, dtype=torch.float64, requires_grad=True)
    padding, target_padding = ~masks.first(torch.tensor([KEYS, 3]), KEYS), ~masks.first(torch.tensor([2, QUERIES]), QUERIES)
    hidden = torch.rand(QUERIES, KEYS) < 0.3
    hidden[:, 0] = False
    mine = ours(x, memory, allow=~target_padding[:, None], memory_allow=~(hidden | padding[:, None]))
    other = theirs(
        x,
        memory,
        tgt_mask=~masks.causal(QUERIES),
        tgt_key_padding_mask=target_padding,
        memory_mask=hidden,
        memory_key_padding_mask=padding,
    )
    pairs = [(x, x), (memory, memory), *parameter_pairs(ours, theirs)]
    assert_same(mine, other, pairs, 1e-9)
    assert_same(ours(x, memory), theirs(x, memory, tgt_mask=~masks.causal(QUERIES)), pairs, 1e-9)
    assert_same(ours(x, memory, causal=False), theirs(x, memory), pairs, 1e-9)


def parameter_pairs(ours: nn.Module, theirs: nn.Module) -> list[tuple[Tensor, Tensor]]:
    """Those that are not a view of one of their parameters."""
    named = dict(ours.named_parameters())
    return [(named[name], tensor) for name, tensor in our_parameters(theirs).items() if isinstance(tensor, nn.Parameter)]


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_layers_equal_torch(norm_first: bool, activation: str | Callable[[Tensor], Tensor]) -> None:  # SPEC A7.1
    options = {"norm_first": norm_first, "activation": activation, "layer_norm_eps": 1e-3}
    encoder, decoder = (their_layer(cls, **options) for cls in (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer))
    ours = regard.TransformerEncoderLayer.from_torch(encoder)
    check_encoder(ours, encoder)
    check_encoder(ours, ours.to_torch())
    assert_equal_weights(ours.to_torch(), encoder)
    ours = regard.TransformerDecoderLayer.from_torch(decoder)
    check_decoder(ours, decoder)
    check_decoder(ours, ours.to_torch())
    assert_equal_weights(ours.to_torch(), decoder)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("last_norm", [True, False])
def test_stacks_equal_torch(norm_first: bool, last_norm: bool) -> None:  # SPEC A7.1
    norm = nn.LayerNorm(WIDTH) if last_norm else None
    encoder = their_stack(nn.TransformerEncoder, their_layer(nn.TransformerEncoderLayer, norm_first=norm_first), norm)
    decoder = their_stack(nn.TransformerDecoder, their_layer(nn.TransformerDecoderLayer, norm_first=norm_first), norm)
    ours = regard.TransformerEncoder.from_torch(encoder)
    check_encoder(ours, encoder)
    assert_equal_weights(ours.to_torch(), encoder)
    check_encoder(ours, ours.to_torch())
    ours = regard.TransformerDecoder.from_torch(decoder)
    check_decoder(ours, decoder)
    assert_equal_weights(ours.to_torch(), decoder)
    check_decoder(ours, ours.to_torch())


def test_new_stacks_convert_to_torch() -> None:
    """Pre-norm stacks end with a norm, post-norm stacks do not."""
    for order in ("pre", "post"):
        encoder = regard.TransformerEncoder(WIDTH, HEADS, 2, norm_order=order, dropout=0.0, feed_forward=29).double()
        check_encoder(encoder, encoder.to_torch())
        decoder = regard.TransformerDecoder(WIDTH, HEADS, 2, norm_order=order, dropout=0.0, feed_forward=29).double()
        check_decoder(decoder, decoder.to_torch())
        assert (encoder.to_torch().norm is None) == (order == "post")


def test_dropout_is_taken_over() -> None:
    theirs = nn.TransformerDecoderLayer(WIDTH, HEADS, 29, dropout=0.3)
    ours = regard.TransformerDecoderLayer.from_torch(theirs)
    dropouts = {module.p for module in ours.modules() if hasattr(module, "p")}
    assert dropouts == {ours.attention.dropout, ours.cross.dropout} == {0.3}
    assert ours.to_torch().dropout.p == ours.to_torch().self_attn.dropout == 0.3


def test_layers_that_cannot_be_converted() -> None:
    theirs = nn.TransformerEncoderLayer(WIDTH, HEADS, 29, activation=nn.Tanh(), bias=False)
    with pytest.raises(regard.UserError, match=r"the activation is Tanh\(\), expected one of relu, .*; bias=False leaves out"):
        regard.TransformerEncoderLayer.from_torch(theirs)
    with pytest.raises(TypeError, match=r"expected a torch.nn.TransformerDecoderLayer, not"):
        regard.TransformerDecoderLayer.from_torch(theirs)
    theirs = nn.TransformerEncoderLayer(WIDTH, HEADS, 29)
    theirs.dropout1.p = 0.7
    with pytest.raises(regard.UserError, match="its parts differ in dropout or layer_norm_eps"):
        regard.TransformerEncoderLayer.from_torch(theirs)
    stack = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(WIDTH, HEADS, 29, batch_first=True), 2, nn.Identity(), enable_nested_tensor=False
    )
    stack.layers[1] = nn.TransformerEncoderLayer(WIDTH, HEADS, 31, batch_first=True)
    with pytest.raises(regard.UserError, match=r"its layers differ from each other; the norm after the last layer is Identity"):
        regard.TransformerEncoder.from_torch(stack)
    ours = regard.TransformerDecoder(
        WIDTH, HEADS, 1, cross=False, norm="rms", activation="swiglu", positions="alibi", attention_dropout=0.3
    )
    with pytest.raises(regard.UserError) as caught:
        ours.to_torch()
    assert str(caught.value) == (
        "torch.nn cannot express this TransformerDecoderLayer: ALiBi; RMSNorm; the activation swiglu; "
        "dropout and attention_dropout differ (0.1, 0.3); no cross-attention"
    )
    wide = regard.TransformerDecoderLayer(WIDTH, HEADS, memory_width=20, attention_dropout=0.1)
    with pytest.raises(regard.UserError, match="a memory of width 20"):
        wide.to_torch()


def test_a_drop_in_layer_in_a_model_of_torch() -> None:
    """A model that calls its attention as torch does, with a converted layer instead of torch's."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            output = self.attention(x, x, x)
            return x + (output[0] if isinstance(output, tuple) else output)

    model, x = Model(), torch.randn(BATCH, QUERIES, WIDTH)
    converted = copy.deepcopy(model)
    converted.attention = regard.MultiHeadAttention.from_torch(model.attention)
    torch.testing.assert_close(converted(x), model(x), rtol=0, atol=1e-6)
