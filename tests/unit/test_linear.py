"""Products by oneDNN in training: the same as torch's own, up to rounding, and nowhere else."""

import pytest
import torch
import torch.utils.flop_counter
from torch import Tensor
from torch.nn.functional import cross_entropy

from regard.core import linear as module
from regard.core.linear import SMALLEST, has_faster_products, linear, product
from regard.core.losses import projected_loss


class Linear(torch.nn.Linear):
    """A layer that multiplies with `linear`."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


@pytest.fixture
def calls(monkeypatch) -> list[tuple[int, ...]]:
    """The shapes of the products of oneDNN, which is used whatever the processor."""
    if not torch.backends.mkldnn.is_available():
        pytest.skip("torch was built without oneDNN")
    found: list[tuple[int, ...]] = []
    original = torch.ops.mkldnn._linear_pointwise

    def counted(x: Tensor, weight: Tensor, *given: object) -> Tensor:
        found.append((*x.shape, len(weight)))
        assert all(one.is_contiguous() or one.t().is_contiguous() for one in (x, weight))
        return original(x, weight, *given)

    monkeypatch.setattr(module, "has_faster_products", lambda: True)
    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", counted)
    return found


@pytest.mark.parametrize("bias", [False, True])
def test_value_and_gradients(bias: bool, calls) -> None:
    layer, x = Linear(97, 131, bias=bias), torch.randn(3, 37, 97, requires_grad=True)
    upstream = torch.randn(3, 37, 131)

    def results(x: Tensor) -> list[Tensor]:
        y = layer(x)
        return [y, *torch.autograd.grad(y, [x, *layer.parameters()], upstream.to(x.dtype))]

    found = results(x)
    assert calls == [(111, 97, 131), (111, 131, 97), (131, 111, 97)]
    layer.double()
    for one, exact in zip(found, results(x.detach().double().requires_grad_()), strict=True):
        torch.testing.assert_close(one.double(), exact, atol=1e-5, rtol=1e-5)
    assert len(calls) == 3


def test_parts_of_a_weight_have_no_gaps(calls) -> None:
    weight, x = torch.randn(131, 200, requires_grad=True), torch.randn(111, 97, requires_grad=True)
    y = linear(x, weight[:, 50:147])
    torch.testing.assert_close(y, x @ weight[:, 50:147].t(), atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(
        torch.autograd.grad(y.sum(), x)[0], weight[:, 50:147].sum(0).expand(111, 97), atol=1e-4, rtol=1e-5
    )
    assert len(calls) == 3


def test_frozen_weights_get_no_gradient(calls) -> None:
    layer, x = Linear(97, 131), torch.randn(111, 97, requires_grad=True)
    layer.weight.requires_grad_(False)
    layer(x).sum().backward()
    assert layer.weight.grad is None
    assert layer.bias.grad.tolist() == [111.0] * 131
    torch.testing.assert_close(x.grad, layer.weight.sum(0).expand(111, 97), atol=1e-5, rtol=1e-5)
    assert len(calls) == 2


def test_a_second_derivative(calls) -> None:
    layer, x = Linear(97, 131), torch.randn(111, 97, requires_grad=True)
    (gradient,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(gradient.sum(), x)
    weight = layer.weight.detach().double()
    torch.testing.assert_close(second.double(), (2 * weight.sum(1) @ weight).expand(111, 97), atol=1e-3, rtol=1e-4)


def test_an_activation_in_place(calls) -> None:
    layer, x = Linear(97, 131), torch.randn(3, 37, 97)
    layer(x).relu_().sum().backward()
    expected = (torch.nn.functional.linear(x, layer.weight, layer.bias) > 0).sum((0, 1)).float()
    assert torch.equal(layer.bias.grad, expected)


def test_the_projected_loss(calls) -> None:
    states, weight, bias = (torch.randn(shape, requires_grad=True) for shape in ((2, 61, 97), (131, 97), (131,)))
    inputs, targets = [states, weight, bias], torch.arange(122).view(2, 61) % 131
    found = projected_loss(*inputs, targets, pad=0, smoothing=0.1)
    gradients = torch.autograd.grad(found, inputs)
    assert len(calls) == 3
    doubles = [x.detach().double().requires_grad_() for x in inputs]
    exact = cross_entropy(
        linear(*doubles).flatten(0, 1), targets.flatten(), ignore_index=0, label_smoothing=0.1, reduction="sum"
    )
    torch.testing.assert_close(found.double(), exact, atol=1e-4, rtol=1e-6)
    for one, other in zip(gradients, torch.autograd.grad(exact, doubles), strict=True):
        torch.testing.assert_close(one.double(), other, atol=1e-5, rtol=1e-4)


def test_what_torch_computes(calls) -> None:
    layer, x = Linear(97, 131), torch.randn(111, 97)
    with torch.no_grad():
        layer(x)
    layer(x[:2])
    with torch.autocast("cpu", torch.bfloat16):
        layer(x)
    torch.vmap(layer)(x[None])
    torch.func.grad(lambda x: layer(x).sum())(x)
    with torch.utils.flop_counter.FlopCounterMode(display=False) as counter:
        layer(x)
    assert counter.get_total_flops() == 2 * 111 * 97 * 131
    layer.double()(x.double())
    assert not calls
    assert x.numel() * 131 > SMALLEST > 2 * 97 * 131


def test_it_can_be_switched_off(monkeypatch) -> None:
    monkeypatch.setenv("REGARD_NATIVE", "0")
    has_faster_products.cache_clear()
    try:
        assert not has_faster_products()
        x, weight = torch.randn(111, 97, requires_grad=True), torch.randn(131, 97)
        assert torch.equal(linear(x, weight), torch.nn.functional.linear(x, weight))
        assert torch.equal(product(x, weight), torch.nn.functional.linear(x, weight))
    finally:
        has_faster_products.cache_clear()
