"""Validates and assesses a model that learns from texts: continuations, perplexity, and what would improve it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from regard.contracts import EOS
from regard.data.batch import Example
from regard.data.labels import readable
from regard.errors import UserError, shorten
from regard.evaluation import Perplexity
from regard.results import Result
from regard.training.assess import MOST_COUNTED, Advice, Losses, advise, next_step
from regard.training.data import HeldOut, TrainingData
from regard.training.progress import with_progress
from regard.training.settings import RunSettings
from regard.training.validation import NUM_SHOWN, Validator

GIVEN = 4
"""A continuation is given the first word, or the first quarter of the words, of a held-out text."""


@dataclass(frozen=True)
class Continuation:
    """A held-out text, the beginning that the model was given, and what the model wrote."""

    text: str
    result: Result

    def __str__(self) -> str:
        prompt = str(self.result.source)
        written = self.result.text[len(prompt) :].strip()
        return f"{_readable(prompt)} … {_readable(written)} (the text: {_readable(self.text[len(prompt) :].strip())})"


def _readable(text: str) -> str:
    return readable(shorten(text))


def beginning(text: str) -> str:
    """Returns the first word, or the first quarter of the words, of a text."""
    words = text.split()
    return " ".join(words[: max(1, len(words) // GIVEN)])


class TextValidator(Validator):
    """Measures a model on held-out texts. Its predictions are continuations of a few of them."""

    def check(self) -> None:
        metric = self.settings.train.metric
        if metric != "loss":
            raise UserError(
                f"train.metric is {metric}, which compares outputs with references, but texts have none; set train.metric=loss"
            )
        super().check()

    def predict_all(self) -> list[Continuation]:  # type: ignore[override]
        return self._predict(self.sample)

    def _predict(self, held_out: HeldOut) -> list[Continuation]:  # type: ignore[override]
        texts = [pair.target for pair in held_out.pairs[:NUM_SHOWN]]
        progress = partial(with_progress, what="continuing held-out texts", console=self.console)
        prompts = [beginning(text) for text in texts]
        results = self.translator.batch(prompts, max_length=self.max_length, progress=progress)
        return [Continuation(text, result) for text, result in zip(texts, results, strict=True)]

    def perplexity(self) -> Perplexity:
        """Measures all held-out texts."""
        held_out = self.held_out
        num_tokens = sum(len(example.target) + 1 for example in held_out.examples)
        nll = self._loss(held_out.examples, self.console) * num_tokens
        return Perplexity.of(nll, num_tokens, [pair.target for pair in held_out.pairs])


@dataclass(frozen=True)
class TextAssessment:
    """The assessment of a model that learned from texts; `str` returns the text that users read.

    perplexity: that of the model, on all held-out texts. guess: the perplexity per token of guessing by frequency.
    """

    perplexity: Perplexity
    guess: float
    losses: Losses
    advice: Advice
    next_step: str

    @property
    def verdict(self) -> str:
        """One sentence that says whether the model is good."""
        times = self.guess / self.perplexity.per_token
        grade = "Yes, it has learned from context" if times > 2 else "Not yet" if times > 1 else "No, a trivial guess is better"
        return (
            f"Is this good? {grade}: perplexity {self.perplexity.per_token:.1f} per token on held-out texts; a trivial guess "
            f"(every token by its frequency) gets {self.guess:.1f}."
        )

    def __str__(self) -> str:
        return f"{self.verdict}\n{self.next_step}"

    def facts(self) -> dict[str, float | str]:
        """Returns the figures by the names that log.jsonl uses."""
        return {
            **self.perplexity.facts(),
            "guess_perplexity_per_token": self.guess,
            "training_loss": self.losses.training,
            "held_out_loss": self.losses.held_out,
            "would_help": self.advice.what,
        }

    def card_lines(self) -> str:
        """Returns the figures as lines of the model card."""
        return (
            f"- A trivial guess (every token by its frequency): perplexity {self.guess:.2f} per token\n"
            f"- Loss per token: {self.losses.training:.4f} on training texts, {self.losses.held_out:.4f} on held-out texts\n"
        )


def assess_texts(validator: TextValidator, curve: Sequence[float], passes: float) -> TextAssessment:
    """Assesses a model. curve: the held-out losses. passes: the number of passes over the data."""
    losses = Losses(*validator.losses())
    advice = advise(curve, losses, passes, right=0.0)
    step = next_step(advice, validator.settings).replace("pairs", "texts")
    return TextAssessment(validator.perplexity(), guess_by_frequency(validator.training_data), losses, advice, step)


def guess_by_frequency(training_data: TrainingData) -> float:
    """Returns the perplexity per token on the held-out texts of a model that knows only how frequent tokens are in training;
    each token of the vocabulary counts once more than it occurs."""
    examples = training_data.examples
    sampled = (examples[index] for index in range(0, len(examples), math.ceil(len(examples) / MOST_COUNTED)))
    counts: Counter[int] = Counter()
    for example in sampled:
        counts.update(_tokens(example))
    total = counts.total() + len(training_data.codecs.target)
    nll = [math.log(total / (counts[token] + 1)) for example in training_data.held_out.examples for token in _tokens(example)]
    return math.exp(sum(nll) / len(nll))


def _tokens(example: Example) -> list[int]:
    return [*example.target, EOS]


def validator_of(training_data: TrainingData, settings: RunSettings) -> type[Validator]:
    """Returns the class of the validator for this data."""
    return Validator if settings.data.contents == "pairs" else TextValidator
