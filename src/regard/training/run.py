"""A whole run: material in, a trained and measured model out. It can be interrupted, killed and taken up again."""

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
from regard.data.batch import Example, Order, collate, encode_pairs, lengths
from regard.data.labels import visible
from regard.data.sources import beside_size
from regard.data.tokenizers.codec import PAD, REMARKS, Codec
from regard.data.trained import TrainedOn
from regard.errors import UserError, plural
from regard.evaluation import NEEDS_SACREBLEU, ErrorRates, bleu, can_use_sacrebleu, fingerprint, signature
from regard.layers.scores import ScoreMaker
from regard.models.build import Model, build, num_parameters
from regard.pipeline import Translator, known_places
from regard.training.answers import Answered, answer, num_sources, rates_of, sample_of, say_held_out
from regard.training.assess import Assessment, Losses, assess
from regard.training.learner import Learner
from regard.training.loop import Update, judged, train
from regard.training.material import Material
from regard.training.place import RunFolder
from regard.training.record import Record, counted, progress
from regard.training.settings import RunSettings, TrainSettings
from regard.training.transfer import Transfer, start_encoder

NUM_SHOWN = 5
MOST_DECODED = 500
"""How many held-out sources a validation translates at most, where it goes by what is written; of more, a sample."""


@dataclass(frozen=True)
class Trained:
    saved: Saved
    translator: Translator
    answers: list[Answered]
    rates: ErrorRates
    signature: str
    assessment: Assessment


def run(
    material: Material,
    settings: RunSettings,
    console: Console,
    device: torch.device,
    *,
    place: RunFolder | None = None,
    scores: Mapping[str, ScoreMaker] | None = None,
    transfer: Transfer | None = None,
    start_from: Saved | None = None,
) -> Trained:
    """Learns, and is measured on what was held out.

    place: where checkpoints and the log go, and from where the run goes on; without it nothing is kept on the way.
    scores: score functions of the user's own. transfer: a model whose encoder starts this one. start_from: one that is this one
    before it learns on.
    """
    if settings.train.metric == "bleu" and not can_use_sacrebleu():
        raise UserError(f"train.metric=bleu: {NEEDS_SACREBLEU}")
    for unit, remark in REMARKS.items():
        if unit in (settings.data.source_unit, settings.data.target_unit):
            console.print(remark)
    source, target = material.codecs.source, material.codecs.target
    torch.manual_seed(settings.seed)
    model = build(settings.model, len(source), len(target), scores, beside=(words := beside_size(source))).to(device)
    console.print(
        f"{settings.model.kind} with {num_parameters(model):,} parameters; "
        f"{plural(len(material.examples), 'pair')} to learn from, {say_held_out(material.held_out)}; "
        f"{f'{len(source)} source {settings.data.source_unit}' if isinstance(source, Codec) else source.about()}, "
        f"{f'with texts of {words} words beside them, ' if words else ''}"
        f"{len(target)} target {settings.data.target_unit}"
    )
    if transfer:
        number = start_encoder(model, transfer)
        console.print(f"{number:,} of them come from another encoder" + (" and stay as they are" if transfer.freeze else ""))
    if start_from:
        model.load_state_dict(start_from.model.state_dict())
        if material.sources and (before := TrainedOn.from_facts(start_from.training).sources):
            if line := before.say_seen(list(dict.fromkeys(pair.source for pair in material.held_out))):
                console.print(f"the model it starts from: {line}")
            material.sources.update(before)
    if material.unknown:
        most = visible(symbol for symbol, _ in material.unknown.most_common(10))
        console.print(f"{plural(material.unknown.total(), 'symbol')} that the model it starts from never met: {most}")

    batches = material.batches(settings.train, settings.data.subword_dropout, settings.seed, settings.data.augment)
    console.print(
        f"{plural(batches.order.epoch_length, 'update goes', 'updates go')} once through the data; "
        f"{batches.order.padding():.1%} of the places in their batches are padding"
    )
    check_held_out(model, material, settings, device)
    learner = Learner(model, settings.train)
    watch = Watch(learner, material, settings, console, place)
    with closing(place) if place else nullcontext():
        watch.resume()
        with progress(console, settings.train.steps, learner.counts.update) as watch.show, watch.interruptible():
            train(learner, batches, settings.train, seed=settings.seed, supervisor=watch)
        watch.choose_weights()
        passes = learner.counts.update / batches.order.epoch_length
        trained = measured(model, material, settings, console, watch, passes)
        if place:
            place.log({"update": learner.counts.update, "weights": "chosen", "result": trained.assessment.facts()})
    return trained


class Watch:
    """The supervisor of a run: shows and logs it, validates it, keeps it."""

    def __init__(
        self, learner: Learner, material: Material, settings: RunSettings, console: Console, place: RunFolder | None
    ) -> None:
        self.learner, self.material, self.settings, self.console, self.place = learner, material, settings, console, place
        self.device = next(learner.model.parameters()).device
        places = known_places(settings.model)
        self.max_length = min(2 * int(material.lengths[1].max()) + 10, sys.maxsize if places is None else places - 1)
        self.translator = Translator(  # sources are translated as they are learnt from: whole
            learner.model, *material.codecs, self.device, max_source=sys.maxsize, max_places=places
        )
        self.sample = sample_of(
            material.held_out, MOST_DECODED if settings.train.metric != "loss" else NUM_SHOWN, settings.seed
        )
        self.show: Record = lambda update: None
        self.interrupted = False
        self.curve: dict[int, float] = {}
        """The held-out loss after an update."""
        if place:
            self.checkpoints = place.checkpoints(settings.train.keep)
            self.best = place.best()
            self.best_saved = 0  # the update whose weights the last checkpoint calls the best

    # --- what the loop asks for

    def record(self, update: Update) -> None:
        self.show(update)
        if self.place:
            self.place.log(
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
        train, update = self.settings.train, self.learner.counts.update
        with self.learner.at_its_best() as model:
            loss = held_out_loss(model, self.material, self.settings, self.device, self.console)
            tally = partial(counted, what="translating held-out sources", console=self.console)
            answers = answer(self.translator, self.sample, self.max_length, tally)
        if not which:
            self.curve[update] = loss
        facts = {"loss": loss}
        if train.metric != "loss":
            rates = rates_of(answers)
            facts |= {"symbol_error_rate": rates.symbol, "word_error_rate": rates.word}
        if train.metric == "bleu":
            facts["bleu"] = bleu([one.result.text for one in answers], [one.references for one in answers])
        self.console.print(f"held out, {which or f'after update {update}'}: {self._say(facts, len(answers))}")
        for answered in answers[:NUM_SHOWN]:
            self.console.print(f"  {answered}")
        if self.place:
            self.place.log({"update": update, "weights": which or "current", "sources": len(answers), "validation": facts})
        return -facts["bleu"] if train.metric == "bleu" else facts[train.metric]

    def _say(self, facts: Mapping[str, float], num_answers: int) -> str:
        """The loss is that of all that was held out, the other figures are those of the answers."""
        loss, *others = [
            f"{name} {value:.4f}"
            if name == "loss"
            else f"BLEU {value:.2f}"
            if name == "bleu"
            else f"{name.replace('_', ' ')} {value:.2%}"
            for name, value in facts.items()
        ]
        total = num_sources(self.material.held_out)
        if others and num_answers < total:
            return f"{loss}; on a sample of {num_answers:,} of {total:,} held-out sources: {', '.join(others)}"
        return ", ".join((loss, *others))

    def keep(self) -> None:
        with self.learner.at_its_best() as model:
            if self.place:
                self.best.write(Checkpoint(self.learner.counts.update, {}, model.state_dict(), {}), (self.best_saved,))
            else:
                self.best_weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    def checkpoint(self) -> None:
        if not self.place:
            return
        self.place.sync()
        counts = self.learner.counts
        origin = {**self.material.origin, "settings": asdict(self.settings)}
        self.checkpoints.write(self.learner.checkpoint(origin), averaged(self.settings.train, counts.update))
        self.best_saved = counts.best_at
        self.best.prune((self.best_saved,))
        if self.interrupted:
            raise UserError(
                f"interrupted after update {counts.update} of {self.settings.train.steps}, which is saved in "
                f"{self.place.path}; type the same command again to go on"
            )

    # --- before and after

    def resume(self) -> None:
        if not self.place:
            return
        found = self.checkpoints.newest(self.console.print, self.learner.check)
        update = found.update if found else 0
        if found:
            self.learner.restore(found)
            self.best_saved = self.learner.counts.best_at
            self.console.print(f"going on after update {update} of {self.settings.train.steps}")
        self.place.open_log(update, self.console.print)
        self.curve = self.place.held_out_curve()
        self.best.forget_after(update)
        self.checkpoints.prune(averaged(self.settings.train, update))
        self.best.prune((self.best_saved,))

    def choose_weights(self) -> None:
        """The best of what there is, by validation: those of the best validation, the last ones, the mean of checkpoints."""
        train, learner, counts = self.settings.train, self.learner, self.learner.counts
        with learner.at_its_best() as model:
            chosen: Mapping[str, Tensor] = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        learner.average = []
        others: dict[str, Mapping[str, Tensor]] = {}
        if counts.best is not None and counts.update % train.validate_every:
            others["the last update"] = chosen
        if counts.best is not None:
            chosen = self._best_weights()
        if self.place and (some := averaged(train, counts.update)):
            others[f"{plural(len(some), 'checkpoint')}, averaged"] = self._average(some)
            if counts.best is None:
                learner.model.load_state_dict(chosen)
                counts = judged(counts, self.validate("the last update"))
        for name, weights in others.items():
            learner.model.load_state_dict(weights)
            counts = judged(counts, self.validate(name))
            if counts.stale == 0:
                chosen = weights
        learner.model.load_state_dict(chosen)
        learner.model.eval()

    def _best_weights(self) -> Mapping[str, Tensor]:
        if not self.place:
            return self.best_weights
        try:
            return self.best.read(self.learner.counts.best_at).model
        except Damaged as error:
            raise UserError(
                f"the best weights of this run, {self.best.folder}, are damaged: {error}; bring that folder back from a copy, "
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
                f"{', '.join(map(str, updates))}, but {error}; bring it back from a copy, or type the same command with "
                f"--set train.average={number}, which averages {f'the last {number}' if number else 'none'}"
            ) from None

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Ctrl-C (or a polite kill) lets the update be finished and a checkpoint be written; a second one does not wait."""
        if not self.place:
            yield
            return

        def ask(number: int, frame: FrameType | None) -> None:
            if self.interrupted:
                raise KeyboardInterrupt
            self.interrupted = True

        try:
            before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:  # not in the main thread, where signals do not arrive
            before = {}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def averaged(train: TrainSettings, update: int) -> list[int]:
    """Of which updates the checkpoints are averaged, if the run ends with this one: the last regular ones. Whether it was
    interrupted, and where, makes no difference."""
    last = update // train.checkpoint_every
    first = max(1, last - train.average + 1)
    return [number * train.checkpoint_every for number in range(first, last + 1)] if train.average > 1 else []


# --- measuring ---------------------------------------------------------------------------------------------------------------


def held_out_loss(model: Model, material: Material, settings: RunSettings, device: torch.device, console: Console) -> float:
    return mean_loss(model, encode_pairs(material.held_out, *material.codecs), settings, device, console)


def check_held_out(model: Model, material: Material, settings: RunSettings, device: torch.device) -> None:
    """Raises if a held-out pair has more tokens than the model can count: better now than in the first validation."""
    if known_places(settings.model) is None:
        return
    examples = encode_pairs(material.held_out, *material.codecs)
    longest = {max(range(len(examples)), key=sizes_N.__getitem__) for sizes_N in lengths(examples)}
    try:
        mean_loss(model.eval(), [examples[index] for index in longest], settings, device)
    except UserError as error:
        raise UserError(f"held-out pairs: {error}") from None


@torch.no_grad()
def mean_loss(
    model: Model, examples: Sequence[Example], settings: RunSettings, device: torch.device, console: Console | None = None
) -> float:
    """Per target token, without smoothing."""
    order = Order(lengths(examples), batch_tokens=settings.train.batch_tokens, seed=0)
    total, num_targets = 0.0, 0
    numbers: Iterable[int] = range(order.epoch_length)
    for number in counted(numbers, order.epoch_length, "measuring the held-out loss", console) if console else numbers:
        for part in order.update(number):
            batch = collate([examples[index] for index in part]).to(device)
            decoded = model.decode(batch.target_in_BT, model.encode(batch.source))
            total += projected_loss(*decoded.projection, batch.target_out_BT, pad=PAD).item()
            num_targets += batch.num_targets
    return total / num_targets


def measured(model: Model, material: Material, settings: RunSettings, console: Console, watch: Watch, passes: float) -> Trained:
    """Translates all that was held out. passes: times that the run went through its data."""
    tally = partial(counted, what="translating what was held out", console=console)
    answers = answer(watch.translator, material.held_out, watch.max_length, tally)
    num_stopped = sum(not answered.result.finished for answered in answers)
    if num_stopped:
        console.print(
            f"outputs that did not come to an end and were stopped at {plural(watch.max_length, 'token')}: "
            f"{num_stopped:,} of {len(answers):,}"
        )
    unknown = {symbol for answered in answers for symbol in answered.result.unknown}
    if unknown:
        console.print(
            f"symbols of held-out sources that do not occur in those that were learnt from: {visible(sorted(unknown))}"
        )
    rates = rates_of(answers)
    held_out = fingerprint("\t".join(pair) for pair in material.held_out)
    facts = {
        "data": f"{material.held_out_name}:{held_out}",
        "learnt-from": material.digest,
        "search": f"greedy,max_length={watch.max_length}",
        "steps": settings.train.steps,
        "seed": settings.seed,
        "threads": torch.get_num_threads(),
        "weights": weights_digest(model)[:6],
    }
    signed = signature(facts)
    training_facts: dict[str, object] = {
        "signature": signed,
        "settings": asdict(settings),
        "header": material.header,
        "symbol_error_rate": rates.symbol,
        "word_error_rate": rates.word,
    }
    if material.sources:
        training_facts["sources"] = material.sources.to_facts()
    losses = losses_of(model, material, settings, watch.device)
    curve = [watch.curve[update] for update in sorted(watch.curve)]
    assessment = assess(answers, rates, material.examples, material.codecs, curve, losses, passes, settings)
    codecs = material.codecs
    words = card(material, rates, signed, assessment)
    saved = Saved(model, settings.model, codecs.source, codecs.target, training_facts, words)
    return Trained(saved, watch.translator, answers, rates, signed, assessment)


def losses_of(model: Model, material: Material, settings: RunSettings, device: torch.device) -> Losses:
    """On a sample of each side, because the whole would take long."""
    some = material.examples[:: math.ceil(len(material.examples) / MOST_DECODED)]
    held_out = encode_pairs(sample_of(material.held_out, MOST_DECODED, settings.seed), *material.codecs)
    return Losses(*(mean_loss(model, examples, settings, device) for examples in (some, held_out)))


def card(material: Material, rates: ErrorRates, signed: str, assessment: Assessment) -> str:
    return (
        f"# A model trained by regard\n\n- Data: {material.name}, {plural(len(material.examples), 'pair')}\n"
        f"- Held out: {rates}\n{assessment.card_lines()}- Signature: {signed}\n"
        "- Licence: that of the data, as far as it reaches; say it here before you pass the model on\n"
    )
