"""Whether the further columns of sources hold sets of features, such as "V;PST": few symbols, in no order of their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from regard.contracts import SourceText
from regard.data.source_text import flat

FEWEST_USES = 10
"""Features are used at least so often on average; the words of a text are not."""
MOST_REPEATED = 0.01
"""The largest share of sources in which a feature occurs twice."""
SAME_ORDER = 0.99
"""Two features stand in the same order whenever they occur together, in at least this share of cases: so the order says
nothing."""


@dataclass(frozen=True)
class FeatureSets:
    """Statistics of the further columns. different: the number of different features. per_source: the mean number."""

    different: int
    per_source: float

    def __str__(self) -> str:
        return f"{self.different} different features, {self.per_source:.1f} per source, whose order says nothing"


def feature_sets(sources: Sequence[SourceText]) -> FeatureSets | None:
    """Returns the statistics of the features; None if there are none, or if they are no sets."""
    lists = [flat(source).split("\t")[1:] for source in sources]
    uses = Counter(feature for features in lists for feature in features)
    if not uses or uses.total() < FEWEST_USES * len(uses):
        return None
    repeated = sum(len(set(features)) < len(features) for features in lists)
    orders = Counter(pair for features in lists for pair in combinations(features, 2))
    pairs = {tuple(sorted(pair)) for pair in orders}
    usual = sum(max(orders[first, second], orders[second, first]) for first, second in pairs)
    if repeated > MOST_REPEATED * len(lists) or usual < SAME_ORDER * orders.total():
        return None
    return FeatureSets(len(uses), uses.total() / len(lists))
