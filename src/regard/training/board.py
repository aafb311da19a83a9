"""Writes the log of a run for TensorBoard (extra `tensorboard`)."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from regard.errors import UserError


def check_tensorboard() -> None:
    """Raises UserError if TensorBoard is not installed; called before the data is read."""
    if find_spec("tensorboard") is None:
        raise UserError('--tensorboard: TensorBoard is not installed; type: pip install "regard[tensorboard]"')


class Board:
    """Writes the numbers of log.jsonl. update: the update that the run resumes after; events of this and later updates are
    discarded."""

    def __init__(self, folder: Path, update: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder), purge_step=update)

    def add(self, facts: Mapping[str, Any]) -> None:
        """Adds a line of the log: an update or a validation. The line with the result is skipped, because it is not a curve."""
        if "result" in facts:
            return
        validation = facts.get("validation")
        section, numbers = ("held out", validation) if validation else ("training", facts)
        for name, value in numbers.items():
            if name not in ("update", "time"):
                self._writer.add_scalar(f"{section}/{name}", value, facts["update"], facts.get("time"))

    def sync(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
