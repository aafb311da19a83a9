"""Tasks that need no data: strings to copy, reverse, sort, count and recall; and the bundled dictionary."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from regard.data.corpus import Pair
from regard.data.dictionary import pronunciations
from regard.data.held_out import source_hash

LETTERS, DIGITS = "abcdefghijklmnopqrstuvwxyz", "0123456789"
NUM_TRAINING, NUM_TEST, QUICK_TEST = 30_000, 1000, 400
SEED = 1
"""The seed of the strings: all runs have the same ones, whatever their own seeds."""

Origin = Callable[[str], Sequence[int]]
"""Returns, for a source, the position that each token of the target comes from."""


@dataclass(frozen=True)
class Task:
    """One task. about: one line.  make: returns the pair for a length.  lengths: of the strings, or the number of pairs.
    origin: where each target token comes from, if there is a position that it comes from.
    updates, quick_updates: how many updates a comparison makes by default, and with `--quick`."""

    name: str
    about: str
    make: Callable[[int, random.Random], Pair] | None
    lengths: tuple[int, int] = (2, 20)
    origin: Origin | None = None
    target_unit: str = "characters"
    updates: int = 1500
    quick_updates: int = 600

    def pairs(self, num_test: int) -> tuple[list[Pair], list[Pair]]:
        """Returns training pairs and test pairs; no source is in both."""
        if self.make is None:
            return _dictionary(num_test)
        draw, found = random.Random(SEED), dict[str, Pair]()
        while len(found) < NUM_TRAINING + num_test:
            pair = self.make(draw.randint(*self.lengths), draw)
            found.setdefault(str(pair.source), pair)
        pairs = list(found.values())
        draw.shuffle(pairs)
        return pairs[num_test:], pairs[:num_test]


def _dictionary(num_test: int) -> tuple[list[Pair], list[Pair]]:
    """Returns the training words of the dictionary, and some of its test words, with all their pronunciations."""
    test = pronunciations("test")
    words = sorted({str(pair.source) for pair in test}, key=source_hash)[:num_test]
    chosen = set(words)
    return pronunciations("train"), [pair for pair in test if pair.source in chosen]


def _letters(length: int, draw: random.Random) -> str:
    return "".join(draw.choices(LETTERS, k=length))


def _copy(length: int, draw: random.Random) -> Pair:
    text = _letters(length, draw)
    return Pair(text, text)


def _reverse(length: int, draw: random.Random) -> Pair:
    text = _letters(length, draw)
    return Pair(text, text[::-1])


def _sort(length: int, draw: random.Random) -> Pair:
    text = _letters(length, draw)
    return Pair(text, "".join(sorted(text)))


def _bag(length: int, draw: random.Random) -> Pair:
    text = "".join(draw.choices(LETTERS[:6], k=length))
    return Pair(text, "".join(f"{letter}{number}" for letter, number in sorted(Counter(text).items())))


def _recall(length: int, draw: random.Random) -> Pair:
    keys, values = draw.sample(LETTERS, length), draw.choices(DIGITS, k=length)
    index = draw.randrange(length)
    return Pair("".join(key + value for key, value in zip(keys, values, strict=True)) + "?" + keys[index], values[index])


TASKS = {
    task.name: task
    for task in (
        Task("copy", "abc → abc", _copy, origin=lambda source: range(len(source))),
        Task("reverse", "abc → cba", _reverse, origin=lambda source: range(len(source))[::-1]),
        Task("sort", "cab → abc", _sort),
        Task("recall", "a3f7k1?f → 7", _recall, (1, 12), origin=lambda source: (source.index(source[-1]) + 1,)),
        Task("bag", "banana → a3b1n2 (six letters; their order is of no matter)", _bag, (2, 9)),
        Task("dictionary", "cat → K AE T (CMU Pronouncing Dictionary)", None, target_unit="symbols", updates=2000),
    )
}
