"""No run is lost: after a kill, an interruption or damage, it resumes with the same result, or an error says what to do."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from commands import Command
from conftest import Run
from killed_runs import begin, finish, num_lines, random_kills

from regard.data.dictionary import pronunciations

pytestmark = pytest.mark.slow

MODELS = {
    "rnn": ["model.width=32", "model.embedding=16", "model.score_width=16", "model.dropout=0.2"],
    "transformer": ["model.kind=transformer", "model.width=16", "model.heads=2", "model.feed_forward=32", "model.dropout=0.2"],
}
SETTINGS = ["data.source_unit=bpe", "data.vocabulary=400", "data.subword_dropout=0.2", "train.accumulate=2", "train.ema=0.9"]
SETTINGS += ["train.average=3", "train.steps=60", "train.checkpoint_every=7", "train.validate_every=20"]


def arguments(name: str, out: str) -> list[str]:
    changes = [*SETTINGS, *MODELS[name]]
    return ["words.tsv", "--out", out, *(part for change in changes for part in ("--set", change))]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with words.tsv."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "words.tsv").write_text("".join(f"{pair.source}\t{pair.target}\n" for pair in pronunciations("dev")[:600]))
    return folder


@pytest.fixture(scope="module")
def uninterrupted(workspace: Path) -> Callable[[str], Path]:
    """Returns a function from the kind of model to the model folder of an uninterrupted run."""

    @cache
    def train(name: str) -> Path:
        finish(begin(arguments(name, f"{name}-unbroken"), workspace))
        return workspace / f"{name}-unbroken"

    return train


@pytest.fixture(scope="module", params=list(MODELS))
def unbroken(request: pytest.FixtureRequest, uninterrupted: Callable[[str], Path]) -> tuple[str, Path]:
    return request.param, uninterrupted(request.param)


def test_a_killed_run_resumes_to_the_same_weights(unbroken: tuple[str, Path], workspace: Path) -> None:
    """Law 6, with dropout, accumulation, both kinds of weight averages and subword dropout."""
    name, expected = unbroken
    command = arguments(name, f"{name}-killed")
    log = workspace / f"{name}-killed.run" / "log.jsonl"
    random_kills(command, workspace, log, number=3, seed=len(name))
    output = finish(begin(command, workspace))
    for file in ("model.safetensors", "source.tokenizer.json", "target.tokenizer.json"):
        assert (workspace / f"{name}-killed" / file).read_bytes() == (expected / file).read_bytes(), output
    files = log, expected.with_name(f"{name}-unbroken.run") / "log.jsonl"
    logs = [[json.loads(line) for line in path.read_text().splitlines()] for path in files]
    for entry in (line for lines in logs for line in lines):
        entry.pop("time", None)
    assert logs[0] == logs[1]
    assert [line["update"] for line in logs[0] if "loss" in line] == list(range(1, 61))


def interrupted(command: list[str], workspace: Path, log: Path, number: signal.Signals = signal.SIGINT) -> Command:
    """Starts the run, sends it the signal after three more lines of its log, and returns its process."""
    process, before = begin(command, workspace), num_lines(log)
    while process.poll() is None and num_lines(log) < before + 3:
        time.sleep(0.01)
    process.send_signal(number)
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_is_saved_and_resumes(unbroken: tuple[str, Path], workspace: Path, number: signal.Signals) -> None:
    name, expected = unbroken
    out = f"{name}-{number.name}"
    command, log = arguments(name, out), workspace / f"{out}.run" / "log.jsonl"
    process = interrupted(command, workspace, log, number)
    code, output, _ = process.wait()
    assert code == 1, output
    assert "regard: training stopped after update" in output
    assert "run the same command to continue" in " ".join(output.split())
    assert "Traceback" not in output
    assert not (workspace / out).exists()
    assert "resuming after update" in finish(begin(command, workspace))
    assert (workspace / out / "model.safetensors").read_bytes() == (expected / "model.safetensors").read_bytes()


def test_errors_in_a_run_are_reported_and_lose_nothing(
    uninterrupted: Callable[[str], Path], workspace: Path, regard_command: Run
) -> None:
    expected, command = uninterrupted("rnn"), arguments("rnn", "troubled")
    checkpoints = workspace / "troubled.run" / "checkpoints"
    interrupted(command, workspace, workspace / "troubled.run" / "log.jsonl").wait()
    kept = {path: path.read_bytes() for path in checkpoints.rglob("*") if path.is_file()}
    assert kept

    def unchanged() -> bool:
        return {path: path.read_bytes() for path in checkpoints.rglob("*") if path.is_file()} == kept

    other = regard_command("train", *command, "--set", "train.learning_rate=0.5", cwd=workspace)
    assert other.returncode == 1
    assert "train.learning_rate was 0.002 and is now 0.5" in " ".join(other.stderr.split())
    assert unchanged()

    words = (workspace / "words.tsv").read_text()
    (workspace / "words.tsv").rename(workspace / "elsewhere.tsv")
    missing = regard_command("train", *command, cwd=workspace)
    assert (missing.returncode, "words.tsv: no such file" in missing.stderr) == (1, True)
    assert unchanged()

    (workspace / "words.tsv").write_text(words + "abc\tA B C\n")
    changed = regard_command("train", *command, cwd=workspace)
    assert changed.returncode == 1
    assert "the training data changed since this run started" in " ".join(changed.stderr.split())
    assert unchanged()

    (workspace / "elsewhere.tsv").rename(workspace / "words.tsv")
    newest = max(path for path in checkpoints.iterdir() if path.name.startswith("update-"))
    (newest / "model.safetensors").write_bytes(b"damaged")
    output = " ".join(finish(begin(command, workspace)).split())
    assert "is damaged: model.safetensors does not match its sha256" in output
    assert (workspace / "troubled" / "model.safetensors").read_bytes() == (expected / "model.safetensors").read_bytes()
