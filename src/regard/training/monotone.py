"""Whether source and target of pairs are in the same order, from the positions of symbols that occur together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

Symbols = Sequence[str]

FEWEST = 5
"""Target symbols that occur in fewer pairs are left out."""


def order_correlation(pairs: Sequence[tuple[Symbols, Symbols]]) -> float:
    """Returns the correlation between the positions of matching symbols: 1 if the order is the same, −1 if it is reversed,
    about 0 if there is none.

    Each target symbol matches the source symbol with which it shares the most pairs (by the Dice coefficient). Positions are
    counted from 0 to 1, and only in pairs in which both symbols occur once. Returns 0 if there are none.
    """
    partner = _partners(pairs)
    positions = []
    for source, target in pairs:
        once = {symbol for symbol, number in Counter(source).items() if number == 1}
        counts = Counter(target)
        for index, symbol in enumerate(target):
            match = partner.get(symbol)
            if match in once and counts[symbol] == 1 and min(len(source), len(target)) > 1:
                positions.append((source.index(match) / (len(source) - 1), index / (len(target) - 1)))
    columns = np.array(positions).reshape(-1, 2).T
    if not columns.size or not columns.std(axis=1).all():
        return 0.0
    return float(np.corrcoef(columns)[0, 1])


def _partners(pairs: Sequence[tuple[Symbols, Symbols]]) -> dict[str, str]:
    """Returns the source symbol that each target symbol occurs together with most."""
    in_source, in_target, together = Counter[str](), Counter[str](), Counter[tuple[str, str]]()
    for source, target in pairs:
        sources, targets = sorted(set(source)), sorted(set(target))
        in_source.update(sources)
        in_target.update(targets)
        together.update((one, other) for one in sources for other in targets)
    best: dict[str, tuple[float, str]] = {}
    for (one, other), number in sorted(together.items()):
        dice = 2 * number / (in_source[one] + in_target[other])
        if in_target[other] >= FEWEST and dice > best.get(other, (0.0, ""))[0]:
            best[other] = dice, one
    return {symbol: match for symbol, (_, match) in best.items()}
