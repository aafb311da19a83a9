"""torch.compile and torch.export: every score in each of the functions and layers, in one graph, with dynamic sizes."""

from __future__ import annotations

import pytest
import torch
from test_torch_tools import (
    KEYS,
    QUERIES,
    assert_same,
    each_module,
    each_other,
    each_score,
    inputs,
    make,
    make_dropping,
    small_blocks,  # noqa: F401 (a fixture)
    small_tiles,  # noqa: F401 (a fixture)
    value_and_gradients,
)
from torch import nn
from torch.export import Dim, export

pytestmark = pytest.mark.slow


# --- torch.compile -----------------------------------------------------------------------------------------------------------


def check_compiled(module: nn.Module, *sizes: tuple[int, int, int]) -> None:
    """Compares at the usual size, and at these sizes too."""
    torch.compiler.reset()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    for batch, num_queries, num_keys in ((2, QUERIES, KEYS), *sizes):
        given = inputs(batch, num_queries, num_keys)
        found = value_and_gradients(compiled, module.parameters(), given)
        assert_same(found, value_and_gradients(module, module.parameters(), given))


@each_module
@each_score
def test_compile(name: str, score: str) -> None:
    check_compiled(make(name, score), *([(3, 4, 6)] if name == "attend" else []))


@each_other
def test_compile_of_other_attention(name: str) -> None:
    check_compiled(make(name))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch itself
def test_inductor() -> None:
    """The default backend, with dynamic shapes."""
    module = make("blocks", "general", torch.float32)
    torch.compiler.reset()
    compiled = torch.compile(module, fullgraph=True, dynamic=True)
    for sizes in ((2, QUERIES, KEYS), (3, 4, 6)):
        given = inputs(*sizes, dtype=torch.float32)
        found = value_and_gradients(compiled, module.parameters(), given)
        assert_same(found, value_and_gradients(module, module.parameters(), given), 1e-4)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("name", ["attend", "layer"])
def test_compile_in_tiles(name: str) -> None:
    check_compiled(make(name, "additive"))


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("name", ["window", "window, hard"])
def test_compile_in_blocks(name: str) -> None:
    check_compiled(make(name), (3, 4, 6))


def test_compile_with_dropout() -> None:
    """A compiled graph draws other numbers than eager code, but the same ones after the same seed."""
    module, given = make_dropping(), inputs(dtype=torch.float32)
    torch.compiler.reset()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    outputs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outputs.append(value_and_gradients(compiled, module.parameters(), given))
    assert all(torch.equal(one, same) for one, same in zip(outputs[0], outputs[1], strict=True))
    assert not torch.equal(outputs[0][0], outputs[2][0])


# --- torch.export ------------------------------------------------------------------------------------------------------------


def check_exported(module: nn.Module) -> None:
    batch, num_queries, num_keys = map(Dim, ("batch", "queries", "keys"))
    shapes = {0: batch, 1: num_queries}, {0: batch, 1: num_keys}, {0: batch, 2: num_keys}
    exported = export(module, tuple(inputs(2, 5, 6)), dynamic_shapes=shapes).module()
    for sizes in ((3, 4, 7), (7, 3, 2), (1, 1, 1)):
        given = inputs(*sizes)
        torch.testing.assert_close(exported(*given), module(*given))


@each_module
@each_score
def test_export(name: str, score: str) -> None:
    check_exported(make(name, score))


@each_other
def test_export_of_other_attention(name: str) -> None:
    check_exported(make(name))
