"""Describes scenes: how many things each of three boxes holds, and of which colours, shapes and sizes.

    python benchmarks/nlvr.py FOLDER [--steps N]      FOLDER holds dev.json.gz and images.tar.xz of NLVR (Suhr et al. 2017)
    python benchmarks/nlvr.py FOLDER --job NAME [STEPS | validate]    one job; validate: on training scenes kept for validation

The human sentences of NLVR are not used. The target is a sentence generated from the structure of the scene, box by box, such
as "three : blue yellow : circle triangle : small large ; one : black : square : medium ; …" (colours, shapes and sizes that
occur, in a fixed order). The 2,967 pictures show 986 scenes, most in three orders of their boxes; a fifth of the scenes, with
all their orders, is held out. The models in the table:

    soft        attention at every word
    hard        one grid cell at every word, sampled; the first half of the updates is soft
    leave one out  the same with four samples of each picture's choices, whose baseline is the mean reward of the other three
    marginal    one grid cell at every word; all choices are added up: at least 33 % with hard attention
    seen once   the mean of all cells initialises the decoder: soft must be at least 10 points better

In addition, nlvr.maps/ in the current folder gets maps.html, with ten held-out pictures and the map of every word, and one
page to explore for each of them. One seed; two processes run at a time, with one thread each.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import platform
import subprocess
import sys
import tarfile
import tempfile
import time
from base64 import b64encode
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from html import escape
from pathlib import Path
from typing import Any

import torch
from chosen import columns, exact_match, hard_results, percent
from dated import write_result
from rich.console import Console

from regard.data.corpus import Pair
from regard.inspection.capture import inspect
from regard.inspection.render import draw_over
from regard.inspection.report import write_page
from regard.models.rnn_seq2seq import RnnSettings
from regard.training.data import in_memory
from regard.training.run import run
from regard.training.settings import DataSettings, RunSettings, TrainSettings
from regard.training.validation import Prediction

ORDERS = {"0": (0, 1, 2), "1": (0, 2, 1), "2": (1, 0, 2)}
"""The last number in a picture's name -> the order of the boxes; found by comparing the structures with the pixels."""
NUMBERS = "none one two three four five six seven eight".split()
COLOURS = {"Black": "black", "#0099ff": "blue", "Yellow": "yellow"}
SHAPES = ("circle", "square", "triangle")
SIZES = {10: "small", 20: "medium", 30: "large"}
ATTRIBUTES = ("count", "colours", "shapes", "sizes")
NUM_SHOWN = 10

DATA = DataSettings(source_unit="picture", target_unit="words", picture_size=200, augment=0.02)
SOFT = RnnSettings(width=128, embedding=48, score_width=64, decoder="bahdanau", frontend="picture", channels=64, dropout=0.2)
TRAIN = TrainSettings(steps=2000, batch_tokens=2400, learning_rate=3e-3, ema=0.995)
SAMPLING = {"learning_rate": 1.5e-3, "entropy_bonus": 0.01}


@dataclass(frozen=True)
class Job:
    """A model and its training. train: settings that differ from TRAIN. soft_steps: the number of updates with soft attention
    that come first, with TRAIN."""

    model: RnnSettings
    steps: int
    train: Mapping[str, Any] = field(default_factory=dict)
    soft_steps: int = 0


JOBS = {
    "soft": Job(SOFT, 2000),
    "hard": Job(replace(SOFT, attention="hard"), 1000, SAMPLING, soft_steps=1000),
    "leave one out": Job(
        replace(SOFT, attention="hard"), 1000, {**SAMPLING, "samples": 4, "baseline": "leave_one_out"}, soft_steps=1000
    ),
    "marginal": Job(replace(SOFT, attention="marginal", decoder="luong", readout="plain"), 2000),
    "seen once": Job(replace(SOFT, decoder="fixed", every_step=True), 2000),
}


# --- sentences ---------------------------------------------------------------------------------------------------------------


def describe(boxes: list[list[dict[str, Any]]]) -> str:
    return " ; ".join(map(describe_box, boxes))


def describe_box(things: list[dict[str, Any]]) -> str:
    """ "two : blue yellow : circle : small" """
    colours = [name for key, name in COLOURS.items() if any(thing["color"] == key for thing in things)]
    shapes = [name for name in SHAPES if any(thing["type"] == name for thing in things)]
    sizes = [name for key, name in SIZES.items() if any(thing["size"] == key for thing in things)]
    return " : ".join((NUMBERS[len(things)], *(" ".join(names) or "none" for names in (colours, shapes, sizes))))


def attributes(sentence: str) -> list[list[str]]:
    """Splits a sentence into three boxes of four attributes each, even if it is malformed."""
    boxes = [[part.strip() for part in box.split(":")] for box in sentence.split(";")]
    return [(box + [""] * 4)[:4] for box in (boxes + [[""]] * 3)[:3]]


def unpack(data: Path, folder: Path, *, validate: bool = False) -> tuple[list[Pair], list[Pair]]:
    """Returns (training pairs, held-out pairs); unpacks the pictures into the folder.

    validate: whether to hold out training scenes; those that are held out otherwise are then left out.
    """
    scenes = {}
    with gzip.open(data / "dev.json.gz", "rt", encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            scenes[row["identifier"]] = row["structured_rep"]
    with tarfile.open(data / "images.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    sides: tuple[list[Pair], list[Pair]] = ([], [])
    for path in sorted(folder.rglob("*.png")):
        _, first, second, order = path.stem.split("-")
        boxes = scenes[f"{first}-{second}"]
        number = hashlib.sha256(first.encode()).digest()[0]  # by the scene
        if validate and number < 51:
            continue
        held_out = number < (90 if validate else 51)  # 51: a fifth
        pair = Pair(str(path.relative_to(folder)), describe([boxes[at] for at in ORDERS[order]]))
        sides[held_out].append(pair)
    return sides


# --- one job -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """exact: share of pictures that are described exactly. hard: the same with its interval, if every word attends to its
    largest weight only. in_box: share of words, in descriptions that are right, whose largest weight is in their box.
    attributes: share of boxes in which each is right."""

    exact: float
    hard: str
    in_box: float | None
    attributes: dict[str, float]
    num_training: int
    num_held_out: int
    seconds: float
    signature: str


def measure(name: str, data: Path, steps: int | None, *, validate: bool = False) -> Outcome:
    torch.set_num_threads(1)
    job, quiet = JOBS[name], Console(quiet=True) if steps is None else Console(stderr=True)
    with tempfile.TemporaryDirectory() as folder:
        training, held_out = unpack(data, Path(folder), validate=validate)
        training_data = in_memory("nlvr-dev", training, held_out, DATA, root=Path(folder))
        began, before = time.process_time(), None
        if job.soft_steps:
            train = replace(TRAIN, steps=steps or job.soft_steps)
            before = run(training_data, RunSettings(data=DATA, model=SOFT, train=train), quiet, torch.device("cpu")).saved
        settings = RunSettings(data=DATA, model=job.model, train=replace(TRAIN, steps=steps or job.steps, **job.train))
        trained = run(training_data, settings, quiet, torch.device("cpu"), start_from=before)
        seconds = time.process_time() - began
        hard, share = "-", None
        if name != "seen once":
            show(trained.translator, held_out, Path(folder), Path("nlvr.maps") / name)
            results = hard_results(trained.translator, [pair.source for pair in held_out])
            target = trained.translator.target
            spelled = {pair.target: target.decode(target.encode(pair.target)) for pair in held_out}  # "three: blue"
            hard = percent(exact_match(results, [spelled[pair.target] for pair in held_out]))
            share = in_box(trained.predictions, spelled)
        rates = rates_of(trained.predictions)
        return Outcome(1 - trained.rates.sequence, hard, share, rates, len(training), len(held_out), seconds, trained.signature)


def in_box(predictions: list[Prediction], spelled: Mapping[str, str]) -> float:
    """Returns the share of words whose largest weight is in the third of the picture with their box, in right descriptions.
    The signs between the words do not count. spelled: each reference as the model would write it."""
    hits = []
    for prediction in predictions:
        if prediction.result.text != spelled[prediction.references[0]]:
            continue
        box = 0
        for word, column in zip(prediction.references[0].split(), columns(prediction.result), strict=False):
            box += word == ";"
            if word not in (";", ":"):
                hits.append(int(3 * column) == box)
    return sum(hits) / max(1, len(hits))


def rates_of(predictions: list[Prediction]) -> dict[str, float]:
    """Returns, for each attribute, the share of boxes in which it is exactly right."""
    hits = dict.fromkeys(ATTRIBUTES, 0)
    for prediction in predictions:
        for ours, known in zip(attributes(prediction.result.text), attributes(prediction.references[0]), strict=True):
            for attribute, one, other in zip(ATTRIBUTES, ours, known, strict=True):
                hits[attribute] += one == other
    return {attribute: count / (3 * len(predictions)) for attribute, count in hits.items()}


def show(translator: Any, held_out: list[Pair], root: Path, out: Path) -> None:
    """Writes the pages of ten held-out pictures, chosen by a hash, regardless of how well they are described."""
    parts = ['<!doctype html><meta charset="utf-8"><title>NLVR: the map of every word</title>']
    for number, pair in enumerate(sorted(held_out, key=lambda pair: hashlib.sha256(pair.source.encode()).digest())[:NUM_SHOWN]):
        result = translator(pair.source)
        seen = inspect(translator, pair.source, output=result.ids, finished=result.finished)
        write_page(replace(seen, text=Path(pair.source).name), out / f"{number}.html", model=f"expected: {pair.target}")
        drawn = draw_over(result.attention(), root / pair.source, out / f"{number}.png").read_bytes()
        verdict = "right" if result.text == pair.target else f"expected: {pair.target}"
        parts.append(f"<h2>{escape(Path(pair.source).name)}</h2><p>{escape(result.text)}<br>{escape(verdict)}</p>")
        parts.append(f'<img style="max-width:100%" src="data:image/png;base64,{b64encode(drawn).decode()}">')
    (out / "maps.html").write_text("\n".join(parts))


# --- all jobs ----------------------------------------------------------------------------------------------------------------


def start(name: str, data: Path, steps: int | None) -> Outcome:
    command = [sys.executable, __file__, str(data), "--job", name, *([str(steps)] if steps else [])]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return Outcome(**json.loads(done.stdout.splitlines()[-1]))


def main(data: Path, steps: int | None) -> None:
    lines = [
        f"torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}; one thread each",
        "name; % exactly right; % with hard attention; % of words whose largest weight is in their box, in right descriptions;",
        "% of boxes with the right count, colours, shapes, sizes; processor seconds",
    ]
    print(*lines, sep="\n", flush=True)
    with ThreadPoolExecutor(2) as workers:
        found = dict(zip(JOBS, workers.map(lambda name: start(name, data, steps), JOBS), strict=True))
    for name, one in found.items():
        parts = "  ".join(f"{attribute} {100 * share:5.1f}" for attribute, share in one.attributes.items())
        box = "" if one.in_box is None else f"{100 * one.in_box:.1f}"
        lines.append(
            f"{name:<13} exact {100 * one.exact:5.1f}   hard {one.hard}   in box {box}   {parts}   {one.seconds:.0f} s"
        )
    difference = 100 * (found["soft"].exact - found["seen once"].exact)
    lines.append(f"soft is {difference:.1f} points above seen once: {'as' if difference >= 10 else 'NOT as'} required")
    lines.append(f"{found['soft'].num_training:,} training pictures, {found['soft'].num_held_out:,} held out")
    print(*lines[3:], sep="\n", flush=True)
    if steps is None:
        settings = [f"{name}: {job}" for name, job in JOBS.items()]
        signatures = [f"{name}: {one.signature}" for name, one in found.items()]
        write_result(__file__, [*lines, "", repr(TRAIN), *settings, "", *signatures])
        print("the maps are in nlvr.maps/")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    folder, given = Path(sys.argv[1]), sys.argv[2:]
    if given[:1] == ["--job"]:
        last = given[2] if len(given) > 2 else ""
        steps = int(last) if last.isdigit() else None
        print(json.dumps(asdict(measure(given[1], folder, steps, validate=last == "validate"))))
    else:
        main(folder, int(given[1]) if given[:1] == ["--steps"] else None)
