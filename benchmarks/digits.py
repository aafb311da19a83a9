"""Reads rows of 2 to 6 handwritten digits: "three seven one". No digit of the test rows was seen in training.

    python benchmarks/digits.py [parts of names ...] [--steps N]      default: all jobs; the result is written to a file
    python benchmarks/digits.py --job NAME SEED [STEPS | validate]    one job; validate: on training digits kept for validation

The digits are scikit-learn's, side by side with random gaps and heights on 120 x 24 pixels, which become a grid of 15 x 3
cells. Models are trained on 6,000 rows and tested on 500 others (greedy search), with three seeds; each seed has different
rows, initial weights and order of batches. Models and requirements:

    soft         soft attention at every word (Xu et al. 2015, 4.2): more than 95 % exactly right; and the centre of mass of
                 the attended columns moves left to right, digit by digit, in more than 95 % of the rows
    hard         attends to one cell only (4.1), sampled in training and trained by policy gradient: more than 85 %. The first
                 half of the updates is soft: before the features mean anything, one cell in 45 teaches nothing
    leave one out  the same with four samples of each row's choices, whose baseline is the mean reward of the other three
    marginal     attends to one cell only, and adds up all choices (Wu et al. 2018): at least 95 % with hard attention
    seen once    the mean of all cells initialises the decoder, which has no attention: clearly worse (no seed as good as the
                 worst of soft)
    transformer  the same network before a Transformer, with three times the updates; no requirement

Two processes run at a time, with one thread each. The result of all jobs goes to a dated file in the folder of this script.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from chosen import columns, exact_match, hard_results, percent
from dated import write_result
from rich.console import Console

from regard.models.contract import ModelSettings
from regard.models.rnn_seq2seq import RnnSettings
from regard.models.transformer import TransformerSettings
from regard.training.data import in_memory
from regard.training.run import Trained, run
from regard.training.settings import DataSettings, RunSettings, TrainSettings

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from digits import SIDE, Row, draw_rows, drawn_digits

SEEDS = (1, 2, 3)
NUM_TRAINING, NUM_TEST = 6000, 500
ROWS = {"least": 2, "most": 6, "width": 120, "height": 24}
DATA = DataSettings(source_unit="picture", target_unit="words", augment=0.05)
SOFT = RnnSettings(width=96, embedding=32, score_width=48, decoder="bahdanau", frontend="picture", channels=64, dropout=0.1)
TRAIN = TrainSettings(steps=1600, batch_tokens=1400, learning_rate=4e-3, ema=0.995)


@dataclass(frozen=True)
class Job:
    """A model and its training. soft_steps: the number of updates with soft attention that come first."""

    model: ModelSettings
    train: TrainSettings = TRAIN
    soft_steps: int = 0


JOBS: dict[str, Job] = {
    "soft": Job(SOFT),
    "hard": Job(
        replace(SOFT, attention="hard"), replace(TRAIN, steps=800, learning_rate=2e-3, entropy_bonus=0.01), soft_steps=800
    ),
    "leave one out": Job(
        replace(SOFT, attention="hard"),
        replace(TRAIN, steps=800, learning_rate=2e-3, entropy_bonus=0.01, samples=4, baseline="leave_one_out"),
        soft_steps=800,
    ),
    "marginal": Job(replace(SOFT, attention="marginal", decoder="luong", readout="plain", row_encoder=True)),
    "seen once": Job(replace(SOFT, decoder="fixed", every_step=True)),
    "transformer": Job(
        TransformerSettings(
            width=96,
            heads=4,
            feed_forward=192,
            encoder_layers=2,
            decoder_layers=2,
            frontend="picture",
            channels=64,
            dropout=0.1,
        ),
        replace(TRAIN, steps=5000, learning_rate=2e-3),
    ),
}


@dataclass(frozen=True)
class Outcome:
    """exact: share of rows that are exactly right. hard: the same, if every word attends to its largest weight only.
    interval: that of `hard`, or without attention of `exact`. ordered: share of rows that are attended to from left to right.
    aligned: share of words, in rows that are exactly right, whose largest weight is on their digit."""

    exact: float
    hard: float | None
    interval: str
    ordered: float | None
    aligned: float | None
    seconds: float
    signature: str


def measure(job: Job, seed: int, steps: int | None, *, validate: bool = False) -> Outcome:
    torch.set_num_threads(1)
    seen, unseen = drawn_digits()
    if validate:
        seen, unseen = [digit for number, digit in enumerate(seen) if number % 4], seen[::4]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        training = draw_rows(root / "learn", seen, NUM_TRAINING, **ROWS, seed=10 * seed)
        testing = draw_rows(root / "ask", unseen, NUM_TEST, **ROWS, seed=10 * seed + 1)
        training_data = in_memory("digits", [row.pair for row in training], [row.pair for row in testing], DATA, root=root)
        began, before = time.process_time(), None
        train = replace(job.train, steps=steps or job.train.steps)
        quiet = Console(quiet=True) if steps is None else Console(stderr=True)
        if job.soft_steps:
            soft = replace(TRAIN, steps=steps or job.soft_steps)
            settings = RunSettings(seed=seed, data=DATA, model=replace(job.model, attention="soft"), train=soft)  # type: ignore[call-arg]
            before = run(training_data, settings, quiet, torch.device("cpu")).saved
        settings = RunSettings(seed=seed, data=DATA, model=job.model, train=train)
        trained = run(training_data, settings, quiet, torch.device("cpu"), start_from=before)
        seconds = time.process_time() - began
        references, exact = [row.pair.target for row in testing], 1 - trained.rates.sequence
        if getattr(job.model, "decoder", "") == "fixed":
            found = exact_match([one.result for one in trained.predictions], [one.references[0] for one in trained.predictions])
            return Outcome(exact, None, percent(found), None, None, seconds, trained.signature)
        found = exact_match(hard_results(trained.translator, [row.name for row in testing]), references)
        shares = ordered(trained, testing), aligned(trained, testing)
        return Outcome(exact, found.value, percent(found), *shares, seconds, trained.signature)


def aligned(trained: Trained, rows: list[Row]) -> float:
    """Returns the share of words whose largest weight is on their digit, in rows that are exactly right."""
    predictions = {prediction.source: prediction.result for prediction in trained.predictions}
    right = [(row, predictions[row.name]) for row in rows if predictions[row.name].text == row.pair.target]
    hits = [
        abs(column - middle) <= SIDE / 2 / ROWS["width"]
        for row, result in right
        for column, middle in zip(columns(result), row.middles, strict=False)  # <eos> has no digit
    ]
    return sum(hits) / max(1, len(hits))


def ordered(trained: Trained, rows: list[Row]) -> float:
    """Returns the share of rows in which attention moves from left to right."""
    predictions = {prediction.source: prediction.result for prediction in trained.predictions}
    count = 0
    for row in rows:
        attention = predictions[row.name].attention()
        centres = (attention.maps_TRC.sum(1) @ np.arange(attention.axes[1]))[: len(row.digits)]
        count += bool((np.diff(centres) > 0).all()) and len(attention.target) > len(row.digits)
    return count / len(rows)


# --- all jobs ----------------------------------------------------------------------------------------------------------------


def start(name: str, seed: int, steps: int | None) -> Outcome:
    command = [sys.executable, __file__, "--job", name, str(seed), *([str(steps)] if steps else [])]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return Outcome(**json.loads(done.stdout.splitlines()[-1]))


def verdict(name: str, found: dict[str, list[Outcome]]) -> str:
    exact = [one.exact for one in found[name]]
    if name == "soft":
        moved = all((one.ordered or 0) > 0.95 for one in found[name])
        return f"{'as' if min(exact) > 0.95 and moved else 'NOT as'} required"
    if name == "marginal":
        return f"{'as' if min(one.hard or 0 for one in found[name]) >= 0.95 else 'NOT as'} required"
    if name == "hard":
        return f"{'as' if min(exact) > 0.85 else 'NOT as'} required"
    if name == "seen once" and "soft" in found:
        return f"{'as' if max(exact) < min(one.exact for one in found['soft']) else 'NOT as'} required"
    return ""


def main(arguments: list[str]) -> None:
    steps = int(arguments[arguments.index("--steps") + 1]) if "--steps" in arguments else None
    parts = [one for one in arguments if one != "--steps" and one != str(steps)]
    names = [name for name in JOBS if not parts or any(part in name for part in parts)]
    lines = [
        f"torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}; seeds {SEEDS}; one thread each",
        "name; % exactly right per seed; with hard attention; % of rows attended to from left to right; % of words whose",
        "largest weight is on their digit, in rows that are exactly right; updates; processor seconds",
    ]
    print(*lines, sep="\n", flush=True)
    found: dict[str, list[Outcome]] = {}
    with ThreadPoolExecutor(2) as workers:
        running = {name: [workers.submit(start, name, seed, steps) for seed in SEEDS] for name in names}
        for name, futures in running.items():
            found[name] = outcomes = [future.result() for future in futures]
            exact = " ".join(f"{100 * one.exact:5.1f}" for one in outcomes)
            shares = "   ".join(
                " ".join("    -" if share is None else f"{100 * share:5.1f}" for share in shown)
                for shown in (
                    [one.hard for one in outcomes],
                    [one.ordered for one in outcomes],
                    [one.aligned for one in outcomes],
                )
            )
            job = JOBS[name]
            updates = f"{job.soft_steps}+{job.train.steps}" if job.soft_steps else str(job.train.steps)
            seconds = " ".join(f"{one.seconds:.0f}" for one in outcomes)
            lines.append(
                f"{name:<13} {exact}   {shares}   {steps or updates:>8}   {seconds} s  {verdict(name, found)}".rstrip()
            )
            print(lines[-1], flush=True)
    if not arguments:
        settings = [f"{name}: {JOBS[name]}" for name in names]
        signatures = [f"{name}: {one.signature}" for name, outcomes in found.items() for one in outcomes]
        write_result(__file__, [*lines, "", *settings, "", *signatures])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--job"]:
        given = sys.argv[4] if len(sys.argv) > 4 else ""
        steps = int(given) if given.isdigit() else None
        print(json.dumps(asdict(measure(JOBS[sys.argv[2]], int(sys.argv[3]), steps, validate=given == "validate"))))
    else:
        main(sys.argv[1:])
