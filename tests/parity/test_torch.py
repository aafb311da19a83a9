"""Same outputs and gradients as torch's layers and as direct computations in NumPy."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from regard.core import masks
from regard.core.attention import ScaledDot, attend, attention_weights
from regard.core.source import Source
from regard.layers.attention import MultiHeadAttention
from regard.layers.scores import Additive
from regard.models.transformer import Transformer, TransformerSettings


def softmax(x: np.ndarray) -> np.ndarray:
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def assert_same(ours: Tensor, theirs: Tensor, *pairs: tuple[Tensor, Tensor]) -> None:
    """Compares values, and gradients with respect to each pair (our tensor, their tensor)."""
    torch.testing.assert_close(ours, theirs)
    weights = torch.randn_like(ours)
    mine = torch.autograd.grad((ours * weights).sum(), [pair[0] for pair in pairs], retain_graph=True)
    other = torch.autograd.grad((theirs * weights).sum(), [pair[1] for pair in pairs], retain_graph=True)
    for gradient, their_gradient in zip(mine, other, strict=True):
        torch.testing.assert_close(gradient, their_gradient)


def test_four_words_by_hand() -> None:  # SPEC A1.7 A0.1 A1.1
    words = np.array([[1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 1]], dtype=np.float64)
    generator = np.random.default_rng(42)
    w_q, w_k, w_v = (generator.integers(3, size=(3, 2)).astype(np.float64) for _ in range(3))
    q, k, v = words @ w_q, words @ w_k, words @ w_v
    weights, context = np.zeros((4, 4)), np.zeros((4, 2))
    for i in range(4):
        weights[i] = softmax(np.array([q[i] @ k[j] for j in range(4)]) / math.sqrt(2))
        context[i] = sum(weights[i, j] * v[j] for j in range(4))
    x, *matrices = (torch.from_numpy(array) for array in (words, w_q, w_k, w_v))
    query, key, value = (x @ matrix for matrix in matrices)
    assert not np.allclose(weights, weights.T)
    torch.testing.assert_close(attention_weights(query, key), torch.from_numpy(weights))
    torch.testing.assert_close(attend(query, key, value), torch.from_numpy(context))


def test_additive_scores_by_hand() -> None:
    """v·tanh(W [s; h]) with W = [W_b W_c] is the same function as v·tanh(W_b s + W_c h)."""
    score = Additive(5, 11, 13).double()
    query, key = torch.randn(2, 3, 5).double(), torch.randn(2, 7, 11).double()
    w = np.concatenate([score.query.weight.detach().numpy(), score.key.weight.detach().numpy()], axis=1)
    v = score.v.detach().numpy()
    by_hand = np.zeros((2, 3, 7))
    for b in range(2):
        for t in range(3):
            for s in range(7):
                by_hand[b, t, s] = v @ np.tanh(w @ np.concatenate([query[b, t].numpy(), key[b, s].numpy()]))
    torch.testing.assert_close(score.scores(query, score.prepare(key)), torch.from_numpy(by_hand))
    torch.testing.assert_close(attention_weights(query, key, score=score), torch.from_numpy(softmax(by_hand)))


def test_additive_gradient() -> None:
    def context(query: Tensor, key: Tensor, value: Tensor, w_q: Tensor, w_k: Tensor, v: Tensor) -> Tensor:
        score = Additive(5, 11, 13).double()
        for module, weight in ((score.query, w_q), (score.key, w_k)):
            del module.weight
            module.weight = weight
        del score.v
        score.v = v
        return attend(query, key, value, score=score, allow=masks.causal(3, 7))

    sizes = [(2, 3, 5), (2, 7, 11), (2, 7, 17), (13, 5), (13, 11), (13,)]
    assert torch.autograd.gradcheck(context, [torch.randn(size, dtype=torch.float64, requires_grad=True) for size in sizes])


@pytest.mark.parametrize("divide_by", ["√d", "d", 1.0, 3.7])
def test_scaled_dot_by_hand(divide_by: float | str) -> None:  # SPEC A2.2 A3.1
    query, key, value = (torch.randn(2, length, width).double() for length, width in ((3, 11), (7, 11), (7, 5)))
    divisor = {"√d": math.sqrt(11), "d": 11}.get(divide_by, divide_by)
    weights = softmax(np.einsum("btd,bsd->bts", query.numpy(), key.numpy()) / divisor)
    score = ScaledDot(divide_by)
    torch.testing.assert_close(attention_weights(query, key, score=score), torch.from_numpy(weights))
    torch.testing.assert_close(attend(query, key, value, score=score), torch.from_numpy(weights @ value.numpy()))


@torch.no_grad()
def copy_attention(ours: MultiHeadAttention, theirs: nn.MultiheadAttention) -> None:
    theirs.in_proj_weight.copy_(torch.cat([ours.query.weight, ours.key.weight, ours.value.weight]))
    theirs.in_proj_bias.copy_(torch.cat([ours.query.bias, ours.key.bias, ours.value.bias]))
    theirs.out_proj.load_state_dict(ours.output.state_dict())


def test_multi_head_attention_equals_torch() -> None:
    ours, theirs = (
        MultiHeadAttention(12, 3).double(),
        nn.MultiheadAttention(12, 3, batch_first=True).double(),
    )
    copy_attention(ours, theirs)
    query, memory = torch.randn(2, 5, 12).double().requires_grad_(), torch.randn(2, 7, 12).double().requires_grad_()
    allow = masks.first(torch.tensor([7, 4]), 7)
    mine = ours(query, memory, allow=allow[:, None, None])
    other, _ = theirs(query, memory, memory, key_padding_mask=~allow)  # their True means hidden
    assert_same(mine, other, (query, query), (memory, memory), (ours.output.weight, theirs.out_proj.weight))


@torch.no_grad()
def copy_layer(ours: nn.Module, theirs: nn.Module) -> None:
    copy_attention(ours.attention, theirs.self_attn)
    if getattr(ours, "cross", None):
        copy_attention(ours.cross, theirs.multihead_attn)
    theirs.linear1.load_state_dict(ours.feed_forward[0].state_dict())
    theirs.linear2.load_state_dict(ours.feed_forward[3].state_dict())
    cross = [ours.around_cross.norm] if getattr(ours, "cross", None) else []
    for number, norm in enumerate([ours.around_attention.norm, *cross, ours.around_feed_forward.norm], start=1):
        getattr(theirs, f"norm{number}").load_state_dict(norm.state_dict())


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("norm_order", ["pre", "post"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_transformer_equals_torch(norm_order: str, activation: str) -> None:  # SPEC A7.1 A7.2 A7.8
    settings = TransformerSettings(
        width=12,
        heads=2,
        feed_forward=29,
        encoder_layers=2,
        decoder_layers=3,
        dropout=0.0,
        norm_order=norm_order,
        activation=activation,
    )
    ours = Transformer(settings, 17, 19).double()
    theirs = nn.Transformer(
        12,
        2,
        num_encoder_layers=2,
        num_decoder_layers=3,
        dim_feedforward=29,
        dropout=0.0,
        activation=activation,
        batch_first=True,
        norm_first=norm_order == "pre",
    ).double()
    if norm_order == "post":  # the paper has no norm after the last layer
        theirs.encoder.norm = theirs.decoder.norm = None
    mine_layers = [*ours.encoder.layers, *ours.decoder.layers]
    for mine, other in zip(mine_layers, [*theirs.encoder.layers, *theirs.decoder.layers], strict=True):
        copy_layer(mine, other)
    source_ids, target_ids = torch.randint(1, 17, (2, 7)), torch.randint(1, 19, (2, 5))
    source_ids[1, 4:] = 0
    allow = masks.not_padding(source_ids, 0)

    def embed(table: nn.Module, ids: Tensor) -> Tensor:
        positions = np.arange(ids.shape[1])[:, None] / 10000.0 ** (2 * np.arange(6) / 12)
        waves = np.stack([np.sin(positions), np.cos(positions)], axis=-1).reshape(-1, 12)
        return table.tokens(ids) * math.sqrt(12) + torch.from_numpy(waves)

    source_embedding, target_embedding = ours.encoder.embedding, ours.decoder.embedding
    other = theirs(
        embed(source_embedding, source_ids),
        embed(target_embedding, target_ids),
        tgt_mask=~masks.causal(5),
        src_key_padding_mask=~allow,
        memory_key_padding_mask=~allow,
    )
    mine = ours.decode(target_ids, ours.encode(Source(source_ids, allow))).logits_BTV
    assert_same(
        mine,
        other @ ours.decoder.output.weight.T + ours.decoder.output.bias,
        (source_embedding.tokens.weight, source_embedding.tokens.weight),
        (target_embedding.tokens.weight, target_embedding.tokens.weight),
        (ours.encoder.layers[0].feed_forward[0].weight, theirs.encoder.layers[0].linear1.weight),
        (ours.decoder.layers[2].cross.output.weight, theirs.decoder.layers[2].multihead_attn.out_proj.weight),
        (ours.encoder.layers[1].around_attention.norm.weight, theirs.encoder.layers[1].norm1.weight),
    )
