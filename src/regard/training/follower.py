"""A process that trains a model together with process 0 of the run, and writes nothing (see `training.ranks`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import torch

from regard.checkpoint.runs import Damaged
from regard.errors import UserError
from regard.layers.scores import ScoreMaker
from regard.training.config import read_config
from regard.training.console import RunConsole
from regard.training.interrupts import on_interrupt
from regard.training.learner import Learner
from regard.training.loop import Update, train
from regard.training.ranks import Ranks
from regard.training.run import first_model
from regard.training.run_folder import RunFolder
from regard.training.tokenise import tokenised_before
from regard.training.transfer import Start


class Following:
    """Callbacks that leave everything to process 0, but stop the run if this process is interrupted."""

    interrupted = False

    def on_update(self, update: Update) -> None:
        pass

    def validate(self) -> float:
        return math.nan  # process 0 has the result

    def save_best(self) -> None:
        pass

    def checkpoint(self) -> None:
        pass

    def stop(self) -> None:
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True


def follow(out: Path, scores: Mapping[str, ScoreMaker], device: torch.device, ranks: Ranks) -> None:
    """Waits until process 0 of a run begins to train, and then makes the same updates. out: the model folder.

    Raises UserError.
    """
    callbacks, quiet = Following(), RunConsole(quiet=True)
    with on_interrupt(callbacks.stop):
        update = ranks.announced()["update"]
        run_folder = RunFolder.for_model(out)
        settings = read_config(run_folder.config, scores)
        start, mask = Start.load(settings.start, scores), settings.model.traits.mask
        data = tokenised_before(settings.data, run_folder.path)
        model = first_model(data, settings, quiet, scores, start.transfer, start.parent).to(device)
        learner = Learner(model, settings.train)
        if update:
            try:
                learner.restore(run_folder.checkpoints(1).read(update))
            except Damaged as error:
                raise UserError(f"{run_folder.path}: the checkpoint of update {update} is damaged: {error}") from None
        batches = data.batches(settings.train, settings.data.subword_dropout, settings.seed, settings.data.augment, mask)
        teacher = start.teacher.to(device).eval() if start.teacher else None
        train(learner, batches, settings.train, seed=settings.seed, callbacks=callbacks, teacher=teacher, ranks=ranks)
