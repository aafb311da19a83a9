"""A whole run: trains a model on training data and evaluates it. A run can be interrupted or killed, and resumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass

import torch
from rich.console import Console

from regard.checkpoint.folder import Saved, weights_digest
from regard.data.labels import visible
from regard.data.sources import FileCodec, auxiliary_vocabulary_size
from regard.data.tokenizers.codec import REMARKS
from regard.data.trained import TrainedOn
from regard.errors import UserError, plural
from regard.evaluation import NEEDS_SACREBLEU, ErrorRates, Perplexity, can_use_sacrebleu
from regard.languages import Languages
from regard.layers.scores import ScoreMaker
from regard.models.build import build, num_parameters
from regard.models.contract import Model
from regard.pipeline import Translator
from regard.signatures import signature, text_fingerprint
from regard.training.assess import Assessment, Losses, assess
from regard.training.assess_texts import Continuation, TextAssessment, TextValidator, assess_texts, validator_of
from regard.training.callbacks import Listener, RunCallbacks
from regard.training.card import LOOKS_AHEAD, make_card
from regard.training.data import TrainingData
from regard.training.learner import Learner
from regard.training.loop import train
from regard.training.progress import progress_bar
from regard.training.ranks import Ranks
from regard.training.run_folder import RunFolder
from regard.training.settings import RunSettings
from regard.training.transfer import Transfer, start_encoder
from regard.training.validation import Prediction, Validator, rates_of


@dataclass(frozen=True)
class Trained:
    """The result of a run: the model as it is saved, its outputs for the held-out sources, and its quality.

    A model that learned from texts has continuations of some held-out texts, and perplexities.
    """

    saved: Saved
    translator: Translator
    predictions: Sequence[Prediction | Continuation]
    rates: ErrorRates | Perplexity
    signature: str
    assessment: Assessment | TextAssessment


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
    teacher: Model | None = None,
    reasons: Mapping[str, str] | None = None,
    listener: Listener | None = None,
    ranks: Ranks | None = None,
) -> Trained:
    """Trains a model and evaluates it on the held-out pairs.

    run_folder: the folder for checkpoints and the log, from which the run is resumed; without it, nothing is saved on the way.
    scores: custom score functions by name. transfer: a model whose encoder this one takes over. start_from: a model whose
    weights are trained further. teacher: a model whose distribution this one learns. reasons: those for settings, by key, for
    the model card. listener: called after every update; the run stops if it returns False. ranks: the processes that train the
    model together, of which this is the first. Raises UserError.
    """
    ranks = ranks or Ranks()
    ranks.check(settings)
    if settings.train.metric == "bleu" and not can_use_sacrebleu():
        raise UserError(f"train.metric=bleu: {NEEDS_SACREBLEU}")
    for unit, remark in REMARKS.items():
        if unit in (settings.data.source_unit, settings.data.target_unit):
            console.print(remark)
    if mask := settings.model.traits.mask:
        training_data = training_data.with_blanks(mask)
    model = first_model(training_data, settings, console, scores, transfer, start_from).to(device)
    if training_data.unknown:
        most = visible(symbol for symbol, _ in training_data.unknown.most_common(10))
        console.print(
            f"{plural(training_data.unknown.total(), 'symbol is', 'symbols are')} not in the vocabulary of the model that this "
            f"run starts from: {most}"
        )

    data = settings.data
    batches = training_data.batches(settings.train, data.subword_dropout, settings.seed, data.augment, mask)
    console.print(
        f"one pass over the data takes {plural(batches.order.epoch_length, 'update')}; "
        f"{batches.order.padding():.1%} of the positions in the batches are padding"
    )
    validator = validator_of(training_data, settings)(model, training_data, settings, console)
    validator.check()
    learner = Learner(model, settings.train)
    teacher = teacher.to(device).eval() if teacher else None
    callbacks = RunCallbacks(learner, validator, run_folder, listener)
    with closing(run_folder) if run_folder else nullcontext():
        callbacks.resume()
        ranks.announce({"update": learner.state.update})
        with progress_bar(console, settings.train.steps, learner.state.update) as callbacks.show, callbacks.interruptible():
            train(learner, batches, settings.train, seed=settings.seed, callbacks=callbacks, teacher=teacher, ranks=ranks)
        callbacks.choose_weights()
        curve = [callbacks.curve[update] for update in sorted(callbacks.curve)]
        stopped = {"stopped-after": learner.state.update} if callbacks.stopped else {}
        passes = learner.state.update / batches.order.epoch_length
        trained = evaluate(validator, curve, passes, stopped, reasons or {}, run_folder)
        if run_folder:
            run_folder.log({"update": learner.state.update, "weights": "chosen", "result": trained.assessment.facts()})
            run_folder.draw_curves()
    return trained


def first_model(
    training_data: TrainingData,
    settings: RunSettings,
    console: Console,
    scores: Mapping[str, ScoreMaker] | None,
    transfer: Transfer | None,
    start_from: Saved | None,
) -> Model:
    """Returns the model before its first update, with random weights or those of the model that the run starts from, and prints
    a description of it. The sources that it was trained on are added to those of the data."""
    source, target = training_data.codecs
    words = auxiliary_vocabulary_size(source)
    further = (
        f"auxiliary texts of {words} different words, " if isinstance(source, FileCodec) else f"{plural(words, 'feature')}, "
    )
    torch.manual_seed(settings.seed)
    model = build(settings.model, len(source), len(target), scores, auxiliary=words, specials=target.specials)
    console.print(
        f"{settings.model.kind} with {num_parameters(model):,} parameters; "
        f"{plural(len(training_data.examples), f'training {training_data.held_out.noun}')}, "
        f"{training_data.held_out.describe()}; "
        f"{source.about() if isinstance(source, FileCodec) else f'{len(source)} source {settings.data.source_unit}'}, "
        f"{further if words else ''}"
        f"{len(target)} target {settings.data.target_unit}"
    )
    if model.traits.looks_ahead:
        console.print(LOOKS_AHEAD)
    if transfer:
        number = start_encoder(model, transfer)
        console.print(
            f"{number:,} parameters are copied from another encoder" + (" and stay frozen" if transfer.freeze else "")
        )
    if start_from:
        model.load_state_dict(start_from.model.state_dict())
        if training_data.sources and (before := TrainedOn.from_facts(start_from.training).sources):
            if line := before.describe_seen(list(dict.fromkeys(pair.key for pair in training_data.held_out.pairs))):
                console.print(f"the model that this run starts from: {line}")
            training_data.sources.update(before)
    return model


def evaluate(
    validator: Validator,
    curve: Sequence[float],
    passes: float,
    others: Mapping[str, object],
    reasons: Mapping[str, str],
    run_folder: RunFolder | None,
) -> Trained:
    """Measures the model on all held-out pairs or texts and returns the result of the run. curve: the held-out losses. passes:
    the number of passes over the data. others: further facts for the signature. reasons, run_folder: as in `run`."""
    model, training_data, settings = validator.model, validator.training_data, validator.settings
    held_out = text_fingerprint("\t".join(pair.texts) for pair in training_data.held_out.pairs)
    facts = {
        "data": f"{training_data.held_out_name}:{held_out}",
        "trained-on": training_data.digest,
        "search": f"greedy,max_length={validator.max_length}",
        "steps": settings.train.steps,
        **others,
        "seed": settings.seed,
        "threads": torch.get_num_threads(),
        "weights": weights_digest(model)[:6],
    }
    signed = signature(facts)
    predictions, rates, assessment, figures = (
        _text_quality(validator, curve, passes) if isinstance(validator, TextValidator) else _quality(validator, curve, passes)
    )
    training_facts: dict[str, object] = {
        "signature": signed,
        "settings": asdict(settings),
        "header": training_data.header,
        **figures,
    }
    if training_data.sources:
        training_facts["sources"] = training_data.sources.to_facts()
    codecs, languages = training_data.codecs, Languages.parse(settings.data.languages)
    curves = run_folder.picture() if run_folder else ""
    text = make_card(model, training_data, settings, reasons, rates, signed, assessment, with_curves=bool(curves))
    saved = Saved(model, settings.model, codecs.source, codecs.target, training_facts, text, curves=curves, languages=languages)
    return Trained(saved, validator.translator, predictions, rates, signed, assessment)


def _quality(
    validator: Validator, curve: Sequence[float], passes: float
) -> tuple[list[Prediction], ErrorRates, Assessment, dict[str, float]]:
    """Translates all held-out sources; returns the outputs, their error rates, and figures for config.json."""
    training_data, settings, console = validator.training_data, validator.settings, validator.console
    predictions = validator.predict_all()
    num_stopped = sum(not prediction.result.finished for prediction in predictions)
    if num_stopped:
        console.print(
            f"outputs that did not end and were stopped at {plural(validator.max_length, 'token')}: "
            f"{num_stopped:,} of {len(predictions):,}"
        )
    unknown = {symbol for prediction in predictions for symbol in prediction.result.unknown}
    if unknown:
        console.print(f"symbols of held-out sources that do not occur in the training sources: {visible(sorted(unknown))}")
    rates = rates_of(predictions)
    codecs, losses = training_data.codecs, Losses(*validator.losses())
    assessment = assess(predictions, rates, training_data.examples, codecs, curve, losses, passes, settings)
    return predictions, rates, assessment, {"symbol_error_rate": rates.symbol, "sequence_error_rate": rates.sequence}


def _text_quality(
    validator: TextValidator, curve: Sequence[float], passes: float
) -> tuple[list[Continuation], Perplexity, TextAssessment, dict[str, float]]:
    """Measures all held-out texts, and continues some of them; returns the same as `_quality`."""
    assessment = assess_texts(validator, curve, passes)
    return validator.predict_all(), assessment.perplexity, assessment, assessment.perplexity.facts()
