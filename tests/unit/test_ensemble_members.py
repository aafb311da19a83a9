"""The folder of an ensemble, and how several models share a machine. Trained in processes: tests/doors/test_members.py."""

from __future__ import annotations

import io
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from regard.checkpoint import folder as model_folder
from regard.checkpoint.ensemble import members_of, write_ensemble
from regard.checkpoint.folder import ENSEMBLE
from regard.errors import UserError
from regard.training.console import RunConsole
from regard.training.members import Member, MembersProgress, check_folder, first_seed, share_cores
from regard.training.order import Order
from regard.training.settings import RunSettings

PAIRS = [(f"{a}{b}", f"{b} {a}") for a in "abcde" for b in "fghij"]
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def ensemble(inside: Path) -> Path:
    """A folder with three untrained models."""
    folder = inside / "all"
    folder.mkdir()
    for seed in (1, 2, 3):
        regard.build("rnn", PAIRS, width=6, embedding=3, score_width=2, seed=seed).save(folder / str(seed))
    write_ensemble(folder, ["1", "2", "3"])
    return folder


def test_the_folder_of_an_ensemble_opens_as_its_models(ensemble: Path) -> None:
    names = [ensemble / "1", ensemble / "2", ensemble / "3"]
    assert members_of(ensemble) == names
    listed = regard.load(names)("af", max_length=5)
    assert regard.load(ensemble)("af", max_length=5) == listed
    assert regard.load(str(ensemble))("af", max_length=5) == listed
    assert members_of(names[0]) == [names[0]]


def test_the_models_of_an_ensemble_count_one_by_one_in_a_larger_one(ensemble: Path) -> None:
    """Not as one model that counts as much as all three."""
    fourth = regard.build("rnn", PAIRS, width=6, embedding=3, score_width=2, seed=4)
    fourth.save("fourth")
    together = regard.load([ensemble, "fourth"]).score(["af"], ["f a"])[0]
    each = [regard.load(path).score(["af"], ["f a"])[0] for path in (*members_of(ensemble), Path("fourth"))]
    mean = torch.tensor([one.token_log_probs for one in each]).exp().mean(0).log()
    assert torch.allclose(torch.tensor(together.token_log_probs), mean, atol=1e-6)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "ensemble.json is damaged"),
        ('{"format": 2, "models": ["1"]}', "its format is 2, expected 1"),
        ('{"format": 1}', "its models are None, expected names of folders"),
        ('{"format": 1, "models": []}', r"its models are \[\]"),
        ('{"format": 1, "models": ["../elsewhere"]}', "expected names of folders in its own folder"),
        ('{"format": 1, "models": ["/elsewhere"]}', "expected names of folders in its own folder"),
        ('{"format": 1, "models": [".."]}', "expected names of folders in its own folder"),
        ('{"format": 1, "models": [1]}', "expected names of folders in its own folder"),
        ('{"format": 1, "models": ["1", "4"]}', "4 is not a model folder"),
    ],
)
def test_a_damaged_ensemble_is_refused(ensemble: Path, content: str, words: str) -> None:
    (ensemble / ENSEMBLE).write_text(content)
    with pytest.raises(UserError, match=words):
        regard.load(ensemble)


def test_what_needs_one_model_asks_for_one(ensemble: Path) -> None:
    with pytest.raises(UserError, match=r"all holds an ensemble of several models, expected one of them, such as .*all/1$"):
        model_folder.load(ensemble)
    with pytest.raises(UserError, match=r"this is an ensemble of 3 models, and explain shows one; load one of them"):
        regard.explain(regard.load(ensemble), "af")


def test_what_ensemble_json_holds(ensemble: Path) -> None:
    assert json.loads((ensemble / ENSEMBLE).read_text()) == {"format": 1, "models": ["1", "2", "3"]}


@pytest.mark.parametrize(
    ("cores", "number", "threads", "expected"),
    [
        (2, 5, None, (2, 1)),
        (8, 5, None, (5, 1)),
        (16, 5, None, (5, 3)),
        (8, 2, None, (2, 4)),
        (8, 5, 2, (4, 2)),
        (2, 5, 4, (1, 4)),
        (1, 3, None, (1, 1)),
    ],
)
def test_models_share_the_cores(
    monkeypatch: pytest.MonkeyPatch, cores: int, number: int, threads: int | None, expected: tuple[int, int]
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
    assert share_cores(number, threads, CPU) == expected


def test_a_gpu_trains_one_model_at_a_time() -> None:
    assert share_cores(5, None, torch.device("cuda")) == (1, None)


def test_seeds_count_from_the_one_that_was_given() -> None:
    def order(**given: Any) -> Order:
        return Order(data=(Path("pairs.tsv"),), out=Path("m"), **given)

    assert first_seed(order()) == 1
    assert first_seed(order(changes={"seed": "7"})) == 7
    assert first_seed(order(settings=RunSettings(seed=3))) == 3
    assert first_seed(order(settings=RunSettings(seed=3), changes={"seed": 5})) == 5
    with pytest.raises(UserError, match=r"--set seed=x: expected a whole number"):
        first_seed(order(changes={"seed": "x"}))


def test_a_folder_that_holds_something_else_is_refused(ensemble: Path, inside: Path) -> None:
    check_folder(ensemble)
    check_folder(inside / "new")
    with pytest.raises(UserError, match=r"1 holds one model, and --models writes several into a folder of their own"):
        check_folder(ensemble / "1")
    (ensemble / "thesis.txt").write_text("all of it")
    with pytest.raises(UserError, match=r"not part of an ensemble \(thesis.txt\); choose another folder with --out"):
        check_folder(ensemble)
    with pytest.raises(UserError, match="it contains files that are not part of a model"):
        regard.train(PAIRS, ensemble, steps=1, overwrite=True, quiet=True)


def test_on_update_and_wrong_numbers_of_models() -> None:
    with pytest.raises(TypeError, match="on_update follows one run, but there are several models; train them one by one"):
        regard.train(PAIRS, models=2, on_update=print)
    with pytest.raises(ValueError, match="models is 0"):
        regard.train(PAIRS, models=0)


def members() -> list[Member]:
    """Three members: one that trains, one that is done, and one that waits."""
    order = Order(data=(Path("pairs.tsv"),), out=Path("m"))
    return [
        Member(1, order, started=True, update=30, steps=60, loss=0.25),
        Member(2, order, started=True, update=60, steps=60, result="good", ended=True),
        Member(3, order),
    ]


@pytest.mark.parametrize("terminal", [True, False])
def test_the_progress_of_all_is_shown_in_one_place(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    console = RunConsole()
    console.file = io.StringIO()
    monkeypatch.setattr(console, "_force_terminal", terminal)
    team = members()
    with MembersProgress(team, console) as progress:
        progress.shown_at = -math.inf
        progress.show()
        progress.show()
        progress.add_line(team[0], "late")
        progress.add_line(team[2], "of another")
    shown = console.file.getvalue()
    if terminal:
        assert all(f"model {number}" in shown for number in (1, 2, 3))
        assert "30/60" in shown
        assert "loss 0.250" in shown
    else:
        assert shown == "model 1 30/60; model 2 done; model 3 waiting; loss 0.250\n"
    assert "late" not in shown
    assert "of another" not in shown


def test_what_the_first_model_says_before_it_trains_is_said_for_all() -> None:
    console = RunConsole()
    console.file = io.StringIO()
    first, *_ = team = members()
    first.steps = 0
    MembersProgress(team, console).add_line(first, "settings chosen from the data")
    assert console.file.getvalue() == "settings chosen from the data\n"
