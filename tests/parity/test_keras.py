"""Same outputs and gradients as Keras' attention layers.

On its torch backend, Keras multiplies matrices in float32 even in a float64 layer, so these tests use float32.
"""

import os
from dataclasses import dataclass

os.environ["KERAS_BACKEND"] = "torch"
os.environ["KERAS_HOME"] = os.devnull  # so that it neither reads nor writes settings

import keras
import pytest
import torch
from test_torch import assert_same
from torch import Tensor

import regard
from regard.core import masks
from regard.core.attention import ScaledDot
from regard.layers.attention import MultiHeadAttention
from regard.layers.scores import Additive, Dot

# B2 Lq5 Lk7 d11 dv3


@dataclass(frozen=True)
class Case:
    """Inputs, the mask in our form, and the same mask in Keras' form."""

    query: Tensor
    key: Tensor
    value: Tensor
    allow: Tensor | None
    theirs: dict[str, object]


@pytest.fixture(params=["no mask", "padding", "causal", "padding and causal"])
def case(request: pytest.FixtureRequest) -> Case:
    allow, theirs = None, {}
    num_queries, num_keys = 5, 7
    if "padding" in request.param:
        real_BS = masks.first(torch.tensor([4, 7]), num_keys)
        allow, theirs = real_BS[:, None], {"mask": [None, real_BS]}
    if "causal" in request.param:
        num_queries = num_keys  # for other lengths, Keras aligns top-left and we align bottom-right
        causal = masks.causal(num_keys)
        allow, theirs = causal if allow is None else masks.both(allow, causal), {**theirs, "use_causal_mask": True}
    shapes = (num_queries, 11), (num_keys, 11), (num_keys, 3)
    query, key, value = (torch.randn(2, *shape, requires_grad=True) for shape in shapes)
    return Case(query, key, value, allow, theirs)


def built(layer: keras.layers.Layer) -> keras.layers.Layer:
    layer.build([(2, 5, 11), (2, 7, 3), (2, 7, 11)])  # Keras' order: query, value, key
    return layer


def learned(start: float | Tensor) -> Tensor:
    return torch.as_tensor(start).clone().requires_grad_()


def assert_equals_keras(
    layer: keras.layers.Layer,
    case: Case,
    score: regard.Score,
    *parameters: tuple[Tensor, Tensor],
    query: Tensor | None = None,
    key: Tensor | None = None,
) -> None:
    """Compares context, weights and gradients.

    parameters: pairs (ours, theirs).
    query, key: what our score gets, if not those of the case.
    """
    query, key = case.query if query is None else query, case.key if key is None else key
    theirs = layer([case.query, case.value, case.key], return_attention_scores=True, **case.theirs)
    context = regard.attend(query, key, case.value, score=score, allow=case.allow)
    weights = regard.attention_weights(query, key, score=score, allow=case.allow)
    inputs = [(tensor, tensor) for tensor in (case.query, case.key, case.value)]
    assert_same(context, theirs[0], *inputs, *parameters)
    assert_same(weights, theirs[1], *inputs[:2], *parameters)


def test_dot(case: Case) -> None:
    assert_equals_keras(keras.layers.Attention(), case, Dot())


def test_dot_with_a_scale(case: Case) -> None:
    layer, scale = built(keras.layers.Attention(use_scale=True)), learned(0.37)
    layer.scale.assign(0.37)
    assert_equals_keras(layer, case, ScaledDot(divide_by=1 / 0.37))
    assert_equals_keras(layer, case, Dot(), (scale, layer.scale.value), query=scale * case.query)


def additive(v: Tensor) -> Additive:
    """Keras projects neither queries nor keys. `v` stays the same tensor, so that gradients reach what it was computed from."""
    score = Additive(len(v), len(v), len(v))
    for linear in (score.query, score.key):
        torch.nn.init.eye_(linear.weight)
    del score.v
    score.v = v
    return score


def test_additive(case: Case) -> None:
    """Σ scale · tanh(s + h)."""
    layer = built(keras.layers.AdditiveAttention())
    v = learned(layer.scale.value.detach())
    assert_equals_keras(layer, case, additive(v), (v, layer.scale.value))
    assert_equals_keras(keras.layers.AdditiveAttention(use_scale=False), case, additive(torch.ones(11)))


def test_concat(case: Case) -> None:
    """w · Σ tanh(scale · (s + h)) with two learned numbers: an additive score despite its name; nothing is concatenated."""
    weight, scale = learned(0.61), learned(0.37)
    score = additive(weight * torch.ones(11))
    layer = built(keras.layers.Attention(score_mode="concat"))
    layer.concat_score_weight.assign(0.61)
    assert_equals_keras(layer, case, score, (weight, layer.concat_score_weight.value))
    layer = built(keras.layers.Attention(score_mode="concat", use_scale=True))
    layer.concat_score_weight.assign(0.61)
    layer.scale.assign(0.37)
    parameters = (weight, layer.concat_score_weight.value), (scale, layer.scale.value)
    assert_equals_keras(layer, case, score, *parameters, query=scale * case.query, key=scale * case.key)


def test_keras_aligns_its_causal_mask_at_the_top_left() -> None:
    """The first of 5 queries may attend to 1 of 7 keys in Keras, and to 3 here. So the tests above only use equal lengths."""
    query, key = torch.randn(2, 5, 11), torch.randn(2, 7, 11)
    _, theirs = keras.layers.Attention()([query, key], use_causal_mask=True, return_attention_scores=True)
    top_left = masks.causal(7)[:5]
    torch.testing.assert_close(regard.attention_weights(query, key, score=Dot(), allow=top_left), theirs)
    assert (top_left[0].sum(), masks.causal(5, 7)[0].sum()) == (1, 3)


def test_keras_leaves_torch_as_it_was() -> None:
    """Otherwise the other tests would no longer run in the environment of users."""
    before = torch.get_rng_state()
    keras.layers.Attention(use_scale=True)([torch.zeros(2, 5, 11), torch.zeros(2, 7, 11)])
    assert (torch.get_default_dtype(), torch.get_default_device().type) == (torch.float32, "cpu")
    assert torch.is_grad_enabled()
    assert torch.get_num_threads() == 1  # as conftest.py sets it
    assert torch.equal(before, torch.get_rng_state())


def linear_weight(kernel: Tensor, num_inputs: int) -> Tensor:
    """Keras stores (inputs…, outputs…), with an axis for the heads; nn.Linear stores (outputs, inputs)."""
    return kernel.reshape(num_inputs, -1).T


def test_multi_head_attention() -> None:
    """2 heads, key_dim 2, value_dim 3, from queries of width 11 to a memory of width 13: outputs, weights, all gradients."""
    keras.utils.set_random_seed(5)  # seeds Keras' initial weights
    x, memory = torch.randn(2, 5, 11, requires_grad=True), torch.randn(2, 7, 13, requires_grad=True)
    theirs = keras.layers.MultiHeadAttention(num_heads=2, key_dim=2, value_dim=3, bias_initializer="random_normal")
    theirs.build(x.shape, memory.shape)
    ours = MultiHeadAttention(11, 2, key_dim=2, value_dim=3, memory_width=13)
    dense = {
        "query": (ours.query, theirs.query_dense, 11),
        "key": (ours.key, theirs.key_dense, 13),
        "value": (ours.value, theirs.value_dense, 13),
        "output": (ours.output, theirs.output_dense, 2 * 3),
    }
    with torch.no_grad():
        for linear, einsum, num_inputs in dense.values():
            linear.weight.copy_(linear_weight(einsum.kernel.value, num_inputs))
            linear.bias.copy_(einsum.bias.value.flatten())
    allow_BTS = torch.rand(2, 5, 7) < 0.7
    allow_BTS[..., 0] = True  # a row without keys is uniform in Keras, and zeros here
    allow_BHTS = allow_BTS[:, None]

    mine = ours(x, memory, allow=allow_BHTS)
    other, weights = theirs(x, memory, attention_mask=allow_BTS, return_attention_scores=True)
    assert_same(mine, other, (x, x), (memory, memory))
    key, _ = ours.keys_values(memory)
    torch.testing.assert_close(regard.attention_weights(ours.queries(x), key, allow=allow_BHTS), weights)
    torch.testing.assert_close(mine, theirs(x, memory, attention_mask=allow_BTS))  # without scores Keras takes another path

    mine.square().sum().backward()
    other.square().sum().backward()
    torch.testing.assert_close(
        {name: (linear.weight.grad, linear.bias.grad) for name, (linear, _, _) in dense.items()},
        {
            name: (linear_weight(einsum.kernel.value.grad, num_inputs), einsum.bias.value.grad.flatten())
            for name, (_, einsum, num_inputs) in dense.items()
        },
        rtol=1e-5,
        atol=3e-5,  # float32: sums of 70 products
    )
