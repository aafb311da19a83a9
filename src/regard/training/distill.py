"""Distillation: trains one model that learns from others, `regard distill` as a function."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from regard.checkpoint.ensemble import members_of
from regard.errors import UserError
from regard.layers.scores import ScoreMaker
from regard.pipeline import Translator
from regard.training.order import Order
from regard.training.overrides import keys_of
from regard.training.settings import StartSettings
from regard.training.train import Data, Path_, columns, given_data, train_order


def distill(
    teachers: Path_ | Sequence[Path_],
    data: Data,
    out: Path_ | None = None,
    *,
    held_out: Data | None = None,
    source: str | int | Sequence[str | int] | None = None,
    target: str | int | None = None,
    scores: Mapping[str, ScoreMaker] | None = None,
    minutes: float | None = None,
    overwrite: bool = False,
    device: str | torch.device = "auto",
    threads: int | None = None,
    quiet: bool = False,
    **overrides: object,
) -> Translator:
    """Trains one model that learns from several, and returns it: `regard.distill(["a", "b", "c"], pairs, "small")`.

    The new model is trained on pairs like any other, but each target token counts only by half. The other half is the mean of
    the distributions of the teachers, given the same tokens before it. The model has the vocabularies and, unless others are
    given, the settings of the first teacher.

    teachers: the folder of an ensemble, a model folder, or a list of folders.
    data: pairs, those of the teachers or others, in any form that `regard.train` takes.
    overrides: settings by name, such as steps=300 or teacher_weight=0.9.
    out, held_out, source, target, scores, minutes, overwrite, device, threads, quiet: as in `regard.train`. A run that was
    interrupted continues, too.

    Raises UserError if the teachers do not fit together, and as `regard.train` does.

    >>> pairs = [("cab", "C A B"), ("bad", "B A D"), ("ace", "A C E"), ("dab", "D A B")]
    >>> model = regard.distill(["model", "model"], pairs, steps=50, width=32, learning_rate=0.01, quiet=True)
    >>> model("cab").text
    'C A B'
    """
    changes = keys_of(overrides, "distill")

    def order(folder: Path) -> Order:
        return Order(
            data=given_data(data, "data"),
            held_out=() if held_out is None else given_data(held_out, "held_out"),
            out=folder,
            save=out is not None,
            reading={"source_columns": columns(source), "target_column": "".join(columns(target))},
            changes=changes,
            scores=scores or {},
            minutes=minutes,
            start=teachers_of([teachers] if isinstance(teachers, str | os.PathLike) else teachers),
            overwrite=overwrite,
        )

    return train_order(order, out, device=device, threads=threads, quiet=quiet)


def teachers_of(folders: Sequence[Path_]) -> StartSettings:
    """Returns what a run starts from that learns from the models in these folders, of which some may be ensembles.
    Raises UserError if there are none."""
    teachers = tuple(str(member) for folder in folders for member in members_of(Path(folder)))
    if not teachers:
        raise UserError("got no teachers, expected at least one model folder to learn from")
    return StartSettings(teachers=teachers)
