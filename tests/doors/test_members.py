"""Several models are trained side by side; none is lost, and each is the one that is trained alone."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from commands import Command
from conftest import Run
from killed_runs import begin, finish, num_lines

import regard
from regard.data.dictionary import pronunciations
from regard.training.members import Member, MembersProgress, Team
from regard.training.order import Order
from regard.training.overrides import keys_of

pytestmark = pytest.mark.slow

SETTINGS: dict[str, Any] = {"width": 32, "embedding": 16, "score_width": 16}
SETTINGS |= {"steps": 120, "checkpoint_every": 7, "validate_every": 60}
CHANGES = [part for name, value in keys_of(SETTINGS, "train").items() for part in ("--set", f"{name}={value}")]
COMMAND = ["words.tsv", "--models", "2", *CHANGES]
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with words.tsv, and with one and two, which were trained alone with these seeds."""
    folder = tmp_path_factory.mktemp("members")
    (folder / "words.tsv").write_text("".join(f"{pair.source}\t{pair.target}\n" for pair in pronunciations("dev")[:600]))
    for seed, name in ((1, "one"), (2, "two")):
        regard.train(folder / "words.tsv", folder / name, seed=seed, threads=1, quiet=True, **SETTINGS)
    return folder


@pytest.fixture(scope="module")
def ensemble(workspace: Path) -> Path:
    """The same models, trained side by side; output.txt is what the command printed."""
    (workspace / "output.txt").write_text(finish(begin([*COMMAND, "--out", "all"], workspace)))
    return workspace / "all"


def check_members(folder: Path) -> None:
    """The models of an ensemble have the weights of those that were trained alone."""
    for number, name in ((1, "one"), (2, "two")):
        assert (folder / str(number) / WEIGHTS).read_bytes() == (folder.parent / name / WEIGHTS).read_bytes()
    assert json.loads((folder / "ensemble.json").read_text())["models"] == ["1", "2"]


def updates(folder: Path) -> list[int]:
    return [num_lines(folder / f"{number}.run" / "log.jsonl") for number in (1, 2)]


def children_of(process: Command) -> list[int]:
    listed = Path(f"/proc/{process.pid}/task").glob("*/children")
    return [int(child) for path in listed for child in path.read_text().split()]


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_models_are_trained_side_by_side_and_open_as_one(ensemble: Path, workspace: Path) -> None:
    output = (workspace / "output.txt").read_text()
    assert output.startswith("2 models with the seeds 1 to 2; ")
    assert output.count("data.target_unit=symbols") == 1, "what all have in common is printed once"
    for number in (1, 2):
        assert f"model {number}, all/{number}: held out: symbol error rate" in output
    assert "all together: held out: symbol error rate" in output
    assert output.endswith("saved in all; next: regard translate all texts.txt\n")
    check_members(ensemble)
    one, listed = (regard.load(path) for path in (ensemble, [workspace / "one", workspace / "two"]))
    assert one.score(["cat"], ["K AE T"]) == listed.score(["cat"], ["K AE T"])


def test_killed_models_go_on_where_each_stood(workspace: Path) -> None:
    """SIGKILL, of the parent alone: the models end with it, and the same command continues all of them."""
    command, folder = [*COMMAND, "--out", "killed"], workspace / "killed"
    process = begin(command, workspace)
    while process.poll() is None and max(updates(folder)) < 20:
        time.sleep(0.01)
    children = children_of(process)
    assert children
    process.send_signal(signal.SIGKILL)
    process.wait()
    for _ in range(200):
        if not any(map(is_alive, children)):
            break
        time.sleep(0.05)
    else:
        pytest.fail("a model goes on without its parent")
    assert not (folder / "ensemble.json").exists()
    finish(begin(command, workspace))
    check_members(folder)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_models_are_saved(workspace: Path, number: signal.Signals) -> None:
    """All stop after their current update, with a checkpoint, and the same command continues all of them."""
    out = f"stopped-{number}"
    command, folder = [*COMMAND, "--out", out], workspace / out
    process = begin(command, workspace)
    while process.poll() is None and min(updates(folder)) < 10:
        time.sleep(0.01)
    process.send_signal(number)
    code, output, _ = process.wait()
    assert code == 1, output
    assert "regard: training stopped (model 1 " in output
    assert output.endswith("and was saved; run the same command to continue\n")
    saved = sorted((folder / "1.run" / "checkpoints").iterdir())
    logged = [json.loads(line) for line in (folder / "1.run" / "log.jsonl").read_text().splitlines()]
    assert saved[-1].name == f"update-{logged[-1]['update']:08}", "the last update is in a checkpoint"
    finish(begin(command, workspace))
    check_members(folder)


def test_the_first_error_of_a_model_counts() -> None:
    """A model that is stopped while it reports an error reports that, too."""
    member = Member(1, Order(data=("words.tsv",), out=Path("out")))
    team = Team([member], 1, cast(MembersProgress, SimpleNamespace(show=lambda: None)))
    for error in ("width is 0", "it was stopped"):
        team._follow(member, {"error": error})
    assert (member.error, team.failed) == ("width is 0", member)


def test_the_first_error_of_a_model_is_that_of_all(workspace: Path, regard_command: Run) -> None:
    done = regard_command("train", "words.tsv", "--models", "2", "--out", "wrong", "--set", "model.width=0", cwd=workspace)
    assert done.returncode == 1
    assert done.stderr.startswith("regard: model ")
    assert "width is 0, expected 1 or more" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (workspace / "wrong" / "ensemble.json").exists()


def test_a_custom_score_reaches_every_process(workspace: Path, regard_command: Run) -> None:
    (workspace / "near.py").write_text(
        "from regard import Score\n\nclass Near(Score):\n    name = 'near'\n\n    def scores(self, query, prepared):\n"
        "        return -(query.unsqueeze(-2) - prepared.unsqueeze(-3)).abs().sum(-1)\n"
    )
    command = ["words.tsv", "--models", "2", "--out", "near", "--score", "near.py:Near", "--threads", "1"]
    done = regard_command("train", *command, *CHANGES, "--set", "train.steps=3", cwd=workspace)
    assert done.returncode == 0, done.stderr
    done = regard_command("translate", "near", "--score", "near.py:Near", input="cat\n", cwd=workspace)
    assert done.returncode == 0, done.stderr


def test_every_command_takes_the_folder_of_an_ensemble(ensemble: Path, workspace: Path, regard_command: Run) -> None:
    (workspace / "few.tsv").write_text("cat\tK AE T\ndog\tD AO G\n")
    (workspace / "few.txt").write_text("cat\n")
    text = regard.load(ensemble)("cat").text
    for command, expected in (
        (["evaluate", "all", "few.tsv"], "exact match"),
        (["score", "all", "few.tsv"], "K AE T"),
        (["inspect", "all", "cat"], "c a t <eos>"),
        (["translate", "all", "few.txt", "--align"], f"{text} ||| "),
        (["translate", "all", "few.txt", "--stream"], f"{text}\n"),
    ):
        done = regard_command(*command, cwd=workspace)
        assert done.returncode == 0, (command, done.stderr)
        assert expected in done.stdout, (command, done.stdout)


def test_models_in_python_come_from_any_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pairs = [(f"{a}{b}", f"{b} {a}") for a in "abcde" for b in "fghij"]
    tiny: dict[str, object] = {"width": 4, "embedding": 3, "score_width": 3, "batch_tokens": 40, "steps": 6}
    ensemble = regard.train((pair for pair in pairs), "all", models=2, threads=1, quiet=True, **tiny)
    assert ensemble("af", max_length=4) == regard.load("all")("af", max_length=4)
    alone = regard.train(pairs, seed=2, threads=1, quiet=True, **tiny)
    assert alone.score(["af"], ["f a"]) == regard.load("all/2").score(["af"], ["f a"])
    assert "files" in ensemble.training["settings"]["data"]
    with pytest.raises(regard.UserError, match="the training data changed since this run started"):
        regard.train(pairs[1:], "all", models=2, threads=1, quiet=True, **tiny)
    unsaved = regard.train(pairs, models=2, threads=1, quiet=True, **tiny)
    assert sorted(os.listdir()) == ["all"]
    assert unsaved.training["settings"]["data"]["files"] == []
