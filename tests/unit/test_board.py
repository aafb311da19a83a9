"""The TensorBoard log contains the numbers of log.jsonl, even after a run was resumed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from regard.errors import UserError
from regard.training.board import check_tensorboard
from regard.training.run_folder import RunFolder


def update(number: int, loss: float) -> dict[str, float]:
    return {"update": number, "loss": loss, "time": 1000.0 + number}


def test_repeated_updates_are_shown_once(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    first = RunFolder(tmp_path / "out.run", tensorboard=True)
    first.open_log(0)
    for number in range(1, 6):
        first.log(update(number, 10 - number))
    first.log({"update": 5, "weights": "current", "validation": {"loss": 6.5}})
    first.sync()
    first.close()
    resumed = RunFolder(tmp_path / "out.run", tensorboard=True)
    resumed.open_log(3)  # updates 4 and 5 were lost in a crash
    for number in range(4, 7):
        resumed.log(update(number, 20 - number))
    resumed.log({"update": 6, "weights": "current", "validation": {"loss": 4.25}})
    resumed.log({"update": 6, "weights": "2 checkpoints, averaged", "validation": {"loss": 4.0}})
    resumed.sync()
    resumed.close()
    last = RunFolder(tmp_path / "out.run", tensorboard=True)
    last.open_log(6)  # killed after the last checkpoint
    last.log({"update": 6, "weights": "2 checkpoints, averaged", "validation": {"loss": 4.0}})
    last.close()

    shown = EventAccumulator(str(tmp_path / "out.run" / "tensorboard"))
    shown.Reload()
    assert [(point.step, point.value) for point in shown.Scalars("training/loss")] == [
        (1, 9),
        (2, 8),
        (3, 7),
        (4, 16),
        (5, 15),
        (6, 14),
    ]
    assert [(point.step, point.value) for point in shown.Scalars("held out/loss")] == [(6, 4.25), (6, 4.0)]
    logged = [json.loads(line) for line in (tmp_path / "out.run" / "log.jsonl").read_text().splitlines()]
    assert [(line["update"], line["loss"]) for line in logged if "loss" in line] == [
        (point.step, point.value) for point in shown.Scalars("training/loss")
    ]
    assert {point.wall_time for point in shown.Scalars("training/loss")} == {1000.0 + number for number in range(1, 7)}


def test_without_tensorboard_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    check_tensorboard()
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(UserError) as error:
        check_tensorboard()
    assert 'pip install "regard[tensorboard]"' in str(error.value)
