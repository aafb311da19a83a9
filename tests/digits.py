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
    """One picture: its file, its digits, and the middle of each digit as a fraction of the width."""

    name: str
    digits: tuple[int, ...]
    middles: tuple[float, ...]

    @property
    def pair(self) -> Pair:
        """The file name and the names of the digits."""
        return Pair(self.name, " ".join(NAMES[digit] for digit in self.digits))


def drawn_digits() -> tuple[list[tuple[Image.Image, int]], list[tuple[Image.Image, int]]]:
    """Returns (digits for training, digits for testing); every fourth digit is for testing."""
    from sklearn.datasets import load_digits

    dataset = load_digits()
    drawn = [
        (Image.frombytes("L", (8, 8), bytes(int(value * 15.9) for value in pixels)).resize((SIDE, SIDE)), int(digit))
        for pixels, digit in zip(dataset.data.tolist(), dataset.target.tolist(), strict=True)
    ]
    return [digit for number, digit in enumerate(drawn) if number % 4], drawn[::4]


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
    """Draws `number` pictures of `least` to `most` digits side by side, with random gaps and heights."""
    rng, rows = random.Random(seed), []
    folder.mkdir(parents=True, exist_ok=True)
    for picture_number in range(number):
        chosen = [rng.choice(digits) for _ in range(rng.randint(least, most))]
        room = width - SIDE * len(chosen)
        cuts = sorted(rng.randint(0, room) for _ in chosen)
        lefts = [cut + SIDE * index for index, cut in enumerate(cuts)]
        picture = Image.new("L", (width, height))
        for (drawing, _), left in zip(chosen, lefts, strict=True):
            picture.paste(drawing, (left, rng.randint(0, height - SIDE)))
        name = f"{folder.name}/{picture_number}.png"
        picture.save(folder.parent / name)
        middles = tuple((left + SIDE / 2) / width for left in lefts)
        rows.append(Row(name, tuple(digit for _, digit in chosen), middles))
    return rows
