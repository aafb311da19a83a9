"""Hostile input: benchmarks/fuzz.py for a short while, and whether it would notice what it looks for."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import fuzz

CASES = 2000


@pytest.mark.slow
def test_hostile_input_gives_the_right_result_or_one_clear_line() -> None:
    outcomes = list(fuzz.fuzz(fuzz.shares(CASES), seed=1))
    assert len(outcomes) == CASES
    assert all(one.kind in fuzz.FINE for one in outcomes), fuzz.report(outcomes)
    for area in fuzz.AREAS:  # neither is everything refused, nor does nothing change
        kinds = [one.kind for one in outcomes if one.area == area]
        for kind in fuzz.FINE:
            assert kinds.count(kind) > len(kinds) // 30, (area, kind)


@pytest.mark.slow
def test_outcomes_are_told_apart() -> None:
    expected = [kind for kind, _ in fuzz.Probe.uses]
    outcomes = list(fuzz.fuzz([("probe", number) for number in range(len(expected))], seed=1, workers=1, seconds=3))
    assert [one.kind for one in outcomes] == expected, fuzz.report(outcomes)
    assert "--area 'probe' --only 9" in fuzz.report(outcomes)


@pytest.mark.parametrize("name", fuzz.AREAS)
def test_a_case_is_a_function_of_its_number(name: str, tmp_path: Path) -> None:
    area, _ = fuzz.AREAS[name]
    (tmp_path / "valid").mkdir()
    area.prepare(tmp_path / "valid")
    for number in range(5):
        made = []
        for place in (tmp_path / f"{number}-{side}" for side in "ab"):
            place.mkdir()
            change = area.change(fuzz.SeededRandom(f"{name} 1 {number}"), tmp_path / "valid", place)
            files = sorted(
                path for path in place.rglob("*") if path.is_file() and path.suffix != ".xlsx"
            )  # which hold the time
            made.append((change if ".xlsx" not in change else "", [path.read_bytes() for path in files]))
        assert made[0] == made[1]


def test_every_option_of_every_command_takes_part() -> None:
    from hostile.commands import BASE, SHARES, options_of
    from typer.main import get_command

    from regard.cli.main import app

    assert set(BASE) == set(SHARES) == set(get_command(app).commands)  # type: ignore[attr-defined]
    assert len(options_of("translate")) > 15
