"""Inflection with nothing configured: lemma and features to form (SIGMORPHON 2022, part 1).

    python benchmarks/inflection.py DATA [--test] [--size small] [languages ...]      DATA: the folder with kat_large.train, …

Every language is trained by `regard train X_large.train --from 1,3 --to 2 --held-out X.dev`, one at a time with one thread.
Settings are chosen on dev sets only; --test reads the test sets, too, once everything else is decided. heb was left out of all
tuning. Accuracy is the share of forms without an error, in per cent, with beam 5: of all forms, and by what training has seen
of them: lemma and features, the lemma only, the features only (as a whole), or neither. CPU seconds are those of `regard
train`, start and validations included: the machine may be busy. The result is written to a dated file in the folder of this
script if all languages were measured.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import torch
from dated import write_result
from quality import cpu_seconds

import regard

LANGUAGES = ["kat", "ara", "hun", "got", "pol", "heb"]
LEFT_OUT = "heb"
PARTS = {"dev": "dev", "test": "gold"}
SEEN = {"both": (True, True), "lemma": (True, False), "features": (False, True), "neither": (False, False)}

Row = tuple[str, str, str]
"""Lemma, form and features, as the files hold them."""


@dataclass(frozen=True)
class Outcome:
    """accuracy: in per cent, by part, such as "dev", and by partition, such as "dev, lemma". seconds: of a CPU, to train."""

    accuracy: dict[str, float]
    seconds: float


def read_rows(file: Path) -> list[Row]:
    lines = file.read_text(encoding="utf-8").splitlines()
    return [(lemma, form, features) for lemma, form, features in (line.split("\t") for line in lines if line)]


def accuracy(model: Path, rows: list[Row], trained_on: list[Row]) -> dict[str, float]:
    lemmas, sets = {row[0] for row in trained_on}, {row[2] for row in trained_on}
    results = regard.load(model).translate([(lemma, features) for lemma, _, features in rows], beam=5)
    right = [result.text == form for result, (_, form, _) in zip(results, rows, strict=True)]
    seen = [(lemma in lemmas, features in sets) for lemma, _, features in rows]
    found = {"": 100 * statistics.mean(right)}
    for name, partition in SEEN.items():
        chosen = [one for one, where in zip(right, seen, strict=True) if where == partition]
        found[f", {name}"] = 100 * statistics.mean(chosen) if chosen else float("nan")
    return found


def measure(data: Path, language: str, size: str, parts: list[str]) -> Outcome:
    train = data / f"{language}_{size}.train"
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / language
        command = [sys.executable, "-m", "regard", "train", str(train), "--from", "1,3", "--to", "2", "--out", str(model)]
        seconds = cpu_seconds(
            [*command, "--held-out", str(data / f"{language}.dev"), "--threads", "1"], model.with_suffix(".log")
        )
        found = {
            part + name: value
            for part in parts
            for name, value in accuracy(model, read_rows(data / f"{language}.{PARTS[part]}"), read_rows(train)).items()
        }
    return Outcome(found, seconds)


def row(name: str, outcome: Outcome) -> str:
    return f"| {name} | {' | '.join(f'{value:.1f}' for value in outcome.accuracy.values())} | {outcome.seconds:.0f} |"


def main(data: Path, languages: list[str], size: str, parts: list[str]) -> None:
    torch.set_num_threads(1)
    found: dict[str, Outcome] = {}
    for language in languages:
        found[language] = measure(data, language, size, parts)
        print(row(language, found[language]), flush=True)
    names = list(next(iter(found.values())).accuracy)
    lines = [
        f"{date.today()}, torch {torch.__version__}, one thread, seed 1, {size}, accuracy in per cent",
        "",
        f"| language | {' | '.join(names)} | CPU s |",
        "|---" * (len(names) + 2) + "|",
        *(row(f"{name} (left out of tuning)" if name == LEFT_OUT else name, one) for name, one in found.items()),
    ]
    print(*lines, sep="\n")
    if set(languages) >= set(LANGUAGES):
        write_result(__file__, lines)


if __name__ == "__main__":
    arguments = sys.argv[2:]
    parts, size = ["dev"], "large"
    if "--test" in arguments:
        arguments.remove("--test")
        parts = ["dev", "test"]
    if "--size" in arguments:
        index = arguments.index("--size")
        size = arguments[index + 1]
        del arguments[index : index + 2]
    main(Path(sys.argv[1]), arguments or LANGUAGES, size, parts)
