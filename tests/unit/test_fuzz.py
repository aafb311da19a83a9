"""Hostile input: benchmarks/fuzz.py for a short while, and whether it would notice what it looks for."""

import sys
from pathlib import Path
from random import Random

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import fuzz


@pytest.mark.slow
@pytest.mark.parametrize(("area", "cases"), [("folder", 600), ("source", 100)])
def test_hostile_input_gives_the_right_result_or_one_clear_line(area: str, cases: int) -> None:
    outcomes = fuzz.fuzz(area, range(cases), seed=1)
    assert len(outcomes) == cases
    assert all(one.kind in fuzz.FINE for one in outcomes), fuzz.report(outcomes)
    for kind in fuzz.FINE:  # neither is everything refused, nor does nothing change
        assert sum(one.kind == kind for one in outcomes) > cases // 10


@pytest.mark.slow
def test_outcomes_are_told_apart() -> None:
    expected = [kind for kind, _ in fuzz.Probe.uses]
    outcomes = fuzz.fuzz("probe", range(len(expected)), seed=1, workers=1, seconds=5)
    assert [one.kind for one in outcomes] == expected, fuzz.report(outcomes)
    assert "probe 8: crash" in fuzz.report(outcomes)


def test_a_case_is_a_function_of_its_number(tmp_path: Path) -> None:
    area = fuzz.AREAS["folder"]
    area.prepare(tmp_path)
    made = []
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        change = area.change(Random("folder 1 7"), tmp_path, tmp_path / place)
        files = sorted((tmp_path / place / "model").iterdir())
        made.append((change, [path.read_bytes() for path in files if path.is_file()]))
    assert made[0] == made[1]
