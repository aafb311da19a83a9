"""Error rates, with what reproduces them."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version

from rapidfuzz.distance import Levenshtein

Tokens = tuple[str, ...]


@dataclass(frozen=True)
class ErrorRates:
    """Against several references the nearest one counts.

    word: share of outputs that equal no reference.  symbol: edits needed, as a share of the reference symbols.
    """

    word: float
    symbol: float
    num_sentences: int

    def __str__(self) -> str:
        return f"symbol error rate {self.symbol:.2%}; {self.word:.2%} of {self.num_sentences:,} outputs are not quite right"


def error_rates(outputs: Sequence[Tokens], references: Sequence[Sequence[Tokens]]) -> ErrorRates:
    edits = symbols = wrong = 0
    for output, choices in zip(outputs, references, strict=True):
        distance, length = min((Levenshtein.distance(output, choice), len(choice)) for choice in choices)
        edits, symbols, wrong = edits + distance, symbols + length, wrong + (distance > 0)
    return ErrorRates(wrong / len(outputs), edits / symbols, len(outputs))


def signature(facts: Mapping[str, object]) -> str:
    """One line that says what reproduces a number: `data:… | search:greedy | seed:7 | regard:0.1.0 | torch:…`."""
    versions = {"regard": version("regard"), "torch": version("torch"), "python": platform.python_version()}
    return " | ".join(f"{name}:{value}" for name, value in {**facts, **versions}.items())
