"""The two doors to training, `regard train` and `regard.train`, lead to the same run: settings, checkpoints and weights."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
from conftest import Run
from moments import differences, outcome, typed

import regard
from regard.checkpoint.files import sha256
from regard.data.dictionary import pronunciations
from regard.errors import UserError
from regard.training.run_folder import RunFolder

pytestmark = pytest.mark.slow

SETTINGS = {"model.width": 8, "model.embedding": 5, "model.score_width": 5, "model.dropout": 0.2, "train.batch_tokens": 200}
SETTINGS |= {"train.steps": 30, "train.checkpoint_every": 7, "train.validate_every": 10, "train.ema": 0.9}
SET = [part for key, value in SETTINGS.items() for part in ("--set", f"{key}={value}")]
GIVEN: dict[str, Any] = {"settings": SETTINGS, "threads": 1, "quiet": True}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with pairs.tsv."""
    (tmp_path / "run").mkdir()
    text = "".join(f"{pair.source}\t{pair.target}\n" for pair in pronunciations("dev")[:200])
    (tmp_path / "run" / "pairs.tsv").write_text(text)
    return tmp_path / "run"


def digest(model: Path) -> str:
    return sha256((model / "model.safetensors").read_bytes())


def test_the_function_gives_the_weights_of_the_command_as_a_user_types_it(folder: Path, regard_command: Run) -> None:
    done = regard_command(*"train pairs.tsv --out a --set train.steps=30 --threads 1".split(), cwd=folder)
    assert done.returncode == 0, done.stderr
    with chdir(folder):
        regard.train("pairs.tsv", "b", steps=30, threads=1, quiet=True)
        pairs = [tuple(line.split("\t")) for line in Path("pairs.tsv").read_text().splitlines()]
        model = regard.train(pairs, "c", steps=30, threads=1, quiet=True)
        model.save("d")
    assert digest(folder / "a") == digest(folder / "b") == digest(folder / "c") == digest(folder / "d")
    for name in ("source.tokenizer.json", "target.tokenizer.json", "card.md", "config.json"):
        assert (folder / "a" / name).read_bytes() == (folder / "b" / name).read_bytes(), name
    assert (folder / "a.run" / "run.yaml").read_text() == (folder / "b.run" / "run.yaml").read_text()
    next_one = regard_command("translate", "c", input="banana\n", cwd=folder)
    assert next_one.stdout.strip() == model("banana").text


def both(folder: Path) -> tuple[Path, Path]:
    """Returns two copies of the folder: for an uninterrupted run, and for one that changes doors."""
    other = folder.with_name("other")
    other.mkdir()
    (other / "pairs.tsv").write_bytes((folder / "pairs.tsv").read_bytes())
    return folder, other


def test_a_run_that_failed_in_python_continues_in_the_command(folder: Path) -> None:
    """All files are those of a run that was never interrupted."""

    def fail(update: regard.Update) -> None:
        if update.number == 17:
            raise LookupError

    whole, broken = both(folder)
    typed(["train", "pairs.tsv", "--out", "m", *SET], whole)
    with chdir(broken), pytest.raises(LookupError):
        regard.train("pairs.tsv", "m", on_update=fail, **GIVEN)
    assert "resuming after update 14 of 30" in typed(["train", "pairs.tsv", "--out", "m", *SET], broken)
    assert differences(outcome(broken), outcome(whole)) == []


def test_a_command_that_was_interrupted_continues_in_python(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, broken = both(folder)
    with chdir(whole):
        regard.train("pairs.tsv", "m", **GIVEN)
    original = RunFolder.log

    def log(self: RunFolder, facts: Mapping[str, Any]) -> None:
        original(self, facts)
        if facts["update"] == 12 and "norm" in facts:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "log", log)
        with pytest.raises(UserError, match="training stopped after update 12 of 30"):
            typed(["train", "pairs.tsv", "--out", "m", *SET], broken)
    continued: list[int] = []
    with chdir(broken):
        regard.train("pairs.tsv", "m", on_update=lambda update: continued.append(update.number), **GIVEN)
    assert continued == list(range(12, 30))
    assert differences(outcome(broken), outcome(whole)) == []


def test_pairs_in_memory_continue_in_the_command(folder: Path) -> None:
    """Their run file names the file that they were written to."""
    pairs = [tuple(line.split("\t")) for line in (folder / "pairs.tsv").read_text().splitlines()]
    with chdir(folder):
        whole = regard.train(pairs, "whole", **GIVEN)
        stopped = regard.train(pairs, "m", on_update=lambda update: update.number < 8, **GIVEN)
        assert stopped.training["signature"] != whole.training["signature"]
    assert "resuming after update 9 of 30" in typed(["train", "m.run/run.yaml", "--out", "m"], folder)
    assert digest(folder / "m") == digest(folder / "whole")


def test_a_kill_while_pairs_are_written_loses_nothing(folder: Path) -> None:
    """An incomplete file of pairs is removed; the run that it belongs to starts as if it had not been there."""
    (folder / "m.run").mkdir()
    (folder / "m.run" / ".data.jsonl-new-0123abcd").write_text('{"source": "a", "tar')
    pairs = [("ab", "ba"), ("cd", "dc"), ("ef", "fe")]
    with chdir(folder):
        regard.train(pairs, "m", **{**GIVEN, "settings": {**SETTINGS, "train.steps": 2}})
    assert [path.name for path in (folder / "m.run").iterdir() if path.name.startswith(".")] == []
    assert (folder / "m.run" / "data.jsonl").read_text().count("\n") == 3
