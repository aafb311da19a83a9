"""A run from beginning to end: reads the data, chooses the settings, trains or continues, and saves the model.

The command `regard train` and the function `regard.train` are doors to `train_model`.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch
from rich.console import Console

from regard.checkpoint import folder
from regard.checkpoint.lock import locked
from regard.training.board import check_tensorboard
from regard.training.callbacks import Listener
from regard.training.choice import Choice, choose
from regard.training.minutes import check_minutes, describe_fixed, fit_to_minutes
from regard.training.operations import fit_to_operations
from regard.training.order import Order
from regard.training.overrides import describe
from regard.training.ranks import Ranks, shared_out
from regard.training.resume import Previous, write_settings
from regard.training.run import Trained, run
from regard.training.run_folder import RunFolder
from regard.training.suggest import expectation
from regard.training.tokenise import check_tags, from_files
from regard.training.transfer import Start
from regard.training.validation import Prediction


def train_model(
    order: Order,
    console: Console,
    device: torch.device,
    listener: Listener | None = None,
    ranks: Ranks | None = None,
) -> Trained:
    """Trains a model, or continues to train it if its run was interrupted, and saves it.

    listener: called after every update. ranks: the processes that train it together, of which this is the first.
    Raises UserError.
    """
    ranks = ranks or Ranks()
    since = time.monotonic()
    check_minutes(order.minutes, order.changes)
    if order.tensorboard:
        check_tensorboard()
    with locked(order.out):
        folder.recover(order.out)
        run_folder = RunFolder.for_model(order.out, tensorboard=order.tensorboard)
        run_folder.clean()
        resuming = not order.overwrite and run_folder.started
        folder.check_destination(order.out, replace=order.overwrite or resuming)
        start = Start.load(order.start_settings(), order.scores)
        previous = Previous.read(run_folder, order.scores) if resuming else None
        order = order.in_files(run_folder, resuming=resuming)
        status: AbstractContextManager[object] = (
            console.status("reading the data") if console.is_terminal and not console.quiet else nullcontext()
        )
        with status:
            choice = choose(order, start, previous)
        if previous and (order.minutes or order.operations):
            choice = as_before(choice, previous, console, "--minutes" if order.minutes else "operations")
        choice = for_ranks(choice, order, previous, ranks)
        start.check(choice.settings)
        if previous:
            previous.check(choice.settings, order)
        print_choice(choice, order, run_folder, console)
        trained = _train(choice, order, start, previous, run_folder, console, device, listener, since, ranks)
        if order.save:
            folder.save(trained.saved, order.out, replace=True)
    return trained


def _train(
    choice: Choice,
    order: Order,
    start: Start,
    previous: Previous | None,
    run_folder: RunFolder,
    console: Console,
    device: torch.device,
    listener: Listener | None,
    since: float,
    ranks: Ranks,
) -> Trained:
    """Tokenises the data, writes run.yaml and makes all updates. since: the `time.monotonic()` at which the run began."""
    settings, reasons, resuming = choice.settings, choice.reasons, previous is not None
    start.check_origin(previous.origin if previous else {})
    if not resuming:
        run_folder.clear()
    training_data = from_files(
        settings.data,
        choice.surveyed,
        run_folder.path,
        console,
        start.codecs,
        resuming=resuming,
        origin=previous.origin if previous else {},
    )
    training_data = replace(training_data, origin={**training_data.origin, **start.origin})
    if settings.model.traits.learns_from == "tags":
        check_tags(training_data, settings.data)
    if order.minutes and not resuming:
        settings, pace = fit_to_minutes(
            order.minutes,
            settings,
            training_data,
            start,
            device,
            scores=order.scores,
            since=since,
            keep_validations="train.validate_every" in order.changes,
        )
        console.print(f"train.steps={settings.train.steps}: {pace}")
    if order.operations and not resuming:
        settings, pace = fit_to_operations(order.operations, settings, training_data, start, device, order.scores)
        console.print(f"train.steps={settings.train.steps}: {pace}")
    if order.minutes:
        reasons = {**reasons, "train.steps": f"as many as --minutes {order.minutes:g} allows"}
    if write_settings(run_folder, order, settings, reasons, resuming=resuming) and resuming:
        console.print(f"{run_folder.config} was rewritten with the settings that this run continues with")
    if resuming and not run_folder.checkpoints(1).updates():
        console.print("this run had no checkpoint yet; it starts again from update 0")
    return run(
        training_data,
        settings,
        console,
        device,
        run_folder=run_folder,
        scores=order.scores,
        transfer=start.transfer,
        start_from=start.parent,
        teacher=start.teacher,
        reasons=reasons,
        listener=listener,
        ranks=ranks,
    )


def as_before(choice: Choice, previous: Previous, console: Console, budget: str) -> Choice:
    """Returns a choice with the number of updates, and of updates between validations, that a run with --minutes or a number of
    operations began with."""
    fixed = {name: previous.settings["train"][name] for name in ("steps", "validate_every")}
    console.print(describe_fixed(fixed["steps"], budget))
    return replace(choice, settings=replace(choice.settings, train=replace(choice.settings.train, **fixed)))


SHARED = ("train.accumulate", "train.batch_tokens")
"""The settings that `for_ranks` chooses."""


def for_ranks(choice: Choice, order: Order, previous: Previous | None, ranks: Ranks) -> Choice:
    """Returns a choice whose updates have a micro-batch for each process, if its settings are chosen from the data. A run that
    continues keeps those that it began with, whatever the number of processes."""
    if order.complete_settings() or any(key in order.changes for key in SHARED):
        return choice
    train = choice.settings.train
    if previous:
        before = {key.removeprefix("train."): previous.settings["train"][key.removeprefix("train.")] for key in SHARED}
        return replace(choice, settings=replace(choice.settings, train=replace(train, **before)))
    if train.accumulate >= ranks.size:
        return choice
    settings = replace(choice.settings, train=shared_out(train, ranks.size))
    return replace(choice, settings=settings, reasons={**choice.reasons, SHARED[0]: f"one for each of {ranks.size} processes"})


def print_choice(choice: Choice, order: Order, run_folder: RunFolder, console: Console) -> None:
    """Prints a description of the data and the settings of the run."""
    counts = choice.surveyed.counts
    console.print(counts.describe())
    if counts.noun == "pair" and (advice := expectation(counts.pairs)):
        console.print(advice)
    where = f"all of them: {run_folder.config}; " if order.save else ""  # or else that file is temporary
    console.print(f"settings {order.settings_from}; {where}change any with --set")
    measured = {"train.steps"} if order.minutes else set()  # it is known, and printed, later
    console.print(describe(choice.settings, {key: why for key, why in choice.reasons.items() if key not in measured}))


def print_result(trained: Trained, console: Console) -> None:
    """Prints how good the model is, some of its outputs, and some errors."""
    console.print(f"\nheld out: {trained.rates}\n          {trained.signature}\n\n{trained.assessment}")
    wrong = (prediction for prediction in trained.predictions if isinstance(prediction, Prediction) and not prediction.right)
    worst = sorted(wrong, key=lambda prediction: prediction.result.log_prob)
    for title, predictions in (("some outputs", trained.predictions), ("wrong outputs, the least probable first", worst)):
        if predictions:
            console.print(f"\n{title}:")
        for prediction in predictions[:5]:
            console.print(f"  {prediction}")
