"""Reads rows of 2 to 6 handwritten digits: "three seven one". No digit of the test rows was seen in training.

    python benchmarks/digits.py [parts of names ...] [--steps N]      default: all jobs; the result is written to a file

The digits are scikit-learn's, side by side with random gaps and heights on 120 x 24 pixels, which become a grid of 15 x 3
cells. Models are trained on 6,000 rows and tested on 500 others (greedy search), with three seeds; each seed has different
rows, initial weights and order of batches. Models and requirements:

    soft         soft attention at every word (Xu et al. 2015, 4.2): more than 95 % exactly right; and the centre of mass of
                 the attended columns moves left to right, digit by digit, in more than 95 % of the rows
    hard         attends to one cell only (4.1), sampled in training and trained by policy gradient: more than 85 %. The first
                 half of the updates is soft: before the features mean anything, one cell in 45 teaches nothing
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
from dated import write_result
from rich.console import Console

from regard.models.contract import ModelSettings
from regard.models.rnn_seq2seq import RnnSettings
from regard.models.transformer import TransformerSettings
from regard.training.data import in_memory
from regard.training.run import Trained, run
from regard.training.settings import DataSettings, RunSettings, TrainSettings

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from digits import Row, draw_rows, drawn_digits

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
    exact: float
    ordered: float | None
    seconds: float
    signature: str


def measure(job: Job, seed: int, steps: int | None) -> Outcome:
    torch.set_num_threads(1)
    seen, unseen = drawn_digits()
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
        return Outcome(1 - trained.rates.sequence, ordered(trained, testing), seconds, trained.signature)


def ordered(trained: Trained, rows: list[Row]) -> float | None:
    """Returns the share of rows in which attention moves from left to right; None without attention."""
    if getattr(trained.saved.settings, "decoder", "") == "fixed":
        return None
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
        "name; % exactly right per seed; % of rows attended to from left to right; updates; processor seconds",
    ]
    print(*lines, sep="\n", flush=True)
    found: dict[str, list[Outcome]] = {}
    with ThreadPoolExecutor(2) as workers:
        running = {name: [workers.submit(start, name, seed, steps) for seed in SEEDS] for name in names}
        for name, futures in running.items():
            found[name] = outcomes = [future.result() for future in futures]
            exact = " ".join(f"{100 * one.exact:5.1f}" for one in outcomes)
            moved = " ".join("    -" if one.ordered is None else f"{100 * one.ordered:5.1f}" for one in outcomes)
            job = JOBS[name]
            updates = f"{job.soft_steps}+{job.train.steps}" if job.soft_steps else str(job.train.steps)
            seconds = " ".join(f"{one.seconds:.0f}" for one in outcomes)
            lines.append(f"{name:<12} {exact}   {moved}   {steps or updates:>8}   {seconds} s  {verdict(name, found)}".rstrip())
            print(lines[-1], flush=True)
    if not arguments:
        settings = [f"{name}: {JOBS[name]}" for name in names]
        signatures = [f"{name}: {one.signature}" for name, outcomes in found.items() for one in outcomes]
        write_result(__file__, [*lines, "", *settings, "", *signatures])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--job"]:
        given = int(sys.argv[4]) if len(sys.argv) > 4 else None
        print(json.dumps(asdict(measure(JOBS[sys.argv[2]], int(sys.argv[3]), given))))
    else:
        main(sys.argv[1:])
