"""Transformer layers and stacks of them, as they are called by users."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from table import SCORES
from torch import Tensor, nn

import regard
from regard import Edit, Look, Tap, TransformerDecoder, TransformerDecoderLayer, TransformerEncoder, TransformerEncoderLayer
from regard.core import masks

WIDTH, HEADS = 12, 3


def sequences(batch: int = 2) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, 5, WIDTH), torch.randn(batch, 7, WIDTH)


# --- order and padding -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("positions", ["none", "alibi", "rotary"])
def test_padding_on_either_side_changes_nothing(score: str, positions: str) -> None:
    """Also for scores by position, which count real positions only."""
    make = lambda: SCORES[score](WIDTH // HEADS)  # noqa: E731
    if positions == "rotary" and not make().rotary:
        return
    encoder = TransformerEncoder(WIDTH, HEADS, 2, score=make, positions=positions).double().eval()
    decoder = TransformerDecoder(WIDTH, HEADS, 2, score=make, positions=positions).double().eval()
    x, memory = torch.randn(2, 5, WIDTH).double(), torch.randn(2, 7, WIDTH).double()
    parts = [(slice(0, 4), slice(0, 6)), (slice(2, 5), slice(3, 7))]  # padding at the end, and at the beginning
    x_allow, memory_allow = torch.zeros(2, 5).bool(), torch.zeros(2, 7).bool()
    for row, (target, source) in enumerate(parts):
        x_allow[row, target], memory_allow[row, source] = True, True
    encoded = encoder(memory, allow=memory_allow[:, None])
    decoded = decoder(x, encoded, allow=x_allow[:, None], memory_allow=memory_allow[:, None])
    for row, (target, source) in enumerate(parts):
        alone = encoder(memory[row, source])
        torch.testing.assert_close(encoded[row, source], alone)
        torch.testing.assert_close(decoded[row, target], decoder(x[row, target], alone))


@pytest.mark.parametrize("positions", ["none", "alibi", "rotary"])
def test_only_positions_tell_the_order(positions: str) -> None:
    encoder, x = TransformerEncoder(WIDTH, HEADS, 1, positions=positions).eval(), sequences()[0]
    order = torch.tensor([3, 1, 4, 0, 2])
    equal = torch.allclose(encoder(x[:, order]), encoder(x)[:, order], atol=1e-5)
    assert equal == (positions == "none")


def test_a_decoder_is_causal_unless_it_is_told_not_to_be() -> None:
    decoder, (x, memory) = TransformerDecoder(WIDTH, HEADS, 2).eval(), sequences()
    later = torch.cat((x[:, :3], torch.randn(2, 2, WIDTH)), dim=1)
    torch.testing.assert_close(decoder(x, memory)[:, :3], decoder(later, memory)[:, :3])
    assert not torch.allclose(decoder(x, memory, causal=False)[:, :3], decoder(later, memory, causal=False)[:, :3])
    everything = torch.ones(5, 5).bool()  # a mask is added to the causal one
    torch.testing.assert_close(decoder(x, memory, allow=everything), decoder(x, memory))
    window = masks.window(5, width=1)
    expected = decoder(x, memory, allow=masks.both(window, masks.causal(5)), causal=False)
    torch.testing.assert_close(decoder(x, memory, allow=window), expected)


def test_masks_of_as_many_sentences_as_heads_are_those_of_sentences() -> None:
    encoder, x = TransformerEncoder(WIDTH, HEADS, 1).eval(), torch.randn(HEADS, 5, WIDTH)
    lengths = torch.tensor([5, 2, 3])
    output = encoder(x, allow=masks.first(lengths, 5)[:, None])
    for row, length in enumerate(lengths.tolist()):
        torch.testing.assert_close(output[row, :length], encoder(x[row, :length]))


# --- looks -------------------------------------------------------------------------------------------------------------------


def test_looks_of_stacks() -> None:
    encoder, decoder, (x, memory) = TransformerEncoder(WIDTH, HEADS, 3), TransformerDecoder(WIDTH, HEADS, 3), sequences()
    encoder.eval(), decoder.eval()
    found = encoder(memory, look=Look((Tap("encoder", -1, head=1), Tap("encoder"))))
    assert torch.equal(found.context, encoder(memory))
    assert [(seen.layer, tuple(seen.weights_BHTS.shape)) for seen in found.seen] == [
        (0, (2, 3, 7, 7)),
        (1, (2, 3, 7, 7)),
        (2, (2, 1, 7, 7)),
        (2, (2, 3, 7, 7)),
    ]
    found = decoder(x, memory, look=Look((Tap("cross", 1), Tap("decoder", 1))))
    assert torch.equal(found.context, decoder(x, memory))
    assert [(seen.kind, seen.layer, tuple(seen.weights_BHTS.shape)) for seen in found.seen] == [
        ("decoder", 1, (2, 3, 5, 5)),
        ("cross", 1, (2, 3, 5, 7)),
    ]
    off = decoder(x, memory, look=Look(edits=(Edit("cross"),)))
    assert torch.allclose(off.context, decoder(x, torch.randn_like(memory), look=Look(edits=(Edit("cross"),))).context)
    assert off.seen == ()
    graph = decoder(x, memory, look=Look((Tap("cross", 0, head=1),), grad=True))
    (gradient,) = torch.autograd.grad(graph.context.sum(), graph.seen[0].weights_BHTS)
    assert gradient.shape == (2, 3, 5, 7)


def test_looks_of_single_layers() -> None:
    encoder, decoder, (x, memory) = TransformerEncoderLayer(WIDTH, HEADS), TransformerDecoderLayer(WIDTH, HEADS), sequences()
    encoder.eval(), decoder.eval()
    found = encoder(x, look=Look((Tap("encoder"),)))
    assert torch.equal(found.context, encoder(x))
    torch.testing.assert_close(found.seen[0].weights_BHTS.sum(-1), torch.ones(2, 3, 5))
    found = decoder(x, memory, look=Look((Tap("cross"), Tap("decoder"))))
    assert [seen.kind for seen in found.seen] == ["decoder", "cross"]
    assert torch.equal(found.context, decoder(x, memory))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda x, y: TransformerEncoder(WIDTH, HEADS, 1)(x, look=Look((Tap(),))),
            "there is no cross attention here, only enc",
        ),
        (lambda x, y: TransformerEncoderLayer(WIDTH, HEADS)(x, look=Look((Tap(),))), "no cross attention here, only encoder"),
        (
            lambda x, y: TransformerDecoder(WIDTH, HEADS, 1)(x, y, look=Look((Tap("encoder"),))),
            "there is no encoder attention here, only decoder and cross; request it with kind='decoder'",
        ),
        (
            lambda x, y: TransformerEncoder(WIDTH, HEADS, 1)(x, look=Look((Tap("encoder", 1),))),
            "no encoder attention in layer 1",
        ),
        (
            lambda x, y: TransformerDecoder(WIDTH, HEADS, 1)(x),
            "attends to a memory, but there is none; pass one, or .*cross=Fa",
        ),
        (lambda x, y: TransformerDecoder(WIDTH, HEADS, 1, cross=False)(x, y), r"has no cross-attention \(cross=False\)"),
        (lambda x, y: TransformerEncoder(WIDTH, HEADS, 1)(x, allow=torch.ones(5, 4).bool()), r"allow has shape \(5, 4\)"),
        (
            lambda x, y: TransformerEncoder(WIDTH, HEADS, 1)(x, allow=torch.ones(5, 5)),
            "allow has dtype torch.float32, expected",
        ),
        (lambda x, y: TransformerDecoder(WIDTH, HEADS, 1)(x, y, memory_allow=torch.ones(2, 7).bool()), "for a padding mask"),
        (
            lambda x, y: TransformerEncoder(WIDTH, HEADS, 1)(x[..., 1:]),
            r"x has shape \(2, 5, 11\), expected \(batch, length, 12",
        ),
        (lambda x, y: TransformerDecoder(WIDTH, HEADS, 1)(x.tolist(), y), "x is a list, expected a tensor"),
        (
            lambda x, y: TransformerDecoder(WIDTH, HEADS, 1)(x, y[..., 1:]),
            r"memory has shape \(2, 7, 11\), expected \(batch, le",
        ),
        (lambda x, y: TransformerDecoder(WIDTH, HEADS, 1)(x, y.double()), "memory has dtype torch.float64, but the layer has"),
        (lambda x, y: TransformerEncoder(WIDTH, HEADS, 0), "layers is 0, expected a whole number, 1 or more"),
        (lambda x, y: TransformerEncoder(WIDTH, 0, 1), "heads is 0, expected a whole number"),
        (lambda x, y: TransformerEncoder(WIDTH, 5, 1), "width 12 is not divisible by 5 heads"),
        (lambda x, y: TransformerEncoder(WIDTH, HEADS, 1, norm_order="past"), "norm_order is 'past', .*did you mean \"post\""),
        (
            lambda x, y: TransformerEncoder(WIDTH, HEADS, 1, positions="learned"),
            "positions is 'learned', expected one of rotary",
        ),
        (lambda x, y: TransformerEncoder(WIDTH, HEADS, 1, activation=nn.ReLU), "activation is .*, expected one of relu, gelu"),
        (lambda x, y: TransformerEncoder(WIDTH, HEADS, 1, dropout=1.5), r"dropout is 1\.5"),
        (lambda x, y: TransformerEncoder(WIDTH, HEADS, 1, droput=0.1), "unexpected keyword argument 'droput'"),
        (lambda x, y: TransformerEncoder(WIDTH, HEADS, 1, score="cosin"), 'there is no score .*did you mean "cosine"'),
        (
            lambda x, y: TransformerEncoder(WIDTH, HEADS, 1, score=regard.scores.Cosine()),
            r"the score is Cosine\(temperature=0.1\), but every attention has a score function of its own; .*lambda: regard",
        ),
        (
            lambda x, y: TransformerEncoder(WIDTH, HEADS, 1, score=regard.scores.General(4, 4)),
            "the score is General.*but every attention has",
        ),
    ],
)
def test_wrong_calls_are_explained(call: Callable[[Tensor, Tensor], object], words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words) as caught:
        call(*sequences())
    assert "\n" not in str(caught.value)


# --- parts -------------------------------------------------------------------------------------------------------------------


def test_every_attention_has_a_score_of_its_own() -> None:
    decoder = TransformerDecoder(WIDTH, HEADS, 2, score=regard.scores.General)
    scores = {id(module) for module in decoder.modules() if isinstance(module, regard.Score)}
    assert len(scores) == 4
    wide = TransformerEncoder(WIDTH, HEADS, 1, score="additive", score_width=19)
    assert wide.layers[0].attention.score.v.shape == (19,)
    short = TransformerEncoder(WIDTH, HEADS, 1, score="location", max_positions=4)
    with pytest.raises(regard.UserError, match="there are 5 positions, but this location score supports 4"):
        short(sequences()[0])


def test_a_memory_of_another_width() -> None:
    decoder, x = TransformerDecoder(WIDTH, HEADS, 1, memory_width=20), sequences()[0]
    assert decoder(x, torch.randn(2, 7, 20)).shape == x.shape


def test_options_reach_every_layer() -> None:
    encoder = TransformerEncoder(
        WIDTH, HEADS, 2, feed_forward=29, kv_heads=1, key_dim=6, attention_dropout=0.3, norm="rms", norm_eps=1e-3
    )
    for layer in encoder.layers:
        assert layer.feed_forward[0].out_features == 29
        assert (layer.attention.kv_heads, layer.attention.key_dim, layer.attention.dropout) == (1, 6, 0.3)
        assert isinstance(layer.around_feed_forward.norm, nn.RMSNorm)
        assert layer.around_feed_forward.norm.eps == 1e-3
    assert isinstance(encoder.norm, nn.RMSNorm)
    assert encoder.norm.eps == 1e-3
    assert TransformerEncoderLayer(WIDTH, HEADS).feed_forward[0].out_features == 4 * WIDTH


@pytest.mark.parametrize("dropout", [{"dropout": 0.5}, {"dropout": 0.0, "attention_dropout": 0.5}])
def test_dropout_acts_in_training_only(dropout: dict[str, float]) -> None:
    decoder, (x, memory) = TransformerDecoder(WIDTH, HEADS, 1, **dropout), sequences()
    outputs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outputs.append(decoder(x, memory))
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])
    decoder.eval()
    assert torch.equal(decoder(x, memory), decoder(x, memory))


def test_hooks_of_layers_are_called() -> None:
    """As in any module of torch: a stack calls its layers, and so does a model."""
    encoder, seen = TransformerEncoder(WIDTH, HEADS, 2), []
    for layer in encoder.layers:
        layer.register_forward_hook(lambda module, arguments, output: seen.append(output.shape))
    encoder(sequences()[0])
    assert seen == [(2, 5, WIDTH)] * 2
