"""The outputs of a model for held-out sources, with their references."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from regard.data.batch import derived_seed
from regard.data.corpus import Pair
from regard.data.labels import readable
from regard.errors import plural, shorten
from regard.evaluation import ErrorRates, error_rates
from regard.pipeline import ProgressCallback, Translator
from regard.results import Result


@dataclass(frozen=True)
class Prediction:
    """A held-out source with all its references and the model's output."""

    source: str
    references: tuple[str, ...]
    reference_tokens: tuple[tuple[str, ...], ...]
    result: Result

    @property
    def right(self) -> bool:
        """Whether the output equals a reference."""
        return self.result.tokens in self.reference_tokens

    def __str__(self) -> str:
        mark = "=" if self.right else f"(expected {_readable(' or '.join(self.references))})"
        return f"{_readable(self.source)} -> {_readable(self.result.text)} {mark}"


def _readable(text: str) -> str:
    """Returns the text as one short line without control characters."""
    return readable(shorten(text))


def predict(
    translator: Translator, pairs: Sequence[Pair], max_length: int, progress: ProgressCallback | None = None
) -> list[Prediction]:
    """Translates every distinct source once; all its targets are its references."""
    references: dict[str, dict[str, None]] = {}
    for pair in pairs:
        references.setdefault(pair.source, {})[pair.target] = None
    results = translator.batch(list(references), max_length=max_length, progress=progress)
    codec = translator.target
    return [
        Prediction(source, tuple(targets), tuple(codec.tokens(codec.encode(target)) for target in targets), result)
        for (source, targets), result in zip(references.items(), results, strict=True)
    ]


def sample_of(pairs: Sequence[Pair], number: int, seed: int) -> list[Pair]:
    """Returns all pairs of `number` random sources; the sample depends on the seed, not on the order of the pairs."""
    drawn = {pair.source: derived_seed(seed, "validation", pair.source) for pair in pairs}
    kept = set(sorted(drawn, key=drawn.__getitem__)[:number])
    return sorted((pair for pair in pairs if pair.source in kept), key=lambda pair: drawn[pair.source])


def rates_of(predictions: Sequence[Prediction]) -> ErrorRates:
    """Returns the error rates of the outputs."""
    return error_rates(
        [prediction.result.tokens for prediction in predictions], [prediction.reference_tokens for prediction in predictions]
    )


def num_sources(pairs: Iterable[Pair]) -> int:
    """Returns the number of distinct sources."""
    return len({pair.source for pair in pairs})


def describe_held_out(pairs: Sequence[Pair]) -> str:
    """Returns the number of held-out pairs, in words."""
    sources = num_sources(pairs)
    different = f" with {plural(sources, 'different source')}" if sources < len(pairs) else ""
    return f"{plural(len(pairs), 'held-out pair')}{different}"
