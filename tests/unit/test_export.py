"""torch.export with dynamic sizes: the exported graph equals the function at other sizes."""

import pytest
import torch
from table import SCORES
from torch import Tensor, nn
from torch.export import Dim, export

import regard
from regard.layers.attention import MultiHeadAttention


class Attend(nn.Module):
    def __init__(self, score: regard.Score) -> None:
        super().__init__()
        self.score = score

    def forward(self, query: Tensor, key: Tensor, value: Tensor, allow: Tensor) -> Tensor:
        causal = regard.masks.causal(query.shape[-2], key.shape[-2])
        return regard.attend(query, key, value, score=self.score, allow=regard.masks.both(causal, allow))


@pytest.mark.parametrize("name", ["scaled_dot", "additive", "location", "distance"])
def test_attend(name: str) -> None:
    def inputs(batch: int, num_queries: int, num_keys: int) -> tuple[Tensor, ...]:
        sizes = (num_queries, 16), (num_keys, 16), (num_keys, 3)
        return *(torch.randn(batch, *size) for size in sizes), torch.rand(batch, 1, num_keys) < 0.7

    model, batch, num_queries, num_keys = Attend(SCORES[name](16)), *map(Dim, ("batch", "queries", "keys"))
    shapes = {0: batch, 1: num_queries}, *2 * ({0: batch, 1: num_keys},), {0: batch, 2: num_keys}
    exported = export(model, inputs(2, 5, 6), dynamic_shapes=shapes).module()
    for sizes in ((3, 4, 7), (7, 3, 2), (1, 1, 1)):
        arguments = inputs(*sizes)
        torch.testing.assert_close(exported(*arguments), model(*arguments))


def test_alibi_and_as_many_sentences_as_heads() -> None:
    """The bias of ALiBi has an axis of heads where the queries have one of sentences."""
    layer, batch, length = MultiHeadAttention(15, 3, alibi=True), Dim("batch"), Dim("length")
    exported = export(layer, (torch.randn(2, 5, 15),), dynamic_shapes=({0: batch, 1: length},)).module()
    for sizes in ((3, 4), (5, 3)):
        x = torch.randn(*sizes, 15)
        torch.testing.assert_close(exported(x), layer(x))


@pytest.mark.parametrize(
    "options",
    [{}, {"kv_heads": 2}, {"kv_heads": 1, "alibi": True}, {"rotary": "halves"}],
    ids=lambda options: "-".join(options),
)
@pytest.mark.parametrize("heads", [None, 4])
def test_multi_head_attention(options: dict[str, object], heads: int | None) -> None:
    def inputs(batch: int, length: int) -> dict[str, Tensor]:
        shape = (batch, length, length) if heads is None else (batch, heads, length, length)
        return {"query": torch.randn(batch, length, 16), "allow": torch.rand(shape) < 0.7}

    layer, batch, length = MultiHeadAttention(16, 4, **options), Dim("batch"), Dim("length")
    allow = {0: batch, 1: length, 2: length} if heads is None else {0: batch, 2: length, 3: length}
    shapes = {"query": {0: batch, 1: length}, "allow": allow}
    exported = export(layer, (), inputs(2, 5), dynamic_shapes=shapes).module()
    for sizes in ((3, 4), (7, 7), (1, 1)):
        arguments = inputs(*sizes)
        torch.testing.assert_close(exported(**arguments), layer(**arguments))


class InWindow(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return regard.attend(x, x, x, window=2)


def test_windows() -> None:
    """The number of blocks depends on the length, so an exported graph has the window as a mask."""
    model = InWindow()
    exported = export(model, (torch.randn(2, 5, 16),), dynamic_shapes=({0: Dim("batch"), 1: Dim("length")},)).module()
    for sizes in ((3, 4), (2, 150), (1, 1)):
        x = torch.randn(*sizes, 16)
        torch.testing.assert_close(exported(x), model(x))
