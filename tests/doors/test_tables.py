"""Tables as users have them, from the command line: column names, bad lines, pipes and devices."""

import json
import os
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from regard.cli.main import app
from regard.errors import UserError

pytestmark = pytest.mark.slow

WORDS = "house tree hound kitten table chair window door scale lamp book way garden stone river cloud".split()
LINES = ["Falsch;Richtig", *(f"{word[::-1]};{word}" for word in WORDS)]
TINY = "train.steps=2 train.batch_tokens=64 model.width=8".split()
RunCommand = Callable[..., str]


@pytest.fixture
def run_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunCommand:
    """Returns a function that runs a command in an empty folder and returns its output."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> str:
        done = CliRunner().invoke(app, [*arguments, "--threads", "1"])
        if done.exception and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.output

    return run


def train(run_command: RunCommand, *more: str) -> str:
    return run_command("train", "words.csv", "--out", "m", *(word for change in TINY for word in ("--set", change)), *more)


def test_column_names_on_the_command_line(tmp_path: Path, run_command: RunCommand) -> None:
    (tmp_path / "words.csv").write_text("\n".join(LINES))
    output = train(run_command)
    assert "words.csv: 16 pairs in 17 lines" in output
    assert "Line 1 (Falsch, Richtig) was read as a header (if it is data, use --no-header)" in output
    assert "header: auto" in (tmp_path / "m.run" / "run.yaml").read_text()
    assert "17 sources" in run_command("evaluate", "m", "words.csv", "--no-header")
    output = run_command("evaluate", "m", "words.csv")
    assert "16 sources" in output
    assert "Line 1 (Falsch, Richtig) was read as" in output
    for command, lines in (("score", 16), ("align", 16)):
        output = run_command(command, "m", "words.csv")
        assert "regard: Line 1 (Falsch, Richtig) was read as" in output
        assert len([line for line in output.splitlines() if not line.startswith("regard:")]) == lines
    output = train(run_command, "--no-header", "--overwrite")
    assert "words.csv: 17 pairs in 17 lines" in output
    assert "header: no" in (tmp_path / "m.run" / "run.yaml").read_text()
    output = run_command("train", "m.run/run.yaml", "--out", "again")
    assert "words.csv: 17 pairs in 17 lines" in output


def test_a_run_of_an_older_version_keeps_its_header_rule(tmp_path: Path, run_command: RunCommand) -> None:
    """Older versions treated only well-known names as a header, and had no setting for it."""
    (tmp_path / "words.csv").write_text("\n".join(LINES))
    train(run_command, "--set", "data.header=usual")
    weights = (tmp_path / "m" / "model.safetensors").read_bytes()
    kept = tmp_path / "m.run" / "run.yaml"
    older = [line for line in kept.read_text().splitlines() if not line.strip().startswith(("header:", "bad_lines:"))]
    kept.write_text("\n".join(older))
    shutil.rmtree(tmp_path / "m")
    assert "words.csv: 17 pairs in 17 lines" in train(run_command)
    assert (tmp_path / "m" / "model.safetensors").read_bytes() == weights


def test_bad_lines_on_the_command_line(tmp_path: Path, run_command: RunCommand) -> None:
    (tmp_path / "words.csv").write_text("\n".join([*LINES, "a;b;c", "d", "x;y"]))
    with pytest.raises(UserError, match=r"words.csv:18: expected 2 columns .*; 1 more bad line: line 19; .* --skip-bad-lines$"):
        train(run_command)
    assert "Skipped: 2 bad lines (lines 18, 19)" in train(run_command, "--skip-bad-lines")
    assert "bad_lines: skip" in (tmp_path / "m.run" / "run.yaml").read_text()
    for command in ("evaluate", "score", "align"):
        with pytest.raises(UserError, match="1 more bad line: line 19"):
            run_command(command, "m", "words.csv")
        output = run_command(command, "m", "words.csv", "--skip-bad-lines")
        assert "Skipped 2 bad lines (lines 18, 19)" in output


def test_pipes_and_devices_are_refused(tmp_path: Path, run_command: RunCommand) -> None:
    (tmp_path / "words.csv").write_text("\n".join(LINES))
    train(run_command)
    os.mkfifo("pipe.tsv")
    os.mkfifo("run.yaml")
    for arguments in (
        ("train", "pipe.tsv"),
        ("train", "run.yaml"),
        ("train", "words.csv", "--held-out", "pipe.tsv", "--out", "n"),
        ("evaluate", "m", "pipe.tsv"),
        ("score", "m", "pipe.tsv"),
        ("align", "m", "pipe.tsv"),
        ("align", "m", "words.csv", "--gold", "pipe.tsv"),
        ("evaluate", "m", "/dev/zero"),
    ):
        with pytest.raises(UserError, match=r"(pipe.tsv|run.yaml|/dev/zero): this is a (pipe|device), expected a file"):
            run_command(*arguments)


def test_odd_columns_on_the_command_line(tmp_path: Path, run_command: RunCommand) -> None:
    (tmp_path / "words.csv").write_text("\n".join(LINES))
    with pytest.raises(UserError, match=r"there is no column 9{19}…"):
        train(run_command, "--from", "9" * 5000)
    with pytest.raises(UserError, match=r"columns '1,': expected names or numbers separated by commas"):
        train(run_command, "--from", "1,")


def test_held_out_sources_that_the_first_model_was_trained_on_are_reported(tmp_path: Path, run_command: RunCommand) -> None:
    (tmp_path / "words.csv").write_text("\n".join(LINES))
    (tmp_path / "fresh.csv").write_text("Falsch;Richtig\nxis;six\nneves;seven\n")
    train(run_command, "--held-out", "fresh.csv")
    (tmp_path / "words.csv").write_text("\n".join(LINES[:12]))
    (tmp_path / "test.csv").write_text("\n".join([*LINES[:1], *LINES[12:], "xis;six"]))
    options = ("--start-from", "m", "--out", "on")
    output = " ".join(train(run_command, *options, "--held-out", "test.csv").split())
    assert "the model that this run starts from: 5 of 6 sources were seen in training; results on such sources say" in output
    assert "were seen in training" not in train(run_command, *options, "--held-out", "fresh.csv", "--overwrite")


def test_the_suggested_command_is_quoted(tmp_path: Path, run_command: RunCommand) -> None:
    (tmp_path / "words.csv").write_text("\n".join(LINES))
    output = train(run_command, "--out", "my model (1)")
    assert output.endswith("saved in my model (1); next: regard translate 'my model (1)' texts.txt\n")


def test_the_suggested_command_reads_the_same_columns(tmp_path: Path, run_command: RunCommand) -> None:
    (tmp_path / "words.csv").write_text("\n".join(LINES))
    (tmp_path / "my test.csv").write_text("Falsch;Richtig\nxis;six\n")
    how = ("--from", "2", "--to", "1", "--no-header", "--skip-bad-lines", "--held-out", "my test.csv")
    train(run_command, *how, "--set", "train.steps=4")
    with pytest.raises(UserError) as refused:
        train(run_command, *how, "--set", "train.steps=6")
    suggested = shlex.split(str(refused.value).partition("type: regard ")[2].partition(". To continue")[0])
    assert suggested == ["train", "words.csv", *how, *"--start-from m --out m-longer --set train.steps=2".split()]
    run_command(*suggested)
    first, then = ((tmp_path / name / "config.json").read_text() for name in ("m", "m-longer"))
    assert json.loads(first)["training"]["settings"]["data"] == json.loads(then)["training"]["settings"]["data"]
    with pytest.raises(UserError) as refused:
        train(run_command, *how, "--header", "--set", "train.steps=6")
    assert "type: regard" not in str(refused.value)
