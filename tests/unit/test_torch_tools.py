"""PyTorch's own tools: torch.func, autocast, half precision and checkpoints. (test_compile.py has graphs.)

Every score, in each of the functions and layers, gives the same values and gradients as without the tool.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from table import SCORES
from torch import Tensor, nn
from torch.export import export
from torch.utils.checkpoint import checkpoint

import regard
from regard.core import attention, masks, window

WIDTH, HEADS = 12, 3
QUERIES, KEYS = 5, 7


class Attend(nn.Module):
    """`regard.attend` as a module, so that the parameters of its score are those of a module."""

    def __init__(self, score: regard.Score, **options: object) -> None:
        super().__init__()
        self.score, self.options = score, options

    def forward(self, x: Tensor, memory: Tensor, allow: Tensor) -> Tensor:
        causal = masks.causal(x.shape[-2], memory.shape[-2], device=x.device)
        found = regard.attend(x, memory, memory, score=self.score, allow=masks.both(causal, allow), **self.options)
        return found if isinstance(found, Tensor) else found.context + found.log_prob.unsqueeze(-1)


class Weights(Attend):
    def forward(self, x: Tensor, memory: Tensor, allow: Tensor) -> Tensor:
        return regard.attention_weights(x, memory, score=self.score, allow=allow) @ memory


class Layer(nn.Module):
    def __init__(self, score: regard.Score, **options: object) -> None:
        super().__init__()
        self.layer = regard.MultiHeadAttention(WIDTH, HEADS, score=score, **options)

    def forward(self, x: Tensor, memory: Tensor, allow: Tensor) -> Tensor:
        output, weights = self.layer(x, memory, allow=allow, weights=True)
        return output + weights.square().sum((-1, -3)).unsqueeze(-1)


class Blocks(nn.Module):
    """An encoder and a decoder."""

    def __init__(self, score: Callable[[], regard.Score], **options: object) -> None:
        super().__init__()
        options = {"feed_forward": 29, "score": score, "dropout": 0.0} | options
        self.encoder = regard.TransformerEncoder(WIDTH, HEADS, 1, **options)
        self.decoder = regard.TransformerDecoder(WIDTH, HEADS, 1, **options)

    def forward(self, x: Tensor, memory: Tensor, allow: Tensor) -> Tensor:
        return self.decoder(x, self.encoder(memory, allow=allow), memory_allow=allow)


MODULES: dict[str, Callable[[str], nn.Module]] = {
    "attend": lambda name: Attend(SCORES[name](WIDTH)),
    "attention_weights": lambda name: Weights(SCORES[name](WIDTH)),
    "layer": lambda name: Layer(SCORES[name](WIDTH // HEADS)),
    "blocks": lambda name: Blocks(lambda: SCORES[name](WIDTH // HEADS)),
}
OTHERS: dict[str, Callable[[], nn.Module]] = {
    "unnormalised": lambda: Attend(SCORES["scaled_dot"](WIDTH), attention="unnormalised"),
    "hard": lambda: Attend(SCORES["scaled_dot"](WIDTH), attention="hard"),
    "gated": lambda: Attend(SCORES["scaled_dot"](WIDTH), attention="gated"),
    "window": lambda: Attend(SCORES["additive"](WIDTH), window=2),
    "window, location": lambda: Attend(SCORES["location"](WIDTH), window=2),
    "window, hard": lambda: Attend(SCORES["scaled_dot"](WIDTH), window=2, attention="hard"),
    "grouped": lambda: Layer(SCORES["scaled_dot"](WIDTH // HEADS), kv_heads=1),
    "alibi": lambda: Blocks(lambda: SCORES["scaled_dot"](WIDTH // HEADS), positions="alibi"),
    "rotary, post-norm, gelu": lambda: Blocks(
        lambda: SCORES["scaled_dot"](WIDTH // HEADS), positions="rotary", norm_order="post", activation="gelu"
    ),
    "rms, swiglu": lambda: Blocks(lambda: SCORES["scaled_dot"](WIDTH // HEADS), norm="rms", activation="swiglu"),
    "location, ignoring": lambda: Layer(regard.scores.Location(WIDTH // HEADS, 100, beyond="ignore")),
}

each_score = pytest.mark.parametrize("score", SCORES)
each_module = pytest.mark.parametrize("name", MODULES)
each_other = pytest.mark.parametrize("name", OTHERS)


def make(name: str, score: str = "", dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(3)
    module = MODULES[name](score) if score else OTHERS[name]()
    return module.to(dtype)


def inputs(
    batch: int = 2, num_queries: int = QUERIES, num_keys: int = KEYS, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    """Returns a sequence, a memory and its padding mask; every sentence has a key."""
    torch.manual_seed(batch + 10 * num_queries + 100 * num_keys)
    x, memory = torch.randn(batch, num_queries, WIDTH, dtype=dtype), torch.randn(batch, num_keys, WIDTH, dtype=dtype)
    allow = torch.rand(batch, 1, num_keys) < 0.7
    allow[..., 0] = True
    return [x, memory, allow]


def value_and_gradients(module: Callable[..., Tensor], parameters: Iterator[nn.Parameter], given: list[Tensor]) -> list[Tensor]:
    """Returns the output, and its gradients for the inputs and the parameters."""
    x, memory, allow = given
    leaves = [x.detach().requires_grad_(), memory.detach().requires_grad_()]
    output = module(*leaves, allow)
    direction = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)
    gradients = torch.autograd.grad(output, [*leaves, *parameters], direction, allow_unused=True, materialize_grads=True)
    return [output.detach(), *gradients]


def assert_same(found: list[Tensor], expected: list[Tensor], tolerance: float = 1e-9) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance, check_dtype=False)


# --- torch.func --------------------------------------------------------------------------------------------------------------


def check_func(module: nn.Module) -> None:
    parameters = dict(module.named_parameters())
    given = inputs(3)
    expected = value_and_gradients(module, module.parameters(), given)
    direction = torch.linspace(-1, 1, expected[0].numel(), dtype=torch.float64).view_as(expected[0])

    def total(parameters: dict[str, Tensor], x: Tensor, memory: Tensor, allow: Tensor, direction: Tensor) -> Tensor:
        return (torch.func.functional_call(module, parameters, (x, memory, allow)) * direction).sum()

    gradients = torch.func.grad(total, argnums=(0, 1, 2))(parameters, *given, direction)
    assert_same([*gradients[1:], *gradients[0].values()], expected[1:])
    detached = {name: parameter.detach() for name, parameter in parameters.items()}
    outputs = torch.vmap(lambda *one: torch.func.functional_call(module, detached, one))(*given)
    assert_same([outputs], expected[:1])
    per_sentence = torch.vmap(torch.func.grad(total), in_dims=(None, 0, 0, 0, 0))(detached, *given, direction)
    assert_same([gradient.sum(0) for gradient in per_sentence.values()], expected[3:])


@each_module
@each_score
def test_func(name: str, score: str) -> None:
    check_func(make(name, score))


@each_other
def test_func_of_other_attention(name: str) -> None:
    check_func(make(name))


# --- precision ---------------------------------------------------------------------------------------------------------------


def check_precision(module: nn.Module, dtype: torch.dtype, *, autocast: bool) -> None:
    """Compares with float64. The error is measured against the size of each tensor."""
    given = inputs()
    expected = value_and_gradients(module, module.parameters(), given)
    lower = copy.deepcopy(module).to(torch.float32 if autocast else dtype)
    x, memory, allow = given
    given = [x.to(torch.float32 if autocast else dtype), memory.to(torch.float32 if autocast else dtype), allow]
    with torch.autocast("cpu", dtype, enabled=autocast):
        found = value_and_gradients(lower, lower.parameters(), given)
    size = max(gradient.abs().max() for gradient in expected)  # some gradients are 0, such as those of the biases of keys
    for one, other in zip(found, expected, strict=True):
        assert one.isfinite().all()
        assert (one - other).abs().max() / size < {torch.float32: 1e-5, torch.bfloat16: 0.05}[dtype]


@each_module
@each_score
@pytest.mark.parametrize("how", ["float32", "bfloat16", "autocast"])
def test_precision(name: str, score: str, how: str) -> None:
    dtype = torch.float32 if how == "float32" else torch.bfloat16
    check_precision(make(name, score), dtype, autocast=how == "autocast")


@pytest.mark.parametrize(
    "name", [name for name in OTHERS if not name.endswith(("hard", "gated"))]
)  # a rounded score chooses another key
@pytest.mark.parametrize("how", ["float32", "bfloat16", "autocast"])
def test_precision_of_other_attention(name: str, how: str) -> None:
    dtype = torch.float32 if how == "float32" else torch.bfloat16
    check_precision(make(name), dtype, autocast=how == "autocast")


# --- checkpoints -------------------------------------------------------------------------------------------------------------


@each_module
@each_score
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(name: str, score: str, reentrant: bool) -> None:
    module, given = make(name, score), inputs()

    def recomputed(*given: Tensor) -> Tensor:
        return checkpoint(module, *given, use_reentrant=reentrant)

    expected = value_and_gradients(module, module.parameters(), given)
    if not reentrant:
        assert_same(value_and_gradients(recomputed, module.parameters(), given), expected)
        return
    leaves = [given[0].requires_grad_(), given[1].requires_grad_()]
    output = recomputed(*leaves, given[2])
    output.backward(torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output))
    gradients = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in (*leaves, *module.parameters())]
    assert_same([output.detach(), *gradients], expected)


# --- tiles -------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two query rows per tile and head of one sentence."""
    monkeypatch.setattr(attention, "TILE", 2 * KEYS)


@pytest.mark.usefixtures("small_tiles")
@each_module
def test_func_in_tiles(name: str) -> None:
    check_func(make(name, "additive"))


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks as small as a window, so that a short sequence has several."""
    monkeypatch.setattr(window, "BLOCK", 1)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("name", ["window", "window, hard"])
def test_func_in_blocks(name: str) -> None:
    check_func(make(name))


# --- random numbers ----------------------------------------------------------------------------------------------------------


def make_dropping(dropout: float = 0.5) -> nn.Module:
    """Returns blocks with dropout everywhere, in training mode, for float32."""
    torch.manual_seed(3)
    return Blocks(regard.scores.ScaledDot, dropout=dropout, attention_dropout=dropout)


def test_vmap_with_dropout() -> None:
    layer = regard.MultiHeadAttention(WIDTH, HEADS, dropout=0.5)
    same = inputs(1, dtype=torch.float32)[0].expand(4, -1, -1)
    for randomness, distinct in (("same", 1), ("different", 4)):
        outputs = torch.vmap(layer, randomness=randomness)(same)
        assert len({tuple(output.flatten().tolist()) for output in outputs}) == distinct
    with pytest.raises(RuntimeError, match="randomness error mode"):
        torch.vmap(layer)(same)
    blocks = make_dropping()
    outputs = torch.vmap(blocks, randomness="different")(
        *(tensor[None].expand(4, *tensor.shape) for tensor in inputs(1, dtype=torch.float32))
    )
    assert len({tuple(output.flatten().tolist()) for output in outputs}) == 4


def test_func_grad_with_dropout() -> None:
    module, given = make_dropping(), inputs(dtype=torch.float32)

    def total(x: Tensor) -> Tensor:
        torch.manual_seed(1)
        return module(x, *given[1:]).sum()

    first, second = (torch.func.grad(total)(given[0]) for _ in range(2))
    assert torch.equal(first, second)
    assert first.isfinite().all()
    assert first.abs().max() > 0


@pytest.mark.parametrize("tile", [None, 2 * KEYS])
def test_checkpoint_with_dropout(tile: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second computation drops the same weights as the first."""
    if tile is not None:
        monkeypatch.setattr(attention, "TILE", tile)
    layer, (x, memory, allow) = regard.MultiHeadAttention(WIDTH, HEADS, dropout=0.5), inputs(dtype=torch.float32)

    def call(x: Tensor, memory: Tensor, allow: Tensor) -> Tensor:
        return layer(x, memory, allow=allow)

    found = []
    for function in (call, lambda *given: checkpoint(call, *given, use_reentrant=False)):
        torch.manual_seed(1)
        found.append(value_and_gradients(function, layer.parameters(), [x, memory, allow]))
    assert_same(*found, 1e-6)


def test_a_generator_in_a_graph_is_refused() -> None:
    class Dropping(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return regard.attend(x, x, x, dropout=0.5, generator=torch.default_generator)

    x, words = torch.randn(2, 5, 4), "a generator cannot draw numbers in an exported graph, nor in vmap"
    with pytest.raises(Exception, match=words):
        export(Dropping(), (x,))
    with pytest.raises(ValueError, match=words):
        torch.vmap(Dropping(), randomness="different")(x)


# --- errors ------------------------------------------------------------------------------------------------------------------


def test_too_many_positions_are_reported_under_func_grad() -> None:
    score, x = regard.scores.Location(WIDTH, 3), torch.randn(5, WIDTH)
    with pytest.raises(regard.UserError, match="there are 5 positions, but this location score supports 3"):
        torch.func.grad(lambda x: regard.attend(x, x, x, score=score).sum())(x)
