"""The log of a run for TensorBoard (extra `tensorboard`)."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from regard.errors import UserError


def check_tensorboard() -> None:
    """Better before the data is read than after."""
    if find_spec("tensorboard") is None:
        raise UserError('--tensorboard: TensorBoard is not installed; type: pip install "regard[tensorboard]"')


class Board:
    """Writes the numbers of log.jsonl. update: after which one the run goes on; what was written for it and later ones is
    forgotten."""

    def __init__(self, folder: Path, update: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder), purge_step=update)

    def add(self, facts: Mapping[str, Any]) -> None:
        """A line of the log: of an update, or of a validation. The result is no curve."""
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
