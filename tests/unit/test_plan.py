"""regard plan: what a run will cost, measured on a copy of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from regard.data.batch import Example
from regard.data.corpus import Pair
from regard.data.dictionary import pronunciations
from regard.decoding.torch_search import BATCH_HYPOTHESES
from regard.errors import UserError
from regard.models.build import build, num_parameters
from regard.training import plan
from regard.training.data import HeldOut
from regard.training.order import Order
from regard.training.plan import RunPlan, describe_seconds, plan_run

SETTINGS = {
    "model.kind": "transformer",
    "model.width": 14,
    "model.heads": 2,
    "model.feed_forward": 22,
    "train.batch_tokens": 130,
    "train.steps": 41,
}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "pairs.tsv"
    path.write_text("".join(f"{pair.source}\t{pair.target}\n" for pair in pronunciations("dev")[:300]) + "no target\t\n")
    return path


@pytest.fixture(scope="module")
def measured() -> list[str]:
    """What the plan measures, in order."""
    return []


@pytest.fixture(scope="module")
def planned(pairs: Path, measured: list[str]) -> RunPlan:
    def recorded(name: str) -> Callable[..., Any]:
        original = getattr(plan, name)

        def call(*arguments: Any, **options: Any) -> Any:
            measured.append(name)
            return original(*arguments, **options)

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "SECONDS", 0.05)
        for name in ("measure", "predict", "peak_memory", "count"):
            patch.setattr(plan, name, recorded(name))
        order = Order(data=(pairs,), out=pairs.parent / "model", changes=SETTINGS)
        return plan_run(order, Console(quiet=True), torch.device("cpu"))


def test_a_plan_counts_the_parameters_of_the_model_that_would_be_trained(planned: RunPlan, pairs: Path) -> None:
    settings = planned.chosen.settings
    assert (settings.model.kind, settings.train.steps) == ("transformer", 41)
    symbols = {symbol for pair in pronunciations("dev")[:300] for symbol in pair.target.split()}
    letters = {letter for pair in pronunciations("dev")[:300] for letter in pair.source}
    sizes = [num_parameters(build(settings.model, 4 + len(letters) - extra, 4 + len(symbols))) for extra in (0, 1, 2)]
    assert sizes[2] < sum(planned.parameters.values()) <= sizes[0]  # a few letters occur in held-out words only
    assert {"encoder", "decoder"} <= planned.parameters.keys()
    assert not (pairs.parent / "model").exists()
    assert "Skipped: 1 line with an empty source or target" in planned.data


def test_operations_grow_with_the_batch(planned: RunPlan) -> None:
    """Every parameter of a matrix takes about three multiplications per token: forwards, and twice backwards."""
    tokens = 130 * (1 - planned.padding)
    by_rule = 3 * sum(planned.parameters.values()) * tokens
    assert 0.3 * by_rule < planned.operations < 3 * by_rule
    assert 0 < planned.padding < 0.5
    assert planned.num_updates > 10


def test_times_follow_from_the_pace(planned: RunPlan) -> None:
    train = replace(planned.chosen.settings.train, steps=40, validate_every=15)
    settings = replace(planned.chosen.settings, train=train)
    pace = plan.Pace(update=0.5, validation=3.0, evaluation=7.0)
    given = replace(planned, pace=pace, num_updates=16, chosen=replace(planned.chosen, settings=settings))
    assert given.seconds_per_pass == 8.0
    assert given.seconds == 40 * 0.5 + 2 * 3.0 + 7.0
    faster = replace(given, processes=2, speed_up=1.6)
    assert (faster.seconds_per_pass, faster.seconds) == (5.0, 40 * 0.5 / 1.6 + 2 * 3.0 + 7.0)
    assert "speed-up          1.60 with 2 processes" in str(faster)
    assert "time of the run   33 s: 40 updates, 2.5 passes" in str(given)


def test_memory_is_that_of_this_process(planned: RunPlan, measured: list[str]) -> None:
    assert planned.memory is not None
    assert measured == ["measure", "predict", "peak_memory", "count"]  # the kernel that is counted takes more memory
    status = Path("/proc/self/status")
    if status.exists():
        peak = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        assert planned.memory <= 1024 * int(peak.split()[1])
        assert planned.memory > 100e6


def test_the_longest_sources_are_translated_as_one_batch() -> None:
    pairs = [Pair("a" * (number % 300), "b") for number in range(1, 600)]
    held_out = HeldOut(pairs, [Example([5] * len(pair.source), [5]) for pair in pairs])
    chosen = plan.one_batch(held_out)
    batches = -(-len(pairs) // BATCH_HYPOTHESES)
    assert len(chosen.pairs) == -(-len(pairs) // batches)
    assert min(len(pair.source) for pair in chosen.pairs) >= sorted(len(pair.source) for pair in pairs)[-len(chosen.pairs)]
    assert [len(example.source) for example in chosen.examples] == [len(pair.source) for pair in chosen.pairs]


def test_what_cannot_be_planned_is_refused(pairs: Path) -> None:
    order = Order(data=(pairs,), out=pairs.parent / "model", changes={"train.accumulate": 2})
    with pytest.raises(UserError, match="an update has 2 micro-batches for 3 processes"):
        plan_run(order, Console(quiet=True), torch.device("cpu"), 3)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0.04, "0.0 s"), (9.96, "10.0 s"), (42.4, "42 s"), (59.6, "60 s"), (200, "3 min 20 s"), (18_720, "5 h 12 min")],
)
def test_durations_are_written_in_words(seconds: float, expected: str) -> None:
    assert describe_seconds(seconds) == expected
