"""The kernels of additive attention against the formula in float64, for both instruction sets."""

import itertools

import pytest
import torch
from torch import Tensor

import regard
from regard.core import masks
from regard.core.attention import attend
from regard.layers.scores import Additive, Concat
from regard.native import additive as native
from regard.native.library import library

pytestmark = pytest.mark.skipif(library() is None, reason="the native library is not built: make native")


@pytest.fixture(params=["avx512", "avx2", "portable"])
def instructions(request):
    chosen = library().regard_instruction_set()
    if library().regard_choose(request.param.encode()):
        pytest.skip(f"this processor has no {request.param}")
    yield request.param
    library().regard_choose(chosen)


def formula(query: Tensor, key: Tensor, v: Tensor, value: Tensor, allow: Tensor | None) -> Tensor:
    scores = (query.unsqueeze(-2) + key.unsqueeze(-3)).tanh() @ v
    allow = torch.ones_like(scores, dtype=torch.bool) if allow is None else allow
    weights = scores.masked_fill(~allow, torch.finfo(scores.dtype).min).softmax(-1).masked_fill(~allow, 0.0)
    return weights @ value


def random(*lead: int, queries: int, keys: int, width: int, values: int, spread: float = 1.0, key_lead=None) -> list[Tensor]:
    generator = torch.Generator().manual_seed(queries * keys + width)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    key_lead = lead if key_lead is None else key_lead
    x = [normal(*lead, queries, width) * spread, normal(*key_lead, keys, width) * spread, normal(width)]
    return [one.requires_grad_() for one in [*x, normal(*key_lead, keys, values)]]


def results(compute, inputs: list[Tensor], *rest) -> list[Tensor]:
    """Returns the context and the gradients of all inputs."""
    context = compute(*inputs, *rest)
    upstream = torch.linspace(-1, 1, context.numel(), dtype=context.dtype).view_as(context).cos()
    return [context, *torch.autograd.grad(context, inputs, upstream)]


def assert_equals_formula(inputs: list[Tensor], allow: Tensor | None, most_kept: int) -> None:
    doubles = [x.detach().double().requires_grad_() for x in inputs]
    found = results(native.additive_attention, inputs, allow, 0.0, 0, most_kept)
    for one, other in zip(found, results(formula, doubles, allow), strict=True):
        torch.testing.assert_close(one.double(), other, atol=2e-6 * max(1.0, other.abs().max().item()), rtol=1e-5)


CASES = {
    "a tile and a part": random(queries=7, keys=5, width=3, values=2),
    "several tiles": random(2, 3, queries=29, keys=37, width=19, values=17, key_lead=(2, 1)),
    "several parts": random(3, queries=211, keys=53, width=8, values=5),
    "one query": random(2, 3, queries=1, keys=41, width=13, values=7, key_lead=(2, 1)),
    "beyond the reach of the exponentials": random(2, queries=31, keys=43, width=11, values=3, spread=17.0),
    "in and out of reach": random(2, queries=31, keys=43, width=11, values=3, spread=3.0),
    "far beyond": random(2, queries=13, keys=17, width=5, values=3, spread=1e4),
}


@pytest.mark.parametrize("most_kept", [0, 1 << 20])
@pytest.mark.parametrize("case", CASES)
def test_value_and_gradients(case, most_kept, instructions):  # SPEC A1.6
    inputs = CASES[case]
    queries, keys = inputs[0].shape[-2], inputs[1].shape[-2]
    allow = torch.rand(*inputs[0].shape[:-2], queries, keys, generator=torch.Generator().manual_seed(3)) > 0.4
    if queries > 1:
        allow[..., 1, :] = False
    for mask in (None, allow, allow[..., :1, :], masks.causal(max(queries, keys))[:queries, :keys]):
        assert_equals_formula(inputs, mask, most_kept)


def test_results_do_not_depend_on_threads_or_neighbours():
    one = random(3, queries=211, keys=53, width=19, values=7)
    threads = torch.get_num_threads()
    found = []
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            found.append(results(native.additive_attention, one, None))
    finally:
        torch.set_num_threads(threads)
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))
    alone = native.additive_attention(*(x[1:2] if x.dim() > 1 else x for x in one), None)
    assert torch.equal(found[0][0][1:2], alone)


def test_threads_and_instruction_sets_exist():
    assert library().regard_choose(b"sse9") == -1
    library().regard_set_threads(0)
    assert library().regard_threads() == 1


def test_dropout_keeps_a_share_and_its_gradient_fits():
    query, key, v, value = random(2, queries=101, keys=53, width=7, values=53)
    with torch.no_grad():
        value.copy_(torch.eye(53).expand_as(value))  # the context is then the weights themselves
    weights = native.additive_weights(query.detach(), key.detach(), v.detach(), None)
    dropped = native.additive_attention(query, key, v, value, None, 0.3, 5)
    kept = dropped != 0
    assert abs(kept.float().mean() - 0.7) < 0.02
    torch.testing.assert_close(dropped, torch.where(kept, weights / 0.7, 0.0), atol=1e-6, rtol=1e-5)
    again, other = (native.additive_attention(query, key, v, value, None, 0.3, seed) for seed in (5, 6))
    assert torch.equal(dropped, again)
    assert (dropped != other).any()
    rows = kept.float().mean((0, 2))
    assert 0.05 < rows.std() * 106**0.5 / (0.21**0.5) / 10 < 0.2  # queries are independent of each other

    def fixed(query: Tensor, key: Tensor, v: Tensor, value: Tensor) -> Tensor:
        scores = (query.unsqueeze(-2) + key.unsqueeze(-3)).tanh() @ v
        return (scores.softmax(-1) * kept / 0.7) @ value

    inputs = [query, key, v, value]
    doubles = [x.detach().double().requires_grad_() for x in inputs]
    for most_kept in (0, 1 << 20):
        found = results(native.additive_attention, inputs, None, 0.3, 5, most_kept)
        for one, wanted in zip(found, results(fixed, doubles), strict=True):
            torch.testing.assert_close(one.double(), wanted, atol=1e-5, rtol=1e-4)


def test_nan_is_not_lost():
    query, key, v, value = (x.detach() for x in random(queries=5, keys=19, width=3, values=2))
    key[7, 1] = torch.nan
    assert native.additive_attention(query, key, v, value, None).isnan().all()
    assert native.additive_attention(query[:1], key, v, value, None).isnan().all()
    allow = torch.ones(1, 19, dtype=torch.bool)
    allow[0, 7] = False
    assert not native.additive_attention(query, key, v, value, allow).isnan().any()


@pytest.mark.parametrize("allow", [None, masks.causal(7)[:5]])
def test_a_second_derivative_is_that_of_the_formula(allow):
    inputs = random(queries=5, keys=7, width=3, values=2)

    def second(compute, inputs):
        (gradient,) = torch.autograd.grad(compute(*inputs, allow).square().sum(), inputs[1], create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), inputs[0])[0]

    torch.testing.assert_close(second(native.additive_attention, inputs), second(formula, inputs), atol=1e-4, rtol=1e-4)


def test_torch_accepts_the_operators():
    inputs = random(2, queries=5, keys=7, width=3, values=2)
    torch.library.opcheck(torch.ops.regard.additive.default, (*inputs, None, 0.0, 0, 100))
    torch.library.opcheck(torch.ops.regard.additive.default, (*inputs, torch.rand(5, 7) > 0.2, 0.0, 0, 0))


@pytest.mark.parametrize("make", [Additive, Concat])
def test_attend_uses_the_kernel(make, monkeypatch):
    score = make(5, 7, 11)
    query, key, value = torch.randn(2, 3, 13, 5), torch.randn(2, 1, 17, 7), torch.randn(2, 1, 17, 3)
    calls = []
    original = native.additive_attention
    monkeypatch.setattr(native, "additive_attention", lambda *given: calls.append(1) or original(*given))
    fused = attend(query, key, value, score=score)
    assert calls
    monkeypatch.setattr(native, "_LIBRARY", None)
    torch.testing.assert_close(fused, attend(query, key, value, score=score), atol=1e-6, rtol=1e-5)
    exact = attend(*(x.double() for x in (query, key, value)), score=score.double())
    torch.testing.assert_close(fused.double(), exact, atol=1e-6, rtol=1e-5)
    assert len(calls) == 1


def test_weights_of_the_kernel(monkeypatch):
    score, query, key = Additive(5, 7, 11), torch.randn(2, 3, 13, 5), torch.randn(2, 1, 17, 7)
    with torch.no_grad():
        fused = regard.attention_weights(query, key, score=score, allow=masks.causal(17)[:13])
    plain = regard.attention_weights(query, key, score=score, allow=masks.causal(17)[:13])
    torch.testing.assert_close(fused, plain.detach(), atol=1e-6, rtol=1e-5)
    assert all(not fused[..., i, j].any() for i, j in itertools.product(range(13), range(17)) if j > i)


def test_other_types_take_the_exact_path():
    inputs = random(queries=5, keys=7, width=3, values=2)
    assert native.fits(*inputs)
    assert not native.fits(*(x.double() for x in inputs))
    assert not native.fits(*(x.bfloat16() for x in inputs))
    assert not native.fits(*(x.to("meta") for x in inputs))
    assert not native.fits(inputs[0][:0], *inputs[1:])


def test_attention_that_is_not_soft_keeps_its_own_path():
    score, query, key, value = Additive(5, 7, 11), torch.randn(13, 5), torch.randn(17, 7), torch.randn(17, 3)
    hard = attend(query, key, value, score=score, attention="hard").context
    best = score.scores(query, score.prepare(key)).argmax(-1)
    torch.testing.assert_close(hard, value[best])
    raw = attend(query, key, value, score=score, attention="unnormalised")
    torch.testing.assert_close(raw, score.scores(query, score.prepare(key)) @ value)


def test_transforms_of_torch_func_take_the_torch_path():
    score, query, key, value = Additive(5, 7, 11), torch.randn(2, 13, 5), torch.randn(17, 7), torch.randn(17, 3)

    def one(query: Tensor) -> Tensor:
        return attend(query, key, value, score=score)

    torch.testing.assert_close(torch.vmap(one)(query), attend(query, key, value, score=score), atol=1e-6, rtol=1e-5)
