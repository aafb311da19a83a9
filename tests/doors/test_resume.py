"""A run cannot be lost: killed, interrupted, damaged or starved, it goes on as if nothing had happened, or says what to do."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from conftest import Run
from kills import begin, finish, num_lines, random_kills

from regard.data.dictionary import pronunciations

pytestmark = pytest.mark.slow

MODELS = {
    "rnn": ["model.width=32", "model.embedding=16", "model.score_width=16", "model.dropout=0.2"],
    "transformer": ["model.kind=transformer", "model.width=16", "model.heads=2", "model.feed_forward=32", "model.dropout=0.2"],
}
EVERYTHING = ["data.source_unit=bpe", "data.vocabulary=400", "data.subword_dropout=0.2", "train.accumulate=2", "train.ema=0.9"]
EVERYTHING += ["train.average=3", "train.steps=60", "train.checkpoint_every=7", "train.validate_every=20"]


def arguments(name: str, out: str) -> list[str]:
    changes = [*EVERYTHING, *MODELS[name]]
    return ["words.tsv", "--out", out, *(part for change in changes for part in ("--set", change))]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    (folder / "words.tsv").write_text("".join(f"{one.source}\t{one.target}\n" for one in pronunciations("dev")[:600]))
    return folder


@pytest.fixture(scope="module")
def undisturbed(place: Path) -> Callable[[str], Path]:
    """Kind of model -> the folder that a run leaves behind that nobody disturbed."""

    @cache
    def train(name: str) -> Path:
        finish(begin(arguments(name, f"{name}-unbroken"), place))
        return place / f"{name}-unbroken"

    return train


@pytest.fixture(scope="module", params=list(MODELS))
def unbroken(request: pytest.FixtureRequest, undisturbed: Callable[[str], Path]) -> tuple[str, Path]:
    return request.param, undisturbed(request.param)


def test_a_run_that_is_killed_ends_with_the_same_weights(unbroken: tuple[str, Path], place: Path) -> None:
    """Law 6: dropout, accumulation, both averages and subword dropout are on."""
    name, expected = unbroken
    command = arguments(name, f"{name}-killed")
    log = place / f"{name}-killed.run" / "log.jsonl"
    random_kills(command, place, log, number=3, seed=len(name))
    said = finish(begin(command, place))
    for file in ("model.safetensors", "source.tokenizer.json", "target.tokenizer.json"):
        assert (place / f"{name}-killed" / file).read_bytes() == (expected / file).read_bytes(), said
    files = log, expected.with_name(f"{name}-unbroken.run") / "log.jsonl"
    logs = [[json.loads(line) for line in path.read_text().splitlines()] for path in files]
    for one in (line for lines in logs for line in lines):
        one.pop("time", None)
    assert logs[0] == logs[1]
    assert [line["update"] for line in logs[0] if "loss" in line] == list(range(1, 61))


def interrupted(command: list[str], place: Path, log: Path, number: signal.Signals = signal.SIGINT) -> subprocess.Popen[bytes]:
    process, before = begin(command, place), num_lines(log)
    while process.poll() is None and num_lines(log) < before + 3:
        time.sleep(0.01)
    process.send_signal(number)
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_is_saved_and_goes_on(unbroken: tuple[str, Path], place: Path, number: signal.Signals) -> None:
    name, expected = unbroken
    out = f"{name}-{number.name}"
    command, log = arguments(name, out), place / f"{out}.run" / "log.jsonl"
    process = interrupted(command, place, log, number)
    said = process.communicate()[0].decode()
    assert process.returncode == 1, said
    assert "regard: training stopped after update" in said
    assert "run the same command to continue" in " ".join(said.split())
    assert "Traceback" not in said
    assert not (place / out).exists()
    assert "resuming after update" in finish(begin(command, place))
    assert (place / out / "model.safetensors").read_bytes() == (expected / "model.safetensors").read_bytes()


def test_what_can_go_wrong_with_a_run_is_said_and_loses_nothing(
    undisturbed: Callable[[str], Path], place: Path, regard_command: Run
) -> None:
    expected, command = undisturbed("rnn"), arguments("rnn", "troubled")
    checkpoints = place / "troubled.run" / "checkpoints"
    interrupted(command, place, place / "troubled.run" / "log.jsonl").communicate()
    kept = {path: path.read_bytes() for path in checkpoints.rglob("*") if path.is_file()}
    assert kept

    def same() -> bool:
        return {path: path.read_bytes() for path in checkpoints.rglob("*") if path.is_file()} == kept

    other = regard_command("train", *command, "--set", "train.learning_rate=0.5", cwd=place)
    assert other.returncode == 1
    assert "train.learning_rate was 0.004 and is now 0.5" in " ".join(other.stderr.split())
    assert same()

    words = (place / "words.tsv").read_text()
    (place / "words.tsv").rename(place / "elsewhere.tsv")
    missing = regard_command("train", *command, cwd=place)
    assert (missing.returncode, "words.tsv: no such file" in missing.stderr) == (1, True)
    assert same()

    (place / "words.tsv").write_text(words + "abc\tA B C\n")
    changed = regard_command("train", *command, cwd=place)
    assert changed.returncode == 1
    assert "the training data changed since this run started" in " ".join(changed.stderr.split())
    assert same()

    (place / "elsewhere.tsv").rename(place / "words.tsv")
    newest = max(path for path in checkpoints.iterdir() if path.name.startswith("update-"))
    (newest / "model.safetensors").write_bytes(b"damaged")
    said = " ".join(finish(begin(command, place)).split())
    assert "is damaged: model.safetensors does not match its sha256" in said
    assert (place / "troubled" / "model.safetensors").read_bytes() == (expected / "model.safetensors").read_bytes()
