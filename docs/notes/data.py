"""Files and models that the items of docs/notes read, in the current folder. No data of others is needed."""

from __future__ import annotations

import random
from itertools import product
from pathlib import Path

SUBJECTS = (
    ("I have", "j' ai"),
    ("I see", "je vois"),
    ("she has", "elle a"),
    ("we see", "nous voyons"),
    ("they want", "ils veulent"),
)
NOUNS = (
    ("car", "voiture", "f"),
    ("house", "maison", "f"),
    ("dog", "chien", "m"),
    ("book", "livre", "m"),
    ("chair", "chaise", "f"),
)
AFTER = (("red", "rouge", "rouge"), ("black", "noir", "noire"), ("green", "vert", "verte"))
BEFORE = (("small", "petit", "petite"), ("big", "grand", "grande"), ("beautiful", "beau", "belle"))
PEOPLE = (("I am", "je suis"), ("she is", "elle est"), ("we are", "nous sommes"))
JOBS = (("a student", "étudiant"), ("a doctor", "médecin"), ("a teacher", "professeur"))
SPANISH = {"I have": "tengo", "I see": "veo", "she has": "tiene", "we see": "vemos", "they want": "quieren"}
COLOURS = {"red": (210, 40, 40), "green": (40, 160, 70), "blue": (50, 80, 210), "yellow": (230, 200, 40)}
CELL, CELLS = 16, 4
"""Pixels of a square, and how many fit into a picture."""


def french() -> list[tuple[str, str]]:
    """Returns English sentences with their translation: colours follow the noun in French, other adjectives precede it."""
    pairs = []
    for (english, french), (noun, nom, gender) in product(SUBJECTS, NOUNS):
        un = "une" if gender == "f" else "un"
        pairs.append((f"{english} a {noun}", f"{french} {un} {nom}"))
        for word, *forms in AFTER:
            pairs.append((f"{english} a {word} {noun}", f"{french} {un} {nom} {forms[gender == 'f']}"))
        for word, *forms in BEFORE:
            pairs.append((f"{english} a {word} {noun}", f"{french} {un} {forms[gender == 'f']} {nom}"))
    return pairs + [(f"{who} {job}", f"{qui} {métier}") for (who, qui), (job, métier) in product(PEOPLE, JOBS)]


def spanish() -> list[tuple[str, str]]:
    """Returns a few English sentences with their Spanish translation: a new task for a trained encoder."""
    nouns = {"car": "coche", "dog": "perro", "book": "libro"}
    colours = {"red": "rojo", "black": "negro", "green": "verde"}
    pairs = [
        (f"{english} a {colour} {noun}", f"{verb} un {nombre} {color}")
        for (english, verb), (colour, color), (noun, nombre) in product(SPANISH.items(), colours.items(), nouns.items())
    ]
    random.Random(3).shuffle(pairs)
    return pairs


def tags() -> list[tuple[str, str]]:
    """Returns sentences with the part of speech of each word."""
    words = {
        "a": "DET",
        "the": "DET",
        "old": "ADJ",
        "red": "ADJ",
        "dog": "NOUN",
        "cat": "NOUN",
        "sees": "VERB",
        "wants": "VERB",
    }
    draw, found = random.Random(5), {}
    while len(found) < 140:
        phrase = [draw.choice(("a", "the")), *draw.sample(("old", "red"), draw.randint(0, 2)), draw.choice(("dog", "cat"))]
        other = [draw.choice(("sees", "wants")), draw.choice(("a", "the")), draw.choice(("dog", "cat"))]
        sentence = [*phrase, *other]
        found[" ".join(sentence)] = " ".join(words[word] for word in sentence)
    return list(found.items())


def strings() -> dict[str, list[tuple[str, str]]]:
    """Returns 3,000 strings of three to eight letters: to copy, to reverse, to count, and keys with values to recall."""
    draw, words = random.Random(11), {}
    while len(words) < 3000:
        words["".join(draw.choices("abcdefgh", k=draw.randint(3, 8)))] = None
    recall = []
    for _ in range(6000):
        keys = draw.sample("abcdefghijkl", draw.randint(1, 6))
        values = draw.choices("0123456789", k=len(keys))
        asked = draw.randrange(len(keys))
        recall.append(("".join(map("".join, zip(keys, values, strict=True))) + "?" + keys[asked], values[asked]))
    bags = [(word, "".join(f"{letter}{word.count(letter)}" for letter in sorted(set(word)))) for word in words]
    return {
        "copy": [(word, word) for word in words],
        "reverse": [(word, word[::-1]) for word in words],
        "bag": bags,
        "recall": list(dict(recall).items()),
    }


def squares(folder: Path, number: int = 500) -> None:
    """Writes pictures of two to four coloured squares, and the list of their colours from left to right."""
    import numpy as np
    from PIL import Image

    draw, lines = random.Random(17), []
    folder.mkdir(exist_ok=True)
    for index in range(number):
        pixels = np.full((CELL, CELL * CELLS, 3), 245, np.uint8)
        colours = ["red", "blue", "green", "yellow"] if index == 0 else draw.choices(list(COLOURS), k=draw.randint(2, 4))
        for at, colour in enumerate(colours):
            pixels[2:-2, at * CELL + 2 : (at + 1) * CELL - 2] = COLOURS[colour]
        Image.fromarray(pixels).save(folder / f"{index}.png")
        lines.append(f"{index}.png\t{' '.join(colours)}")
    (folder / "pairs.tsv").write_text("\n".join(lines) + "\n")


def write() -> None:
    """Writes all files into the current folder."""
    sentences = french()
    held_out = sentences[5::12]
    tables = {"french": [pair for pair in sentences if pair not in held_out], "french-test": held_out}
    tables |= {"tense": spanish(), "tags": tags(), **strings()}
    for name, pairs in tables.items():
        Path(f"{name}.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in pairs), "utf-8")


UNITS = {"source_unit": "words", "target_unit": "words", "quiet": True}


def train_models(lines: str) -> None:
    """Trains those of the models that these lines load, if they are not there yet."""
    import regard

    if '"french"' in lines and not Path("french").exists():
        sizes = {"width": 48, "embedding": 48, "dropout": 0.1}
        settings = {"cell": "lstm", "score": "dot", "decoder": "luong", "steps": 600, "learning_rate": 0.005}
        regard.train("french.tsv", "french", held_out="french-test.tsv", kind="rnn", **sizes, **settings, **UNITS)
    if '"french-transformer"' in lines and not Path("french-transformer").exists():
        sizes = {"width": 64, "heads": 4, "feed_forward": 128, "encoder_layers": 2, "decoder_layers": 2}
        regard.train(
            "french.tsv",
            "french-transformer",
            held_out="french-test.tsv",
            kind="transformer",
            **sizes,
            steps=400,
            learning_rate=0.003,
            **UNITS,
        )
    if '"words"' in lines and not Path("words").exists():
        from regard.data.dictionary import pronunciations

        entries = [f"{pair.source}\t{pair.target}\n" for pair in pronunciations("train")[::4]]
        Path("pronunciations.tsv").write_text("".join(entries), "utf-8")
        regard.train("pronunciations.tsv", "words", kind="rnn", score="general", width=96, embedding=48, steps=500, quiet=True)
    if "squares/" in lines and not Path("squares").exists():
        squares(Path("squares"))
    if '"squares/model"' in lines and not Path("squares/model").exists():
        sizes = {"width": 48, "embedding": 24, "dropout": 0.0}
        settings = {"decoder": "bahdanau", "steps": 250, "learning_rate": 0.004, "augment": 0.0, "batch_tokens": 1024}
        regard.train("squares/pairs.tsv", "squares/model", kind="rnn", **sizes, **settings, quiet=True)
