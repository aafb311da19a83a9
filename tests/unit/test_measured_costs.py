"""Costs over lengths: where layers meet, what real layers take, and the picture of both."""

import json
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from regard.core.costs import COSTS
from regard.errors import UserError
from regard.inspection.costs import NO_TIME, Measured, Sizes, draw, forward, make_layer, measure, meetings, slope

NOTES = Sizes()  # d = d_v = 512, d_k = 64, k = 5
SMALL = Sizes(width=12, value_width=20, key_width=4, kernel=3)


def test_the_example_of_the_notes() -> None:  # SPEC A10.3
    operations = [NOTES.cost(layer, 50, "notes").operations for layer in COSTS]
    assert operations == [160_000, 13_107_200, 65_536_000, 655_360_000]
    assert [NOTES.cost(layer, 50, "notes").parameters for layer in COSTS] == [327_680, 524_288, 1_310_720, 13_107_200]
    met = {frozenset(one.layers): one.length for one in meetings(NOTES, "notes")}
    assert met[frozenset(("self_attention", "recurrent"))] == 4096
    assert met[frozenset(("self_attention", "convolution"))] == 20_480
    assert met[frozenset(("convolution", "dense"))] == 5
    assert len(met) == 4  # recurrent and dense at 1; the others differ at every length


@pytest.mark.parametrize("form", ["notes", "exact"])
@pytest.mark.parametrize("sizes", [NOTES, SMALL, Sizes(7, 11, 3, 1)], ids=str)
def test_layers_meet_where_the_other_one_becomes_cheaper(sizes: Sizes, form: str) -> None:  # SPEC A10.3
    found = meetings(sizes, form)
    assert [one.length for one in found] == sorted(one.length for one in found)
    for one in found:
        below, above = max(1, int(one.length)), int(one.length) + 1
        first, other = one.layers
        before, after = ([sizes.cost(layer, length, form).operations for layer in one.layers] for length in (below, above))
        assert first != other
        assert before[0] <= before[1] or one.length < 1
        assert after[0] >= after[1]


@pytest.mark.parametrize("layer", COSTS)
def test_the_measured_layers_are_those_of_the_formulas(layer: str) -> None:  # SPEC A10.3
    """The kernel of attention pads queries and keys to the width of the values: docs/costs.md says so."""
    module = make_layer(layer, 7, SMALL)
    exact = SMALL.cost(layer, 7)
    assert sum(parameter.numel() for parameter in module.parameters()) == exact.parameters
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:  # it cannot count the fused kernel
        assert forward(module, torch.randn(1, 7, SMALL.width)).shape == (1, 7, SMALL.value_width)
    padding = 7 * 7 * (SMALL.value_width - SMALL.key_width) if layer == "self_attention" else 0
    assert counter.get_total_flops() // 2 == exact.operations + padding


@pytest.mark.slow
def test_time_and_memory_are_measured() -> None:  # SPEC A10.3
    """The weights of dense mixing are most of its memory; what is too large is skipped, and not run."""
    sizes = Sizes(width=64, value_width=64, key_width=16, kernel=5)
    done = list(measure(sizes, [64, 16, 1024], [1, 2], seconds=120, memory=1 << 27))
    assert {(one.layer, one.length, one.threads) for one in done} == {
        (layer, length, threads) for layer in COSTS for length in (16, 64, 1024) for threads in (1, 2)
    }
    skipped = [one for one in done if one.skipped]
    assert {(one.layer, one.length) for one in skipped} == {("dense", 1024)}
    assert skipped[0].skipped == "needs 16.0 GB"
    assert json.loads(json.dumps(skipped[0].as_dict()))["seconds"] is None
    measured = {(one.layer, one.length, one.threads): one for one in done if not one.skipped}
    assert all(one.seconds > 0 and one.nbytes >= 0 for one in measured.values())
    weights = 4 * sizes.cost("dense", 64).parameters
    for threads in (1, 2):
        assert weights <= measured["dense", 64, threads].nbytes < 1.2 * weights + (8 << 20)
        assert measured["self_attention", 1024, threads].nbytes < weights
    assert measured["recurrent", 1024, 1].seconds > 4 * measured["recurrent", 16, 1].seconds


@pytest.mark.slow
def test_measuring_ends_in_time() -> None:
    """A forward pass that takes too long is ended as well."""
    done = list(measure(Sizes(64, 64, 64, 5), [20_000], [1], seconds=1, layers=["self_attention"]))
    assert done == [Measured("self_attention", 20_000, 1, skipped=NO_TIME)] or done[0].seconds < 1


def test_an_even_kernel_is_not_measured() -> None:
    with pytest.raises(UserError, match="--kernel 4: a layer can only be measured with an odd kernel"):
        next(measure(Sizes(8, 8, 8, 4), [4]))


def test_the_picture_shows_slopes_and_meetings(tmp_path: Path) -> None:  # SPEC A10.3
    lengths = [16, 1024, 16_384]
    measured = [Measured("recurrent", length, 1, length / 1000, 1000 + length) for length in lengths]
    measured.append(Measured("dense", 1024, 1, skipped="needs 1 GB"))
    text = draw(NOTES, lengths, measured, tmp_path / "cost.svg").read_text()
    for words in (
        "operations, as the notes count",
        "self-attention, slope 2.00",
        "recurrent, slope 1.00",
        "L = 4,096",
        "measured time",
        "recurrent, 1 thread, slope 1.00",
        "measured peak memory",
    ):
        assert words in text
    assert "dense, 1 thread" not in text
    assert "L = 20,480" not in text  # beyond the picture
    assert all(f">{number}</text>" in text for number in ("16", "1,024", "16,384"))  # the lengths are the ticks
    without = draw(NOTES, [16, 17, 16_384], [], tmp_path / "formulas.svg").read_text()
    assert "measured" not in without
    assert ">16,384</text>" not in without  # 16 and 17 are too close to each other


def test_a_slope_is_the_exponent_of_a_power() -> None:
    assert slope([(2, 1e9), (10, 3.0), (20, 24.0)]) == pytest.approx(3.0)
