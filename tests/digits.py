"""Rows of handwritten digits and their names: a task for pictures. The digits are those of scikit-learn (8 x 8 pixels)."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from regard.data.corpus import Pair

NAMES = "zero one two three four five six seven eight nine".split()
SIDE = 16


@dataclass(frozen=True)
class Row:
    """One picture: its file, what is in it, and where the middle of each digit is, as a share of the width."""

    name: str
    digits: tuple[int, ...]
    middles: tuple[float, ...]

    @property
    def pair(self) -> Pair:
        return Pair(self.name, " ".join(NAMES[digit] for digit in self.digits))


def drawn_digits() -> tuple[list[tuple[Image.Image, int]], list[tuple[Image.Image, int]]]:
    """(for training, for testing): every fourth digit is never seen in training."""
    from sklearn.datasets import load_digits

    found = load_digits()
    drawn = [
        (Image.frombytes("L", (8, 8), bytes(int(value * 15.9) for value in pixels)).resize((SIDE, SIDE)), int(digit))
        for pixels, digit in zip(found.data.tolist(), found.target.tolist(), strict=True)
    ]
    return [one for number, one in enumerate(drawn) if number % 4], drawn[::4]


def draw_rows(
    folder: Path,
    digits: list[tuple[Image.Image, int]],
    number: int,
    *,
    least: int,
    most: int,
    width: int,
    height: int = 24,
    seed: int,
) -> list[Row]:
    """So many pictures of `least` to `most` digits side by side, with random gaps and heights."""
    chance, rows = random.Random(seed), []
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(number):
        chosen = [chance.choice(digits) for _ in range(chance.randint(least, most))]
        room = width - SIDE * len(chosen)
        cuts = sorted(chance.randint(0, room) for _ in chosen)
        lefts = [cut + SIDE * place for place, cut in enumerate(cuts)]
        picture = Image.new("L", (width, height))
        for (drawing, _), left in zip(chosen, lefts, strict=True):
            picture.paste(drawing, (left, chance.randint(0, height - SIDE)))
        name = f"{folder.name}/{index}.png"
        picture.save(folder.parent / name)
        middles = tuple((left + SIDE / 2) / width for left in lefts)
        rows.append(Row(name, tuple(digit for _, digit in chosen), middles))
    return rows
