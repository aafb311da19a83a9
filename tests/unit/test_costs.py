"""The formulas compared with real layers: parameters, counted multiply-adds, and the longest chain of products."""

import re
from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.utils.flop_counter import FlopCounterMode

from regard.core.attention import attention_weights
from regard.core.costs import COSTS, Cost, cost
from regard.layers.mixing import Convolution, Dense

D, V, Q, KERNEL = 5, 11, 3, 13  # widths of input, values, queries and keys; positions under the kernel


class SelfAttention(nn.Module):
    """Self-attention by the plain formula, without biases or heads."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(D, width, bias=False) for width in (Q, Q, V))

    def forward(self, x: Tensor) -> Tensor:
        return attention_weights(self.query(x), self.key(x)) @ self.value(x)


LAYERS: dict[str, Callable[[int], nn.Module]] = {
    "self_attention": lambda length: SelfAttention(),
    "recurrent": lambda length: nn.RNN(D, V, bias=False, batch_first=True),
    "convolution": lambda length: Convolution(D, V, KERNEL // 2, bias=False),
    "dense": lambda length: Dense(length, D, V, bias=False),
}


def output(layer: nn.Module, length: int) -> Tensor:
    result = layer(torch.randn(1, length, D))
    return result[0] if isinstance(layer, nn.RNN) else result


def multiply_adds(run: Callable[[], object]) -> int:
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops() // 2


def longest_chain(result: Tensor) -> int:
    """Returns the largest number of matrix products (or convolutions) that depend on one another, from the autograd graph."""

    @cache
    def depth(node: Node) -> int:
        is_product = node.name().startswith(("MmBackward", "BmmBackward", "ConvolutionBackward"))
        return is_product + max((depth(parent) for parent, _ in node.next_functions if parent is not None), default=0)

    assert result.grad_fn is not None
    return depth(result.grad_fn)


def sized(layer: str, length: int, form: str) -> Cost:
    return cost(layer, length, D, V, key_width=Q, kernel=KERNEL, form=form)


def test_every_layer_is_compared() -> None:
    assert LAYERS.keys() == COSTS.keys()


@pytest.mark.parametrize(
    ("layer", "operations", "parameters"),
    [
        ("self_attention", 49 * 3, 15 + 15 + 55),
        ("recurrent", 7 * 55, 55 + 121),
        ("convolution", 7 * 13 * 55, 13 * 55),
        ("dense", 49 * 55, 7 * 55),
    ],
)
def test_costs_as_the_notes_count_them(layer: str, operations: int, parameters: int) -> None:  # SPEC A10.1
    notes = sized(layer, 7, "notes")
    assert (notes.operations, notes.parameters) == (operations, parameters)


def test_what_the_notes_count_is_part_of_the_whole() -> None:  # SPEC A10.1
    """Measures just the part that docs/costs.md describes."""
    x, query, key = torch.randn(7, D), torch.randn(7, Q), torch.randn(7, Q)
    assert sized("self_attention", 7, "notes").operations == multiply_adds(lambda: query @ key.T)  # the scores
    assert sized("recurrent", 7, "notes").operations == multiply_adds(lambda: x @ torch.randn(D, V))  # input to state
    one_place = nn.Linear(7 * D, V, bias=False)
    assert sized("dense", 7, "notes").parameters == one_place.weight.numel()
    assert sized("convolution", 7, "notes") == sized("convolution", 7, "exact")
    for layer in LAYERS:
        notes, exact = (sized(layer, 7, form) for form in ("notes", "exact"))
        assert notes.operations <= exact.operations
        assert notes.parameters <= exact.parameters


@pytest.mark.parametrize("length", [1, 7, 17])
@pytest.mark.parametrize("name", LAYERS)
def test_exact_costs_are_those_of_the_layers(name: str, length: int) -> None:  # SPEC A10.2
    layer, exact = LAYERS[name](length), sized(name, length, "exact")
    assert exact.parameters == sum(parameter.numel() for parameter in layer.parameters())
    assert exact.operations == multiply_adds(lambda: output(layer, length))


@pytest.mark.parametrize("name", LAYERS)
def test_only_recurrence_waits_for_itself(name: str) -> None:  # SPEC A10.4
    """The longest chain of products in the graph of the real layer grows with the length as in the formula."""
    chains = {length: longest_chain(output(LAYERS[name](length), length)) for length in (5, 7, 17)}
    for form in ("notes", "exact"):
        steps = {length: sized(name, length, form).sequential_steps for length in chains}
        assert steps == {length: length if name == "recurrent" else 1 for length in chains}
        assert {chains[length] - steps[length] for length in chains} == {2 if name == "self_attention" else 0}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            {"layer": "convolutoin", "kernel": 3},
            "there is no layer 'convolutoin'; expected one of self_attention, recurrent, convolution, dense; "
            'did you mean "convolution"?',
        ),
        ({"layer": "dense", "form": "exat"}, "there is no form 'exat'; expected one of notes, exact; did you mean \"exact\"?"),
        ({"layer": "self_attention", "kernel": 3}, "the cost of self_attention depends on key_width, which is missing"),
        ({"layer": "convolution", "key_width": 3}, "depends on kernel, which is missing; pass kernel=…"),
        ({"layer": "dense", "length": 0}, "length is 0, expected a whole number, 1 or more"),
        ({"layer": "convolution", "kernel": -3}, "kernel is -3, expected a whole number, 1 or more"),
    ],
)
def test_invalid_arguments_are_refused_with_advice(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        cost(**{"length": 7, "width": D, "value_width": V, **arguments})
