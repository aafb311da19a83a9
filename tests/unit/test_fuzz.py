"""Hostile input: runs benchmarks/fuzz.py briefly, and tests that it detects the failures it looks for."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import fuzz

CASES = 2000


@pytest.mark.slow
def test_hostile_input_gives_the_right_result_or_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)  # forks that end at once save no coverage
    outcomes = list(fuzz.fuzz(fuzz.shares(CASES), seed=1))
    assert len(outcomes) == CASES
    assert all(outcome.kind in fuzz.FINE for outcome in outcomes), fuzz.report(outcomes)
    for area in fuzz.AREAS:  # some input is accepted and some is refused
        kinds = [outcome.kind for outcome in outcomes if outcome.area == area]
        for kind in fuzz.FINE:
            assert kinds.count(kind) > len(kinds) // 30, (area, kind)


@pytest.mark.slow
def test_outcomes_are_distinguished() -> None:
    expected = [kind for kind, _ in fuzz.Probe.uses]
    outcomes = list(fuzz.fuzz([("probe", number) for number in range(len(expected))], seed=1, workers=1, seconds=3))
    assert [outcome.kind for outcome in outcomes] == expected, fuzz.report(outcomes)
    assert "--area 'probe' --only 9" in fuzz.report(outcomes)


@pytest.mark.parametrize("name", fuzz.AREAS)
def test_a_case_is_a_function_of_its_number(name: str, tmp_path: Path) -> None:
    area, _ = fuzz.AREAS[name]
    (tmp_path / "valid").mkdir()
    area.prepare(tmp_path / "valid")
    for number in range(5):
        made = []
        for folder in (tmp_path / f"{number}-{side}" for side in "ab"):
            folder.mkdir()
            change = area.change(fuzz.SeededRandom(f"{name} 1 {number}"), tmp_path / "valid", folder)
            files = sorted(path for path in folder.rglob("*") if path.is_file())
            files = [path for path in files if path.suffix != ".xlsx"]  # .xlsx files contain the time
            made.append((change if ".xlsx" not in change else "", [path.read_bytes() for path in files]))
        assert made[0] == made[1]


def test_every_option_of_every_command_is_tested() -> None:
    from hostile.commands import BASE, SHARES, commands, options_of

    assert set(BASE) == set(SHARES) == set(commands())
    assert len(options_of("translate")) > 15
