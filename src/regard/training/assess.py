"""Assesses a trained model by its held-out pairs, a trivial guess and its loss curve: is it good, and what would improve it?"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from regard.data.batch import Example
from regard.data.source_text import flat
from regard.data.sources import FileCodec
from regard.data.tokenizers.contract import TextCodec
from regard.errors import plural, shorten
from regard.evaluation import ErrorRates, Tokens, can_use_sacrebleu, chrf, error_rates
from regard.training.settings import RunSettings
from regard.training.suggest import side_of
from regard.training.validation import Prediction

MOST_COUNTED = 20_000
"""The number of examples among which the most frequent target is counted."""

# Thresholds of `advise`; docs/LOG.md lists the runs that they were checked on.
FEWEST = 4
"""The minimum number of validations of a curve."""
FALLING, FALLING_APART = 0.03, 0.1
"""The held-out loss is still falling if it fell by more than this fraction in the last quarter of its curve; the second value
applies when the losses are far apart."""
RISING = 1.02
"""The held-out loss has risen if its last value exceeds this multiple of its minimum."""
APART, APART_AT_LEAST = 1.5, 0.05
"""The losses are far apart if the held-out loss exceeds this multiple of the training loss, and exceeds it by this much."""
FEW_PASSES = 5
"""A model that made fewer passes over its data, and whose losses are not far apart, has probably not converged."""
SOLVED = 0.98
"""The share of exact matches from which there is little left to gain."""

GRADES = ("Yes", "Mostly", "Partly")
WIDE = 0.4
"""A wider confidence interval of the share of exact matches does not allow a verdict."""
BETTER = 0.9
"""A model beats a trivial guess if it makes fewer than this fraction of its errors."""


@dataclass(frozen=True)
class Figures:
    """Quality of some outputs.

    right: the share that equals a reference. symbol: the symbol error rate. chrf: 0 to 100; only for sentences.
    """

    right: float
    symbol: float
    chrf: float | None = None

    def sort_key(self, *, sentences: bool) -> tuple[float, ...]:
        """Returns a key to compare figures by; lower is better. Exact matches of sentences are rare, so they do not count."""
        return (self.symbol if self.chrf is None else -self.chrf,) if sentences else (-self.right, self.symbol)


class Losses(NamedTuple):
    """Mean loss per target token on training and on held-out pairs, with the same weights, without dropout and smoothing."""

    training: float
    held_out: float

    @property
    def far_apart(self) -> bool:
        return self.held_out > max(APART * self.training, self.training + APART_AT_LEAST)


class Advice(NamedTuple):
    """The change that would probably improve the model most, and the reason."""

    what: Literal["updates", "data", "size", "enough", "unknown"]
    reason: str


def advise(curve: Sequence[float], losses: Losses, passes: float, right: float) -> Advice:
    """Returns what would probably improve the model most.

    curve: the held-out loss, measured at regular intervals. passes: the number of passes over the data.
    right: the share of exact matches.
    """
    long_enough = len(curve) >= FEWEST
    fall = 1 - curve[-1] / curve[-1 - len(curve) // 4] if long_enough else 0.0
    if right >= SOLVED:
        return Advice("enough", f"{right:.1%} are exactly right")
    if long_enough and curve[-1] > RISING * min(curve):
        return Advice("data", "the held-out loss fell and then rose again")
    if fall > (FALLING_APART if losses.far_apart else FALLING):
        return Advice("updates", "the held-out loss was still falling")
    if losses.far_apart:
        return Advice(
            "data", f"the loss is {losses.training:.2f} on training pairs, but {losses.held_out:.2f} on held-out pairs"
        )
    if passes < FEW_PASSES:
        return Advice("updates", f"the run made only {passes:.1f} passes over the data")
    if long_enough:
        return Advice("size", "the held-out loss has stopped falling")
    if curve:
        return Advice("unknown", f"only {plural(len(curve), 'validation was', 'validations were')} made")
    return Advice("unknown", "no validations were made during training")


@dataclass(frozen=True)
class Assessment:
    """The assessment of a trained model; `str` returns the text that users read.

    guess, guess_name: the figures of the best trivial guess, and a description of it.
    next_step: one or two sentences that say how to follow the advice.
    """

    num_sources: int
    sentences: bool
    model: Figures
    guess: Figures
    guess_name: str
    losses: Losses
    advice: Advice
    next_step: str

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% confidence interval of the share of exact matches."""
        return wilson(self.model.right, self.num_sources)

    @property
    def verdict(self) -> str:
        """One sentence that says whether the model is good."""
        sources, low_high = plural(self.num_sources, "held-out source"), "{:.1%} to {:.1%}".format(*self.interval)
        if not self.sentences:
            measured = f"{self.model.right:.1%} of {sources} exactly right (95% interval {low_high})"
            guessed = f"{self.guess.right:.1%}"
        elif self.model.chrf is not None:
            measured = f"chrF {self.model.chrf:.1f} of 100 on {sources}, {self.model.right:.1%} exactly right"
            guessed = f"chrF {self.guess.chrf:.1f}"
        else:
            measured = f"symbol error rate {self.model.symbol:.1%} on {sources}, {self.model.right:.1%} exactly right"
            guessed = f"{self.guess.symbol:.1%}"
        return f"Is this good? {self._grade()}: {measured}; a trivial guess ({self.guess_name}) gets {guessed}."

    def _grade(self) -> str:
        low, high = self.interval
        if high - low > WIDE:
            return "Too few sources to judge"
        better = self.model.symbol < BETTER * self.guess.symbol
        if not self.sentences:
            score, grades, better = self.model.right, (0.9, 0.6, 0.3), better or low > self.guess.right
        elif self.model.chrf is None or self.guess.chrf is None:
            score, grades = 1 - self.model.symbol, (0.9, 0.7, 0.4)
        else:
            score, grades, better = self.model.chrf, (70, 50, 30), BETTER * self.model.chrf > self.guess.chrf
        if not better:
            return "No, a trivial guess is about as good"
        return next((name for name, least in zip(GRADES, grades, strict=True) if score >= least), "Not yet")

    def __str__(self) -> str:
        return f"{self.verdict}\n{self.next_step}"

    def facts(self) -> dict[str, float | str]:
        """Returns the figures by the names that log.jsonl uses; figures that were not computed are omitted."""
        low, high = self.interval
        facts: dict[str, float | str | None] = {
            "sources": self.num_sources,
            "exactly_right": self.model.right,
            "exactly_right_low": low,
            "exactly_right_high": high,
            "symbol_error_rate": self.model.symbol,
            "chrf": self.model.chrf,
            "guess": self.guess_name,
            "guess_exactly_right": self.guess.right,
            "guess_symbol_error_rate": self.guess.symbol,
            "guess_chrf": self.guess.chrf,
            "training_loss": self.losses.training,
            "held_out_loss": self.losses.held_out,
            "would_help": self.advice.what,
        }
        return {name: value for name, value in facts.items() if value is not None}

    def card_lines(self) -> str:
        """Returns the figures as lines of the model card."""
        low, high = self.interval
        with_chrf = [f", chrF {figures.chrf:.1f}" if figures.chrf is not None else "" for figures in (self.model, self.guess)]
        return (
            f"- Exactly right: {self.model.right:.1%} of {plural(self.num_sources, 'source')} "
            f"(95% interval {low:.1%} to {high:.1%}){with_chrf[0]}\n"
            f"- A trivial guess ({self.guess_name}): {self.guess.right:.1%} exactly right, "
            f"symbol error rate {self.guess.symbol:.1%}{with_chrf[1]}\n"
            f"- Loss per token: {self.losses.training:.4f} on training pairs, {self.losses.held_out:.4f} on held-out pairs\n"
        )


def assess(
    predictions: Sequence[Prediction],
    rates: ErrorRates,
    examples: Sequence[Example],
    codecs: tuple[object, TextCodec],
    curve: Sequence[float],
    losses: Losses,
    passes: float,
    settings: RunSettings,
) -> Assessment:
    """Assesses a model.

    predictions, rates: its outputs for the held-out sources, and their error rates. examples: the training examples.
    curve, losses, passes: as in `advise`.
    """
    source, target = codecs
    sentences = side_of([text for prediction in predictions for text in prediction.references]).is_sentences
    with_chrf = sentences and can_use_sacrebleu()
    texts = [prediction.references for prediction in predictions]

    def figures_of(outputs: Sequence[str]) -> Figures:
        ids = target.encode_batch(outputs)
        tokens = [target.tokens(output_ids) for output_ids in ids]
        right = sum(
            target.specials.unk not in output_ids and output_tokens in prediction.reference_tokens
            for output_ids, output_tokens, prediction in zip(ids, tokens, predictions, strict=True)
        )
        references: list[tuple[Tokens, ...]] = [prediction.reference_tokens for prediction in predictions]
        symbol = error_rates(tokens, references).symbol
        return Figures(right / len(predictions), symbol, chrf(outputs, texts) if with_chrf else None)

    frequent = most_frequent(examples, target)
    guesses = {f"always writing {shorten(frequent)!r}": figures_of([frequent] * len(predictions))}
    if not isinstance(source, FileCodec):  # if the source has several columns, the first is copied
        guesses["copying the source"] = figures_of([flat(prediction.source).partition("\t")[0] for prediction in predictions])
    name = min(guesses, key=lambda guess: guesses[guess].sort_key(sentences=sentences))
    model = Figures(
        1 - rates.sequence,
        rates.symbol,
        chrf([prediction.result.text for prediction in predictions], texts) if with_chrf else None,
    )
    advice = advise(curve, losses, passes, model.right)
    step = next_step(advice, settings)
    return Assessment(len(predictions), sentences, model, guesses[name], name, losses, advice, step)


def next_step(advice: Advice, settings: RunSettings) -> str:
    """Returns one or two sentences that say how to follow the advice, with the options to use."""
    steps, model, fixed = settings.train.steps, settings.model, bool(settings.start.model)
    if advice.what == "updates":
        return (
            f"More updates would probably help: {advice.reason}. "
            f"Run the same command with --set train.steps={2 * steps} and a different --out."
        )
    if advice.what == "data":
        dropout = "" if fixed or model.dropout >= 0.5 else f", or more dropout (model.dropout is {model.dropout:g})"
        return f"More pairs would probably help{dropout}: {advice.reason}."
    if advice.what == "size":
        larger = "" if fixed else f"a larger model (--set model.width={2 * model.width}) or "
        return f"More updates would change little: {advice.reason}. Try {larger}other data."
    if advice.what == "enough":
        return "There is little left to gain."
    return (
        f"It is unclear whether more updates would help: {advice.reason}. "
        f"Use --set train.validate_every={max(1, steps // 8)} to validate often enough."
    )


def most_frequent(examples: Sequence[Example], target: TextCodec) -> str:
    """Returns the most frequent target text; ties are broken deterministically."""
    number = len(examples)
    counts = Counter(tuple(examples[index].target) for index in range(0, number, math.ceil(number / MOST_COUNTED)))
    return target.decode(max((count, ids) for ids, count in counts.items())[1])


def wilson(share: float, number: int, z: float = 1.959964) -> tuple[float, float]:
    """Returns the confidence interval of a share that was observed in `number` cases (Wilson 1927); 95 % by default."""
    middle = share + z * z / (2 * number)
    spread = z * math.sqrt(share * (1 - share) / number + (z / (2 * number)) ** 2)
    scale = 1 + z * z / number
    return max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale)
