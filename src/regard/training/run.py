"""A whole run: material in, a trained and measured model out. It can be interrupted, killed and taken up again."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from types import FrameType
from typing import NoReturn

import torch
from rich.console import Console
from torch import Tensor

from regard.checkpoint.folder import Saved, weights_digest
from regard.checkpoint.runs import Checkpoint, Damaged
from regard.contracts import Result
from regard.core.losses import projected_loss
from regard.data.batch import Order, collate, encode_pairs, lengths
from regard.data.corpus import Pair, shorten
from regard.data.sources import beside_size
from regard.data.tokenizers.codec import PAD, REMARKS, Codec
from regard.errors import UserError, visible
from regard.evaluation import NEEDS_SACREBLEU, ErrorRates, bleu, can_use_sacrebleu, error_rates, fingerprint, signature
from regard.layers.scores import ScoreMaker
from regard.models.build import Model, build, num_parameters
from regard.pipeline import Tally, Translator
from regard.training.learner import Learner
from regard.training.loop import Update, judged, train
from regard.training.material import Material
from regard.training.place import RunFolder
from regard.training.record import Record, counted, progress
from regard.training.settings import RunSettings
from regard.training.transfer import Transfer, start_encoder

NUM_SHOWN = 5
MOST_DECODED = 500
"""How many held-out sources a validation translates at most, where it goes by what is written."""


@dataclass(frozen=True)
class Answered:
    """One held-out source with all its references and what the model made of it."""

    source: str
    references: tuple[str, ...]
    reference_tokens: tuple[tuple[str, ...], ...]
    result: Result

    @property
    def right(self) -> bool:
        return self.result.tokens in self.reference_tokens

    def __str__(self) -> str:
        mark = "=" if self.right else f"(expected {shorten(' or '.join(self.references))})"
        return f"{shorten(self.source)} -> {shorten(self.result.text)} {mark}"


@dataclass(frozen=True)
class Trained:
    saved: Saved
    translator: Translator
    answers: list[Answered]
    rates: ErrorRates
    signature: str


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
        f"{settings.model.kind} with {num_parameters(model):,} parameters; {len(material.examples):,} pairs to learn from, "
        f"{len(material.held_out):,} held out; "
        f"{f'{len(source)} source {settings.data.source_unit}' if isinstance(source, Codec) else source.about()}, "
        f"{f'with texts of {words} words beside them, ' if words else ''}"
        f"{len(target)} target {settings.data.target_unit}"
    )
    if transfer:
        number = start_encoder(model, transfer)
        console.print(f"{number:,} of them come from another encoder" + (" and stay as they are" if transfer.freeze else ""))
    if start_from:
        model.load_state_dict(start_from.model.state_dict())
    if material.unknown:
        most = visible(symbol for symbol, _ in material.unknown.most_common(10))
        console.print(f"{material.unknown.total():,} symbols that the model it starts from never met: {most}")

    batches = material.batches(settings.train, settings.data.subword_dropout, settings.seed, settings.data.augment)
    console.print(
        f"{batches.order.epoch_length:,} updates go once through the data; {batches.order.padding():.1%} of the places in "
        "their batches are padding"
    )
    learner = Learner(model, settings.train)
    watch = Watch(learner, material, settings, console, place)
    watch.resume()
    with progress(console, settings.train.steps, learner.counts.update) as watch.show, watch.interruptible():
        train(learner, batches, settings.train, seed=settings.seed, supervisor=watch)
    watch.choose_weights()
    if place:
        place.close()
    return measured(model, material, settings, console, watch)


class Watch:
    """The supervisor of a run: shows and logs it, validates it, keeps it."""

    def __init__(
        self, learner: Learner, material: Material, settings: RunSettings, console: Console, place: RunFolder | None
    ) -> None:
        self.learner, self.material, self.settings, self.console, self.place = learner, material, settings, console, place
        self.device = next(learner.model.parameters()).device
        self.max_length = 2 * int(material.lengths[1].max()) + 10
        self.translator = Translator(learner.model, material.codecs.source, material.codecs.target, self.device)
        self.show: Record = lambda update: None
        self.interrupted = False
        if place:
            self.checkpoints = place.checkpoints(max(settings.train.keep, settings.train.average))
            self.best = place.best()

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
        if self.interrupted:
            self._leave()

    def validate(self, which: str = "") -> float:
        train, update = self.settings.train, self.learner.counts.update
        with self.learner.at_its_best() as model:
            loss = held_out_loss(model, self.material, self.settings, self.device)
            few = first_sources(self.material.held_out, NUM_SHOWN if train.metric == "loss" else MOST_DECODED)
            answers = answer(self.translator, few, self.max_length)
        rates = rates_of(answers)
        facts = {"loss": loss}
        if train.metric != "loss":
            facts |= {"symbol_error_rate": rates.symbol, "word_error_rate": rates.word}
        if train.metric == "bleu":
            facts["bleu"] = bleu([one.result.text for one in answers], [one.references for one in answers])
        self.console.print(
            f"held out, {which or f'after update {update}'}: "
            + ", ".join(f"{name} {value:.4f}" for name, value in facts.items())
        )
        for answered in answers[:NUM_SHOWN]:
            self.console.print(f"  {answered}")
        if self.place:
            self.place.log({"update": update, "weights": which or "current", "validation": facts})
        return -facts["bleu"] if train.metric == "bleu" else facts[train.metric]

    def keep(self) -> None:
        with self.learner.at_its_best() as model:
            if self.place:
                self.best.write(Checkpoint(self.learner.counts.update, {}, model.state_dict(), {}))
            else:
                self.best_weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    def checkpoint(self) -> None:
        if self.place:
            self.place.sync()
            self.checkpoints.write(self.learner.checkpoint())

    # --- before and after

    def resume(self) -> None:
        if not self.place:
            return
        found = self.checkpoints.newest(self.console.print)
        update = found.update if found else 0
        if found:
            self.learner.restore(found)
            self.console.print(f"going on after update {update} of {self.settings.train.steps}")
        self.place.open_log(update)
        self.best.forget_after(update)

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
        if self.place and train.average > 1:
            regular = [update for update in self.checkpoints.updates() if update % train.checkpoint_every == 0]
            some = regular[-train.average :]
            others[f"{len(some)} checkpoints, averaged"] = self.checkpoints.average(some)
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
                f"the best weights of this run, {self.best.folder}, are damaged: {error}; remove that folder and "
                "train.validate_every to go by the last weights, or repeat the run with --overwrite"
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

    def _leave(self) -> NoReturn:
        self.checkpoint()
        assert self.place
        update, steps = self.learner.counts.update, self.settings.train.steps
        raise UserError(
            f"interrupted after update {update} of {steps}, which is saved in {self.place.path}; "
            "type the same command again to go on"
        )


# --- measuring ---------------------------------------------------------------------------------------------------------------


@torch.no_grad()
def held_out_loss(model: Model, material: Material, settings: RunSettings, device: torch.device) -> float:
    """Per target token, without smoothing."""
    examples = encode_pairs(material.held_out, material.codecs.source, material.codecs.target)
    order = Order(lengths(examples), batch_tokens=settings.train.batch_tokens, seed=0)
    total, num_targets = 0.0, 0
    for number in range(order.epoch_length):
        for part in order.update(number):
            batch = collate([examples[index] for index in part]).to(device)
            decoded = model.decode(batch.target_in_BT, model.encode(batch.source))
            total += projected_loss(*decoded.projection, batch.target_out_BT, pad=PAD).item()
            num_targets += batch.num_targets
    return total / num_targets


def measured(model: Model, material: Material, settings: RunSettings, console: Console, watch: Watch) -> Trained:
    """Translates all that was held out."""
    tally = partial(counted, what="translating what was held out", console=console)
    answers = answer(watch.translator, material.held_out, watch.max_length, tally)
    num_stopped = sum(not answered.result.finished for answered in answers)
    if num_stopped:
        console.print(
            f"{num_stopped:,} of {len(answers):,} outputs did not come to an end and were stopped at {watch.max_length} tokens"
        )
    unknown = {symbol for answered in answers for symbol in answered.result.unknown}
    if unknown:
        console.print(
            f"symbols of held-out sources that do not occur in those that were learnt from: {visible(sorted(unknown))}"
        )
    rates = rates_of(answers)
    held_out = fingerprint("\t".join(pair) for pair in material.held_out)
    facts = {
        "data": f"{material.name}:{held_out}",
        "learnt-from": material.digest,
        "search": f"greedy,max_length={watch.max_length}",
        "steps": settings.train.steps,
        "seed": settings.seed,
        "threads": torch.get_num_threads(),
        "weights": weights_digest(model)[:6],
    }
    signed = signature(facts)
    training_facts = {
        "signature": signed,
        "settings": asdict(settings),
        "symbol_error_rate": rates.symbol,
        "word_error_rate": rates.word,
    }
    codecs = material.codecs
    saved = Saved(model, settings.model, codecs.source, codecs.target, training_facts, card(material, rates, signed))
    return Trained(saved, watch.translator, answers, rates, signed)


def answer(translator: Translator, pairs: Sequence[Pair], max_length: int, tally: Tally | None = None) -> list[Answered]:
    """Translates every distinct source once; all its targets count as references."""
    references: dict[str, list[str]] = {}
    for pair in pairs:
        references.setdefault(pair.source, []).append(pair.target)
    results = translator.batch(list(references), max_length=max_length, tally=tally)
    codec = translator.target
    return [
        Answered(text, tuple(known), tuple(codec.tokens(codec.encode(one)) for one in known), result)
        for (text, known), result in zip(references.items(), results, strict=True)
    ]


def first_sources(pairs: Sequence[Pair], number: int) -> list[Pair]:
    """All pairs of the first few sources."""
    sources = set(islice(dict.fromkeys(pair.source for pair in pairs), number))
    return [pair for pair in pairs if pair.source in sources]


def rates_of(answers: Sequence[Answered]) -> ErrorRates:
    return error_rates([answered.result.tokens for answered in answers], [answered.reference_tokens for answered in answers])


def card(material: Material, rates: ErrorRates, signed: str) -> str:
    return (
        f"# A model trained by regard\n\n- Data: {material.name}, {len(material.examples):,} pairs\n- Held out: {rates}\n"
        f"- Signature: {signed}\n"
        "- Licence: that of the data, as far as it reaches; say it here before you pass the model on\n"
    )
