"""Every score with every kind of mask, in many shapes and three precisions, compared with the formulas in float64.

A score of tests/table.py that has a formula in regard.reference gets a line in FORMULAS; without one it is compared with its
own `scores` in float64, which still tests the kernels, the tiles and the gradients.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from table import SCORES
from torch import Tensor, nn

import regard
from regard import reference
from regard.core import attention, masks, summary
from regard.core.attention import prepare
from regard.core.score import Score
from regard.core.weights import masked_softmax

SLACK = {torch.float64: (2, 32), torch.float32: (2, 32), torch.bfloat16: (1, 4)}
"""Allowed errors of weights and of gradients, in units of ε(1 + largest score): about twice the largest of 1,400 random cases.
Those of bfloat16 are smaller, because sums are kept in float32."""
TILES = 1, attention.TILE  # row by row, and all at once


def array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().double().numpy()


FORMULAS: dict[str, Callable[[Score, np.ndarray, np.ndarray], np.ndarray]] = {
    "scaled_dot": lambda score, Q, K: reference.scaled_dot(Q, K),
    "scaled_dot by d": lambda score, Q, K: reference.scaled_dot(Q, K, Q.shape[-1]),
    "dot": lambda score, Q, K: reference.dot(Q, K),
    "general": lambda score, Q, K: reference.general(Q, K, array(score.weight.weight)),
    "basic": lambda score, Q, K: reference.basic(Q, K, array(score.key.weight), array(score.query.weight)),
    "additive": lambda score, Q, K: reference.additive(
        Q, K, array(score.query.weight), array(score.key.weight), array(score.v)
    ),
    "concat": lambda score, Q, K: reference.concat(Q, K, array(score.weight.weight), array(score.v)),
    "cosine": lambda score, Q, K: reference.cosine(Q, K, score.temperature),
    "distance": lambda score, Q, K: reference.distance(Q, K),
}


@dataclass(frozen=True)
class Shape:
    lead: tuple[int, ...]
    num_queries: int
    num_keys: int
    width: int
    value_width: int


shapes = st.builds(  # distinct primes; no more keys than the location score of the table has positions
    lambda lead, sizes: Shape(lead, *sizes[:4]),
    st.sampled_from([(), (2,), (2, 3)]),
    st.permutations([2, 3, 5, 7, 11, 13]).filter(lambda sizes: sizes[1] <= 7),
)


def padding(shape: Shape) -> Tensor:
    """Each sentence has its own length; all heads share the mask."""
    batch, *heads = shape.lead or (1,)
    real = masks.first(torch.randint(1, shape.num_keys + 1, (batch,)), shape.num_keys)
    return real.reshape(*([batch, *(1 for _ in heads)] if shape.lead else []), 1, shape.num_keys)


def with_an_empty_row(shape: Shape) -> Tensor:
    allow = torch.rand(*shape.lead, shape.num_queries, shape.num_keys) < 0.6
    allow[..., shape.num_queries // 2, :] = False
    return allow


MASKS: dict[str, Callable[[Shape], Tensor | None]] = {
    "none": lambda shape: None,
    "causal": lambda shape: masks.causal(shape.num_queries, shape.num_keys),
    "padding": padding,
    "window": lambda shape: masks.window(shape.num_queries, shape.num_keys, width=2),
    "with an empty row": with_an_empty_row,
    "combined": lambda shape: masks.both(masks.both(MASKS["causal"](shape), padding(shape)), with_an_empty_row(shape)),
}


def make_score(name: str, width: int, dtype: torch.dtype) -> Score:
    score = SCORES[name](width)
    return score.to(dtype) if isinstance(score, nn.Module) else score


def parameters(score: Score) -> list[Tensor]:
    return list(score.parameters()) if isinstance(score, nn.Module) else []


def assert_near(found: Tensor, expected: Tensor, tolerance: float) -> None:
    assert found.shape == expected.shape
    torch.testing.assert_close(found.double(), expected.double(), atol=tolerance, rtol=0.0)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", SCORES)
@given(shape=shapes, seed=st.integers(0, 999), tile=st.sampled_from(TILES))
@settings(max_examples=5)
def test_attention_equals_the_formula(name: str, mask: str, shape: Shape, seed: int, tile: int) -> None:
    torch.manual_seed(seed)
    allow = MASKS[mask](shape)
    for dtype in SLACK:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(attention, "TILE", tile)
            patch.setattr(summary, "TILE", tile)
            assert_equal(name, shape, allow, dtype)


def assert_equal(name: str, shape: Shape, allow: Tensor | None, dtype: torch.dtype) -> None:
    """Gives the oracle inputs and parameters that are rounded to `dtype`.

    A score of size s has an error of about ε·s, which is the relative error of its weight.
    """
    score = make_score(name, shape.width, dtype)
    sizes = (shape.num_queries, shape.width), (shape.num_keys, shape.width), (shape.num_keys, shape.value_width)
    inputs = [torch.randn(*shape.lead, *size).to(dtype).requires_grad_() for size in sizes]
    query, key, value = inputs
    score_64 = copy.deepcopy(score).double() if isinstance(score, nn.Module) else score
    inputs_64 = [tensor.detach().double().requires_grad_() for tensor in inputs]
    plain_scores = score_64.scores(inputs_64[0], prepare(score_64, inputs_64[1], allow))
    scores = FORMULAS[name](score_64, array(query), array(key)) if name in FORMULAS else array(plain_scores)
    expected = torch.from_numpy(reference.softmax(scores, None if allow is None else allow.numpy()))
    unit = torch.finfo(dtype).eps * (1 + np.abs(scores).max())
    tolerance, gradient_tolerance = (slack * unit for slack in SLACK[dtype])

    weights = regard.attention_weights(query, key, score=score, allow=allow)
    assert_near(weights, expected, tolerance)
    visible = torch.ones_like(expected[..., 0]) if allow is None else allow.any(-1).expand(expected.shape[:-1])
    assert_near(weights.double().sum(-1), visible.double(), tolerance)

    context = regard.attend(query, key, value, score=score, allow=allow)
    assert context.dtype == dtype
    assert_near(context, expected @ inputs_64[2], tolerance * value.abs().max().item())

    top = min(3, shape.num_keys)
    found = regard.summarise(query, key, top=top, score=score, allow=allow)
    assert_near(found.top_weights, expected.topk(top).values, tolerance)
    assert_near(expected.gather(-1, found.top_keys), found.top_weights, tolerance)
    assert_near(found.mass, expected.sum(-2), tolerance * shape.num_queries)
    assert_near(found.entropy, torch.from_numpy(reference.entropy(expected.numpy())), tolerance * shape.num_keys)

    plain = masked_softmax(plain_scores, allow) @ inputs_64[2]
    direction = torch.randn_like(context)
    leaves = inputs_64 + parameters(score_64)
    gradients_64 = torch.autograd.grad((plain * direction.double()).sum(), leaves, allow_unused=True, materialize_grads=True)
    leaves = inputs + parameters(score)
    gradients = torch.autograd.grad((context * direction).sum(), leaves, allow_unused=True, materialize_grads=True)
    for ours, theirs in zip(gradients, gradients_64, strict=True):
        assert_near(ours, theirs, gradient_tolerance * max(1.0, theirs.abs().max().item()))


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("name", SCORES)
def test_gradients_equal_finite_differences(name: str, tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks gradients of inputs and parameters, in float64, with a mask that has an empty row."""
    monkeypatch.setattr(attention, "TILE", tile)
    score = make_score(name, 2, torch.float64)
    query, key, value = (torch.randn(2, *size).double().requires_grad_() for size in ((3, 2), (7, 2), (7, 5)))
    allow = with_an_empty_row(Shape((2,), 3, 7, 2, 5))

    def context(query: Tensor, key: Tensor, value: Tensor, *learned: Tensor) -> Tensor:
        """`learned` are the parameters of the score, which gradcheck changes in place."""
        return regard.attend(query, key, value, score=score, allow=allow)

    assert torch.autograd.gradcheck(context, (query, key, value, *parameters(score)))


def test_every_formula_belongs_to_a_score() -> None:
    assert set(FORMULAS) <= set(SCORES)
