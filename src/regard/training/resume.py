"""What a run did before: whether it may continue with the settings of today, and what to do if it may not."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from regard.checkpoint.migrate import FUSION_SCORE
from regard.errors import UserError, plural
from regard.layers.scores import ScoreMaker
from regard.training.config import read_config, save_config
from regard.training.loop import num_warmup, same_rates
from regard.training.order import Order, find_run_file
from regard.training.overrides import leaves
from regard.training.run_folder import RunFolder
from regard.training.settings import OLDER, DataSettings, RunSettings, TrainSettings

RATES = ("train.steps", "train.warmup", "train.schedule", "train.learning_rate")
"""Settings that the learning rate depends on. A run continues with other values if they give the same rates so far."""
AT_THE_END = ("train.average",)
"""Settings that matter only when a run ends, and may change until then."""


@dataclass(frozen=True)
class Previous:
    """What a run was trained with so far.

    num_updates: the number of updates of its last checkpoint; 0 if there is none. origin: what that checkpoint says of the
    settings and the data. settings: all its settings, as nested dictionaries.
    """

    num_updates: int
    origin: Mapping[str, Any]
    settings: Mapping[str, Any]

    @classmethod
    def read(cls, run_folder: RunFolder, scores: Mapping[str, ScoreMaker]) -> Previous:
        """Reads the last checkpoint; see `of`."""
        return cls.of(run_folder, *run_folder.checkpoints(1).last_origin(), scores)

    @classmethod
    def of(
        cls, run_folder: RunFolder, num_updates: int, origin: Mapping[str, Any], scores: Mapping[str, ScoreMaker]
    ) -> Previous:
        """Takes the settings from the origin of a checkpoint or, if there is none, or if an earlier version of regard wrote it,
        from run.yaml. Raises UserError if neither has them."""
        if "settings" in origin:
            return cls(num_updates, origin, origin["settings"])
        if not run_folder.config.exists():
            raise UserError(
                f"{run_folder.path} holds checkpoints, but no {run_folder.config.name} with their settings; restore that file, "
                "or start over with another --out, or with --overwrite"
            )
        return cls(num_updates, origin, asdict(read_config(run_folder.config, scores, OLDER, old_names=True)))

    @property
    def defaults(self) -> dict[str, Any]:
        """Defaults of settings with which the run continues, by key."""
        fusion_score = self.settings["model"].get("fusion_score", FUSION_SCORE)
        return {"data.normalise": self.settings["data"]["normalise"], "model.fusion_score": fusion_score}

    def check(self, settings: RunSettings, order: Order) -> None:
        """Raises UserError if the run cannot continue with these settings."""
        old, new = self._leaves(settings), _leaves(asdict(settings))
        changed = [key for key in {**old, **new} if old.get(key) != new.get(key)]
        if not changed:
            return
        longer = ""
        if set(changed) <= {*RATES, *AT_THE_END}:
            old_train = replace(settings.train, **{key.removeprefix("train."): old[key] for key in RATES})
            if self.num_updates <= settings.train.steps and same_rates(old_train, settings.train, self.num_updates):
                return
            longer = self._how_to_train_longer(old_train, settings, order)
        what = "; ".join(f"{key} was {old.get(key)} and is now {new.get(key)}" for key in changed[:5])
        more = f" and {len(changed) - 5} more" if len(changed) > 5 else ""
        raise UserError(
            f"{order.out}.run holds a run with other settings, which was not modified: {what}{more}. {longer}To continue that "
            "run, repeat its command; to start over, choose another --out, or use --overwrite"
        )

    def _leaves(self, settings: RunSettings) -> dict[str, Any]:
        """Returns the settings of the run by key; those that an older version did not have get their defaults."""
        known = _leaves(asdict(replace(RunSettings(), model=type(settings.model)())))
        return {**known, **{key: value for key, value in OLDER.items() if key in known}, **_leaves(self.settings)}

    def _how_to_train_longer(self, old_train: TrainSettings, settings: RunSettings, order: Order) -> str:
        """Returns a sentence on how to train for more updates than a run started with; "" if no more are requested."""
        new_train = settings.train
        if new_train.steps <= old_train.steps:
            return ""
        warmup = float(f"{num_warmup(old_train) / new_train.steps:.6g}")
        if same_rates(old_train, replace(new_train, warmup=warmup), self.num_updates):
            return (
                f"Its learning rate warms up for {plural(num_warmup(old_train), 'update')}; to train longer with the same "
                f"warm-up, add --set train.warmup={warmup:g}. "
            )
        options = [] if find_run_file(order.files) else _reading_options(settings.data)
        command = ["regard", "train", *map(str, order.files), *options, "--start-from", str(order.out)]
        command += ["--out", f"{order.out}-longer", "--set", f"train.steps={new_train.steps - old_train.steps}"]
        return (
            f"Its learning rate ({old_train.schedule}) depends on train.steps, so the run cannot be extended; to train its "
            f"model further once it has ended, type: {shlex.join(command)}. "
        )


def write_settings(
    run_folder: RunFolder, order: Order, settings: RunSettings, reasons: Mapping[str, str], *, resuming: bool
) -> bool:
    """Writes run.yaml and returns True, unless the file of this run, or the run file that was given, has the same settings."""
    if run_folder.config.exists() and (resuming or (order.run_file and run_folder.config.samefile(order.run_file))):
        with suppress(UserError):
            if read_config(run_folder.config, order.scores, OLDER, old_names=resuming) == settings:
                return False
    save_config(run_folder.config, settings, reasons)
    return True


def _leaves(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings by key, as JSON holds them."""
    return dict(leaves(json.loads(json.dumps(tree))))


def _reading_options(data: DataSettings) -> list[str]:
    """Returns the options that read files in the same way."""
    return [
        *(("--from", ",".join(data.source_columns)) if data.source_columns else ()),
        *(("--to", data.target_column) if data.target_column else ()),
        *({"yes": ("--header",), "no": ("--no-header",)}.get(data.header, ())),
        *(("--skip-bad-lines",) if data.bad_lines == "skip" else ()),
        *(word for file in data.held_out_files for word in ("--held-out", file)),
    ]
