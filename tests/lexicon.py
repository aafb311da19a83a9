"""A language made from a lexicon, and its translation: pairs whose word alignment is known.

    the big dog sees a house   ->   dog big a house OBJECT sees

Adjectives follow their noun, the verb comes last, one article is not translated, the object has a marker, and some words are
translated by two. The two languages share no letters.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from rich.console import Console

from regard.data.corpus import Pair
from regard.inspection.align import AlignedPair, align_pairs
from regard.links import Links, alignment_error_rate
from regard.pipeline import Translator
from regard.training.data import in_memory
from regard.training.run import run
from regard.training.settings import RunSettings

SOURCE, TARGET = ("bdfgklm", "ae"), ("nprstvz", "iou")
TWO_WORDS = 0.2
"""The share of nouns and verbs that are translated by two words."""


@dataclass(frozen=True)
class Aligned:
    """A pair and its links: the sure ones, and these with those that are only possible (the object's marker and its noun)."""

    pair: Pair
    sure: Links
    possible: Links


class Lexicon:
    """Words of each kind with their translations, drawn with a seed. There are 2 adjectives and 2 verbs for 5 nouns."""

    def __init__(self, num_nouns: int, seed: int = 1) -> None:
        rng = random.Random(seed)
        num_others = num_nouns * 2 // 5
        sizes = {"article": 4, "adjective": num_others, "noun": num_nouns, "verb": num_others}
        spelled = {side: _new_words(rng, *side) for side in (SOURCE, TARGET)}
        self.marker = next(spelled[TARGET])
        self.words: dict[str, list[tuple[str, tuple[str, ...]]]] = {}
        for kind, number in sizes.items():
            entries = []
            for index in range(number):
                is_long = kind in ("noun", "verb") and rng.random() < TWO_WORDS
                length = 0 if (kind, index) == ("article", 0) else 2 if is_long else 1
                entries.append((next(spelled[SOURCE]), tuple(next(spelled[TARGET]) for _ in range(length))))
            self.words[kind] = entries

    def sentences(self, number: int, seed: int) -> list[Aligned]:
        """Returns different pairs."""
        rng = random.Random(seed)
        found: dict[str, Aligned] = {}
        while len(found) < number:
            drawn = self._sentence(rng)
            found[str(drawn.pair.source)] = drawn
        return list(found.values())

    def _sentence(self, rng: random.Random) -> Aligned:
        source: list[str] = []
        parts: dict[str, list[tuple[int, tuple[str, ...]]]] = {}
        for phrase in ("subject", "verb", "object"):
            kinds = ["verb"] if phrase == "verb" else ["article", *["adjective"] * rng.choice((0, 1, 1, 2)), "noun"]
            parts[phrase] = []
            for kind in kinds:
                word, translation = rng.choice(self.words[kind])
                parts[phrase].append((len(source), translation))
                source.append(word)
        for phrase in ("subject", "object"):
            article, *adjectives, noun = parts[phrase]
            parts[phrase] = [article, noun, *adjectives]
        target: list[str] = []
        sure: set[tuple[int, int]] = set()
        for phrase in ("subject", "object", "verb"):
            for position, translation in parts[phrase]:
                sure |= {(position, len(target) + offset) for offset in range(len(translation))}
                target += translation
            if phrase == "object":
                marked = {(parts[phrase][1][0], len(target))}
                target.append(self.marker)
        return Aligned(Pair(" ".join(source), " ".join(target)), frozenset(sure), frozenset(sure | marked))


def _new_words(rng: random.Random, consonants: str, vowels: str) -> Iterator[str]:
    """Yields different words of two to four syllables."""
    seen: set[str] = set()
    while True:
        word = "".join(rng.choice(consonants) + rng.choice(vowels) for _ in range(rng.randint(2, 4)))
        if word not in seen:
            seen.add(word)
            yield word


def trained(training: Sequence[Pair], held_out: Sequence[Pair], settings: RunSettings) -> Translator:
    """Trains a model on pairs."""
    data = in_memory("lexicon", training, held_out, settings.data)
    saved = run(data, settings, Console(quiet=True), torch.device("cpu")).saved
    return Translator.of_model(saved.model, saved.source, saved.target)


def turned_round(pair: Pair) -> Pair:
    """The pair for the opposite direction."""
    return Pair(pair.target, str(pair.source))


def aligned(translator: Translator, sentences: Sequence[Aligned], *, backward: bool = False) -> list[AlignedPair]:
    """Aligns the words of sentences with every head of a model. backward: whether it translates from target to source."""
    pairs = [turned_round(one.pair) if backward else one.pair for one in sentences]
    return align_pairs(translator, [(pair.source, pair.target) for pair in pairs])


def error_rate(links: Sequence[Links], sentences: Sequence[Aligned]) -> float:
    """The alignment error rate against the known links."""
    return alignment_error_rate(links, [one.sure for one in sentences], [one.possible for one in sentences])
