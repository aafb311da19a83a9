"""Layers, positions and hard attention compared with their formulas in regard.reference."""

import numpy as np
import pytest
import torch
from torch import Tensor

import regard
from regard import reference
from regard.core import costs, masks
from regard.core.positions import LAYOUTS, alibi_slopes, fourier, one_hot, raw_index, rotate, sinusoidal
from regard.core.weights import gated_weights, hard_weights
from regard.layers.attention import MultiHeadAttention
from regard.layers.mixing import Convolution, Dense
from regard.layers.scores import Additive, Location


def array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().double().numpy()


def assert_equals(ours: Tensor, theirs: np.ndarray, **tolerance: float) -> None:
    torch.testing.assert_close(ours, torch.from_numpy(np.array(theirs)), **tolerance)


def heads_of(layer: MultiHeadAttention, score: reference.Score = reference.scaled_dot) -> list[reference.Head]:
    """Returns the matrices of each head in the notation of the notes."""

    def parts(linear: torch.nn.Linear, count: int) -> list[tuple[np.ndarray, np.ndarray]]:
        return list(zip(np.split(array(linear.weight).T, count, 1), np.split(array(linear.bias), count), strict=True))

    queries, keys = parts(layer.query, layer.heads), parts(layer.key, layer.kv_heads)
    values = [(None, 0.0)] * layer.kv_heads if layer.value is None else parts(layer.value, layer.kv_heads)
    share = layer.heads // layer.kv_heads
    return [
        reference.Head(w_q, keys[n // share][0], values[n // share][0], b_q, keys[n // share][1], values[n // share][1], score)
        for n, (w_q, b_q) in enumerate(queries)
    ]


@pytest.mark.parametrize("kv_heads", [1, 2, 6])
@pytest.mark.parametrize("project_values", [True, False])
def test_multi_head(kv_heads: int, project_values: bool) -> None:
    values = {"value_dim": 3} if project_values else {"project_values": False}
    layer = MultiHeadAttention(11, 6, memory_width=13, key_dim=2, kv_heads=kv_heads, **values).double()
    x, z, allow = torch.randn(2, 5, 11).double(), torch.randn(2, 7, 13).double(), torch.rand(2, 5, 7) < 0.7
    theirs = reference.multi_head(
        array(x), array(z), heads_of(layer), array(layer.output.weight).T, array(layer.output.bias), allow.numpy()
    )
    assert_equals(layer(x, z, allow=allow[:, None]), theirs)


def test_multi_head_with_another_score() -> None:
    score = Additive(5, 5, 7).double()
    layer = MultiHeadAttention(15, 3, score=score).double()
    x, w = torch.randn(2, 4, 15).double(), [array(score.query.weight), array(score.key.weight), array(score.v)]
    heads = heads_of(layer, lambda Q, K: reference.additive(Q, K, *w))
    theirs = reference.multi_head(array(x), array(x), heads, array(layer.output.weight).T, array(layer.output.bias))
    assert_equals(layer(x), theirs)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rotary_and_alibi_attention(layout: str) -> None:
    x, i = torch.randn(2, 5, 12).double(), np.arange(5)

    def rotary_score(Q: np.ndarray, K: np.ndarray) -> np.ndarray:
        return reference.scaled_dot(reference.rotary(Q, i, layout), reference.rotary(K, i, layout))

    turned = MultiHeadAttention(12, 3, rotary=layout).double()
    out = array(turned.output.weight).T, array(turned.output.bias)
    assert_equals(turned(x), reference.multi_head(array(x), array(x), heads_of(turned, rotary_score), *out))
    near = MultiHeadAttention(12, 3, alibi=True).double()
    slopes = reference.alibi_slopes(3)
    heads = [
        head._replace(score=lambda Q, K, m=m: reference.scaled_dot(Q, K) + reference.alibi(i, i, m))
        for head, m in zip(heads_of(near), slopes, strict=True)
    ]
    out = array(near.output.weight).T, array(near.output.bias)
    assert_equals(near(x), reference.multi_head(array(x), array(x), heads, *out))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("first", [0, 1])
def test_position_vectors(layout: str, first: int) -> None:
    positions = torch.tensor([[0, 3], [977, 8191]])
    double = {"dtype": torch.float64}
    assert_equals(
        sinusoidal(positions, 12, layout=layout, first=first, **double),
        reference.sinusoidal(positions.numpy(), 12, first, layout),
    )
    assert_equals(raw_index(positions, **double), reference.raw_index(positions.numpy()))
    assert_equals(one_hot(positions[0], 5, **double), reference.one_hot(positions[0].numpy(), 5))
    x = torch.randn(2, 2, 12).double()
    assert_equals(rotate(x, positions, layout=layout), reference.rotary(x.numpy(), positions.numpy(), layout))
    near = torch.arange(65)
    similarity = fourier(near[:1], 64, layout=layout, **double) @ fourier(near, 64, layout=layout, **double).mT
    assert_equals(similarity[0], reference.fourier_kernel(0, near.numpy()), atol=1e-3, rtol=0)


@pytest.mark.parametrize("heads", [1, 2, 3, 6, 8, 12])
def test_alibi_slopes(heads: int) -> None:
    assert_equals(alibi_slopes(heads), reference.alibi_slopes(heads))


@pytest.mark.parametrize("max_source", [4, 9])
@pytest.mark.filterwarnings("ignore:.* keys are ignored, because this location score supports only the first 4")
def test_location(max_source: int) -> None:  # SPEC A2.5
    score = Location(11, max_source, beyond="ignore").double()
    query, key, value = torch.randn(2, 3, 11).double(), torch.randn(2, 7, 5).double(), torch.randn(2, 7, 2).double()
    real = torch.tensor([[False, False, True, True, True, True, True], [True, True, False, True, False, False, False]])
    scores = reference.location(array(query), array(score.weight), real.numpy())
    how = {"score": score, "allow": real[:, None]}
    assert_equals(regard.attention_weights(query, key, **how), reference.softmax(scores))
    assert_equals(regard.attend(query, key, value, **how), reference.attention(scores, array(value)))


def test_hard_attention() -> None:  # SPEC A3.2
    scores, allow = torch.randn(2, 5, 7).double(), torch.rand(2, 5, 7) < 0.6
    allow[0, 1] = False
    s, a = scores.numpy(), allow.numpy()
    best, drawn = hard_weights(scores, allow), hard_weights(scores, allow, torch.Generator().manual_seed(3))
    assert_equals(best.weights, reference.hard(s, a))
    assert_equals(drawn.log_prob, reference.hard_log_prob(s, drawn.weights.argmax(-1).numpy(), a))
    assert_equals(drawn.entropy, reference.entropy(reference.softmax(s, a)))
    open_, random = gated_weights(scores, allow), gated_weights(scores, allow, torch.Generator().manual_seed(3))
    assert_equals(open_.weights, reference.hard_gates(s, a))
    assert_equals(random.log_prob, reference.log_gates(s, random.weights.numpy() > 0, a))
    assert_equals(random.entropy, reference.gates_entropy(s, a))


def test_policy_gradient() -> None:  # SPEC A3.2
    log_p, log_pi, entropy = (torch.randn(3, 5).double() for _ in range(3))
    rewards = regard.losses.reward_to_go(log_p)
    assert_equals(rewards, reference.reward_to_go(log_p.numpy()))
    loss = -log_p.sum() + regard.losses.policy_gradient(rewards, log_pi, entropy, baseline=-0.7, entropy_bonus=0.3)
    theirs = reference.surrogate(*(tensor.numpy() for tensor in (log_p, log_pi, rewards)), -0.7, entropy.numpy(), 0.3).sum()
    assert loss.item() == pytest.approx(-theirs)


def test_sums() -> None:  # SPEC A3.4
    query, key, value, allow = (
        torch.randn(3, 11).double(),
        torch.randn(7, 11).double(),
        torch.randn(7, 2).double(),
        masks.causal(3, 7),
    )
    theirs = reference.unnormalised(reference.scaled_dot(query.numpy(), key.numpy()), value.numpy(), allow.numpy())
    assert_equals(regard.attend(query, key, value, allow=allow, attention="unnormalised"), theirs)


def test_basic_self_attention() -> None:  # SPEC A6.1
    x = torch.randn(2, 5, 11).double()
    assert_equals(regard.self_attention(x), reference.self_attention(x.numpy()))


def test_mixing_layers() -> None:  # SPEC A10.5
    x = torch.randn(2, 7, 3).double()
    convolution, dense = Convolution(3, 5, 2, bias=False).double(), Dense(7, 3, 5, bias=False).double()
    w = array(convolution.convolution.weight).transpose(2, 1, 0)
    assert_equals(convolution(x), reference.convolution(x.numpy(), w))
    w = array(dense.linear.weight).reshape(7, 5, 7, 3).transpose(0, 2, 3, 1)
    assert_equals(dense(x), reference.dense(x.numpy(), w))


@pytest.mark.parametrize("form", ["notes", "exact"])
def test_costs(form: str) -> None:  # SPEC A10.1 A10.2
    for name, theirs in reference.costs(17, 11, 7, 5, 3, form).items():
        ours = costs.cost(name.replace("-", "_"), 17, 11, 5, key_width=7, kernel=3, form=form)
        assert (ours.operations, ours.parameters, ours.sequential_steps) == theirs
