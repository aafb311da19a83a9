"""A whole run: trains a model on training data and evaluates it. A run can be interrupted or killed, and resumed."""

from __future__ import annotations

import math
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from itertools import takewhile
from types import FrameType

import torch
from rich.console import Console
from torch import Tensor

from regard.checkpoint.folder import Saved, weights_digest
from regard.checkpoint.runs import Checkpoint, Damaged
from regard.core.losses import projected_loss
from regard.data.batch import BatchOrder, Example, collate, encode_pairs, lengths
from regard.data.labels import visible
from regard.data.sources import auxiliary_vocabulary_size
from regard.data.tokenizers.codec import PAD, REMARKS, Codec
from regard.data.trained import TrainedOn
from regard.errors import UserError, plural
from regard.evaluation import NEEDS_SACREBLEU, ErrorRates, bleu, can_use_sacrebleu
from regard.layers.scores import ScoreMaker
from regard.models.build import Model, build, num_parameters
from regard.pipeline import Translator, known_positions
from regard.signatures import signature, text_fingerprint
from regard.training.assess import Assessment, Losses, assess
from regard.training.data import TrainingData
from regard.training.learner import Learner
from regard.training.loop import Update, after_validation, train
from regard.training.predictions import Prediction, describe_held_out, num_sources, predict, rates_of, sample_of
from regard.training.progress import OnUpdate, progress_bar, with_progress
from regard.training.run_folder import RunFolder
from regard.training.settings import RunSettings, TrainSettings
from regard.training.transfer import Transfer, start_encoder

NUM_SHOWN = 5
"""The number of predictions that a validation prints."""
MOST_DECODED = 500
"""The maximum number of held-out sources that a validation translates, if train.metric is computed from outputs; if there are
more, it translates a sample."""


@dataclass(frozen=True)
class Trained:
    """The result of a run: the model as it is saved, its outputs for the held-out sources, and its quality."""

    saved: Saved
    translator: Translator
    predictions: list[Prediction]
    rates: ErrorRates
    signature: str
    assessment: Assessment


def run(
    training_data: TrainingData,
    settings: RunSettings,
    console: Console,
    device: torch.device,
    *,
    run_folder: RunFolder | None = None,
    scores: Mapping[str, ScoreMaker] | None = None,
    transfer: Transfer | None = None,
    start_from: Saved | None = None,
) -> Trained:
    """Trains a model and evaluates it on the held-out pairs.

    run_folder: the folder for checkpoints and the log, from which the run is resumed; without it, nothing is saved on the way.
    scores: custom score functions by name. transfer: a model whose encoder this one takes over. start_from: a model whose
    weights are trained further. Raises UserError.
    """
    if settings.train.metric == "bleu" and not can_use_sacrebleu():
        raise UserError(f"train.metric=bleu: {NEEDS_SACREBLEU}")
    for unit, remark in REMARKS.items():
        if unit in (settings.data.source_unit, settings.data.target_unit):
            console.print(remark)
    source, target = training_data.codecs.source, training_data.codecs.target
    torch.manual_seed(settings.seed)
    model = build(settings.model, len(source), len(target), scores, auxiliary=(words := auxiliary_vocabulary_size(source))).to(
        device
    )
    console.print(
        f"{settings.model.kind} with {num_parameters(model):,} parameters; "
        f"{plural(len(training_data.examples), 'training pair')}, {describe_held_out(training_data.held_out)}; "
        f"{f'{len(source)} source {settings.data.source_unit}' if isinstance(source, Codec) else source.about()}, "
        f"{f'auxiliary texts of {words} different words, ' if words else ''}"
        f"{len(target)} target {settings.data.target_unit}"
    )
    if transfer:
        number = start_encoder(model, transfer)
        console.print(
            f"{number:,} parameters are copied from another encoder" + (" and stay frozen" if transfer.freeze else "")
        )
    if start_from:
        model.load_state_dict(start_from.model.state_dict())
        if training_data.sources and (before := TrainedOn.from_facts(start_from.training).sources):
            if line := before.describe_seen(list(dict.fromkeys(pair.source for pair in training_data.held_out))):
                console.print(f"the model that this run starts from: {line}")
            training_data.sources.update(before)
    if training_data.unknown:
        most = visible(symbol for symbol, _ in training_data.unknown.most_common(10))
        console.print(
            f"{plural(training_data.unknown.total(), 'symbol is', 'symbols are')} not in the vocabulary of the model that this "
            f"run starts from: {most}"
        )

    batches = training_data.batches(settings.train, settings.data.subword_dropout, settings.seed, settings.data.augment)
    console.print(
        f"one pass over the data takes {plural(batches.order.epoch_length, 'update')}; "
        f"{batches.order.padding():.1%} of the positions in the batches are padding"
    )
    check_held_out(model, training_data, settings, device)
    learner = Learner(model, settings.train)
    callbacks = RunCallbacks(learner, training_data, settings, console, run_folder)
    with closing(run_folder) if run_folder else nullcontext():
        callbacks.resume()
        with progress_bar(console, settings.train.steps, learner.state.update) as callbacks.show, callbacks.interruptible():
            train(learner, batches, settings.train, seed=settings.seed, callbacks=callbacks)
        callbacks.choose_weights()
        passes = learner.state.update / batches.order.epoch_length
        trained = evaluate_run(model, training_data, settings, console, callbacks, passes)
        if run_folder:
            run_folder.log({"update": learner.state.update, "weights": "chosen", "result": trained.assessment.facts()})
    return trained


class RunCallbacks:
    """The callbacks of a run: show and log its progress, validate the model, save checkpoints and the best weights."""

    def __init__(
        self,
        learner: Learner,
        training_data: TrainingData,
        settings: RunSettings,
        console: Console,
        run_folder: RunFolder | None,
    ) -> None:
        self.learner, self.training_data, self.settings, self.console, self.run_folder = (
            learner,
            training_data,
            settings,
            console,
            run_folder,
        )
        self.device = next(learner.model.parameters()).device
        positions = known_positions(settings.model)
        self.max_length = min(2 * int(training_data.lengths[1].max()) + 10, sys.maxsize if positions is None else positions - 1)
        self.translator = Translator(  # sources are not split, as in training
            learner.model, *training_data.codecs, self.device, max_source=sys.maxsize, max_positions=positions
        )
        self.sample = sample_of(
            training_data.held_out, MOST_DECODED if settings.train.metric != "loss" else NUM_SHOWN, settings.seed
        )
        self.show: OnUpdate = lambda update: None
        self.interrupted = False
        self.curve: dict[int, float] = {}
        """The held-out loss by the number of updates."""
        if run_folder:
            self.checkpoints = run_folder.checkpoints(settings.train.keep)
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

    def validate(self, which: str = "") -> float:
        """Measures the held-out loss and the metric; prints and logs them. Returns the metric; lower is better. which: a name
        for the weights, if they are not the current ones."""
        train, update = self.settings.train, self.learner.state.update
        with self.learner.evaluation_weights() as model:
            loss = held_out_loss(model, self.training_data, self.settings, self.device, self.console)
            progress = partial(with_progress, what="translating held-out sources", console=self.console)
            predictions = predict(self.translator, self.sample, self.max_length, progress)
        if not which:
            self.curve[update] = loss
        facts = {"loss": loss}
        if train.metric != "loss":
            rates = rates_of(predictions)
            facts |= {"symbol_error_rate": rates.symbol, "sequence_error_rate": rates.sequence}
        if train.metric == "bleu":
            facts["bleu"] = bleu(
                [prediction.result.text for prediction in predictions], [prediction.references for prediction in predictions]
            )
        when = f"of {which}" if which else f"after update {update}"
        self.console.print(f"validation {when}: {self._format(facts, len(predictions))}")
        for prediction in predictions[:NUM_SHOWN]:
            self.console.print(f"  {prediction}")
        if self.run_folder:
            self.run_folder.log(
                {"update": update, "weights": which or "current", "sources": len(predictions), "validation": facts}
            )
        return -facts["bleu"] if train.metric == "bleu" else facts[train.metric]

    def _format(self, facts: Mapping[str, float], num_outputs: int) -> str:
        """Returns the figures as text. The loss covers all held-out pairs, the other figures only the sources that were
        translated."""
        loss, *others = [
            f"{name} {value:.4f}"
            if name == "loss"
            else f"BLEU {value:.2f}"
            if name == "bleu"
            else f"{name.replace('_', ' ')} {value:.2%}"
            for name, value in facts.items()
        ]
        total = num_sources(self.training_data.held_out)
        if others and num_outputs < total:
            return f"{loss}; on a sample of {num_outputs:,} of {total:,} held-out sources: {', '.join(others)}"
        return ", ".join((loss, *others))

    def save_best(self) -> None:
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
        origin = {**self.training_data.origin, "settings": asdict(self.settings)}
        self.checkpoints.write(self.learner.checkpoint(origin), averaged(self.settings.train, state.update))
        self.best_saved = state.best_at
        self.best.prune((self.best_saved,))
        if self.interrupted:
            raise UserError(
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
        """Loads the weights with the best validation result: those of the best validation so far, the last ones, or the average
        of the last checkpoints."""
        train, learner, state = self.settings.train, self.learner, self.learner.state
        with learner.evaluation_weights() as model:
            chosen: Mapping[str, Tensor] = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        learner.average = []
        others: dict[str, Mapping[str, Tensor]] = {}
        if state.best is not None and state.update % train.validate_every:
            others["the last update"] = chosen
        if state.best is not None:
            chosen = self._best_weights()
        if self.run_folder and (updates := averaged(train, state.update)):
            others[f"{plural(len(updates), 'checkpoint')}, averaged"] = self._average(updates)
            if state.best is None:
                learner.model.load_state_dict(chosen)
                state = after_validation(state, self.validate("the last update"))
        for name, weights in others.items():
            learner.model.load_state_dict(weights)
            state = after_validation(state, self.validate(name))
            if state.stale == 0:
                chosen = weights
        learner.model.load_state_dict(chosen)
        learner.model.eval()

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

        def handle(number: int, frame: FrameType | None) -> None:
            if self.interrupted:
                raise KeyboardInterrupt
            self.interrupted = True

        try:
            before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:  # signals only arrive in the main thread
            before = {}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def averaged(train: TrainSettings, update: int) -> list[int]:
    """Returns the updates whose checkpoints are averaged if the run ends with this one: the last regular ones, whether or not
    the run was interrupted."""
    last = update // train.checkpoint_every
    first = max(1, last - train.average + 1)
    return [number * train.checkpoint_every for number in range(first, last + 1)] if train.average > 1 else []


# --- evaluation --------------------------------------------------------------------------------------------------------------


def held_out_loss(
    model: Model, training_data: TrainingData, settings: RunSettings, device: torch.device, console: Console
) -> float:
    """Returns the mean loss of all held-out pairs."""
    return mean_loss(model, encode_pairs(training_data.held_out, *training_data.codecs), settings, device, console)


def check_held_out(model: Model, training_data: TrainingData, settings: RunSettings, device: torch.device) -> None:
    """Raises UserError if a held-out pair has more tokens than the model has positions, before training instead of in the first
    validation."""
    if known_positions(settings.model) is None:
        return
    examples = encode_pairs(training_data.held_out, *training_data.codecs)
    longest = {max(range(len(examples)), key=sizes_N.__getitem__) for sizes_N in lengths(examples)}
    try:
        mean_loss(model.eval(), [examples[index] for index in longest], settings, device)
    except UserError as error:
        raise UserError(f"held-out pairs: {error}") from None


@torch.no_grad()
def mean_loss(
    model: Model, examples: Sequence[Example], settings: RunSettings, device: torch.device, console: Console | None = None
) -> float:
    """Returns the mean loss per target token, without label smoothing."""
    order = BatchOrder(lengths(examples), batch_tokens=settings.train.batch_tokens, seed=0)
    total, num_targets = 0.0, 0
    numbers: Iterable[int] = range(order.epoch_length)
    for number in with_progress(numbers, order.epoch_length, "computing the held-out loss", console) if console else numbers:
        for part in order.update(number):
            batch = collate([examples[index] for index in part]).to(device)
            decoded = model.decode(batch.target_in_BT, model.encode(batch.source))
            total += projected_loss(*decoded.projection, batch.target_out_BT, pad=PAD).item()
            num_targets += batch.num_targets
    return total / num_targets


def evaluate_run(
    model: Model, training_data: TrainingData, settings: RunSettings, console: Console, callbacks: RunCallbacks, passes: float
) -> Trained:
    """Translates all held-out sources and returns the result of the run. passes: the number of passes over the data."""
    progress = partial(with_progress, what="translating held-out sources", console=console)
    predictions = predict(callbacks.translator, training_data.held_out, callbacks.max_length, progress)
    num_stopped = sum(not prediction.result.finished for prediction in predictions)
    if num_stopped:
        console.print(
            f"outputs that did not end and were stopped at {plural(callbacks.max_length, 'token')}: "
            f"{num_stopped:,} of {len(predictions):,}"
        )
    unknown = {symbol for prediction in predictions for symbol in prediction.result.unknown}
    if unknown:
        console.print(f"symbols of held-out sources that do not occur in the training sources: {visible(sorted(unknown))}")
    rates = rates_of(predictions)
    held_out = text_fingerprint("\t".join(pair) for pair in training_data.held_out)
    facts = {
        "data": f"{training_data.held_out_name}:{held_out}",
        "trained-on": training_data.digest,
        "search": f"greedy,max_length={callbacks.max_length}",
        "steps": settings.train.steps,
        "seed": settings.seed,
        "threads": torch.get_num_threads(),
        "weights": weights_digest(model)[:6],
    }
    signed = signature(facts)
    training_facts: dict[str, object] = {
        "signature": signed,
        "settings": asdict(settings),
        "header": training_data.header,
        "symbol_error_rate": rates.symbol,
        "sequence_error_rate": rates.sequence,
    }
    if training_data.sources:
        training_facts["sources"] = training_data.sources.to_facts()
    losses = losses_of(model, training_data, settings, callbacks.device)
    curve = [callbacks.curve[update] for update in sorted(callbacks.curve)]
    assessment = assess(predictions, rates, training_data.examples, training_data.codecs, curve, losses, passes, settings)
    codecs = training_data.codecs
    text = card(training_data, rates, signed, assessment)
    saved = Saved(model, settings.model, codecs.source, codecs.target, training_facts, text)
    return Trained(saved, callbacks.translator, predictions, rates, signed, assessment)


def losses_of(model: Model, training_data: TrainingData, settings: RunSettings, device: torch.device) -> Losses:
    """Returns the losses on samples of the training examples and of the held-out pairs; all of them would take long."""
    sample = training_data.examples[:: math.ceil(len(training_data.examples) / MOST_DECODED)]
    held_out = encode_pairs(sample_of(training_data.held_out, MOST_DECODED, settings.seed), *training_data.codecs)
    return Losses(*(mean_loss(model, examples, settings, device) for examples in (sample, held_out)))


def card(training_data: TrainingData, rates: ErrorRates, signed: str, assessment: Assessment) -> str:
    """Returns the text of the model card. signed: the signature of the result."""
    return (
        f"# A model trained by regard\n\n- Data: {training_data.name}, {plural(len(training_data.examples), 'pair')}\n"
        f"- Held out: {rates}\n{assessment.card_lines()}- Signature: {signed}\n"
        "- Licence: that of the data, if it covers models; state it here before you share the model\n"
    )
