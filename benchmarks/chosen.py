"""Attention as a choice: the quality if every token attends to its largest weight only, and where that weight is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from regard.evaluation import Measure, measures
from regard.look import Edit
from regard.pipeline import Translator
from regard.results import Result

HARD = (Edit.force(None, "largest"),)


def exact_match(results: Sequence[Result], references: Sequence[str], against: Sequence[Result] | None = None) -> Measure:
    """Returns the share of outputs that are right, with its interval; and the p-value of the difference from other results."""
    others = None if against is None else [result.text for result in against]
    *_, exact = measures([result.text for result in results], [[one] for one in references], str.split, others)
    assert exact.name == "exact match"
    return exact


def hard_results(translator: Translator, sources: Sequence[str]) -> list[Result]:
    """Translates with hard attention (`regard evaluate --hard`)."""
    return [cast(Result, result) for result in translator.translate(list(sources), edits=HARD)]


def columns(result: Result) -> list[float]:
    """Returns the middle of the column that each token attends to most, as a fraction of the width of the picture."""
    attention = result.attention()
    return [(int(np.argmax(map_RC)) % attention.axes[1] + 0.5) / attention.axes[1] for map_RC in attention.maps_TRC]


def percent(measure: Measure) -> str:
    """ "64.1 [60.3, 67.9]" """
    return f"{100 * measure.value:.1f} [{100 * measure.low:.1f}, {100 * measure.high:.1f}]"
