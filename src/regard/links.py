"""Links of an alignment: from attention weights to links between words, Pharaoh format, both directions, the error rate.

A word of a text is a run of characters without white space, as `str.split` finds them, numbered from 0. Needs no torch.
"""

# T target tokens  S source tokens  U target units  V source units

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from regard.contracts import Array
from regard.errors import UserError, shown

Links = frozenset[tuple[int, int]]
"""(source, target), counted from 0; <eos> is never included."""

_WORD = re.compile(r"\S+")
_LINK = re.compile(r"([0-9]+)([-p?])([0-9]+)(?::(?:([SP])|[0-9.eE+-]+))?", re.IGNORECASE)


def word_spans(text: str) -> list[tuple[int, int]]:
    """Returns (start, end) of every word of a text, in characters."""
    return [match.span() for match in _WORD.finditer(text)]


def word_of_each(text: str, parts: Sequence[str]) -> list[int | None]:
    """Returns the number of the word in which each part of a text begins; None for a part that is only white space.

    parts: tokens, for example, which occur in the text in this order. An empty part, such as the second byte of a character,
    belongs to the word of the part before it.
    """
    starts = [start for start, _ in word_spans(text)]
    words: list[int | None] = []
    position = 0
    for part in parts:
        if not part:
            words.append(words[-1] if words else None)
            continue
        position = text.index(part, position)
        visible = position + len(part) - len(part.lstrip())
        position += len(part)
        words.append(None if visible == position else int(np.searchsorted(starts, visible, side="right")) - 1)
    return words


@dataclass(frozen=True)
class Units:
    """What the links of a text count: its words, or its tokens.

    number: how many there are.  of_tokens: the index of the unit that each token belongs to, or None.
    """

    number: int
    of_tokens: tuple[int | None, ...]

    @classmethod
    def tokens(cls, number: int) -> Units:
        """Counts the tokens themselves."""
        return cls(number, tuple(range(number)))

    @classmethod
    def words(cls, text: str, tokens: Sequence[str]) -> Units:
        """Counts the words of a text. tokens: see `word_of_each`."""
        return cls(len(word_spans(text)), tuple(word_of_each(text, tokens)))

    def of(self, start: int, stop: int) -> Units:
        """Returns the same units, for some of the tokens."""
        return Units(self.number, self.of_tokens[start:stop])

    def pooled(self, weights: Array, axis: int) -> Array:
        """Returns the sum of the weights over the tokens of each unit, along an axis."""
        if self.of_tokens == tuple(range(self.number)):
            return weights
        units = np.array([-1 if unit is None else unit for unit in self.of_tokens], int)
        moved = np.moveaxis(weights, axis, 0)
        total = np.zeros((self.number, *moved.shape[1:]), weights.dtype)
        np.add.at(total, units[units >= 0], moved[units >= 0])
        return np.moveaxis(total, 0, axis)


def strongest(weights_TS: Array, source: Units, target: Units) -> Array:
    """Returns, for each target unit, the source unit with the largest weight; -1 if all its weights are 0.

    weights_TS: one row per target token, one column per source token; may have further axes before them. The weight between two
    words is the sum over the tokens of both.
    """
    present = np.array(sorted({unit for unit in source.of_tokens if unit is not None}), int)
    weights_UV = target.pooled(source.pooled(weights_TS, -1), -2)[..., present]
    if not len(present):
        return np.full(weights_UV.shape[:-1], -1)
    return np.where(weights_UV.any(-1), present[weights_UV.argmax(-1)], -1)


def links_of(best_U: Array) -> Links:
    """Links each target unit to its source unit, except where it is -1; see `strongest`."""
    return frozenset((source, target) for target, source in enumerate(best_U.tolist()) if source >= 0)


# --- Pharaoh format ----------------------------------------------------------------------------------------------------------


def pharaoh(links: Iterable[tuple[int, int]]) -> str:
    """Formats links as `0-0 1-2`: source-target, in the order of the source."""
    return " ".join(f"{source}-{target}" for source, target in sorted(links))


def parse_pharaoh(line: str, first: int = 0) -> tuple[Links, Links]:
    """Returns the (sure, possible) links of one line, counted from 0. Sure links are in both.

    `3-4` or `3-4:S` is sure, `3p4`, `3?4` or `3-4:P` only possible; a number after the colon is ignored.
    first: the number of the first word in the line, 0 or 1.
    """
    sure, possible = set(), set()
    for link in line.split():
        match = _LINK.fullmatch(link)
        if match is None:
            raise UserError(f"{shown(link)} is not a link; expected source-target such as 3-4, or 3p4 if it is only possible")
        source, sign, target, mark = match.groups(default="")
        pair = int(source) - first, int(target) - first
        if min(pair) < 0:
            raise UserError(f"the link {link} contains 0, but words are counted from {first}; leave out --one-based")
        possible.add(pair)
        if sign == "-" and mark.upper() != "P":
            sure.add(pair)
    return frozenset(sure), frozenset(possible)


# --- both directions, and the error rate -------------------------------------------------------------------------------------

Symmetrisation = Literal["intersection", "union", "grow-diag-final-and"]
"""How the links of both directions become one alignment (Och & Ney 2003; Koehn et al. 2005).

intersection: links of both directions.  union: links of either.  grow-diag-final-and: starts from the intersection; adds links
of the union next to (also diagonally) a link of the alignment if they reach a word that has none; at the end adds those of
either direction whose words both have none.
"""

_NEIGHBOURS = ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))


def turned(links: Links) -> Links:
    """Returns the links with source and target exchanged."""
    return frozenset((target, source) for source, target in links)


def symmetrised(forward: Links, backward: Links, how: Symmetrisation) -> Links:
    """Joins the links of both directions. backward: (source, target) too, as from `turned`."""
    if how not in get_args(Symmetrisation):
        raise UserError(f"cannot symmetrise by {shown(how)}; expected one of {', '.join(get_args(Symmetrisation))}")
    if how == "intersection":
        return forward & backward
    if how == "union":
        return forward | backward
    links = _grown(forward & backward, forward | backward)
    for direction in (forward, backward):
        for source, target in sorted(direction):
            if source not in {s for s, _ in links} and target not in {t for _, t in links}:
                links.add((source, target))
    return frozenset(links)


def _grown(links: Links, union: Links) -> set[tuple[int, int]]:
    """Adds neighbours from the union that reach a word without links, until there are no more."""
    grown = set(links)
    sources, targets = {source for source, _ in grown}, {target for _, target in grown}
    waiting = sorted(grown)
    while waiting:
        reached = []
        for source, target in waiting:
            for down, right in _NEIGHBOURS:
                link = source + down, target + right
                if link in union and link not in grown and (link[0] not in sources or link[1] not in targets):
                    grown.add(link)
                    sources.add(link[0])
                    targets.add(link[1])
                    reached.append(link)
        waiting = sorted(reached)
    return grown


def alignment_error_rate(predicted: Sequence[Links], sure: Sequence[Links], possible: Sequence[Links] | None = None) -> float:
    """Returns 1 − (|A∩S| + |A∩P|) / (|A| + |S|) for predicted links A, sure links S and possible links P, over all sentences
    together (Och & Ney 2003, eq. 21). 0 is perfect."""
    possible = sure if possible is None else possible
    hits = links = 0
    for a, s, p in zip(predicted, sure, possible, strict=True):
        hits += len(a & s) + len(a & (p | s))
        links += len(a) + len(s)
    return 1 - hits / links if links else 0.0
