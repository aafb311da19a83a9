import re
import textwrap
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from table import SCORES
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import regard
from regard.core import attention, masks
from regard.core.attention import attend, attention_weights
from regard.core.weights import masked_softmax
from regard.layers.scores import Additive, Location


class Largest(TorchDispatchMode):
    """Records the number of elements of the largest tensor that is created while it is active."""

    numel = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.numel = max(self.numel, result.numel())
        return result


@pytest.mark.parametrize("score_name", SCORES)
def test_weights_of_a_row_sum_to_one_or_zero(score_name: str) -> None:  # SPEC A1.2 A4.4
    score = SCORES[score_name](11)
    allow = torch.rand(2, 5, 7) < 0.4
    allow[0, 3], allow[1, 2] = False, True
    weights = attention_weights(torch.randn(2, 5, 11), torch.randn(2, 7, 11), score=score, allow=allow)
    assert ((weights >= 0) & (weights <= 1)).all()
    torch.testing.assert_close(weights.sum(-1), allow.any(-1).float())


def test_softmax_is_stable_and_per_row() -> None:  # SPEC A0.3
    scores = torch.tensor([[1e4, -1e4, 0.0], [-1e4, -1e4, -1e4]])
    assert torch.equal(masked_softmax(scores), torch.tensor([[1.0, 0.0, 0.0], [1 / 3, 1 / 3, 1 / 3]]))
    query, key, value = torch.tensor([[1e4]]), torch.tensor([[1.0], [-1.0]]), torch.tensor([[3.0], [5.0]])
    assert torch.equal(attend(query, key, value), torch.tensor([[3.0]]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("score_name", SCORES)
def test_an_empty_row_gives_zeros_and_no_nan(score_name: str, dtype: torch.dtype) -> None:  # SPEC A4.4
    score = SCORES[score_name](11)
    score = score.to(dtype) if isinstance(score, torch.nn.Module) else score
    query, key = (torch.randn(2, size, 11, dtype=dtype, requires_grad=True) for size in (5, 7))
    value = torch.randn(2, 7, 3, dtype=dtype, requires_grad=True)
    allow = torch.ones(2, 5, 7, dtype=torch.bool)
    allow[:, 2] = False
    context = attend(query, key, value, score=score, allow=allow)
    assert (context[:, 2] == 0).all()
    context.float().square().sum().backward()
    assert all(tensor.grad is not None and tensor.grad.isfinite().all() for tensor in (query, value))
    assert (key.grad is None) == (score_name == "location") or key.grad.isfinite().all()
    assert (query.grad[:, 2] == 0).all()


@given(
    lead=st.sampled_from(
        [((), (), ()), ((2,), (2,), (2,)), ((2, 3), (1, 3), (3,)), ((), (5,), (2, 1)), ((2, 1, 3), (5, 1), ())]
    ),
    score_name=st.sampled_from(sorted(SCORES)),
    masked=st.booleans(),
)
def test_any_leading_dimensions(lead: tuple[tuple[int, ...], ...], score_name: str, masked: bool) -> None:  # SPEC A1.3
    torch.manual_seed(0)
    score = SCORES[score_name](11)
    query, key, value = (torch.randn(*shape, *size) for shape, size in zip(lead, [(5, 11), (7, 11), (7, 13)], strict=True))
    allow = masks.causal(5, 7) if masked else None
    context = attend(query, key, value, score=score, allow=allow)
    everyone = torch.broadcast_shapes(*lead)
    assert context.shape == (*everyone, 5, 13)
    flat = [tensor.expand(*everyone, *tensor.shape[-2:]).reshape(-1, *tensor.shape[-2:]) for tensor in (query, key, value)]
    one_by_one = [attend(*parts, score=score, allow=allow) for parts in zip(*flat, strict=True)]
    torch.testing.assert_close(context.reshape(-1, 5, 13), torch.stack(one_by_one))


@pytest.mark.parametrize("shape", [(5, 7), (1, 7), (2, 1, 5, 7), (2, 3, 5, 7), (3, 5, 7), (2, 1, 1, 7), (5, 1)])
def test_masks_broadcast(shape: tuple[int, ...]) -> None:  # SPEC A1.3
    query, key, value = torch.randn(2, 3, 5, 11), torch.randn(2, 3, 7, 11), torch.randn(2, 3, 7, 13)
    allow = torch.rand(shape) < 0.7
    weights = attention_weights(query, key, allow=allow)
    torch.testing.assert_close(attend(query, key, value, allow=allow), weights @ value)
    assert (weights[~allow.expand_as(weights)] == 0).all()


def test_a_mask_may_have_more_leading_dimensions() -> None:  # SPEC A1.3
    query, key, value = torch.randn(5, 11), torch.randn(7, 11), torch.randn(7, 13)
    allow = torch.rand(2, 3, 5, 7) < 0.7
    for score_name in SCORES:
        score = SCORES[score_name](11)
        weights = attention_weights(query, key, score=score, allow=allow)
        torch.testing.assert_close(attend(query, key, value, score=score, allow=allow), weights @ value)


@pytest.mark.parametrize("score_name", SCORES)
@pytest.mark.parametrize(("batch", "num_queries", "num_keys"), [(2, 0, 7), (2, 5, 0), (0, 5, 7)])
def test_empty_inputs_give_zeros(score_name: str, batch: int, num_queries: int, num_keys: int) -> None:
    query, key, value = torch.randn(batch, num_queries, 11), torch.randn(batch, num_keys, 11), torch.randn(batch, num_keys, 3)
    context = attend(query, key, value, score=SCORES[score_name](11))
    assert torch.equal(context, torch.zeros(batch, num_queries, 3))


@pytest.mark.parametrize("score_name", SCORES)
def test_order_of_keys_does_not_matter_to_content_scores(score_name: str) -> None:  # SPEC A1.4
    score = SCORES[score_name](11)
    query, key, value, allow = torch.randn(5, 11), torch.randn(7, 11), torch.randn(7, 3), torch.rand(5, 7) < 0.8
    allow[:, 3] = True
    context = attend(query, key, value, score=score, allow=allow)
    for order in (torch.randperm(7), torch.arange(7).flip(0), torch.arange(7).roll(2)):
        shuffled = attend(query, key[order], value[order], score=score, allow=allow[:, order])
        if score_name == "location":  # the counter-example: this score depends on the position of a key
            assert (shuffled - context).abs().max() > 1e-3
        else:
            torch.testing.assert_close(shuffled, context, atol=1e-6, rtol=0)
    order = torch.randperm(5)
    shuffled = attend(query[order], key, value, score=score, allow=allow[order])
    torch.testing.assert_close(shuffled, context[order], atol=1e-6, rtol=0)


def test_attend_has_no_parameters_and_draws_no_random_numbers() -> None:  # SPEC A1.5
    query, key, value = torch.randn(5, 11), torch.randn(7, 11), torch.randn(7, 3)
    before = torch.get_rng_state()
    once, again = (attend(query, key, value) for _ in range(2))
    assert torch.equal(once, again)
    assert torch.equal(before, torch.get_rng_state())
    assert not once.requires_grad


def test_long_additive_attention_never_holds_the_whole_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    """All 64 x 512 x 512 x 13 numbers would be 218 million; a tile holds 100 thousand."""
    monkeypatch.setattr(attention, "TILE", 100_000)
    score = Additive(11, 11, 13)
    query, key, value = (torch.randn(1, 512, 11, requires_grad=True) for _ in range(3))
    with Largest() as largest:
        attend(query, key, value, score=score, allow=masks.causal(512)).square().sum().backward()
        attention_weights(query, key, score=score, allow=masks.causal(512))
    assert largest.numel == 512 * 512  # the mask itself; scores and their hidden layer stay within a tile
    assert attention.TILE < 512 * 512 * 13 / 30


@pytest.mark.parametrize("score_name", [*SCORES, "additive without kernels"])
def test_memory_grows_with_the_length_not_with_its_square(
    score_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC A1.6
    """Forward and backward, for every built-in score: no tensor is larger than the inputs or a tile."""
    if score_name.endswith(" without kernels"):
        monkeypatch.setattr("regard.native.additive.fits", lambda *tensors: False)
        score_name = score_name.removesuffix(" without kernels")
    score = SCORES[score_name](16) if score_name != "location" else Location(16, 1024)
    monkeypatch.setattr(attention, "TILE", 50_000)
    for length in (512, 1024):
        query, key, value = (torch.randn(1, 4, length, 16, requires_grad=True) for _ in range(3))
        with Largest() as largest:
            attend(query, key, value, score=score).square().sum().backward()
        assert largest.numel <= max(4 * length * 17, attention.TILE)
        assert length * length / 4 > attention.TILE


@pytest.mark.parametrize("score_name", [name for name in SCORES if name not in ("additive", "concat")])
def test_time_grows_with_both_lengths_and_both_widths(score_name: str) -> None:  # SPEC A1.6
    """Counts operations: 2·Lq·Lk·(dk + dv) for the two products, and O(L·d²) for the preparation of the keys."""

    def operations(num_queries: int, num_keys: int, width: int) -> int:
        score = SCORES[score_name](width) if score_name != "location" else Location(width, num_keys)
        query, key, value = torch.randn(num_queries, width), torch.randn(num_keys, width), torch.randn(num_keys, width)
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):  # the counter ignores the other backends
            attend(query, key, value, score=score)
        projections = {"general": 1, "basic": 2}.get(score_name, 0) * 2 * num_keys * width * width
        return counter.get_total_flops() - projections

    wider = 1 if score_name == "distance" else 0  # [s; 1]·[h; −‖h‖²/2]
    for num_queries, num_keys, width in ((32, 64, 16), (64, 64, 16), (32, 256, 16), (32, 64, 48)):
        assert operations(num_queries, num_keys, width) == 2 * num_queries * num_keys * 2 * (width + wider)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (lambda q, k, v: {"key": k[..., :5]}, r"queries have 11 and keys 5; use General\(11, 5\) or Additive\(11, 5"),
        (lambda q, k, v: {"value": v[:, :3]}, r"7 keys and 3 values: key \(2, 7, 11\), value \(2, 3, 3\)"),
        (lambda q, k, v: {"allow": torch.ones(5, 7)}, r"dtype torch.float32, expected torch.bool with True = may attend"),
        (
            lambda q, k, v: {"allow": torch.ones(2, 7, dtype=torch.bool)},
            r"shape \(2, 7\).*5 queries, 7 keys.*allow\[:, None, :\]",
        ),
        (
            lambda q, k, v: {"key": torch.randn(3, 7, 11), "value": torch.randn(3, 7, 3)},
            r"do not broadcast: \(2, 5, 11\), \(3, 7, 11\)",
        ),
        (
            lambda q, k, v: {"query": q[0, 0]},
            r"query has shape \(11,\), expected \(…, length, width\); for a single vector write query\[None\]",
        ),
        (lambda q, k, v: {"allow": torch.ones(7, dtype=torch.bool)}, r"shape \(7,\), which does not broadcast"),
    ],
)
def test_invalid_inputs_are_refused_with_advice(arguments, words: str) -> None:  # type: ignore[no-untyped-def]
    query, key, value = torch.randn(2, 5, 11), torch.randn(2, 7, 11), torch.randn(2, 7, 3)
    inputs = {"query": query, "key": key, "value": value, **arguments(query, key, value)}
    with pytest.raises(ValueError, match=words):
        regard.attend(**inputs)


def test_score_must_be_an_instance_of_score() -> None:
    with pytest.raises(TypeError, match=r"score is 'additive', expected a Score such as regard.scores.General"):
        regard.attend(torch.randn(5, 11), torch.randn(7, 11), torch.randn(7, 3), score="additive")

    class Unfinished(regard.Score):
        name = "unfinished"

    with pytest.raises(NotImplementedError, match=r"Unfinished needs a method scores\(query, prepared\)"):
        regard.attend(torch.randn(5, 11), torch.randn(7, 11), torch.randn(7, 3), score=Unfinished())


def test_the_guide_to_adding_a_score_works(monkeypatch: pytest.MonkeyPatch) -> None:
    guide = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
    names = {"Score": regard.Score, "Tensor": torch.Tensor}
    exec(textwrap.dedent(re.search(r"```python\n(.*?)```", guide, re.DOTALL)[1]), names)
    score = names["Manhattan"](11)
    query, key, value = torch.randn(2, 5, 11), torch.randn(2, 7, 11), torch.randn(2, 7, 3)
    plain = (-(query[:, :, None] - key[:, None]).abs().sum(-1)).softmax(-1) @ value
    torch.testing.assert_close(attend(query, key, value, score=score), plain)
    monkeypatch.setattr(attention, "TILE", 1)
    torch.testing.assert_close(attend(query, key, value, score=score), plain)
