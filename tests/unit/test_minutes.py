"""Minutes become a number of updates before the first update, and nothing else of the run changes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from regard.errors import UserError
from regard.training import minutes, session
from regard.training.config import read_config
from regard.training.minutes import Pace, check_minutes, fit_to_minutes
from regard.training.settings import RunSettings

PAIRS = [(f"{a}{b}", f"{b} {a}") for a in "abcdefgh" for b in "ijklmnop"]
TINY: dict[str, Any] = {"width": 4, "embedding": 3, "score_width": 3, "batch_tokens": 40, "threads": 1, "quiet": True}
PACE = Pace(update=0.01, validation=0.5, evaluation=1.0)


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def settings_of(run: str) -> RunSettings:
    return read_config(Path(run) / "run.yaml", {})


def same(one: regard.Translator, other: regard.Translator) -> bool:
    return all(map(torch.equal, one.model.state_dict().values(), other.model.state_dict().values()))


@pytest.mark.slow
def test_updates_are_fixed_before_the_first_and_nothing_else_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run has the weights of one that was given the same numbers; a run that continues does not measure again."""
    began = time.monotonic()
    steps_at_first: list[int] = []

    def stop(update: regard.Update) -> bool:
        steps_at_first.append(settings_of("timed.run").train.steps)
        return update.number < 4

    regard.train(PAIRS, "timed", minutes=0.05, on_update=stop, **TINY)
    assert time.monotonic() - began < 60
    train = settings_of("timed.run").train
    assert set(steps_at_first) == {train.steps}, "run.yaml has the number at the first update"
    assert train.steps % train.validate_every == 0
    measured = monkeypatch.setattr(session, "fit_to_minutes", lambda *_, **__: pytest.fail("measured again"))
    assert measured is None
    timed = regard.train(PAIRS, "timed", minutes=0.05, **TINY)
    assert settings_of("timed.run").train == train
    given = regard.train(PAIRS, "given", steps=train.steps, validate_every=train.validate_every, **TINY)
    assert same(timed, given)
    assert "as many as --minutes 0.05 allows" in Path("timed.run/run.yaml").read_text()
    again = regard.train(PAIRS, "timed", minutes=7, **TINY)
    assert same(again, timed), "other minutes do not change a run that has begun"


def test_measuring_leaves_random_numbers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    regard.train(PAIRS, minutes=0.01, on_update=lambda update: False, **TINY)
    assert torch.equal(torch.rand(3), expected)


def fitted(number: float, monkeypatch: pytest.MonkeyPatch, pace: Pace = PACE, **changes: Any) -> tuple[RunSettings, str]:
    """Returns the settings of a run of `number` minutes at this pace, whose data takes 100 updates per pass."""
    train = {"steps": 1000, "validate_every": 125, **changes}
    settings = RunSettings(train=regard.RunSettings().train.__class__(**train))
    monkeypatch.setattr(minutes, "measure", lambda *_: pace)
    keep = "validate_every" in changes

    class Data:
        def batches(self, *_: object) -> Any:
            return type("Batches", (), {"order": type("Order", (), {"epoch_length": 100})})

    return fit_to_minutes(
        number,
        settings,
        Data(),
        None,
        torch.device("cpu"),
        scores={},
        since=time.monotonic(),
        keep_validations=keep,  # type: ignore[arg-type]
    )


def test_validations_and_the_evaluation_take_their_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """0.95 · 30 s less 1 s for the evaluation and 8 · 0.5 s for validations leave 23.5 s: 2,300 updates, in 8 equal parts."""
    settings, reason = fitted(0.5, monkeypatch)
    assert (settings.train.steps, settings.train.validate_every) == (8 * 287, 287)
    assert reason == "0.5 minutes at 0.01 s per update"
    settings, _ = fitted(0.5, monkeypatch, validate_every=100)  # 27.5 s / (0.01 s + 0.5 s / 100)
    assert (settings.train.steps, settings.train.validate_every) == (1800, 100)
    settings, _ = fitted(0.5, monkeypatch, Pace(0.01, 0.5, 1.0), validate_every=0)
    assert (settings.train.steps, settings.train.validate_every) == (2700, 0)  # no time was left to round away: 27.5 s − ε


def test_more_minutes_than_help_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most four times the updates that were chosen, or 40 passes."""
    settings, reason = fitted(100, monkeypatch)
    assert settings.train.steps == 4000
    assert reason == "100 minutes at 0.01 s per update would allow 560,000, but more than 4,000 rarely help"
    assert fitted(100, monkeypatch, steps=500)[0].train.steps == 4000
    assert fitted(100, monkeypatch, steps=2000)[0].train.steps == 8000


def test_too_few_minutes_still_give_an_update(monkeypatch: pytest.MonkeyPatch) -> None:
    settings, _ = fitted(0.001, monkeypatch)
    assert (settings.train.steps, settings.train.validate_every) == (1, 1)


@pytest.mark.parametrize("number", [0, -1, float("nan"), float("inf")])
def test_minutes_are_positive(number: float) -> None:
    with pytest.raises(UserError, match=r"--minutes is .*, expected a number of minutes, such as 10"):
        check_minutes(number, {})


def test_minutes_and_updates_are_not_given_together() -> None:
    check_minutes(None, {"train.steps": 3})
    check_minutes(3, {"train.clip": 3})
    with pytest.raises(UserError, match=r"^minutes fixes the number of updates, and so does train.steps; use one of them"):
        regard.train(PAIRS, minutes=1, steps=3, **TINY)
