"""Checkpoints of a run, each a folder `update-00000500` of plain files, there whole or not at all.

model.safetensors       the weights
training.safetensors    moments of the optimiser, moving averages
state.json              counts, what was learnt with (settings, data), the sha256 of the others, and of itself
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from torch import Tensor

from regard.checkpoint import migrate
from regard.checkpoint.files import clean, discard, sha256, sibling, sync_folder, tensor_bytes, write, writing
from regard.checkpoint.migrate import FORMAT
from regard.errors import UserError, one_line

MODEL, TRAINING, STATE = "model.safetensors", "training.safetensors", "state.json"


@dataclass(frozen=True)
class Checkpoint:
    """All that a run needs to go on. numbers, origin: what can stand in JSON; origin is what the run has learnt with, and empty
    in checkpoints of versions that did not write it."""

    update: int
    numbers: Mapping[str, Any]
    model: Mapping[str, Tensor]
    training: Mapping[str, Tensor]
    origin: Mapping[str, Any] = field(default_factory=dict)


class Damaged(Exception):
    """A checkpoint that cannot be used, with what is wrong with it."""


class Checkpoints:
    """Those of one run. The last `keep` of them stay. A kill between any two calls of the system leaves each of them whole."""

    def __init__(self, folder: Path, *, keep: int) -> None:
        self.folder, self.keep = folder, keep

    def updates(self) -> list[int]:
        """Of which updates there are checkpoints, the first one first."""
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UserError(
                f"{self.folder} cannot be read: {error.strerror}; allow reading it, or begin anew with --overwrite"
            ) from None
        found = (re.fullmatch(r"update-(\d{8,})", name) for name in names)
        return sorted(int(match[1]) for match in found if match)

    def write(self, checkpoint: Checkpoint, needed: Collection[int] = ()) -> None:
        """An error leaves the earlier ones as they are. needed: of which updates others stay, besides the last few."""
        files = {MODEL: tensor_bytes(checkpoint.model), TRAINING: tensor_bytes(checkpoint.training)}
        state = {
            "format": FORMAT,
            "update": checkpoint.update,
            "numbers": dict(checkpoint.numbers),
            **({"origin": dict(checkpoint.origin)} if checkpoint.origin else {}),
            "sha256": {name: sha256(content) for name, content in files.items()},
        }
        files[STATE] = json.dumps({**state, "self": _digest(state)}, indent=2).encode()
        folder = self._folder(checkpoint.update)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            clean(self.folder)
            fresh = sibling(folder, "new")
            fresh.mkdir()
            for name, content in files.items():
                write(fresh / name, content)
            sync_folder(fresh)
            discard(folder)  # of a run that was cut back to an earlier one
            fresh.rename(folder)
            sync_folder(self.folder)
        except OSError as error:
            clean(self.folder)
            kept = f"the last one is of update {self.updates()[-1]}" if self.updates() else "there is none yet"
            raise UserError(
                f"the checkpoint of update {checkpoint.update} cannot be written to {self.folder}: {error.strerror}; {kept}. "
                "Make room, and type the same command again: the run goes on from there"
            ) from None
        self.prune(needed)

    def prune(self, needed: Collection[int] = ()) -> None:
        """Removes all but the last few and those that are needed, and what a killed process left behind."""
        with writing(self.folder):
            clean(self.folder)
            for update in self.updates()[: -self.keep]:
                if update not in needed:
                    discard(self._folder(update))

    def newest(self, report: Callable[[str], None], check: Callable[[Checkpoint], None] | None = None) -> Checkpoint | None:
        """The last one that is whole. Tells about those that are not; they are put aside. check: raises Damaged if it is of no
        use to this run."""
        for update in reversed(self.updates()):
            try:
                found = self.read(update)
                if check:
                    check(found)
                return found
            except Damaged as error:
                aside = sibling(self._folder(update), "damaged")
                with writing(aside):
                    self._folder(update).rename(aside)
                used = f"that of update {earlier[-1]} is used" if (earlier := self.updates()) else "the run begins again"
                report(f"the checkpoint of update {update} is damaged: {error}; it is kept as {aside}, and {used}")
        return None

    def learnt(self) -> tuple[int, Mapping[str, Any]]:
        """How many updates the last checkpoint has seen, and its `origin`; (0, {}) where there is none that can be read."""
        for update in reversed(self.updates()):
            try:
                return update, self._state(update).get("origin", {})
            except Damaged:  # `newest` tells about it
                continue
        return 0, {}

    def forget_after(self, update: int) -> None:
        """Those of updates that are going to happen again."""
        with writing(self.folder):
            for later in self.updates():
                if later > update:
                    discard(self._folder(later))

    def read(self, update: int) -> Checkpoint:
        folder, state = self._folder(update), self._state(update)
        parts = (_read_tensors(folder / name, state["sha256"].get(name)) for name in (MODEL, TRAINING))
        model, training = (migrate.weights(part, state["format"]) for part in parts)
        return Checkpoint(update, state["numbers"], model, training, state.get("origin", {}))

    def _state(self, update: int) -> dict[str, Any]:
        """state.json, checked as far as its digests reach."""
        folder = self._folder(update)
        try:
            state: dict[str, Any] = json.loads((folder / STATE).read_bytes())
            whole = state.pop("self") == _digest(state)
            number = state["format"]
        except OSError as error:
            raise Damaged(f"{STATE} cannot be read ({error.strerror})") from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise Damaged(f"{STATE} cannot be read ({one_line(repr(error), 120)})") from None
        if not whole:
            raise Damaged(f"{STATE} is not what it was")
        if number not in (1, FORMAT):
            raise UserError(f"{folder} has format {number}, expected {FORMAT} or 1; it needs another version of regard")
        if state.get("update") != update:
            raise Damaged(f"{STATE} is of update {state.get('update')!r}")
        for key, value in (
            ("numbers", state.get("numbers")),
            ("sha256", state.get("sha256")),
            ("origin", state.get("origin", {})),
        ):
            if not isinstance(value, dict):
                raise Damaged(f"{STATE} has {value!r} as {key}, expected values by name")
        return migrate.checkpoint(state)

    def is_whole(self, update: int) -> bool:
        try:
            self.read(update)
        except Damaged:
            return False
        return True

    def average(self, updates: list[int]) -> dict[str, Tensor]:
        """The mean weights of these checkpoints."""
        total: dict[str, Tensor] = {}
        for update in updates:
            try:
                model = self.read(update).model
            except Damaged as error:
                raise Damaged(f"that of update {update} is damaged: {error}") from None
            for name, tensor in model.items():
                total[name] = total[name] + tensor.double() if name in total else tensor.double()
        return {name: (tensor / len(updates)).float() for name, tensor in total.items()}

    def _folder(self, update: int) -> Path:
        return self.folder / f"update-{update:08}"


def _read_tensors(path: Path, digest: object) -> dict[str, Tensor]:
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
