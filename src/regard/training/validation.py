"""Validation: the loss of a model on the held-out pairs, its outputs for their sources, and the figures of both."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from rich.console import Console

from regard.contracts import SourceText
from regard.data.batch import BatchOrder, Example, lengths
from regard.data.labels import readable
from regard.data.reader import Plan
from regard.data.source_text import flat
from regard.data.sources import num_positions
from regard.errors import UserError, shorten
from regard.evaluation import ErrorRates, bleu, error_rates
from regard.models.contract import Model
from regard.pipeline import ProgressCallback, Translator
from regard.results import Result
from regard.training.data import Codecs, HeldOut, TrainingData
from regard.training.progress import with_progress
from regard.training.settings import RunSettings

NUM_SHOWN = 5
"""The number of predictions that a validation prints."""
MOST_DECODED = 500
"""The maximum number of held-out sources that a validation translates, if train.metric is computed from outputs; if there are
more, it translates a sample."""


@dataclass(frozen=True)
class Prediction:
    """A held-out source with all its references and the model's output."""

    source: SourceText
    references: tuple[str, ...]
    reference_tokens: tuple[tuple[str, ...], ...]
    result: Result

    @property
    def right(self) -> bool:
        """Whether the output equals a reference."""
        return self.result.tokens in self.reference_tokens

    def __str__(self) -> str:
        mark = "=" if self.right else f"(expected {_readable(' or '.join(self.references))})"
        return f"{_readable(flat(self.source))} -> {_readable(self.result.text)} {mark}"


def _readable(text: str) -> str:
    """Returns the text as one short line without control characters."""
    return readable(shorten(text))


def predict(
    translator: Translator, held_out: HeldOut, max_length: int, progress: ProgressCallback | None = None
) -> list[Prediction]:
    """Translates every distinct source once; all its targets are its references. Encoded sources are not encoded again, except
    by a language model, which reads a source as the beginning of its output."""
    reader = translator.reader
    options = reader.options({"max_length": max_length})
    references: dict[SourceText, dict[str, tuple[str, ...]]] = {}
    plans: list[Plan] = []
    for pair, example in zip(held_out.pairs, held_out.examples, strict=True):
        if pair.source not in references:
            row = None if reader.traits.continues_text else example.source
            segment = reader.segment(pair.source, options, len(plans), row=row)
            plans.append(Plan(len(plans), pair.source, (segment,) if segment.request.num_positions else ()))
        references.setdefault(pair.source, {})[pair.target] = translator.target.tokens(example.target)
    results = translator.answer_all(plans, progress=progress)
    return [
        Prediction(source, tuple(targets), tuple(targets.values()), result)
        for (source, targets), result in zip(references.items(), results, strict=True)
    ]


def rates_of(predictions: Sequence[Prediction]) -> ErrorRates:
    """Returns the error rates of the outputs."""
    return error_rates(
        [prediction.result.tokens for prediction in predictions], [prediction.reference_tokens for prediction in predictions]
    )


@torch.no_grad()
def mean_loss(
    model: Model, examples: Sequence[Example], codecs: Codecs, batch_tokens: int, console: Console | None = None
) -> float:
    """Returns the mean loss per target token, without label smoothing. console: shows the progress."""
    device = next(model.parameters()).device
    order = BatchOrder(lengths(examples), batch_tokens=batch_tokens, seed=0)
    total, num_targets = 0.0, 0
    numbers: Iterable[int] = range(order.epoch_length)
    for number in with_progress(numbers, order.epoch_length, "computing the held-out loss", console) if console else numbers:
        for part in order.update(number):
            batch = codecs.collate([examples[index] for index in part]).to(device)
            decoded = model.decode(batch.target_in_BT, model.encode(batch.source))
            total += decoded.loss(batch.target_out_BT, pad=batch.pad).item()
            num_targets += batch.num_targets
    return total / num_targets


@dataclass(frozen=True)
class Validation:
    """The result of a validation.

    figures: the loss, which covers all held-out pairs, and the figures of the predictions, by the names that log.jsonl uses.
    predictions: the outputs for a sample of the held-out sources.
    """

    figures: Mapping[str, float]
    predictions: Sequence[Prediction]

    def value(self, metric: str) -> float:
        """Returns the value of a metric; lower is better."""
        return -self.figures["bleu"] if metric == "bleu" else self.figures[metric]

    def describe(self, num_sources: int) -> str:
        """Returns the figures as text. num_sources: the number of all held-out sources."""
        loss, *others = [
            f"{name} {value:.4f}"
            if name == "loss"
            else f"BLEU {value:.2f}"
            if name == "bleu"
            else f"{name.replace('_', ' ')} {value:.2%}"
            for name, value in self.figures.items()
        ]
        num_outputs = len(self.predictions)
        if others and num_outputs < num_sources:
            return f"{loss}; on a sample of {num_outputs:,} of {num_sources:,} held-out sources: {', '.join(others)}"
        return ", ".join((loss, *others))


class Validator:
    """Measures a model on the held-out pairs of its training data, with the weights that the model has at the moment."""

    def __init__(self, model: Model, training_data: TrainingData, settings: RunSettings, console: Console) -> None:
        self.model, self.training_data, self.settings, self.console = model, training_data, settings, console
        self.held_out = training_data.held_out
        self.sample = self.held_out.sample(MOST_DECODED if settings.train.metric != "loss" else NUM_SHOWN, settings.seed)
        self.translator = Translator.of_model(  # sources are not split, as in training
            model, *training_data.codecs, max_source=sys.maxsize
        )
        self.max_length = 2 * training_data.lengths.longest[1] + 10
        if self.translator.reader.max_output is not None:
            self.max_length = min(self.max_length, self.translator.reader.max_output)

    def check(self) -> None:
        """Raises UserError if a held-out pair has more tokens than the model has positions, before training instead of in the
        first validation."""
        if self.model.traits.max_positions is None:
            return
        reader = self.translator.reader
        if reader.traits.continues_text:  # it reads a source as the beginning of its output, and so does not train on it
            room = reader.max_output or 0
            size = max(map(num_positions, reader.rows([pair.source for pair in self.held_out.pairs])))
            if size >= room:
                raise UserError(
                    f"held-out pairs: a source has {size:,} tokens, but this model supports {room:,} tokens in total, of which "
                    f"it must write at least one; shorten the source, or set model.max_positions={size + 2}"
                )
        examples = self.held_out.examples
        longest = {max(range(len(examples)), key=sizes_N.__getitem__) for sizes_N in lengths(examples).tensors}
        self.model.eval()
        try:
            self._loss([examples[index] for index in longest])
        except UserError as error:
            raise UserError(f"held-out pairs: {error}") from None

    def validate(self) -> Validation:
        """Computes the loss of all held-out pairs, translates the sample, and computes the figures that train.metric needs."""
        metric, figures = self.settings.train.metric, {"loss": self._loss(self.held_out.examples, self.console)}
        predictions = self._predict(self.sample)
        if metric != "loss":
            rates = rates_of(predictions)
            figures |= {"symbol_error_rate": rates.symbol, "sequence_error_rate": rates.sequence}
        if metric == "bleu":
            figures["bleu"] = bleu(
                [prediction.result.text for prediction in predictions], [prediction.references for prediction in predictions]
            )
        return Validation(figures, predictions)

    def predict_all(self) -> list[Prediction]:
        """Translates all held-out sources."""
        return self._predict(self.held_out)

    def losses(self) -> tuple[float, float]:
        """Returns the losses on samples of the training examples and of the held-out pairs; all of them would take long."""
        examples = self.training_data.examples
        training = examples[:: math.ceil(len(examples) / MOST_DECODED)]
        held_out = self.held_out.sample(MOST_DECODED, self.settings.seed)
        return self._loss(training), self._loss(held_out.examples)

    def _predict(self, held_out: HeldOut) -> list[Prediction]:
        progress = partial(with_progress, what="translating held-out sources", console=self.console)
        return predict(self.translator, held_out, self.max_length, progress)

    def _loss(self, examples: Sequence[Example], console: Console | None = None) -> float:
        return mean_loss(self.model, examples, self.training_data.codecs, self.settings.train.batch_tokens, console)
