"""Error rates, BLEU and chrF, with confidence intervals and paired tests. The only module that uses sacrebleu, which is
optional."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import zip_longest

import torch
from rapidfuzz.distance import Levenshtein
from torch import Tensor

from regard.errors import UserError, plural

Tokens = tuple[str, ...]

SAMPLES = 1000
"""Number of bootstrap samples of a test set, for an interval or a test (Koehn 2004)."""
SEED = 12345
"""The seed of the bootstrap samples: sacrebleu's default."""


@dataclass(frozen=True)
class ErrorRates:
    """Error rates of outputs. If there are several references, the one with the fewest edits counts.

    sequence: the share of outputs that differ from every reference.  symbol: edits per reference symbol.
    num_sentences: the number of outputs.
    """

    sequence: float
    symbol: float
    num_sentences: int

    def __str__(self) -> str:
        symbol = f"symbol error rate {self.symbol:.2%}{note_above_100(self.symbol)}"
        return f"{symbol}, sequence error rate {self.sequence:.2%} on {plural(self.num_sentences, 'output')}"


def error_rates(outputs: Sequence[Tokens], references: Sequence[Sequence[Tokens]]) -> ErrorRates:
    """Computes the error rates of tokenised outputs. references: one or more for each output."""
    edits = symbols = wrong = 0
    for output, known in zip(outputs, references, strict=True):
        distance, length = nearest(output, known)
        edits, symbols, wrong = edits + distance, symbols + length, wrong + (distance > 0)
    return ErrorRates(wrong / len(outputs), edits / symbols, len(outputs))


def note_above_100(rate: float) -> str:
    """Returns a note that explains an error rate above 100 %, else an empty string."""
    return " (above 100%: the outputs are much longer than the references)" if rate > 1 else ""


def nearest(output: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[int, int]:
    """Returns (edits, length) for the reference with the smallest edit distance."""
    return min((Levenshtein.distance(output, reference), len(reference)) for reference in references)


@dataclass(frozen=True)
class Perplexity:
    """How well a model predicts texts: the exponential of the mean negative log-probability. 1 is perfect; lower is better.

    nll: the negative log-probability of all texts together. texts: the number of texts. tokens, words, characters: the numbers
    of these in all texts; the end of a text counts as one of each, since the model predicts it, too. If only some tokens are
    predicted, because they are missing in the texts, words and characters are 0.
    """

    nll: float
    tokens: int
    texts: int
    words: int = 0
    characters: int = 0

    @classmethod
    def of(cls, nll: float, tokens: int, texts: Sequence[str]) -> Perplexity:
        """Counts the words and characters of the texts. nll, tokens: as in the fields."""
        sizes = [text_sizes(text) for text in texts]
        return cls(nll, tokens, len(texts), sum(words for words, _ in sizes), sum(characters for _, characters in sizes))

    @property
    def per_token(self) -> float:
        return math.exp(self.nll / self.tokens)

    @property
    def per_word(self) -> float:
        return math.exp(self.nll / self.words)

    @property
    def per_character(self) -> float:
        return math.exp(self.nll / self.characters)

    def facts(self) -> dict[str, float]:
        """Returns the figures by the names that log.jsonl and config.json use."""
        if not self.words:
            return {"texts": self.texts, "perplexity_per_masked_token": self.per_token}
        return {
            "texts": self.texts,
            "perplexity_per_token": self.per_token,
            "perplexity_per_word": self.per_word,
            "perplexity_per_character": self.per_character,
        }

    def __str__(self) -> str:
        if not self.words:
            return f"perplexity {self.per_token:.2f} per masked token on {plural(self.texts, 'text')}"
        return (
            f"perplexity {self.per_token:.2f} per token, {self.per_word:.2f} per word, {self.per_character:.3f} per character "
            f"on {plural(self.texts, 'text')}"
        )


def text_sizes(text: str) -> tuple[int, int]:
    """Returns the numbers of words and of characters of a text; its end counts as one of each."""
    return len(text.split()) + 1, len(text) + 1


# --- measures ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measure:
    """A metric with its 95 % confidence interval [low, high].

    how: its signature.  percent: whether `value` is a share that is printed in per cent.
    p_value: from a paired bootstrap test against another system; the probability of a difference of at least this size if the
    systems do not differ. None without another system.
    """

    name: str
    value: float
    low: float
    high: float
    how: str
    percent: bool = False
    p_value: float | None = None

    def __str__(self) -> str:
        sign, scale = ("%", 100) if self.percent else ("", 1)
        interval = f"[{self.low * scale:.2f}, {self.high * scale:.2f}]"
        test = "" if self.p_value is None else f"  p = {self.p_value:.3f}"
        return f"{self.name:<18} {self.value * scale:6.2f}{sign} {interval}{test}  {self.how}"


def can_use_sacrebleu() -> bool:
    """Returns whether sacrebleu is installed."""
    return find_spec("sacrebleu") is not None


NEEDS_SACREBLEU = 'BLEU and chrF need sacrebleu; type: pip install "regard[metrics]"'


def bleu(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Returns the BLEU of sacrebleu, from 0 to 100. Raises UserError if sacrebleu is not installed."""
    if not can_use_sacrebleu():
        raise UserError(NEEDS_SACREBLEU)
    return _with_sacrebleu(outputs, references, None, ("BLEU",), intervals=False)[0].value


def chrf(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Returns the chrF of sacrebleu, from 0 to 100."""
    return _with_sacrebleu(outputs, references, None, ("chrF",), intervals=False)[0].value


NO_BLEU = "BLEU is not computed if no reference has 4 tokens: it counts matching 4-grams, so it would be 0"


def can_use_bleu(references: Iterable[Sequence[str]]) -> bool:
    """Returns whether any reference has the 4 tokens that BLEU needs, as tokenised by sacrebleu."""
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU()
    return any(len(metric.tokenizer(text).split()) >= metric.max_ngram_order for known in references for text in known)


def measures(
    outputs: Sequence[str],
    references: Sequence[Sequence[str]],
    symbols: Callable[[str], Sequence[str]],
    against: Sequence[str] | None = None,
    *,
    intervals: bool = True,
) -> list[Measure]:
    """Computes all metrics of a system: BLEU and chrF if sacrebleu is installed, word error rate, symbol error rate and exact
    match. BLEU is omitted if all references are too short for it.

    references: one or more for each output.
    symbols: splits a text into the symbols that the symbol error rate counts.
    against: the outputs of another system for the same sources; each metric then has the p-value of a paired test.
    intervals: whether to compute confidence intervals and tests.

    Raises UserError if there are no outputs.
    """
    if not outputs:
        raise UserError("there is nothing to measure: no outputs")
    computed = []
    if can_use_sacrebleu():
        names = ("BLEU", "chrF") if can_use_bleu(references) else ("chrF",)
        computed = _with_sacrebleu(outputs, references, against, names, intervals=intervals)
    ours = _errors(outputs, references, symbols)
    theirs = None if against is None else _errors(against, references, symbols)
    for number, name in enumerate(("word error rate", "symbol error rate", "exact match")):
        computed.append(_measure(name, ours[number], None if theirs is None else theirs[number], intervals=intervals))
    return computed


def perplexities(
    texts: Sequence[str], log_probs: Sequence[Sequence[float]], tokens: Sequence[Sequence[int]], *, intervals: bool = True
) -> list[Measure]:
    """Computes the perplexity of texts per token, word and character.

    log_probs, tokens: the log-probability and the number of tokens of each text, once for each of one or two systems; with two,
    the measures are those of the first, with the p-value of a paired test.
    """
    words, characters = zip(*map(text_sizes, texts), strict=True)
    computed = []
    for name, sizes in (("token", tokens), ("word", [words] * len(tokens)), ("character", [characters] * len(tokens))):
        counts = [
            torch.stack((-torch.tensor(sums, dtype=torch.float64), torch.tensor(own, dtype=torch.float64)), dim=1)
            for sums, own in zip(log_probs, sizes, strict=True)
        ]
        mean = _measure(f"perplexity/{name}", counts[0], counts[1] if len(counts) > 1 else None, intervals=intervals)
        value, low, high = (math.exp(number) for number in (mean.value, mean.low, mean.high))
        computed.append(replace(mean, value=value, low=low, high=high, percent=False))
    return computed


def _errors(
    outputs: Sequence[str], references: Sequence[Sequence[str]], symbols: Callable[[str], Sequence[str]]
) -> list[Tensor]:
    """Returns a tensor (N, 2) of (count, total) per sentence for each metric: word edits, symbol edits and exact matches."""
    rows: list[tuple[tuple[int, int], ...]] = []
    for output, known in zip(outputs, references, strict=True):
        word_edits = nearest(output.split(), [reference.split() for reference in known])
        symbol_edits = nearest(symbols(output), [symbols(reference) for reference in known])
        rows.append((word_edits, symbol_edits, (int(output in known), 1)))
    return list(torch.tensor(rows, dtype=torch.float64).unbind(1))


def _measure(name: str, ours_N2: Tensor, theirs_N2: Tensor | None, *, intervals: bool) -> Measure:
    """Computes a rate from counts per sentence, with its bootstrap interval and a paired bootstrap test."""
    value = _rates(ours_N2.sum(0)).item()
    if not intervals:
        return Measure(name, value, value, value, "", percent=True)
    rates_R = _rates(_resampled(ours_N2))
    low, high = rates_R.quantile(0.025).item(), rates_R.quantile(0.975).item()
    measure = Measure(name, value, low, high, f"bs:{SAMPLES}|seed:{SEED}", percent=True)
    if theirs_N2 is None:
        return measure
    difference = value - _rates(theirs_N2.sum(0)).item()
    differences_R = rates_R - _rates(_resampled(theirs_N2))
    as_extreme_R = (differences_R - differences_R.mean()).abs() >= abs(difference)
    return replace(measure, p_value=(as_extreme_R.sum().item() + 1) / (SAMPLES + 1))


def _resampled(counts_N2: Tensor) -> Tensor:
    """Returns the sums over bootstrap samples of the sentences, (R, 2). The samples are the same for every system."""
    generator, size = torch.Generator().manual_seed(SEED), len(counts_N2)
    return torch.stack([counts_N2[torch.randint(size, (size,), generator=generator)].sum(0) for _ in range(SAMPLES)])


def _rates(counts: Tensor) -> Tensor:
    """Divides counts by totals, (..., 2) -> (...)."""
    return counts[..., 0] / counts[..., 1].clamp(min=1)


def _with_sacrebleu(
    outputs: Sequence[str],
    references: Sequence[Sequence[str]],
    against: Sequence[str] | None,
    names: Sequence[str],
    *,
    intervals: bool,
) -> list[Measure]:
    """Computes BLEU or chrF, with sacrebleu's own intervals and paired bootstrap test."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.significance import PairedTest, Result

    columns = [list(column) for column in zip_longest(*references)]  # missing references are None
    classes = {"BLEU": BLEU, "chrF": CHRF}
    metrics = {name: classes[name](references=columns) for name in names}
    computed = []
    if not intervals or len(outputs) == 1:
        for name, metric in metrics.items():
            score = metric.corpus_score(list(outputs), None).score
            computed.append(Measure(name, score, score, score, str(metric.get_signature())))
        return computed
    systems: list[tuple[str, Sequence[str]]] = [] if against is None else [("theirs", against)]
    systems.append(("ours", outputs))
    signatures, scores = PairedTest(systems, metrics, None, test_type="bs", n_samples=SAMPLES)()
    for name in metrics:
        (key,) = (key for key in scores if key.startswith(name))
        result = scores[key][-1]
        assert isinstance(result, Result)
        assert result.mean is not None
        assert result.ci is not None
        low, high = result.mean - result.ci, result.mean + result.ci
        first = scores[key][0]
        same = against is not None and isinstance(first, Result) and first.score == result.score
        p_value = 1.0 if same else result.p_value  # sacrebleu returns 1/1001 if the scores are equal
        computed.append(Measure(name, result.score, low, high, str(signatures[key]), p_value=p_value))
    return computed


def by_length(sizes: Sequence[int]) -> list[tuple[str, list[int]]]:
    """Groups sources by length into up to four groups of about the same size. Returns (range of lengths, indices) of each."""
    order = sorted(range(len(sizes)), key=lambda index: sizes[index])
    borders = sorted({sizes[order[len(order) * part // 4]] for part in range(4)})
    groups = []
    for start, end in zip(borders, [*borders[1:], sizes[order[-1]] + 1], strict=True):
        inside = [index for index in range(len(sizes)) if start <= sizes[index] < end]
        groups.append((str(start) if end == start + 1 else f"{start}-{end - 1}", inside))
    return groups
