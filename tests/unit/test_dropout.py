"""Dropout: how much it drops, how it scales the rest, and that a seed reproduces it."""

from __future__ import annotations

import math

import pytest
import torch

from regard.layers.dropout import Dropout


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_requested_share_is_dropped_and_the_rest_is_scaled(p: float) -> None:
    torch.manual_seed(0)
    x = torch.rand(501, 401) + 1  # the number of elements is not a multiple of four
    y = Dropout(p)(x)
    dropped = y == 0
    spread = math.sqrt(p * (1 - p) / x.numel())
    assert dropped.double().mean().item() == pytest.approx(p, abs=5 * spread)
    torch.testing.assert_close(y[~dropped], (x / (1 - p))[~dropped])
    for axis in (0, 1):  # no row, column or remainder of four is favoured
        assert (dropped.double().mean(axis) - p).abs().max() < 6 * math.sqrt(p * (1 - p) / 401)
    by_four = dropped.flatten()[: x.numel() // 4 * 4].view(-1, 4).double()
    assert (by_four.mean(0) - p).abs().max() < 10 * spread
    assert (torch.corrcoef(by_four.t()) - torch.eye(4)).abs().max() < 0.03


def test_the_gradient_flows_through_kept_numbers() -> None:
    x = torch.rand(7, 11, dtype=torch.float64) + 1
    x.requires_grad_()
    layer = Dropout(0.3)
    y = layer(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad, (y != 0).double() / 0.7)

    def drop(x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(3)
        dropped: torch.Tensor = layer(x)
        return dropped

    assert torch.autograd.gradcheck(drop, x)
    assert torch.autograd.gradgradcheck(drop, x)


def test_the_same_seed_drops_the_same_numbers() -> None:
    x, layer, found = torch.ones(97), Dropout(0.5), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(layer(x))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_nothing_is_dropped_outside_training_or_with_p_0() -> None:
    x = torch.randn(5)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0)(x) is x


@pytest.mark.parametrize("p", [-0.1, 1.0])
def test_invalid_probabilities_are_refused(p: float) -> None:
    with pytest.raises(ValueError, match=f"dropout is {p}; expected a probability of at least 0 and less than 1"):
        Dropout(p)
