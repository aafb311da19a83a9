"""Attention within a local window equals attention under its mask, and costs less."""

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from table import SCORES, SOURCE_VOCAB, TARGET_VOCAB, make_source, make_targets
from test_attention import Largest
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import regard
from regard import masks
from regard.core import taps
from regard.core import window as window_module
from regard.core.attention import attend
from regard.core.mechanism import Alibi, Mechanism
from regard.core.window import Window
from regard.data.batch import source_batch
from regard.layers.scores import Location
from regard.models.build import build
from regard.models.transformer import TransformerSettings

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]

LENGTHS = [(13, 13), (5, 13), (13, 5), (1, 7), (7, 1), (3, 0)]
"""Numbers of queries and keys; with blocks of 2, the first blocks of (13, 5) reach no key."""


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_module, "BLOCK", 2)
    monkeypatch.setattr(window_module, "GRID_BLOCK", 2)


def assert_same(attended: Attend, masked: Attend, query: Tensor, key: Tensor, value: Tensor, *parameters: Tensor) -> None:
    """Compares values, and gradients with respect to inputs and parameters."""
    inputs = [tensor.requires_grad_() for tensor in (query, key, value, *parameters)]
    one, other = (function(query, key, value) for function in (attended, masked))
    torch.testing.assert_close(one, other)
    with torch.no_grad():
        torch.testing.assert_close(attended(query, key, value), other)
    if not key.shape[-2]:
        return
    direction = torch.randn_like(one)
    gradients = [
        torch.autograd.grad((result * direction).sum(), inputs, allow_unused=True, materialize_grads=True)
        for result in (one, other)
    ]
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs)


def make_score(name: str) -> tuple[regard.Score, list[Tensor]]:
    score = Location(11, 400).double() if name == "location" else SCORES[name](11)
    if not isinstance(score, torch.nn.Module):
        return score, []
    return score.double(), list(score.parameters())


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("width", [0, 1, 3, 20])
@pytest.mark.parametrize("padded", [False, True])
def test_a_window_equals_its_mask(lengths: tuple[int, int], width: int, padded: bool) -> None:  # SPEC A3.3
    num_queries, num_keys = lengths
    sizes = (num_queries, 11), (num_keys, 11), (num_keys, 5)
    query, key, value = (torch.randn(2, 3, *size).double() for size in sizes)
    near = masks.window(num_queries, num_keys, width=width)
    allow = masks.first(torch.tensor([num_keys, num_keys // 2]), num_keys)[:, None, None] if padded else None
    both = near if allow is None else masks.both(allow, near)
    assert_same(
        lambda *inputs: attend(*inputs, allow=allow, window=width),
        lambda *inputs: attend(*inputs, allow=both),
        query,
        key,
        value,
    )


@pytest.mark.parametrize("axes", [(5, 7), (1, 13), (13, 1), (2, 3)])
@pytest.mark.parametrize("width", [0, 1, 2, 9])
@pytest.mark.parametrize("masked", [False, True])
def test_a_window_over_a_grid_equals_its_mask(axes: tuple[int, int], width: int, masked: bool) -> None:  # SPEC A3.3
    """±w rows and columns."""
    rows, columns = axes
    cells = torch.cartesian_prod(torch.arange(rows), torch.arange(columns))
    near = ((cells[:, None] - cells).abs() <= width).all(-1)
    assert torch.equal(masks.grid_window(rows, columns, width=width), near)
    query, key, value = (torch.randn(2, 1, rows * columns, size).double() for size in (11, 11, 5))
    allow = torch.rand(2, 3, rows * columns, rows * columns) < 0.7 if masked else None
    both = near if allow is None else masks.both(allow, near)
    assert_same(
        lambda *inputs: attend(*inputs, allow=allow, window=width, axes=axes),
        lambda *inputs: attend(*inputs, allow=both),
        query,
        key,
        value,
    )


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("axes", [None, (3, 5)])
def test_every_score_has_a_window(name: str, axes: tuple[int, int] | None) -> None:  # SPEC A3.3
    """With gradients of its parameters."""
    score, parameters = make_score(name)
    query, key, value = (torch.randn(2, 15, size).double() for size in (11, 11, 5))
    near = masks.window(15, width=2) if axes is None else masks.grid_window(*axes, width=2)
    assert_same(
        lambda *inputs: attend(*inputs, score=score, window=2, axes=axes),
        lambda *inputs: attend(*inputs, score=score, allow=near),
        query,
        key,
        value,
        *parameters,
    )


@pytest.mark.parametrize("attention", ["unnormalised", "hard", "gated"])
def test_every_type_of_attention_has_a_window(attention: str) -> None:  # SPEC A3.3
    query, key, value = (torch.randn(2, 13, size).double() for size in (11, 11, 5))
    attended = attend(query, key, value, attention=attention, window=2)
    masked = attend(query, key, value, attention=attention, allow=masks.window(13, width=2))
    if attention == "unnormalised":
        torch.testing.assert_close(attended, masked)
        return
    for name in ("context", "log_prob", "entropy"):
        torch.testing.assert_close(getattr(attended, name), getattr(masked, name))


def test_random_choices_stay_in_the_window() -> None:
    """Two blocks draw different numbers, and gradients flow through the log-probabilities of what was drawn."""
    same, values = torch.randn(1, 1, 11).double().expand(1, 64, 11), torch.eye(64).double()[None]
    drawn = attend(same, same, values, attention="hard", window=3, generator=torch.Generator().manual_seed(1))
    offsets = drawn.context.argmax(-1)[0] - torch.arange(64)
    assert offsets.abs().max() == 3
    assert len(set(offsets[4:60].tolist())) == 7
    query, key = (torch.randn(1, 13, 11).double().requires_grad_() for _ in range(2))
    drawn = attend(query, key, torch.eye(13).double(), attention="hard", window=3, generator=torch.Generator().manual_seed(1))
    log_weights = regard.attention_weights(query, key, allow=masks.window(13, width=3)).clamp(min=1e-99).log()
    chosen = log_weights.gather(-1, drawn.context.argmax(-1, keepdim=True)).squeeze(-1)
    torch.testing.assert_close(drawn.log_prob, chosen)
    gradients = [torch.autograd.grad(log_prob.sum(), [query, key]) for log_prob in (drawn.log_prob, chosen)]
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs)
    dropped = [
        attend(same, same, values, dropout=0.5, window=3, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    ]
    assert torch.equal(dropped[0], dropped[1])
    assert not torch.equal(dropped[0], dropped[2])
    assert ((dropped[0] > 0) <= masks.window(64, width=3)).all()


def test_a_window_saves_time_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:  # SPEC A3.3
    """Operations grow with L·w, not with L², forwards and backwards, and no tensor is larger than inputs or results."""
    monkeypatch.setattr(window_module, "BLOCK", 16)

    def measured(length: int, axes: tuple[int, int] | None = None) -> tuple[int, int]:
        query, key, value = (torch.randn(1, 2, length, 8, requires_grad=True) for _ in range(3))
        with (
            FlopCounterMode(display=False) as counter,
            Largest() as largest,
            torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
        ):
            attend(query, key, value, window=16, axes=axes).sum().backward()
        return counter.get_total_flops(), largest.numel

    (short, small), (long, large) = measured(512), measured(1024)
    assert short * 2 <= long <= short * 2.2
    assert small <= 2 * 512 * 8
    assert large <= 2 * 1024 * 8
    masked = 4 * 3 * 2 * 1024 * 1024 * 8  # of which a third is forwards
    assert long < masked / 5
    monkeypatch.setattr(window_module, "GRID_BLOCK", 16)
    (short, _), (long, _) = measured(64 * 64, (64, 64)), measured(128 * 64, (128, 64))
    assert short * 2 <= long <= short * 2.2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"window": -1}, "window is -1, expected a whole number, 0 or more"),
        ({"window": 1.5}, "window is 1.5, expected a whole number"),
        ({"axes": (3, 5)}, "axes is (3, 5), but there is no window; pass window=…"),
        ({"window": 1, "axes": (3, 4)}, "3 rows and 4 columns has 12 cells, but there are 15 queries and 15 keys"),
        ({"window": 1, "axes": (15,)}, "axes is (15,), expected (rows, columns) of a grid, or None for a sequence"),
        ({"window": 1, "axes": (0, 5)}, "rows is 0, expected a whole number, 1 or more"),
    ],
)
def test_wrong_windows_are_explained(options: dict[str, object], words: str) -> None:
    x = torch.randn(2, 15, 8)
    with pytest.raises(ValueError, match=re.escape(words)):
        attend(x, x, x, **options)


# --- windows of models -------------------------------------------------------------------------------------------------------


def both_ways(compute: Callable[[], list[Tensor]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Compares the blocks of a model with the mask."""
    blocks = compute()
    with monkeypatch.context() as patch:
        patch.setattr(taps, "_saves", lambda *_: False)
        masked = compute()
    for mine, theirs in zip(blocks, masked, strict=True):
        torch.testing.assert_close(mine, theirs)


def results(model: regard.Model, source: regard.Source, targets: Tensor) -> list[Tensor]:
    """The logits, the states of the encoder, and the gradients of all parameters."""
    memory = model.encode(source)
    logits = model.decode(targets, memory).logits_BTV
    direction = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1), dtype=logits.dtype)
    gradients = torch.autograd.grad((logits * direction).sum(), list(model.parameters()), materialize_grads=True)
    real = memory.values_BSE[memory.allow_BS]
    return [logits, real, *gradients]


@pytest.mark.parametrize("switches", [{}, {"score": "location"}, {"positions": "rotary"}, {"look_ahead_mask": False}], ids=str)
def test_a_model_with_a_window_equals_its_mask(
    switches: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC A3.3
    """Sentences of many blocks, with padding; values and gradients."""
    settings = TransformerSettings(width=20, heads=2, feed_forward=29, window=3, dropout=0.0, **switches)
    model = build(settings, SOURCE_VOCAB, TARGET_VOCAB).double()
    both_ways(lambda: results(model, make_source(13, 6, 11), make_targets(3, 17)), monkeypatch)


def test_a_model_with_a_window_over_a_grid_equals_its_mask(monkeypatch: pytest.MonkeyPatch) -> None:  # SPEC A3.3
    """±w rows and columns of cells, for pictures of different sizes; the window row by row is another one."""
    settings = TransformerSettings(width=20, heads=2, feed_forward=29, frontend="grid", window=1, grid_window=True, dropout=0.0)
    model = build(settings, 3, TARGET_VOCAB).double()
    generator = torch.Generator().manual_seed(2)
    grids = [torch.randn(3, *axes, generator=generator).numpy() for axes in ((5, 7), (4, 3))]
    source = source_batch(grids)
    source = regard.Source(source.values.double(), source.allow)
    both_ways(lambda: results(model, source, make_targets(2, 5)), monkeypatch)
    (seen,) = model.encode(source, regard.Look((regard.Tap("encoder", 0),))).seen
    assert torch.equal(seen.weights_BHTS[0, 0] > 0, masks.grid_window(5, 7, width=1))
    one = build(replace(settings, grid_window=False), 3, TARGET_VOCAB).double()
    (seen,) = one.encode(source, regard.Look((regard.Tap("encoder", 0),))).seen
    assert torch.equal(seen.weights_BHTS[0, 0] > 0, masks.window(35, width=1))


def test_a_window_of_a_model_saves_time_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:  # SPEC A3.3
    """Forwards and backwards, in the encoder and in the decoder: twice the length is twice the work, and no tensor is L x L."""
    monkeypatch.setattr(window_module, "BLOCK", 16)
    settings = TransformerSettings(
        width=8, heads=1, feed_forward=8, encoder_layers=1, decoder_layers=1, window=16, positions="none", dropout=0.0
    )
    model = build(settings, SOURCE_VOCAB, TARGET_VOCAB)

    def measured(length: int) -> tuple[int, int]:
        ids = torch.full((1, length), 5)
        encode = lambda: model.encode(regard.Source(ids, ids > 0)).values_BSE.sum()  # noqa: E731
        memory = model.encode(regard.Source(ids[:, :1], ids[:, :1] > 0))
        decode = lambda: model.decoder._decode(ids, memory, None, 0)[0].states_BTD.sum()  # noqa: E731
        with (
            FlopCounterMode(display=False) as counter,
            Largest() as largest,
            torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
        ):
            encode().backward()
            decode().backward()
        return counter.get_total_flops(), largest.numel

    (short, small), (long, large) = measured(512), measured(1024)
    assert short * 1.9 <= long <= short * 2.2
    assert small <= 512 * 16
    assert large <= 1024 * 16


def test_windows_that_do_not_save_are_masks() -> None:
    """ALiBi, and sequences of one block."""
    mechanism, query = Mechanism(regard.scores.ScaledDot()), torch.randn(1, 1, 9, 4)
    assert taps._saves(Window(3), query, mechanism)
    assert not taps._saves(Window(9), query, mechanism)
    assert not taps._saves(
        Window(3), query, replace(mechanism, alibi=Alibi(torch.ones(1), torch.zeros(1, 9), torch.zeros(1, 9)))
    )
    with pytest.raises(ValueError, match="window is None and the model reads grid; set window, or grid_window=false"):
        TransformerSettings(frontend="grid", grid_window=True)
    with pytest.raises(ValueError, match="window is 2 and the model reads video; set window, or grid_window=false"):
        TransformerSettings(frontend="video", window=2, grid_window=True)
