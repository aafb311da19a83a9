"""How far gradients reach, and over how many steps two ends are connected."""

import math
import re

import pytest
import torch
from torch import nn

import regard
from regard.layers.mixing import Convolution
from regard.layers.reach import LAYERS, _after, _module
from regard.layers.recurrent import CELLS, run


@pytest.mark.parametrize("name", LAYERS)
def test_the_reach_is_the_norm_of_the_jacobian(name: str) -> None:  # SPEC A5.7
    """Compared with torch's own Jacobian of the layer, for two lengths."""
    found = regard.gradient_reach([name], (3, 7), width=5, reach=3, seed=2)[name]
    module = _module(name, 5, 3, 2)
    for length, norm in zip((3, 7), found, strict=True):
        x = torch.randn(1, length, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2))

        def last(x: torch.Tensor) -> torch.Tensor:
            if isinstance(module, nn.RNNBase):
                state = torch.zeros(1, 1, 5, dtype=torch.float64)
                return module(x, (state, state) if name == "lstm" else state)[0][0, -1]
            return module(x)[0, -1]

        jacobian = torch.autograd.functional.jacobian(last, x)[:, 0, 0]
        assert norm == pytest.approx(jacobian.norm().item(), rel=1e-9, abs=1e-300)
    assert (found[1] > 0) == (name != "convolution")  # three positions away is the end of its reach


def test_your_own_layers_and_no_random_numbers_of_yours() -> None:
    before = torch.get_rng_state()
    found = regard.gradient_reach({"mean": lambda x: x.mean(1, keepdim=True).expand_as(x)}, (1, 4, 10), width=3)
    assert found == {"mean": pytest.approx([math.sqrt(3) / length for length in (1, 4, 10)])}
    assert regard.gradient_reach(["lstm"], [6], seed=1) == regard.gradient_reach(["lstm"], [6], seed=1)
    assert regard.gradient_reach(["lstm"], [6], seed=1) != regard.gradient_reach(["lstm"], [6], seed=2)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("length", [2, 5, 9, 12])
def test_path_lengths(length: int) -> None:  # SPEC A10.6
    """1 for attention; L for a recurrent network; for convolutions of kernel k, N layers of which see 1 + N(k − 1) positions,
    ⌈(L − 1)/(k − 1)⌉: that is ⌈L/(k − 1)⌉, or one less where k − 1 divides L − 1."""
    assert regard.path_length("attention", length) == 1
    for cell in CELLS:
        assert regard.path_length(cell, length, width=3) == length
    for reach in (1, 2, 3):
        others = 2 * reach  # k − 1
        steps = regard.path_length("convolution", length, reach=reach)
        assert steps == math.ceil((length - 1) / others)
        assert steps == math.ceil(length / others) - (1 if (length - 1) % others == 0 else 0)


@pytest.mark.parametrize("cell", CELLS)
def test_steps_of_a_recurrent_network_read_the_past(cell: str) -> None:  # SPEC A10.6
    """After n steps a position has read the last n inputs, and after L steps the last one has read all."""
    stack, x = _module(cell, 5, 1, 3), torch.randn(2, 7, 5, dtype=torch.float64)
    torch.testing.assert_close(_after(stack, x, 7), run(stack, x)[0])
    torch.testing.assert_close(_after(stack, x, 3)[:, 5], run(stack, x[:, 3:6])[0][:, -1])


def test_a_path_is_counted_by_gradients() -> None:  # SPEC A10.6
    """A receptive field by hand: with a reach of 2, output i of two layers depends on inputs i − 4 to i + 4 and no others."""
    layer = Convolution(3, 3, 2).double()
    assert regard.path_length(layer, 9, width=3) == 2
    assert regard.path_length(layer, 10, width=3) == 3
    x = torch.randn(1, 12, 3, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(layer(layer(x))[0, 5].sum(), x)
    assert gradient[0].ne(0).any(-1).nonzero().flatten().tolist() == list(range(1, 10))
    only_itself = nn.Linear(3, 3).double()
    with pytest.raises(ValueError, match="no output depends on the first and the last of 4 inputs, even after 4 steps"):
        regard.path_length(only_itself, 4, width=3)
    assert regard.path_length(only_itself, 1, width=3) == 1


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: regard.gradient_reach(["lstn"], [3]), "there is no layer 'lstn'; expected one of attention, convolution, rnn"),
        (lambda: regard.path_length("atention", 3), 'did you mean "attention"?'),
        (lambda: regard.gradient_reach(["lstm"], [3, 0]), "length is 0, expected a whole number, 1 or more"),
        (lambda: regard.path_length("lstm", 3, width=0), "width is 0, expected a whole number, 1 or more"),
    ],
)
def test_wrong_arguments_are_explained(call, words: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=re.escape(words)):
        call()
