"""Checkpoints of a run. Each is a folder of plain files, such as `update-00000500`, that is written atomically.

model.safetensors       the weights
training.safetensors    moments of the optimiser, moving averages
state.json              counts, the origin of the run (settings, data), the sha256 of the other files and of itself
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
    """All that a run needs to continue.

    update: the number of updates.  numbers: counts and other values that JSON can hold.  model: the weights.
    training: tensors of the optimiser and moving averages.
    origin: the settings and data of the run, as JSON values; empty in checkpoints of versions that did not write it.
    """

    update: int
    numbers: Mapping[str, Any]
    model: Mapping[str, Tensor]
    training: Mapping[str, Tensor]
    origin: Mapping[str, Any] = field(default_factory=dict)


class Damaged(Exception):
    """Raised if a checkpoint is damaged; the message says what is wrong with it."""


class Checkpoints:
    """The checkpoints of one run, of which the last `keep` are kept. If the process is killed at any moment, every checkpoint
    is complete or absent."""

    def __init__(self, folder: Path, *, keep: int) -> None:
        self.folder, self.keep = folder, keep

    def updates(self) -> list[int]:
        """Returns the updates that have a checkpoint, in ascending order. Raises UserError if the folder cannot be read."""
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UserError(
                f"{self.folder} cannot be read: {error.strerror}; make it readable, or start over with --overwrite"
            ) from None
        matches = (re.fullmatch(r"update-(\d{8,})", name) for name in names)
        return sorted(int(match[1]) for match in matches if match)

    def write(self, checkpoint: Checkpoint, needed: Collection[int] = ()) -> None:
        """Writes a checkpoint and prunes old ones.

        needed: updates whose checkpoints are kept as well as the last ones.

        Raises UserError if the checkpoint cannot be written; earlier ones then stay as they are.
        """
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
            discard(folder)  # left from before the run was reset to an earlier checkpoint
            fresh.rename(folder)
            sync_folder(self.folder)
        except OSError as error:
            clean(self.folder)
            kept = f"the last one is of update {self.updates()[-1]}" if self.updates() else "there is no earlier one"
            raise UserError(
                f"the checkpoint of update {checkpoint.update} cannot be written to {self.folder}: {error.strerror}; {kept}. "
                "Free some disk space, then run the same command again to continue"
            ) from None
        self.prune(needed)

    def prune(self, needed: Collection[int] = ()) -> None:
        """Removes all checkpoints except the last ones and those of the updates in `needed`, and files of killed processes."""
        with writing(self.folder):
            clean(self.folder)
            for update in self.updates()[: -self.keep]:
                if update not in needed:
                    discard(self._folder(update))

    def newest(self, report: Callable[[str], None], check: Callable[[Checkpoint], None] | None = None) -> Checkpoint | None:
        """Returns the last checkpoint that is not damaged, or None. Damaged ones are renamed and reported.

        report: prints a message.  check: raises Damaged if this run cannot use a checkpoint.
        """
        for update in reversed(self.updates()):
            try:
                checkpoint = self.read(update)
                if check:
                    check(checkpoint)
                return checkpoint
            except Damaged as error:
                aside = sibling(self._folder(update), "damaged")
                with writing(aside):
                    self._folder(update).rename(aside)
                used = f"using that of update {earlier[-1]}" if (earlier := self.updates()) else "the run starts over"
                report(f"the checkpoint of update {update} is damaged: {error}; it was renamed to {aside}; {used}")
        return None

    def last_origin(self) -> tuple[int, Mapping[str, Any]]:
        """Returns the number of updates and the `origin` of the last readable checkpoint; (0, {}) if there is none."""
        for update in reversed(self.updates()):
            try:
                return update, self._state(update).get("origin", {})
            except Damaged:  # `newest` reports it
                continue
        return 0, {}

    def forget_after(self, update: int) -> None:
        """Removes the checkpoints after an update, from which the run will continue."""
        with writing(self.folder):
            for later in self.updates():
                if later > update:
                    discard(self._folder(later))

    def read(self, update: int) -> Checkpoint:
        """Reads a checkpoint. Raises Damaged if it is damaged, and UserError if another version of regard wrote it."""
        folder, state = self._folder(update), self._state(update)
        parts = (_read_tensors(folder / name, state["sha256"].get(name)) for name in (MODEL, TRAINING))
        model, training = (migrate.weights(part, state["format"]) for part in parts)
        return Checkpoint(update, state["numbers"], model, training, state.get("origin", {}))

    def _state(self, update: int) -> dict[str, Any]:
        """Returns the content of state.json, migrated to the current format. Its digest, update and types are checked."""
        folder = self._folder(update)
        try:
            state: dict[str, Any] = json.loads((folder / STATE).read_bytes())
            unchanged = state.pop("self") == _digest(state)
            number = state["format"]
        except OSError as error:
            raise Damaged(f"{STATE} cannot be read ({error.strerror})") from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise Damaged(f"{STATE} cannot be read ({one_line(repr(error), 120)})") from None
        if not unchanged:
            raise Damaged(f"{STATE} does not match its sha256")
        if number not in migrate.READABLE:
            raise UserError(migrate.unreadable(folder, number))
        if state.get("update") != update:
            raise Damaged(f"{STATE} is of update {state.get('update')!r}")
        for key, value in (
            ("numbers", state.get("numbers")),
            ("sha256", state.get("sha256")),
            ("origin", state.get("origin", {})),
        ):
            if not isinstance(value, dict):
                raise Damaged(f"{key} in {STATE} is {value!r}, expected a mapping")
        return migrate.checkpoint(state)

    def is_whole(self, update: int) -> bool:
        """Returns whether a checkpoint can be read and is not damaged."""
        try:
            self.read(update)
        except Damaged:
            return False
        return True

    def average(self, updates: list[int]) -> dict[str, Tensor]:
        """Returns the mean of the weights of these checkpoints. Raises Damaged if one of them is damaged."""
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
    """Reads a safetensors file. Raises Damaged if its sha256 is not `digest`, or if a number is not finite."""
    try:
        content = path.read_bytes()
        if sha256(content) != digest:
            raise Damaged(f"{path.name} does not match its sha256 ({len(content):,} bytes)")
        tensors: dict[str, Tensor] = load_tensors(content)
    except OSError as error:
        raise Damaged(f"{path.name}: {error.strerror}") from None
    except SafetensorError as error:
        raise Damaged(f"{path.name}: {error}") from None
    for name, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            raise Damaged(f"{path.name}: {name} contains numbers that are not finite")
    return tensors


def _digest(state: Mapping[str, Any]) -> str:
    return sha256(json.dumps(state, sort_keys=True).encode())
