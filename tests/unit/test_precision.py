"""Training in bfloat16 (torch's autocast): the graph is that of float32, apart from conversions; only numbers are rounded."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import regard
from regard.errors import UserError
from regard.training import loop
from regard.training.objective import batch_loss
from regard.training.settings import TrainSettings

PAIRS = [("cab", "C A B"), ("ad", "A D"), ("bad", "B A D")]
CONVERSION = "ToCopyBackward0"

Graph = list[tuple[str, list[int]]]
"""The name of each node, and the numbers of the nodes that it hands gradients to; -1 for none."""


def graph(loss: Tensor) -> Graph:
    """Returns the graph of a loss, without conversions between types."""
    numbers: dict[Any, int] = {}
    nodes: dict[int, tuple[str, list[int]]] = {}

    def visit(node: Any) -> int:
        while node is not None and node.name() == CONVERSION:
            node = node.next_functions[0][0]
        if node is None:
            return -1
        if node not in numbers:
            numbers[node] = number = len(numbers)
            nodes[number] = node.name(), [visit(following) for following, _ in node.next_functions]
        return numbers[node]

    visit(loss.grad_fn)
    return [nodes[number] for number in sorted(nodes)]


def num_conversions(loss: Tensor) -> int:
    seen, waiting = set[Any](), [loss.grad_fn]
    while waiting:
        if (node := waiting.pop()) is not None and node not in seen:
            seen.add(node)
            waiting += [following for following, _ in node.next_functions]
    return sum(node.name() == CONVERSION for node in seen)


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("rnn", {}),
        ("rnn", {"decoder": "bahdanau"}),
        ("rnn", {"attention": "hard", "cell": "lstm"}),
        ("rnn", {"attention": "marginal", "readout": "plain", "input_feeding": False}),
        ("transformer", {"dropout": 0.1}),
        ("transformer", {"window": 2}),
    ],
)
def test_the_graph_of_bfloat16_is_that_of_float32(
    family: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Native kernels compute float32 alone, so torch computes both here."""
    for kernels in ("recurrent", "bahdanau"):
        monkeypatch.setattr(f"regard.native.{kernels}.fits", lambda *tensors: False)
    model = regard.build(family, PAIRS, width=16, **settings)
    (batch,) = regard.batches(model, PAIRS, epochs=1)
    losses, gradients = [], []
    for rounded in (False, True):
        torch.manual_seed(1)
        with torch.autocast("cpu", torch.bfloat16, enabled=rounded):
            loss, _ = batch_loss(model.model.train(), batch, TrainSettings())
        model.model.zero_grad()
        loss.backward()
        losses.append(loss)
        trained = [parameter.grad for parameter in model.model.parameters() if parameter.grad is not None]
        assert {gradient.dtype for gradient in trained} == {loss.dtype} == {torch.float32}
        gradients.append(torch.cat([gradient.flatten() for gradient in trained]))
    assert graph(losses[0]) == graph(losses[1])
    assert len(graph(losses[0])) > 30
    assert [num_conversions(loss) > 10 for loss in losses] == [False, True]
    assert losses[0].item() != losses[1].item() == pytest.approx(losses[0].item(), rel=0.02)
    assert torch.cosine_similarity(*gradients, dim=0) > 0.999


def test_the_projected_loss_is_not_rounded() -> None:
    states, weight, bias = torch.randn(2, 5, 8), torch.randn(11, 8), torch.randn(11)
    inputs, targets = (states, weight, bias), torch.arange(1, 11).view(2, 5)
    exact = regard.losses.projected_loss(*inputs, targets, pad=0)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(regard.losses.projected_loss(*inputs, targets, pad=0), exact)


def losses_with(**settings: Any) -> list[float]:
    losses: list[float] = []

    def keep(update: regard.Update) -> None:
        losses.append(update.loss)

    regard.train(PAIRS * 20, steps=6, width=16, seed=3, on_update=keep, quiet=True, **settings)
    return losses


def test_a_model_learns_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "has_bfloat16", lambda device: True)  # the processor may emulate it, too
    rounded, exact = losses_with(precision="bfloat16"), losses_with()
    assert rounded != exact
    assert rounded == pytest.approx(exact, rel=0.02)
    assert rounded[-1] < 0.9 * rounded[0]


def test_a_device_without_bfloat16_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "has_bfloat16", lambda device: False)
    with pytest.raises(UserError, match=r"bfloat16, which this device \(cpu\) does not have; set .*precision=float32"):
        losses_with(precision="bfloat16")
