import math

import pytest
import torch

from regard.core.positions import sinusoidal


def test_sinusoidal_by_hand() -> None:
    table = sinusoidal(torch.arange(5000), 6)
    for place in (0, 1, 17, 4999):
        for k in range(3):
            omega = 10000 ** (-2 * k / 6)
            assert table[place, 2 * k].item() == pytest.approx(math.sin(omega * place), abs=1e-7)
            assert table[place, 2 * k + 1].item() == pytest.approx(math.cos(omega * place), abs=1e-7)


def test_similarity_depends_on_the_distance_alone() -> None:
    table = sinusoidal(torch.arange(40), 32, dtype=torch.float64)
    products = table @ table.T
    for distance in range(20):
        values = products.diagonal(distance)
        torch.testing.assert_close(values, values[:1].expand_as(values))
    assert (products.diagonal()[:-1] > products.diagonal(1)).all()


def test_odd_widths_are_refused() -> None:
    with pytest.raises(ValueError, match="width is 7; make it even"):
        sinusoidal(torch.arange(3), 7)
