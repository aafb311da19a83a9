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
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from regard.checkpoint.files import replace_file
from regard.checkpoint.runs import Checkpoints
from regard.training.board import Board


class RunFolder:
    def __init__(self, path: Path, *, tensorboard: bool = False) -> None:
        self.path, self.tensorboard = path, tensorboard
        self.config, self.log_file = path / "run.yaml", path / "log.jsonl"
        self._log: IO[str] | None = None
        self._board: Board | None = None

    @classmethod
    def beside(cls, out: Path, *, tensorboard: bool = False) -> RunFolder:
        out = out.resolve()
        return cls(out.with_name(f"{out.name}.run"), tensorboard=tensorboard)

    def checkpoints(self, keep: int) -> Checkpoints:
        return Checkpoints(self.path / "checkpoints", keep=keep)

    def best(self) -> Checkpoints:
        return Checkpoints(self.path / "best", keep=1)

    @property
    def begun(self) -> bool:
        return self.config.exists()

    def clear(self) -> None:
        """Forgets an earlier run, but neither its settings nor what it has tokenised."""
        for folder in ("checkpoints", "best", "tensorboard"):
            shutil.rmtree(self.path / folder, ignore_errors=True)
        self.log_file.unlink(missing_ok=True)

    def open_log(self, update: int) -> None:
        """Forgets what was logged after this update, and at the end of the run, because it is going to happen again."""
        if self.tensorboard:
            self._board = Board(self.path / "tensorboard", update)
        if self.log_file.exists():
            lines = self.log_file.read_text("utf-8").splitlines(keepends=True)
            replace_file(self.log_file, "".join(line for line in lines if _update_of(line) <= update).encode())

    def held_out_curve(self) -> dict[int, float]:
        """The held-out loss after each update that was followed by a validation, as far as it was logged."""
        lines = self.log_file.read_text("utf-8").splitlines() if self.log_file.exists() else []
        logged = [json.loads(line) for line in lines]
        return {one["update"]: one["validation"]["loss"] for one in logged if "validation" in one}

    def log(self, facts: Mapping[str, Any]) -> None:
        if self._log is None:
            self.path.mkdir(parents=True, exist_ok=True)
            self._log = open(self.log_file, "a", encoding="utf-8", buffering=1)  # noqa: SIM115 open for the whole run
        self._log.write(json.dumps(facts) + "\n")
        if self._board:
            self._board.add(facts)

    def sync(self) -> None:
        """The log is on the disk."""
        if self._log is not None:
            self._log.flush()
            os.fsync(self._log.fileno())
        if self._board:
            self._board.sync()

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
        if self._board:
            self._board.close()


def _update_of(line: str) -> float:
    """After which update a line was written; what belongs to the end of the run, or was cut in half by a kill, comes last."""
    try:
        facts = json.loads(line)
        return float("inf") if facts.get("weights", "current") != "current" else float(facts["update"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return float("inf")
