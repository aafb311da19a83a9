"""What a run does after its updates: it shows and logs its progress, validates, saves checkpoints and the best weights, stops
if it is interrupted, and finally chooses the best weights."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from itertools import takewhile

from torch import Tensor

from regard.checkpoint.runs import Checkpoint, Damaged
from regard.errors import UserError, plural
from regard.training.interrupts import Interrupted, on_interrupt
from regard.training.learner import Learner
from regard.training.loop import Update, after_validation
from regard.training.progress import OnUpdate
from regard.training.run_folder import RunFolder
from regard.training.settings import TrainSettings
from regard.training.validation import NUM_SHOWN, Validator

Listener = Callable[[Update], object]
"""A function of the user that is called after every update. If it returns False, the run stops there."""


class RunCallbacks:
    """The callbacks of a run: show and log its progress, validate the model, save checkpoints and the best weights."""

    def __init__(
        self, learner: Learner, validator: Validator, run_folder: RunFolder | None, listener: Listener | None = None
    ) -> None:
        self.learner, self.validator, self.run_folder, self.listener = learner, validator, run_folder, listener
        self.settings, self.console = validator.settings, validator.console
        self.show: OnUpdate = lambda update: None
        self.interrupted = False
        self.stopped = False
        """Whether the listener stopped the run. Unlike an interrupted run, it ends with the weights that it has."""
        self.curve: dict[int, float] = {}
        """The held-out loss by the number of updates."""
        if run_folder:
            self.checkpoints = run_folder.checkpoints(self.settings.train.keep)
            self.best = run_folder.best()
            self.best_saved = 0  # the update whose weights are the best according to the last checkpoint

    # --- called by the loop

    def on_update(self, update: Update) -> None:
        self.show(update)
        if self.run_folder:
            self.run_folder.log(
                {
                    "update": update.number + 1,
                    "loss": update.loss,
                    "norm": update.norm,
                    "learning_rate": update.learning_rate,
                    "targets": update.num_targets,
                    "time": round(time.time(), 3),
                }
            )
        if self.listener and self.listener(update) is False:
            self.stopped = self.interrupted = True

    def validate(self, which: str = "") -> float:
        """Measures the held-out loss and the metric; prints and logs them. Returns the metric; lower is better. which: a name
        for the weights, if they are not the current ones."""
        update = self.learner.state.update
        with self.learner.evaluation_weights():
            validation = self.validator.validate()
        figures, predictions = validation.figures, validation.predictions
        if not which:
            self.curve[update] = figures["loss"]
        when = f"of {which}" if which else f"after update {update}"
        self.console.print(f"validation {when}: {validation.describe(self.validator.held_out.num_sources)}")
        for prediction in predictions[:NUM_SHOWN]:
            self.console.print(f"  {prediction}")
        if self.run_folder:
            self.run_folder.log(
                {"update": update, "weights": which or "current", "sources": len(predictions), "validation": figures}
            )
            self.run_folder.draw_curves()
        return validation.value(self.settings.train.metric)

    def save_best(self) -> None:
        if self.settings.train.weights == "last":
            return
        with self.learner.evaluation_weights() as model:
            if self.run_folder:
                self.best.write(Checkpoint(self.learner.state.update, {}, model.state_dict(), {}), (self.best_saved,))
            else:
                self.best_weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    def checkpoint(self) -> None:
        if not self.run_folder:
            return
        self.run_folder.sync()
        state = self.learner.state
        origin = {**self.validator.training_data.origin, "settings": asdict(self.settings)}
        self.checkpoints.write(self.learner.checkpoint(origin), averaged(self.settings.train, state.update))
        self.best_saved = state.best_at
        self.best.prune((self.best_saved,))
        if self.interrupted and not self.stopped:
            raise Interrupted(
                f"training stopped after update {state.update} of {self.settings.train.steps} and was saved in "
                f"{self.run_folder.path}; run the same command to continue"
            )

    # --- before and after

    def resume(self) -> None:
        """Restores the last checkpoint, if there is one, and removes what was logged and saved after it."""
        if not self.run_folder:
            return
        checkpoint = self.checkpoints.newest(self.console.print, self.learner.check)
        update = checkpoint.update if checkpoint else 0
        if checkpoint:
            self.learner.restore(checkpoint)
            self.best_saved = self.learner.state.best_at
            self.console.print(f"resuming after update {update} of {self.settings.train.steps}")
        self.run_folder.open_log(update, self.console.print)
        self.curve = self.run_folder.held_out_curve()
        self.best.forget_after(update)
        self.checkpoints.prune(averaged(self.settings.train, update))
        self.best.prune((self.best_saved,))

    def choose_weights(self) -> None:
        """Loads the weights that train.weights asks for, and prints which they are. The best ones are those of the best
        validation so far, the last ones, or the average of the last checkpoints; of equal results, the earliest counts."""
        with self.learner.evaluation_weights() as model:
            last = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        self.learner.average = []
        updates = averaged(self.settings.train, self.learner.state.update) if self.run_folder else []
        average = {f"{plural(len(updates), 'checkpoint')}, averaged": self._average(updates)} if updates else {}
        last_name = f"update {self.learner.state.update}"
        if self.settings.train.weights == "last":
            name, weights = next(iter({**average, last_name: last}.items()))
        else:
            name, weights = self._best(last_name, last, average)
        self.console.print(f"the model has the weights of {name}")
        self.learner.model.load_state_dict(weights)
        self.learner.model.eval()

    def _best(
        self, last_name: str, last: Mapping[str, Tensor], average: Mapping[str, Mapping[str, Tensor]]
    ) -> tuple[str, Mapping[str, Tensor]]:
        """Returns the name and the weights with the best validation result; what was not validated yet is validated first."""
        state, learner, others = self.learner.state, self.learner, dict(average)
        name, best = last_name, last
        if state.best is not None:
            name, best = f"update {state.best_at}", self._best_weights()
            if state.update % self.settings.train.validate_every:
                others = {"the last update": last, **average}
        elif average:
            learner.model.load_state_dict(last)
            state = after_validation(state, self.validate("the last update"))
        for other, weights in others.items():
            learner.model.load_state_dict(weights)
            state = after_validation(state, self.validate(other))
            if state.stale == 0:
                name, best = other, weights
        return name, best

    def _best_weights(self) -> Mapping[str, Tensor]:
        if not self.run_folder:
            return self.best_weights
        try:
            return self.best.read(self.learner.state.best_at).model
        except Damaged as error:
            raise UserError(
                f"the best weights of this run, {self.best.folder}, are damaged: {error}; restore that folder from a copy, "
                "or repeat the run with --overwrite"
            ) from None

    def _average(self, updates: list[int]) -> Mapping[str, Tensor]:
        try:
            return self.checkpoints.average(updates)
        except Damaged as error:
            whole = len(list(takewhile(self.checkpoints.is_whole, reversed(updates))))
            number = whole if whole > 1 else 0
            raise UserError(
                f"train.average={self.settings.train.average} averages the checkpoints of the updates "
                f"{', '.join(map(str, updates))}, but {error}; restore it from a copy, or run the same command with "
                f"--set train.average={number}, which averages {f'the last {number}' if number else 'none'}"
            ) from None

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Lets SIGINT (Ctrl-C) and SIGTERM stop the run after the current update, with a checkpoint; a second signal stops it
        at once."""
        if not self.run_folder:
            yield
            return

        def stop() -> None:
            if self.interrupted:
                raise KeyboardInterrupt
            self.interrupted = True

        with on_interrupt(stop):
            yield


def averaged(train: TrainSettings, update: int) -> list[int]:
    """Returns the updates whose checkpoints are averaged if the run ends with this one: the last regular ones, whether or not
    the run was interrupted."""
    last = update // train.checkpoint_every
    first = max(1, last - train.average + 1)
    return [number * train.checkpoint_every for number in range(first, last + 1)] if train.average > 1 else []
