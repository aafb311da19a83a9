"""Every shape of a mask with every way to share keys, through `attend` and through the layer.

Compared with the formulas in float64, one sentence and one head at a time, so that no axis can be taken for another. In the
layer the number of sentences may equal the number of heads, so that sizes alone do not distinguish the two.
"""

from itertools import product

import numpy as np
import pytest
import torch
from table import SCORES
from test_sweep import FORMULAS, array, make_score, parameters
from torch import Tensor, nn

import regard
from regard import reference
from regard.core import attention, masks
from regard.core.attention import prepare
from regard.layers.attention import MultiHeadAttention

QUERIES, KEYS, WIDTH, VALUE_WIDTH = 5, 7, 2, 3


def random_mask(*shape: int) -> Tensor:
    return torch.rand(shape) < 0.6


def assert_same(ours: list[Tensor], expected: list[Tensor], inputs: list[Tensor]) -> None:
    """Compares each value, and the gradients of their sum."""
    directions = [torch.randn_like(tensor) for tensor in expected]
    gradients = []
    for found in (ours, expected):
        total = sum((y * direction).sum() for y, direction in zip(found, directions, strict=True))
        gradients.append(torch.autograd.grad(total, inputs, retain_graph=True, allow_unused=True, materialize_grads=True))
    for actual, correct in (*zip(ours, expected, strict=True), *zip(*gradients, strict=True)):
        torch.testing.assert_close(actual, correct)


# --- attend ------------------------------------------------------------------------------------------------------------------

LEADS = [  # leading dimensions of query, key and value: up to 3 sentences and 4 heads
    ((3,), (1,), (1,)),
    ((3,), (), ()),
    ((1,), (3,), (3,)),
    ((3, 4), (1, 4), (1, 4)),
    ((3, 4), (3, 1), (3, 1)),
    ((3, 4), (3, 1), (3, 4)),
    ((3, 4), (1, 1), (1, 1)),
    ((3, 4), (3, 4), (3, 4)),
    ((4,), (3, 1), (3, 1)),
    ((3, 1), (1, 4), (1, 4)),
]


def attend_one_by_one(query: Tensor, key: Tensor, value: Tensor, score: regard.Score, allow: Tensor) -> Tensor:
    """Applies the plain formula to each sentence and head separately. All arguments have the same leading dimensions."""
    contexts = []
    for q, k, v, a in zip(*(tensor.flatten(0, -3) for tensor in (query, key, value, allow)), strict=True):
        powers = (score.scores(q, prepare(score, k, a)).masked_fill(~a, -1e300)).exp() * a
        contexts.append(powers / powers.sum(-1, keepdim=True).clamp(min=1e-300) @ v)
    return torch.stack(contexts).unflatten(0, query.shape[:-2])


@pytest.mark.parametrize("leads", LEADS)
@pytest.mark.parametrize("name", SCORES)
def test_attend_with_masks_of_any_shape(name: str, leads: tuple[tuple[int, ...], ...]) -> None:  # SPEC A1.3
    score = make_score(name, WIDTH, torch.float64)
    sizes = (QUERIES, WIDTH), (KEYS, WIDTH), (KEYS, VALUE_WIDTH)
    whole = torch.broadcast_shapes(*leads)
    inputs = [torch.randn(*lead, *size).double().requires_grad_() for lead, size in zip(leads, sizes, strict=True)]
    full = [tensor.expand(*whole, *tensor.shape[-2:]) for tensor in inputs]
    fused, plain, expected = [], [], []
    for shape in product(*((1, size) for size in (*whole, QUERIES, KEYS))):
        allow = random_mask(*shape)
        everything = allow.expand(*whole, QUERIES, KEYS)
        expected.append(attend_one_by_one(*full, score, everything))
        fused.append(regard.attend(*inputs, score=score, allow=allow))
        plain.append(regard.attention_weights(*inputs[:2], score=score, allow=allow) @ inputs[2])
        if name in FORMULAS:
            scores = FORMULAS[name](score, array(full[0]), array(full[1]))
            by_numpy = reference.attention(scores, array(full[2]), everything.numpy())
            np.testing.assert_allclose(array(fused[-1]), by_numpy, rtol=1e-6, atol=1e-9)
    assert_same(fused, expected, [*inputs, *parameters(score)])
    assert_same(plain, expected, [*inputs, *parameters(score)])


def test_a_mask_of_one_row_and_shared_keys() -> None:
    query, key = torch.randn(3, 5, 16), torch.randn(1, 7, 16)
    allow = masks.first(torch.tensor([7, 2, 5]), 7)[:, None]
    context = regard.attend(query, key, key, allow=allow)
    assert context.shape == (3, 5, 16)
    for row, length in enumerate((7, 2, 5)):
        torch.testing.assert_close(context[row], regard.attend(query[row], key[0, :length], key[0, :length]))


# --- the layer ---------------------------------------------------------------------------------------------------------------

HEADS = 4


def layer_one_by_one(layer: MultiHeadAttention, x: Tensor, memory: Tensor, allow: Tensor) -> Tensor:
    """Computes each sentence and head separately. `allow` is (B, H, …, Lq, Lk), any number of masks; returns (B, …, Lq, D).

    Keys to which no query of any head may attend are padding: they do not count as positions.
    """

    def part(linear: nn.Linear | None, x: Tensor, number: int, heads: int) -> Tensor:
        if linear is None:
            return x
        weight, bias = (tensor.unflatten(0, (heads, -1))[number] for tensor in (linear.weight, linear.bias))
        return x @ weight.T + bias

    sentences = []
    for x_LD, memory_SE, allow_HLS in zip(x, memory, allow, strict=True):
        heads = []
        for head, allow_LS in enumerate(allow_HLS):
            group = head * layer.kv_heads // layer.heads
            query = part(layer.query, x_LD, head, layer.heads)
            key, value = (part(linear, memory_SE, group, layer.kv_heads) for linear in (layer.key, layer.value))
            if layer.score.by_position:
                real = allow_HLS.any(-2).any(0)
                key = layer.score.prepare(key.expand(*real.shape, -1), (real.long().cumsum(-1) - 1).clamp(min=0))
            else:
                key = layer.score.prepare(key)
            powers = layer.score.scores(query, key).exp() * allow_LS
            heads.append(powers / powers.sum(-1, keepdim=True).clamp(min=1e-300) @ value)
        sentences.append(torch.cat(heads, -1))
    return torch.stack(sentences) @ layer.output.weight.T + layer.output.bias


@pytest.mark.parametrize("batch", [3, HEADS])
@pytest.mark.parametrize("kv_heads", [1, 2, HEADS])
@pytest.mark.parametrize("name", SCORES)
def test_the_layer_with_masks_of_any_shape(name: str, kv_heads: int, batch: int) -> None:  # SPEC A6.3
    score = make_score(name, WIDTH, torch.float64)
    layer = MultiHeadAttention(HEADS * WIDTH, HEADS, memory_width=11, kv_heads=kv_heads, score=score).double()
    x, memory = torch.randn(batch, QUERIES, HEADS * WIDTH), torch.randn(batch, KEYS, 11)
    inputs = [tensor.double().requires_grad_() for tensor in (x, memory)]
    rows_and_columns = list(product((1, QUERIES), (1, KEYS)))
    shapes = [
        *rows_and_columns,
        *((sentences, *rest) for sentences in (1, batch) for rest in rows_and_columns),
        *((sentences, heads, *rest) for sentences in (1, batch) for heads in (1, HEADS) for rest in rows_and_columns),
    ]
    allows = [random_mask(*shape) for shape in shapes]
    full = [(allow[:, None] if allow.dim() == 3 else allow).expand(batch, HEADS, QUERIES, KEYS) for allow in allows]
    expected = layer_one_by_one(layer, *inputs, torch.stack(full, 2)).unbind(1)
    assert_same([layer(*inputs, allow=allow) for allow in allows], list(expected), [*inputs, *layer.parameters()])
    for allow in allows:
        for dtype in (torch.float64, torch.float32, torch.long, torch.uint8):
            with pytest.raises(ValueError, match=f"allow has dtype {dtype}, expected torch.bool with True = may attend"):
                layer(*inputs, allow=allow.to(dtype))


@pytest.mark.parametrize("kv_heads", [1, 2, HEADS])
def test_one_sentence_without_a_batch(kv_heads: int) -> None:
    layer = MultiHeadAttention(8, HEADS, kv_heads=kv_heads).double()
    x, memory = torch.randn(QUERIES, 8).double(), torch.randn(KEYS, 8).double()
    for shape in [*product((1, QUERIES), (1, KEYS)), *product((1, HEADS), (1, QUERIES), (1, KEYS))]:
        allow = random_mask(*shape)
        expected = layer_one_by_one(layer, x[None], memory[None], allow.expand(1, HEADS, QUERIES, KEYS))
        torch.testing.assert_close(layer(x, memory, allow=allow), expected[0])
    memories, allow = torch.randn(3, KEYS, 8).double(), random_mask(3, HEADS, 1, KEYS)
    expected = layer_one_by_one(layer, x.expand(3, -1, -1), memories, allow.expand(-1, -1, QUERIES, -1))
    torch.testing.assert_close(layer(x, memories, allow=allow), expected)


@pytest.mark.parametrize("num_queries", [1, QUERIES])
@pytest.mark.parametrize("tile", [1, attention.TILE])
@pytest.mark.parametrize("kv_heads", [1, 2, HEADS])
@pytest.mark.parametrize("name", SCORES)
def test_alibi_in_groups(name: str, kv_heads: int, tile: int, num_queries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """ALiBi adds a different number for each head, even if there is only one query."""
    monkeypatch.setattr(attention, "TILE", tile)
    score = make_score(name, WIDTH, torch.float64)
    layer = MultiHeadAttention(HEADS * WIDTH, HEADS, kv_heads=kv_heads, score=score, alibi=True, project_output=False).double()
    x = torch.randn(3, KEYS, HEADS * WIDTH).double()
    query, (keys, values) = layer.queries(x)[:, :, -num_queries:], layer.keys_values(x)
    positions = torch.arange(KEYS - num_queries, KEYS)[None], torch.arange(KEYS)[None]
    for shape in [(num_queries, KEYS), (3, 1, 1, KEYS), (3, HEADS, num_queries, KEYS)]:
        allow = random_mask(*shape)
        ours = layer.attend(query, keys, values, allow, None, positions).context
        distance = (positions[0].mT - positions[1]).abs()
        key, value = (tensor.repeat_interleave(HEADS // kv_heads, dim=1) for tensor in (keys, values))
        scores = score.scores(query, key) - layer.slopes_H.double()[:, None, None] * distance
        weights = reference.softmax(array(scores), allow.expand(scores.shape).numpy())
        expected = torch.from_numpy(weights) @ value
        torch.testing.assert_close(ours, expected.transpose(1, 2).flatten(-2))
