"""Videos of shapes that move, and what happens in them: a task that no single frame and no set of frames answers."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import permutations, product
from pathlib import Path

from PIL import Image, ImageDraw

from regard.data.corpus import Pair

COLOURS = ("red", "green", "blue")
SHAPES = ("square", "disc")
STEPS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}
SIDE, SIZE = 24, 8


@dataclass(frozen=True)
class Film:
    """One video: its file, what moves in it and where ("red disc left blue square up"), and the frames of each movement."""

    name: str
    text: str
    spans: tuple[range, ...]

    @property
    def pair(self) -> Pair:
        return Pair(self.name, self.text)


def draw_films(
    folder: Path, number: int, *, seed: int, least: int = 2, most: int = 2, suffix: str = ".gif", shuffled: bool = False
) -> list[Film]:
    """Draws `number` videos, in each of which `least` to `most` shapes move, one after the other, for three to five frames.

    A shape starts anywhere, at the same distance from both ends of its way, so that no frame shows where it moves. shuffled:
    puts the frames into a random order, so that only the set of them is left.
    """
    rng, films = random.Random(seed), []
    folder.mkdir(parents=True, exist_ok=True)
    for film_number in range(number):
        frames, words, spans = list[Image.Image](), list[str](), list[range]()
        for _ in range(rng.randint(least, most)):
            colour, shape, way = rng.choice(COLOURS), rng.choice(SHAPES), rng.choice(list(STEPS))
            moving = _moving(colour, shape, way, rng)
            while frames and moving[0].tobytes() == frames[-1].tobytes():  # a file would hold both as one frame
                moving = _moving(colour, shape, way, rng)
            words += [colour, shape, way]
            spans.append(range(len(frames), len(frames) + len(moving)))
            frames += moving
        if shuffled:
            rng.shuffle(frames)
        name = f"{folder.name}/{film_number}{suffix}"
        frames[0].save(folder.parent / name, save_all=True, append_images=frames[1:], duration=100)
        films.append(Film(name, " ".join(words), tuple(spans)))
    return films


def stories_of_the_same_frames(text: str) -> set[str]:
    """Returns the stories that are as likely as this one if only the set of frames is known: each movement may be its reverse,
    and the movements may come in any order. Nothing that ignores the order of frames can tell them apart."""
    back = {"left": "right", "right": "left", "up": "down", "down": "up"}
    words = text.split()
    moves = [tuple(words[start : start + 3]) for start in range(0, len(words), 3)]
    ways = [[(colour, shape, way), (colour, shape, back[way])] for colour, shape, way in moves]
    return {" ".join(word for move in story for word in move) for order in permutations(ways) for story in product(*order)}


def _moving(colour: str, shape: str, way: str, rng: random.Random) -> list[Image.Image]:
    """Returns three to five frames of a shape that moves by two or three pixels per frame."""
    number, speed, (right, down) = rng.randint(3, 5), rng.randint(2, 3), STEPS[way]
    reach = speed * (number - 1)  # a way is as likely as its reverse
    low = [rng.randint(0, SIDE - SIZE - reach * abs(step)) for step in (right, down)]
    start = [first + (reach if step < 0 else 0) for first, step in zip(low, (right, down), strict=True)]
    frames = []
    for index in range(number):
        x, y = start[0] + right * speed * index, start[1] + down * speed * index
        frame = Image.new("RGB", (SIDE, SIDE), "white")
        draw = ImageDraw.Draw(frame)
        (draw.ellipse if shape == "disc" else draw.rectangle)((x, y, x + SIZE - 1, y + SIZE - 1), fill=colour)
        frames.append(frame)
    return frames
