"""Where a run keeps what it needs to go on: the folder OUT.run beside the model OUT.

run.yaml                          all settings, with the reasons
log.jsonl                         a line for every update and every validation
tokens.safetensors, *.tokenizer.json    the data, tokenised
checkpoints/                      the last few
best/                             the weights of the best validation so far, and nothing else
tensorboard/                      the log for TensorBoard, where it was asked for
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from regard.checkpoint.files import clean, discard, replace_file, resolved, sibling, writing
from regard.checkpoint.runs import Checkpoints
from regard.errors import UserError, plural
from regard.training.board import Board

AGAIN = "make room there, and type the same command again: the run goes on from its last checkpoint"


class RunFolder:
    def __init__(self, path: Path, *, tensorboard: bool = False) -> None:
        self.path, self.tensorboard = path, tensorboard
        self.config, self.log_file = path / "run.yaml", path / "log.jsonl"
        self._log: IO[str] | None = None
        self._board: Board | None = None

    @classmethod
    def for_model(cls, out: Path, *, tensorboard: bool = False) -> RunFolder:
        out = resolved(out)
        return cls(out.with_name(f"{out.name}.run"), tensorboard=tensorboard)

    def checkpoints(self, keep: int) -> Checkpoints:
        return Checkpoints(self.path / "checkpoints", keep=keep)

    def best(self) -> Checkpoints:
        return Checkpoints(self.path / "best", keep=1)

    @property
    def begun(self) -> bool:
        return self.config.exists() or bool(self.checkpoints(1).updates())

    def clean(self) -> None:
        """Removes what a killed process left behind. Raises if there is something that might be read without end."""
        with writing(self.path):
            clean(self.path)
        for path in self.path.rglob("*"):
            if path.exists() and not path.is_file() and not path.is_dir():
                raise UserError(f"{path} is a pipe or a device, expected a file of this run; remove it")

    def clear(self) -> None:
        """Forgets an earlier run, but neither its settings nor what it has tokenised. Its checkpoints go first: after a kill
        there are none that lack what belongs to them."""
        with writing(self.path):
            for name in ("checkpoints", "best", "tensorboard", self.log_file.name):
                discard(self.path / name)

    def open_log(self, update: int, report: Callable[[str], None] = print) -> None:
        """Forgets what was logged after this update, because it is going to happen again."""
        with writing(self.path, AGAIN):
            kept = self._cut_log(update, report) if self.log_file.exists() else []
            if self.tensorboard:
                self._board = Board(self.path / "tensorboard", update)
                for facts in kept:
                    if facts["update"] == update:
                        self._board.add(facts)

    def _cut_log(self, update: int, report: Callable[[str], None]) -> list[dict[str, Any]]:
        """The lines that stay. A log with strange lines is put aside; the last line may have been cut by a kill."""
        lines = [] if self.log_file.is_dir() else self.log_file.read_bytes().splitlines(keepends=True)
        facts = [_read_line(line) for line in lines]
        num_strange = facts[:-1].count(None)
        if self.log_file.is_dir() or num_strange:
            aside = sibling(self.log_file, "damaged")
            self.log_file.rename(aside)
            what = "is a folder" if aside.is_dir() else f"has {plural(num_strange, 'line')} that cannot be read"
            report(f"{self.log_file} {what}; it is kept as {aside}, and the log goes on with the other lines")
        kept = [(line, one) for line, one in zip(lines, facts, strict=True) if one is not None and _stays(one, update)]
        replace_file(self.log_file, b"".join(line for line, _ in kept))
        return [one for _, one in kept]

    def held_out_curve(self) -> dict[int, float]:
        """The held-out loss after each update that was followed by a validation, as far as it was logged."""
        lines = self.log_file.read_text("utf-8").splitlines() if self.log_file.exists() else []
        logged = [json.loads(line) for line in lines]
        return {one["update"]: one["validation"]["loss"] for one in logged if "validation" in one}

    def log(self, facts: Mapping[str, Any]) -> None:
        with writing(self.log_file, AGAIN):
            if self._log is None:
                self.path.mkdir(parents=True, exist_ok=True)
                self._log = open(self.log_file, "a", encoding="utf-8", buffering=1)  # noqa: SIM115 open for the whole run
            self._log.write(json.dumps(facts) + "\n")
            if self._board:
                self._board.add(facts)

    def sync(self) -> None:
        """The log is on the disk."""
        with writing(self.log_file, AGAIN):
            if self._log is not None:
                self._log.flush()
                os.fsync(self._log.fileno())
            if self._board:
                self._board.sync()

    def close(self) -> None:
        with writing(self.log_file, AGAIN):
            if self._log is not None:
                self._log.close()
            if self._board:
                self._board.close()


def _read_line(line: bytes) -> dict[str, Any] | None:
    """A line of the log; None if it is none."""
    try:
        facts = json.loads(line)
        return facts if isinstance(facts, dict) and isinstance(facts["update"], int) and line.endswith(b"\n") else None
    except (ValueError, KeyError, RecursionError):
        return None


def _stays(facts: Mapping[str, Any], update: int) -> bool:
    """Whether this was logged no later than this update. Other weights than the current ones are judged at the end of a run,
    which is still to come."""
    return bool(facts["update"] <= update) and facts.get("weights", "current") == "current"
