"""The run folder OUT.run, next to the model folder OUT: the files that a run needs to be resumed.

run.yaml                          all settings, with the reasons
log.jsonl                         one line per update and per validation
curves.svg                        the log as a picture: losses, and what validations measured
tokens.safetensors, *.tokenizer.json    the tokenised data
checkpoints/                      the last few checkpoints
best/                             the weights with the best validation result so far
tensorboard/                      the log for TensorBoard, if requested
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from regard.checkpoint.files import clean, discard, replace_file, resolved, sibling, writing
from regard.checkpoint.folder import CURVES
from regard.checkpoint.runs import Checkpoints
from regard.errors import UserError, plural
from regard.training.board import Board
from regard.training.curves import draw_curves

AGAIN = "free some disk space and run the same command again; the run resumes from its last checkpoint"


class RunFolder:
    """The folder of one run. tensorboard: whether to write the log for TensorBoard, too."""

    def __init__(self, path: Path, *, tensorboard: bool = False) -> None:
        self.path, self.tensorboard = path, tensorboard
        self.config, self.log_file, self.curves = path / "run.yaml", path / "log.jsonl", path / CURVES
        self._log: IO[str] | None = None
        self._board: Board | None = None

    @classmethod
    def for_model(cls, out: Path, *, tensorboard: bool = False) -> RunFolder:
        """Returns the run folder of the model folder `out`."""
        out = resolved(out)
        return cls(out.with_name(f"{out.name}.run"), tensorboard=tensorboard)

    def checkpoints(self, keep: int) -> Checkpoints:
        """Returns the checkpoints of the run, of which the last `keep` are kept."""
        return Checkpoints(self.path / "checkpoints", keep=keep)

    def best(self) -> Checkpoints:
        """Returns the weights with the best validation result."""
        return Checkpoints(self.path / "best", keep=1)

    @property
    def started(self) -> bool:
        """Whether the folder holds a run that was started."""
        return self.config.exists() or bool(self.checkpoints(1).updates())

    def clean(self) -> None:
        """Removes the temporary files of a killed process. Raises UserError for pipes and devices: reading might never end."""
        with writing(self.path):
            clean(self.path)
        for path in self.path.rglob("*"):
            if path.exists() and not path.is_file() and not path.is_dir():
                raise UserError(f"{path} is a pipe or a device, expected a file of this run; remove it")

    def clear(self) -> None:
        """Deletes an earlier run, except its settings and its tokenised data. Deletes checkpoints first: a kill must not
        leave a checkpoint without its other files."""
        with writing(self.path):
            for name in ("checkpoints", "best", "tensorboard", self.log_file.name, self.curves.name):
                discard(self.path / name)

    def open_log(self, update: int, report: Callable[[str], None] = print) -> None:
        """Opens the log and removes the lines after this update, because those updates will be repeated. report: receives a
        message if lines cannot be read."""
        with writing(self.path, AGAIN):
            kept = self._cut_log(update, report) if self.log_file.exists() else []
            if self.tensorboard:
                self._board = Board(self.path / "tensorboard", update)
                for facts in kept:
                    if facts["update"] == update:
                        self._board.add(facts)

    def _cut_log(self, update: int, report: Callable[[str], None]) -> list[dict[str, Any]]:
        """Returns the lines that are kept. A log with unreadable lines is set aside; the last line may be incomplete after a
        kill."""
        lines = [] if self.log_file.is_dir() else self.log_file.read_bytes().splitlines(keepends=True)
        facts = [_read_line(line) for line in lines]
        num_unreadable = facts[:-1].count(None)
        if self.log_file.is_dir() or num_unreadable:
            aside = sibling(self.log_file, "damaged")
            self.log_file.rename(aside)
            what = "is a folder" if aside.is_dir() else f"has {plural(num_unreadable, 'line')} that cannot be read"
            report(f"{self.log_file} {what}; it is kept as {aside}, and the log continues with the other lines")
        kept = [(line, fact) for line, fact in zip(lines, facts, strict=True) if fact is not None and _is_kept(fact, update)]
        replace_file(self.log_file, b"".join(line for line, _ in kept))
        return [fact for _, fact in kept]

    def held_out_curve(self) -> dict[int, float]:
        """Returns the held-out loss of each logged validation, by the number of updates."""
        return {facts["update"]: facts["validation"]["loss"] for facts in self._logged() if "validation" in facts}

    def draw_curves(self) -> None:
        """Draws the log as a picture, curves.svg."""
        with writing(self.curves, AGAIN):
            replace_file(self.curves, self.picture().encode())

    def picture(self) -> str:
        """Returns the log as a picture (SVG)."""
        return draw_curves(self._logged())

    def _logged(self) -> list[dict[str, Any]]:
        lines = self.log_file.read_text("utf-8").splitlines() if self.log_file.exists() else []
        return [json.loads(line) for line in lines]

    def log(self, facts: Mapping[str, Any]) -> None:
        """Appends a line to the log."""
        with writing(self.log_file, AGAIN):
            if self._log is None:
                self.path.mkdir(parents=True, exist_ok=True)
                self._log = open(self.log_file, "a", encoding="utf-8", buffering=1)  # noqa: SIM115 open for the whole run
            self._log.write(json.dumps(facts) + "\n")
            if self._board:
                self._board.add(facts)

    def sync(self) -> None:
        """Flushes the log to disk."""
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
    """Returns the facts of a line of the log; None if the line is invalid."""
    try:
        facts = json.loads(line)
        return facts if isinstance(facts, dict) and isinstance(facts["update"], int) and line.endswith(b"\n") else None
    except (ValueError, KeyError, RecursionError):
        return None


def _is_kept(facts: Mapping[str, Any], update: int) -> bool:
    """Returns whether a line was logged no later than this update. Weights other than the current ones are validated at the end
    of a run, which will be repeated."""
    return bool(facts["update"] <= update) and facts.get("weights", "current") == "current"
