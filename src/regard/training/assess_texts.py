"""Validates and assesses a model that learns from texts: continuations, perplexity, and what would improve it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from regard.contracts import SourceRow, Specials
from regard.data.batch import Example
from regard.data.blanks import BLANK
from regard.data.labels import readable
from regard.data.reader import Plan
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
    """A held-out text, what the model was given of it (its beginning, or the text with blanks), and what the model wrote."""

    text: str
    given: str
    result: Result

    def __str__(self) -> str:
        texts = [self.result.text, self.text]
        if all(text.startswith(self.given) for text in texts):
            texts = [text[len(self.given) :].strip() for text in texts]
        return "{} … {} (the text: {})".format(*map(_readable, (self.given, *texts)))


def _readable(text: str) -> str:
    return readable(shorten(text))


def beginning(text: str) -> str:
    """Returns the first word, or the first quarter of the words, of a text; of a single word, the first half."""
    words = text.split()
    return " ".join(words[: max(1, len(words) // GIVEN)]) if len(words) > 1 else text[: (len(text) + 1) // 2]


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
        reader, masks = self.translator.reader, self.model.traits.mask > 0
        (unknown,) = reader.target.tokens((reader.target.specials.unk,))
        options, plans, given = reader.options({"max_length": self.max_length}), list[Plan](), list[str]()
        for pair, example in zip(held_out.pairs[:NUM_SHOWN], held_out.examples, strict=False):
            text = pair.target if masks else beginning(pair.target)
            segment = reader.segment(text, options, len(plans), row=example.source if masks else None)
            plans.append(Plan(len(plans), text, (segment,)))
            given.append(reader.target.decode(as_ids(example.source)).replace(unknown, f" {BLANK}") if masks else text)
        progress = partial(with_progress, what="continuing held-out texts", console=self.console)
        results = self.translator.answer_all(plans, progress=progress)
        return [
            Continuation(pair.target, *one) for pair, one in zip(held_out.pairs, zip(given, results, strict=True), strict=False)
        ]

    def perplexity(self) -> Perplexity:
        """Measures all held-out texts; if tokens are missing in them, these tokens alone."""
        examples, texts = self.held_out.examples, [pair.target for pair in self.held_out.pairs]
        codecs = self.training_data.codecs
        num_tokens = sum(len(_tokens(example, codecs.target.specials)) for example in examples)
        num_targets = sum(codecs.collate([example]).num_targets for example in examples)
        nll = self._loss(examples, self.console) * num_targets
        if self.model.traits.mask:
            return Perplexity(nll, num_tokens, len(texts))
        return Perplexity.of(nll, num_tokens, texts)


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
    examples, specials = training_data.examples, training_data.codecs.target.specials
    sampled = (examples[index] for index in range(0, len(examples), math.ceil(len(examples) / MOST_COUNTED)))
    counts: Counter[int] = Counter()
    for example in sampled:
        counts.update(_tokens(example, specials))
    total = counts.total() + len(training_data.codecs.target)
    nll = [
        math.log(total / (counts[token] + 1))
        for example in training_data.held_out.examples
        for token in _tokens(example, specials)
    ]
    return math.exp(sum(nll) / len(nll))


def _tokens(example: Example, specials: Specials) -> list[int]:
    """Returns the tokens that a model predicts: all and <eos>, or only those that are missing in the source."""
    if as_ids(example.source):
        return [token for token in example.target if token != specials.pad]
    return [*example.target, specials.eos]


def as_ids(source: SourceRow) -> list[int]:
    """Returns the source of a text as ids; it is empty unless tokens are missing in it."""
    assert isinstance(source, list)
    return source


def validator_of(training_data: TrainingData, settings: RunSettings) -> type[Validator]:
    """Returns the class of the validator for this data."""
    return Validator if settings.data.contents == "pairs" else TextValidator
