"""The curves of a run as a picture."""

import math
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

import regard
from regard.training.curves import HEIGHT, MAX_POINTS, draw_curves, thinned, ticks
from regard.training.run_folder import RunFolder

SVG = "{http://www.w3.org/2000/svg}"


def validation(update: int, **figures: float) -> dict[str, object]:
    return {"update": update, "weights": "current", "validation": figures}


def curves_of(svg: str) -> list[list[tuple[float, float]]]:
    """Returns the points of each curve, as they are drawn."""
    paths = [path.attrib["d"] for path in ElementTree.fromstring(svg).iter(f"{SVG}path")]
    return [[(float(x), float(y)) for x, y in re.findall(r"([\d.]+) ([\d.]+)", path)] for path in paths]


def test_the_picture_shows_every_curve_that_was_logged() -> None:
    log = [{"update": update, "loss": 4.0 - update} for update in (1, 2, 3)]
    log += [validation(2, loss=2.5, symbol_error_rate=0.4), validation(3, loss=1.5, symbol_error_rate=0.2)]  # type: ignore[list-item]
    svg = draw_curves(log)
    training, held_out, rate = curves_of(svg)
    assert [len(curve) for curve in (training, held_out, rate)] == [3, 2, 2]
    assert training[0][1] < training[1][1] < training[2][1]  # the loss falls, so y, which counts downwards, grows
    assert held_out[0] == pytest.approx((training[1][0], (training[0][1] + training[1][1]) / 2), abs=0.11)  # same axes
    texts = [text.text for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    assert {"training", "held out", "symbol error rate", "updates"} <= set(texts)


def test_weights_that_are_not_the_current_ones_are_not_part_of_the_curve() -> None:
    log = [validation(2, loss=2.5), {**validation(2, loss=0.1), "weights": "3 checkpoints, averaged"}]
    (held_out,) = curves_of(draw_curves(log))
    assert len(held_out) == 1


@pytest.mark.parametrize("log", [[], [{"update": 1, "loss": math.nan}], [{"update": 1, "loss": 0.0}]])
def test_an_empty_log_and_losses_that_are_not_finite_are_drawn(log: list[dict[str, float]]) -> None:
    root = ElementTree.fromstring(draw_curves(log))
    assert root.attrib["height"] == str(HEIGHT)
    assert "nan" not in draw_curves(log)


def test_long_curves_are_averaged() -> None:
    points = [(float(update), float(update % 2)) for update in range(10 * MAX_POINTS)]
    few = thinned(points)
    assert len(few) == MAX_POINTS
    assert few[0] == (4.5, 0.5)
    assert thinned(points[:3]) == points[:3]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 3.4, [0, 1, 2, 3]),
        (0, 0.79, [0, 0.2, 0.4, 0.6]),
        (0, 2300, [0, 1000, 2000]),
        (5, 5, [5]),
        (-1, 1, [-1, -0.5, 0, 0.5, 1]),
    ],
)
def test_ticks_are_round_numbers(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(expected)


@pytest.mark.slow
def test_a_run_draws_its_curves(tmp_path: Path) -> None:
    pairs = [(first + second, f"{first.upper()} {second.upper()}") for first in "abcdefgh" for second in "abcdefgh"]
    settings = {"kind": "rnn", "width": 8, "steps": 6, "validate_every": 2, "metric": "symbol_error_rate"}
    regard.train(pairs, tmp_path / "model", quiet=True, device="cpu", **settings)
    training, held_out, symbol, sequence = curves_of((tmp_path / "model.run" / "curves.svg").read_text())
    assert [len(curve) for curve in (training, held_out, symbol, sequence)] == [6, 3, 3, 3]


def test_a_run_that_starts_over_has_no_curves_of_the_one_before(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.log({"update": 1, "loss": 2.0})
    folder.draw_curves()
    assert len(curves_of(folder.curves.read_text())) == 1
    folder.close()
    folder.clear()
    assert not folder.curves.exists()
