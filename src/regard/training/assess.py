"""Is the model good, and what would make it better? Judged by what was held out, a trivial guess, and the curves."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from regard.data.batch import Example
from regard.data.corpus import shorten
from regard.data.tokenizers.codec import UNK, Codec
from regard.errors import plural
from regard.evaluation import ErrorRates, Tokens, can_use_sacrebleu, chrf, error_rates
from regard.training.predictions import Prediction
from regard.training.settings import RunSettings, side_of

MOST_COUNTED = 20_000
"""From how many examples the most frequent target is chosen."""

# Thresholds of `advise`; docs/LOG.md has the trainings that they were checked with.
FEWEST = 4
"""Validations that make a curve."""
FALLING, FALLING_APART = 0.03, 0.1
"""The held-out loss is still falling if its last quarter lost this share of it; the second, where the losses are far apart."""
RISING = 1.02
"""The held-out loss has risen if its end is so many times its minimum."""
APART, APART_AT_LEAST = 1.5, 0.05
"""Losses are far apart if held-out pairs have so many times that of learnt ones, and this much more."""
FEW_PASSES = 5
"""Times through the data; a model that has seen its pairs less often, and knows held-out ones as well, can learn on."""
SOLVED = 0.98
"""The share exactly right from which there is little left to gain."""

GRADES = ("Yes", "Mostly", "Partly")
WIDE = 0.4
"""An interval of the share exactly right that says nothing."""
BETTER = 0.9
"""A model beats a trivial guess if it makes at most so many times its errors."""


@dataclass(frozen=True)
class Figures:
    """right: the share that equals a reference. symbol: the symbol error rate. chrf: 0 to 100; only of sentences."""

    right: float
    symbol: float
    chrf: float | None = None

    def badness(self, *, sentences: bool) -> tuple[float, ...]:
        """To compare by; lower is better. Few sentences are exactly right, so there it does not count."""
        return (self.symbol if self.chrf is None else -self.chrf,) if sentences else (-self.right, self.symbol)


class Losses(NamedTuple):
    """Per target token, of the same weights, without dropout and smoothing."""

    learnt: float
    held_out: float

    @property
    def far_apart(self) -> bool:
        return self.held_out > max(APART * self.learnt, self.learnt + APART_AT_LEAST)


class Advice(NamedTuple):
    """What would probably help most, and the reason."""

    what: Literal["updates", "data", "size", "enough", "unknown"]
    reason: str


def advise(curve: Sequence[float], losses: Losses, passes: float, right: float) -> Advice:
    """curve: the held-out loss at equal distances. passes: times through the data. right: the share exactly right."""
    long_enough = len(curve) >= FEWEST
    fall = 1 - curve[-1] / curve[-1 - len(curve) // 4] if long_enough else 0.0
    if right >= SOLVED:
        return Advice("enough", f"{right:.1%} are right")
    if long_enough and curve[-1] > RISING * min(curve):
        return Advice("data", "the held-out loss fell and then rose again")
    if fall > (FALLING_APART if losses.far_apart else FALLING):
        return Advice("updates", "the held-out loss was still falling")
    if losses.far_apart:
        return Advice("data", f"the loss is {losses.learnt:.2f} on training pairs, but {losses.held_out:.2f} on held-out ones")
    if passes < FEW_PASSES:
        return Advice("updates", f"it went through the data only {passes:.1f} times")
    if long_enough:
        return Advice("size", "the held-out loss has stopped falling")
    return Advice("unknown", f"from {plural(len(curve), 'validation')}" if curve else "without validations on the way")


@dataclass(frozen=True)
class Assessment:
    """guess: what a trivial guess gets, and which. next_step: what to do about the advice, in words for people."""

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
        return wilson(self.model.right, self.num_sources)

    @property
    def verdict(self) -> str:
        """Is it good? One sentence."""
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
        return f"Is this good? {self._grade()}: {measured}; {self.guess_name} gets {guessed}."

    def _grade(self) -> str:
        low, high = self.interval
        if high - low > WIDE:
            return "Hard to tell from so few"
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
        """For the log."""
        low, high = self.interval
        found: dict[str, float | str | None] = {
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
            "training_loss": self.losses.learnt,
            "held_out_loss": self.losses.held_out,
            "would_help": self.advice.what,
        }
        return {name: value for name, value in found.items() if value is not None}

    def card_lines(self) -> str:
        """The same for people."""
        low, high = self.interval
        with_chrf = [f", chrF {one.chrf:.1f}" if one.chrf is not None else "" for one in (self.model, self.guess)]
        return (
            f"- Exactly right: {self.model.right:.1%} of {plural(self.num_sources, 'source')} "
            f"(95% interval {low:.1%} to {high:.1%}){with_chrf[0]}\n"
            f"- A trivial guess, {self.guess_name}: {self.guess.right:.1%} exactly right, "
            f"symbol error rate {self.guess.symbol:.1%}{with_chrf[1]}\n"
            f"- Loss per token: {self.losses.learnt:.4f} on training pairs, {self.losses.held_out:.4f} on held-out ones\n"
        )


def assess(
    predictions: Sequence[Prediction],
    rates: ErrorRates,
    examples: Sequence[Example],
    codecs: tuple[object, Codec],
    curve: Sequence[float],
    losses: Losses,
    passes: float,
    settings: RunSettings,
) -> Assessment:
    """examples: what was learnt from."""
    source, target = codecs
    sentences = side_of([one for prediction in predictions for one in prediction.references]).is_sentences
    with_chrf = sentences and can_use_sacrebleu()
    texts = [prediction.references for prediction in predictions]

    def guessed(outputs: Sequence[str]) -> Figures:
        ids = target.encode_batch(outputs)
        tokens = [target.tokens(one) for one in ids]
        right = sum(
            UNK not in one and token in prediction.reference_tokens
            for one, token, prediction in zip(ids, tokens, predictions, strict=True)
        )
        known: list[tuple[Tokens, ...]] = [prediction.reference_tokens for prediction in predictions]
        return Figures(right / len(predictions), error_rates(tokens, known).symbol, chrf(outputs, texts) if with_chrf else None)

    frequent = most_frequent(examples, target)
    guesses = {f"always writing {shorten(frequent)!r}": guessed([frequent] * len(predictions))}
    if isinstance(source, Codec):  # of several columns the first
        guesses["copying the source"] = guessed([prediction.source.partition("\t")[0] for prediction in predictions])
    name = min(guesses, key=lambda one: guesses[one].badness(sentences=sentences))
    model = Figures(
        1 - rates.sequence,
        rates.symbol,
        chrf([prediction.result.text for prediction in predictions], texts) if with_chrf else None,
    )
    advice = advise(curve, losses, passes, model.right)
    step = next_step(advice, settings)
    return Assessment(len(predictions), sentences, model, guesses[name], name, losses, advice, step)


def next_step(advice: Advice, settings: RunSettings) -> str:
    """What to do, and what to type."""
    steps, model, fixed = settings.train.steps, settings.model, bool(settings.start.model)
    if advice.what == "updates":
        return (
            f"More updates would probably help: {advice.reason}. "
            f"Type the same command with --set train.steps={2 * steps} and another --out."
        )
    if advice.what == "data":
        dropout = "" if fixed or model.dropout >= 0.5 else f", or more dropout (now model.dropout={model.dropout:g})"
        return f"More pairs would probably help{dropout}: {advice.reason}."
    if advice.what == "size":
        larger = "" if fixed else f"a larger model (--set model.width={2 * model.width}) or "
        return f"More updates would change little: {advice.reason}. Try {larger}other data."
    if advice.what == "enough":
        return "There is little left to gain."
    return (
        f"Whether more updates would help cannot be judged {advice.reason}; "
        f"--set train.validate_every={max(1, steps // 8)} makes enough of them."
    )


def most_frequent(examples: Sequence[Example], target: Codec) -> str:
    """The text that is written most often; of equally frequent ones always the same."""
    number = len(examples)
    found = Counter(tuple(examples[at].target) for at in range(0, number, math.ceil(number / MOST_COUNTED)))
    return target.decode(max((count, ids) for ids, count in found.items())[1])


def wilson(share: float, number: int, z: float = 1.959964) -> tuple[float, float]:
    """The interval of a share that was counted over so many (Wilson 1927); 95 % by default."""
    middle = share + z * z / (2 * number)
    spread = z * math.sqrt(share * (1 - share) / number + (z / (2 * number)) ** 2)
    scale = 1 + z * z / number
    return max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale)
