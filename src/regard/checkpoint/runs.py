"""Checkpoints of a run, each a folder `update-00000500` of plain files, there whole or not at all.

model.safetensors       the weights
training.safetensors    moments of the optimiser, moving averages
state.json              counts, the sha256 of the others, and of itself
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from torch import Tensor

from regard.checkpoint.files import beside, sha256, sync_folder, tensor_bytes, write
from regard.errors import UserError

FORMAT = 1
MODEL, TRAINING, STATE = "model.safetensors", "training.safetensors", "state.json"


@dataclass(frozen=True)
class Checkpoint:
    """All that a run needs to go on. numbers: what can stand in JSON."""

    update: int
    numbers: Mapping[str, Any]
    model: Mapping[str, Tensor]
    training: Mapping[str, Tensor]


class Damaged(Exception):
    """A checkpoint that cannot be used, with what is wrong with it."""


class Checkpoints:
    """Those of one run. The last `keep` of them stay."""

    def __init__(self, folder: Path, *, keep: int) -> None:
        self.folder, self.keep = folder, keep

    def updates(self) -> list[int]:
        """Of which updates there are checkpoints, the first one first."""
        found = (re.fullmatch(r"update-(\d{8,})", path.name) for path in self.folder.glob("update-*"))
        return sorted(int(match[1]) for match in found if match)

    def write(self, checkpoint: Checkpoint) -> None:
        """An error leaves the earlier ones as they are."""
        files = {MODEL: tensor_bytes(checkpoint.model), TRAINING: tensor_bytes(checkpoint.training)}
        state = {
            "format": FORMAT,
            "update": checkpoint.update,
            "numbers": dict(checkpoint.numbers),
            "sha256": {name: sha256(content) for name, content in files.items()},
        }
        files[STATE] = json.dumps({**state, "self": _digest(state)}, indent=2).encode()
        place = self._place(checkpoint.update)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._clean()
            fresh = beside(place, "new")
            fresh.mkdir()
            for name, content in files.items():
                write(fresh / name, content)
            if place.exists():  # of a run that was cut back to an earlier one
                shutil.rmtree(place)
            fresh.rename(place)
            sync_folder(self.folder)
        except OSError as error:
            self._clean()
            kept = f"the last one is of update {self.updates()[-1]}" if self.updates() else "there is none yet"
            raise UserError(
                f"the checkpoint of update {checkpoint.update} cannot be written to {self.folder}: {error.strerror}; {kept}. "
                "Make room, and type the same command again: the run goes on from there"
            ) from None
        for update in self.updates()[: -self.keep]:
            shutil.rmtree(self._place(update))

    def newest(self, tell: Callable[[str], None]) -> Checkpoint | None:
        """The last one that is whole. Tells about those that are not; they are put aside."""
        for update in reversed(self.updates()):
            try:
                return self.read(update)
            except Damaged as error:
                aside = beside(self._place(update), "damaged")
                self._place(update).rename(aside)
                tell(
                    f"the checkpoint of update {update} is damaged: {error}; it is kept as {aside}, and the one before it used"
                )
        return None

    def forget_after(self, update: int) -> None:
        """Those of updates that are going to happen again."""
        for later in self.updates():
            if later > update:
                shutil.rmtree(self._place(later))

    def read(self, update: int) -> Checkpoint:
        place = self._place(update)
        try:
            state = json.loads((place / STATE).read_bytes())
            whole = state.pop("self") == _digest(state)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise Damaged(f"{STATE} cannot be read ({error!r})") from None
        if not whole:
            raise Damaged(f"{STATE} is not what it was")
        if state["format"] != FORMAT:
            raise UserError(f"{place} has format {state['format']}, expected {FORMAT}; it needs another version of regard")
        model, training = (_read_tensors(place / name, state["sha256"][name]) for name in (MODEL, TRAINING))
        return Checkpoint(update, state["numbers"], model, training)

    def average(self, updates: list[int]) -> dict[str, Tensor]:
        """The mean weights of these checkpoints."""
        total: dict[str, Tensor] = {}
        for update in updates:
            for name, tensor in self.read(update).model.items():
                total[name] = total[name] + tensor.double() if name in total else tensor.double()
        return {name: (tensor / len(updates)).float() for name, tensor in total.items()}

    def _place(self, update: int) -> Path:
        return self.folder / f"update-{update:08}"

    def _clean(self) -> None:
        """What a killed process left behind."""
        for left in self._unfinished():
            shutil.rmtree(left, ignore_errors=True)

    def _unfinished(self) -> Iterator[Path]:
        return self.folder.glob(".update-*-new-*")


def _read_tensors(path: Path, digest: str) -> dict[str, Tensor]:
    try:
        content = path.read_bytes()
        if sha256(content) != digest:
            raise Damaged(f"{path.name} is not what it was ({len(content):,} bytes)")
        tensors: dict[str, Tensor] = load_tensors(content)
    except OSError as error:
        raise Damaged(f"{path.name}: {error.strerror}") from None
    except SafetensorError as error:
        raise Damaged(f"{path.name}: {error}") from None
    for name, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            raise Damaged(f"{path.name}: {name} holds numbers that are not finite")
    return tensors


def _digest(state: Mapping[str, Any]) -> str:
    return sha256(json.dumps(state, sort_keys=True).encode())
