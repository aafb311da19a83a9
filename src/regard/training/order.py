"""What a user orders from training, whether on the command line or from Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeGuard

from regard.errors import UserError
from regard.layers.scores import ScoreMaker
from regard.models.build import FAMILIES
from regard.training.config import read_config
from regard.training.run_folder import RunFolder
from regard.training.settings import RunSettings, StartSettings
from regard.training.spool import DATA, HELD_OUT, Spool

Files = tuple[Path, ...]
Rows = Iterable[Any]
"""Pairs or dictionaries in memory (see `training.spool`)."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """A model to train, on some data.

    data, held_out: files with pairs, or a run file; or rows in memory.
    out: the model folder.  save: whether to write it; its run folder is written in any case.
    settings: complete settings, or the file that has them, if they are not chosen from the data.
    reading: data settings by name, such as source_columns; empty ones are ignored.
    changes: settings by key, such as {"train.steps": 300}.  scores: custom score functions by name.
    minutes: how long the run may take; the number of updates is then fixed before the first (see `training.minutes`).
    operations: how many operations the run may take, to the same effect (see `training.operations`).
    portable: whether to train a model that other toolkits can run, too.
    start: the model to start from.  tensorboard: whether to write the log for TensorBoard, too.
    overwrite: whether to start over, and to replace the model folder if it exists.
    """

    data: Files | Rows
    held_out: Files | Rows = ()
    out: Path
    save: bool = True
    settings: RunSettings | Path | None = None
    reading: Mapping[str, Any] = field(default_factory=dict)
    changes: Mapping[str, Any] = field(default_factory=dict)
    scores: Mapping[str, ScoreMaker] = field(default_factory=dict)
    minutes: float | None = None
    operations: float | None = None
    portable: bool = False
    start: StartSettings = StartSettings()
    tensorboard: bool = False
    overwrite: bool = False

    @property
    def files(self) -> Files:
        """The files with the pairs, or the run file."""
        return self.data if are_files(self.data) else ()

    @property
    def run_file(self) -> Path | None:
        """The file that has the settings, if there is one."""
        return self.settings if isinstance(self.settings, Path) else find_run_file(self.files)

    @property
    def settings_from(self) -> str:
        """Where the settings come from."""
        if isinstance(self.settings, RunSettings):
            return "as given"
        return f"from {self.run_file}" if self.run_file else "chosen from the data"

    def complete_settings(self, defaults: Mapping[str, Any] | None = None) -> RunSettings | None:
        """Returns the settings of the run file, or those that were given; None if they are to be chosen from the data.

        defaults: settings that a run file may lack, by key."""
        if isinstance(self.settings, RunSettings):
            return self.settings
        return read_config(self.run_file, self.scores, defaults) if self.run_file else None

    def start_settings(self) -> StartSettings:
        """Returns the settings of what the run starts from: those of the order or, if it has none, of the run file."""
        complete = None if self.start != StartSettings() else self.complete_settings()
        return complete.start if complete else self.start

    def with_options(self, settings: RunSettings, start: StartSettings) -> RunSettings:
        """Returns settings with the files and the data settings of this order."""
        files = () if find_run_file(self.files) else self.files
        held_out = self.held_out if are_files(self.held_out) else ()
        options = {"files": tuple(map(str, files)), "held_out_files": tuple(map(str, held_out)), **self.reading}
        data = replace(settings.data, **{name: value for name, value in options.items() if value})
        return replace(settings, data=data, start=start)

    def in_files(self, run_folder: RunFolder, *, resuming: bool) -> Order:
        """Returns an order whose data is in files: rows in memory are written to the run folder. resuming: whether its run
        continues, with the same rows. Raises UserError."""
        files, reading = [], dict(self.reading)
        for rows, name in ((self.data, DATA), (self.held_out, HELD_OUT)):
            if are_files(rows):
                files.append(rows)
                continue
            columns = reading.get("source_columns") or (), reading.get("target_column") or ""
            spool = Spool(run_folder.path / name, *columns, texts=self._takes_texts())
            spool.write(rows, resuming=resuming)
            files.append((spool.path,))
            if spool.source_columns:
                reading.update(source_columns=spool.source_columns, target_column=spool.target)
        return replace(self, data=files[0], held_out=files[1], reading=reading)

    def _takes_texts(self) -> bool:
        """Returns whether rows may be texts alone: the model learns from texts, or is one that may."""
        kind = self.changes.get("model.kind")
        if kind in FAMILIES:
            return bool(FAMILIES[kind].settings().traits.learns_from == "texts")
        complete = self.complete_settings()
        return bool(self.start.model) or (complete is not None and complete.model.traits.learns_from == "texts")


def are_files(data: Files | Rows) -> TypeGuard[Files]:
    """Returns whether the data is in files."""
    return isinstance(data, tuple) and all(isinstance(file, Path) for file in data)


def find_run_file(files: Files) -> Path | None:
    """Returns the run file (.yaml), or None if these are data files. Raises UserError if there are both."""
    runs = [file for file in files if file.suffix in (".yaml", ".yml")]
    if runs and len(files) > 1:
        raise UserError(
            f"{runs[0]} is a run file, so no other files are accepted; name the data in it, as data.files, or with --set "
            "data.files=…"
        )
    return runs[0] if runs else None
