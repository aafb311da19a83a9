"""How positions are added or appended to tokens, in whole models."""

import math

import pytest
import torch
from torch import Tensor

from regard.core import masks
from regard.core.positions import fourier, sinusoidal
from regard.core.source import Source
from regard.errors import UserError
from regard.layers.embed import POSITION_ENCODINGS, TokenEmbedding
from regard.models.transformer import Transformer, TransformerSettings


def make(**changes: object) -> Transformer:
    torch.manual_seed(2)
    settings = TransformerSettings(**{"width": 12, "heads": 2, "feed_forward": 29, "dropout": 0.0, **changes})
    return Transformer(settings, 17, 19).double().eval()


def encode(model: Transformer, ids: Tensor) -> Tensor:
    return model.encode(Source(ids, torch.ones_like(ids) > 0)).values_BSE


def test_added_or_appended() -> None:  # SPEC A7.9
    ids, positions = torch.tensor([[3, 5, 3]]), torch.arange(3)
    added = TokenEmbedding(7, 10).double()
    tokens = added.tokens.weight[ids] * math.sqrt(10)
    torch.testing.assert_close(added(ids, positions), tokens + sinusoidal(positions, 10, dtype=torch.float64))
    appended = TokenEmbedding(7, 10, "fourier", appended=4, layout="halves").double()
    assert appended.tokens.weight.shape == (7, 6)  # D = d_token + d_pos
    tokens = appended.tokens.weight[ids] * math.sqrt(6)  # √d of the token
    expected = torch.cat((tokens, fourier(positions, 4, layout="halves", dtype=torch.float64)[None]), -1)
    torch.testing.assert_close(appended(ids, positions), expected)


def test_the_width_with_appended_positions_divides_by_the_heads_unless_key_dim_is_given() -> None:  # SPEC A7.9
    with pytest.raises(ValueError, match="width 13 is not divisible by 2 heads; try width=14, or set key_dim"):
        TransformerSettings(width=13, heads=2, position_join="appended", position_width=4)
    model = make(width=13, key_dim=5, position_join="appended", position_width=4)
    assert model.encoder.embedding.tokens.weight.shape == (17, 9)
    assert model.encoder.layers[0].attention.query.weight.shape == (10, 13)
    assert encode(model, torch.tensor([[3, 5]])).shape == (1, 2, 13)


@pytest.mark.parametrize("positions", POSITION_ENCODINGS)
def test_every_encoding_but_none_depends_on_the_order(positions: str) -> None:  # SPEC A7.12
    appended = {"position_join": "appended", "position_width": 1, "width": 13, "key_dim": 5} if positions == "index" else {}
    model, ids = make(positions=positions, max_positions=9, **appended), torch.tensor([[3, 5, 7, 11]])
    order = torch.tensor([2, 0, 3, 1])
    original, shuffled = encode(model, ids), encode(model, ids[:, order])
    if positions == "none":
        torch.testing.assert_close(shuffled, original[:, order])
    else:
        assert (shuffled - original[:, order]).abs().max() > 1e-3


def test_without_positions_an_encoder_is_equivariant_and_a_causal_stack_is_not() -> None:  # SPEC A7.11
    """After one causal layer, the last position does not depend on the order of the earlier tokens; after two, it does."""
    model, ids = make(positions="none"), torch.tensor([[3, 5, 7, 11, 13]])
    for order in (torch.tensor([4, 3, 2, 1, 0]), torch.tensor([1, 0, 4, 2, 3])):
        torch.testing.assert_close(encode(model, ids[:, order]), encode(model, ids)[:, order])

    def last_of_causal_stack(depth: int, ids: Tensor) -> Tensor:
        layers = make(encoder_layers=depth).encoder.layers
        x: Tensor = model.encoder.embedding.tokens(ids)
        for layer in layers:
            x = layer(x, allow=masks.causal(ids.shape[1]))
        return x[:, -1]

    swapped = ids[:, [1, 0, 2, 3, 4]]
    torch.testing.assert_close(last_of_causal_stack(1, swapped), last_of_causal_stack(1, ids))
    assert (last_of_causal_stack(2, swapped) - last_of_causal_stack(2, ids)).abs().max() > 1e-3


def test_tokens_and_positions_start_equally_large() -> None:
    """√d E[token] has variance 1, sinusoids and learned positions ½."""
    for appended, width in ((0, 32), (8, 24)):
        embedding = TokenEmbedding(3000, 32, "learned", appended=appended, max_positions=3000)
        assert embedding.tokens.weight.std().item() * math.sqrt(width) == pytest.approx(1.0, rel=0.02)
        assert embedding.learned.vectors.weight.square().mean().item() == pytest.approx(0.5, rel=0.02)
    assert sinusoidal(torch.arange(3000), 32).square().mean().item() == pytest.approx(0.5, rel=0.02)


def test_learned_positions_get_gradients_and_have_a_maximum() -> None:  # SPEC A7.12
    model = make(positions="learned", max_positions=4)
    encode(model, torch.tensor([[3, 5, 7]])).square().sum().backward()
    gradient = model.encoder.embedding.learned.vectors.weight.grad
    assert (gradient[:3].abs().sum(-1) > 0).all()
    assert (gradient[3:] == 0).all()
    with pytest.raises(
        UserError, match=r"the input has 5 positions, but this model has learned vectors for 4; .*max_positions=5"
    ):
        encode(model, torch.tensor([[3, 5, 7, 9, 11]]))


def test_rotary_and_alibi_depend_on_distances_only() -> None:  # SPEC A7.12
    """Shifting all positions by 700 does not change the output of a layer."""
    for positions in ("rotary", "alibi"):
        layer = make(positions=positions).encoder.layers[0]
        x = torch.randn(1, 4, 12, dtype=torch.float64)
        at_start = layer(x, positions=torch.arange(4)[None])
        later = layer(x, positions=torch.arange(4)[None] + 700)
        torch.testing.assert_close(at_start, later)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"positions": "sinus"},
            r"there is no position encoding 'sinus'; expected one of sinusoidal, learned, .*did you mean \"sinusoidal\"",
        ),
        (
            {"positions": "rotary", "position_join": "appended", "position_width": 2},
            r"'rotary' positions have no vector to append, but the appended width is 2",
        ),
        (
            {"position_join": "appended", "position_width": 12},
            r"appended positions have width 12, but width is 12; expected 1 to 11",
        ),
        ({"positions": "index"}, r"the raw index is one appended number, but its width is 12; set position_join=appended"),
        (
            {"positions": "index", "position_join": "appended", "position_width": 2},
            r"the raw index is one appended number, but its width is 2",
        ),
        (
            {"width": 13, "key_dim": 4},
            r"sinusoidal positions consist of pairs of sine and cosine, but their width is 13; make it even",
        ),
        (
            {"positions": "rotary", "key_dim": 5},
            r"rotary positions rotate pairs of numbers, but a head has width 5; make key_dim even",
        ),
    ],
)
def test_invalid_position_settings_are_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make(**changes)


@pytest.mark.parametrize("score", ["additive", "location"])
def test_rotary_models_refuse_additive_and_location_scores(score: str) -> None:  # SPEC A7.12
    with pytest.raises(ValueError, match=f"the score is '{score}'; use a score such as scaled_dot, or positions added"):
        make(positions="rotary", score=score)


def test_the_raw_index_is_appended() -> None:
    ids, positions = torch.tensor([3, 5]), torch.tensor([4, 9])
    appended = TokenEmbedding(7, 6, "index", appended=1).double()
    torch.testing.assert_close(appended(ids, positions)[:, :-1], appended.tokens.weight[ids] * math.sqrt(5))
    assert appended(ids, positions)[:, -1].tolist() == [4.0, 9.0]
