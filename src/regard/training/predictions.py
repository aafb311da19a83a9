"""What a model writes for held-out sources, next to what was expected."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from regard.contracts import Result
from regard.data.batch import derived_seed
from regard.data.corpus import Pair, shorten
from regard.data.labels import readable
from regard.errors import plural
from regard.evaluation import ErrorRates, error_rates
from regard.pipeline import ProgressCallback, Translator


@dataclass(frozen=True)
class Prediction:
    """One held-out source with all its references and what the model made of it."""

    source: str
    references: tuple[str, ...]
    reference_tokens: tuple[tuple[str, ...], ...]
    result: Result

    @property
    def right(self) -> bool:
        return self.result.tokens in self.reference_tokens

    def __str__(self) -> str:
        mark = "=" if self.right else f"(expected {_readable(' or '.join(self.references))})"
        return f"{_readable(self.source)} -> {_readable(self.result.text)} {mark}"


def _readable(text: str) -> str:
    """In one line that a terminal does not obey."""
    return readable(shorten(text))


def predict(
    translator: Translator, pairs: Sequence[Pair], max_length: int, progress: ProgressCallback | None = None
) -> list[Prediction]:
    """Translates every distinct source once; all its targets count as references."""
    references: dict[str, dict[str, None]] = {}
    for pair in pairs:
        references.setdefault(pair.source, {})[pair.target] = None
    results = translator.batch(list(references), max_length=max_length, progress=progress)
    codec = translator.target
    return [
        Prediction(text, tuple(known), tuple(codec.tokens(codec.encode(one)) for one in known), result)
        for (text, known), result in zip(references.items(), results, strict=True)
    ]


def sample_of(pairs: Sequence[Pair], number: int, seed: int) -> list[Pair]:
    """All pairs of so many sources, drawn by the seed; they do not depend on the order of the pairs."""
    drawn = {pair.source: derived_seed(seed, "validation", pair.source) for pair in pairs}
    kept = set(sorted(drawn, key=drawn.__getitem__)[:number])
    return sorted((pair for pair in pairs if pair.source in kept), key=lambda pair: drawn[pair.source])


def rates_of(predictions: Sequence[Prediction]) -> ErrorRates:
    return error_rates(
        [prediction.result.tokens for prediction in predictions], [prediction.reference_tokens for prediction in predictions]
    )


def num_sources(pairs: Iterable[Pair]) -> int:
    return len({pair.source for pair in pairs})


def describe_held_out(pairs: Sequence[Pair]) -> str:
    sources = num_sources(pairs)
    different = f" with {plural(sources, 'different source')}" if sources < len(pairs) else ""
    return f"{plural(len(pairs), 'pair')}{different} held out"
