"""Trains each family of models to copy, reverse and sort strings, to reverse long strings, and to recall with hard attention.

    python benchmarks/learning.py [parts of names ...]      default: all jobs; the result is written to a file

Strings have 4 to 16 of 26 letters. Models are trained on 40,000 strings and tested on 1,000 others (greedy search), with three
seeds; each seed has different strings, initial weights and order of batches. Requirements:

    exact     copy, reverse, sort: more than 99 % of the outputs exactly right
    aligned   reverse: some head's arg-max is S−1−t, up to a constant shift of at most 1, in at least 95 % of the rows; the
              row of <eos> does not count, and missing rows count as wrong
    length    trained on 4 to 40 letters, reversed: with attention at least 95 % right at length 40; the same model without
              it (one fixed vector) at least 30 points worse at length 40 than at length 5
    recall    "a3f7k1?f" -> "7" among 8 to 16 pairs, attending to one position only (hard attention, trained from scratch by
              policy gradient, on 1 to 16 pairs): more than 95 % right

Decoder-only models read no source and are not tested here, but in tests/learn. Two processes run at a time, with one thread
each. The result of all jobs goes to a dated file in the folder of this script.
"""

from __future__ import annotations

import json
import os
import platform
import random
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Literal

import torch
from dated import write_result
from rich.console import Console

from regard.data.corpus import Pair
from regard.models.contract import ModelSettings
from regard.models.rnn_seq2seq import RnnSettings
from regard.models.transformer import TransformerSettings
from regard.training.data import HeldOut, in_memory
from regard.training.run import run
from regard.training.settings import RunSettings, TrainSettings
from regard.training.validation import Prediction, predict

LETTERS, DIGITS = "abcdefghijklmnopqrstuvwxyz", "0123456789"
SEEDS = 1, 2, 3
NUM_TEST = 1000
SHORT, LONG = 5, 40

Task = Literal["copy", "reverse", "sort", "recall"]


@dataclass(frozen=True)
class Job:
    """A model, its task and its training. lengths: of the training strings; for recall, the number of pairs."""

    task: Task
    model: ModelSettings
    train: TrainSettings
    lengths: tuple[int, int] = (4, 16)
    num_training: int = 40_000


LUONG = RnnSettings(width=128, embedding=64, score_width=64, dropout=0.0)
BAHDANAU = replace(LUONG, width=64, decoder="bahdanau")
TRANSFORMER = TransformerSettings(width=64, heads=1, feed_forward=256, encoder_layers=2, decoder_layers=1, dropout=0.0)
QUICK = TrainSettings(steps=1200, batch_tokens=1024, learning_rate=8e-3)
FAMILIES: dict[str, tuple[ModelSettings, TrainSettings]] = {
    "luong": (LUONG, QUICK),
    "bahdanau": (BAHDANAU, QUICK),
    "transformer": (TRANSFORMER, replace(QUICK, learning_rate=5e-3)),
}
TASKS: tuple[Task, ...] = ("copy", "reverse", "sort")
FAR = TrainSettings(steps=1000, batch_tokens=2048, learning_rate=8e-3)
JOBS: dict[str, Job] = {
    **{f"{task}, {family}": Job(task, *settings) for task in TASKS for family, settings in FAMILIES.items()},
    "length, luong": Job("reverse", LUONG, FAR, lengths=(4, LONG)),
    "length, fixed vector": Job("reverse", replace(LUONG, decoder="fixed"), FAR, lengths=(4, LONG)),
    "recall, hard attention": Job(
        "recall",
        replace(LUONG, width=64, score="cosine", bridge="none", attention="hard"),
        TrainSettings(steps=3000, batch_tokens=2048, learning_rate=1e-2, entropy_bonus=0.02),
        lengths=(1, 16),
    ),
}


# --- data --------------------------------------------------------------------------------------------------------------------


def make_pairs(task: Task, number: int, lengths: tuple[int, int], rng: random.Random) -> list[Pair]:
    """Returns this many different pairs."""
    found: dict[str, Pair] = {}
    while len(found) < number:
        pair = make_pair(task, rng.randint(*lengths), rng)
        found[pair.source] = pair
    return list(found.values())


def make_pair(task: Task, length: int, rng: random.Random) -> Pair:
    if task == "recall":
        keys, values = rng.sample(LETTERS, length), rng.choices(DIGITS, k=length)
        index = rng.randrange(length)
        return Pair("".join(map("".join, zip(keys, values, strict=True))) + "?" + keys[index], values[index])
    text = "".join(rng.choices(LETTERS, k=length))
    return Pair(text, text if task == "copy" else text[::-1] if task == "reverse" else "".join(sorted(text)))


# --- one job, in a separate process ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """exact: share of right outputs by test set. aligned: share of the rows whose arg-max is at the right position, for the
    best head and shift. seconds: processor time."""

    exact: dict[str, float]
    aligned: float | None
    seconds: float
    signature: str


def measure(job: Job, seed: int) -> Outcome:
    torch.set_num_threads(1)
    rng = random.Random(seed)
    tests = {"exact": make_pairs(job.task, NUM_TEST, (8, 16) if job.task == "recall" else job.lengths, rng)}
    if job.lengths[1] == LONG:
        tests = {f"at {length}": make_pairs(job.task, NUM_TEST, (length, length), rng) for length in (SHORT, LONG)}
    unseen = {pair.source for pairs in tests.values() for pair in pairs}
    training = [pair for pair in make_pairs(job.task, job.num_training, job.lengths, rng) if pair.source not in unseen]
    settings = RunSettings(seed=seed, model=job.model, train=job.train)
    first, *others = tests.items()
    training_data = in_memory(job.task, training, first[1], settings.data)
    trained = run(training_data, settings, Console(quiet=True), torch.device("cpu"))
    predictions = {first[0]: trained.predictions}
    for name, pairs in others:
        held_out = HeldOut.encode(pairs, training_data.codecs)
        predictions[name] = predict(trained.translator, held_out, max_length=2 * LONG + 10)
    exact = {name: sum(one.right for one in found) / len(found) for name, found in predictions.items()}
    aligned = alignment(trained.predictions) if job.task == "reverse" and not others else None
    return Outcome(exact, aligned, time.process_time(), trained.signature)


def alignment(predictions: list[Prediction]) -> float:
    """Returns the share of aligned rows in the last layer of a model that reverses."""
    off_HN = torch.cat([offsets(prediction) for prediction in predictions], dim=-1)
    best = max((off_HN == shift).sum(-1).max().item() for shift in (-1, 0, 1))
    return best / sum(len(prediction.source) for prediction in predictions)


def offsets(prediction: Prediction) -> torch.Tensor:
    """Returns (H, rows): the distance of each head's arg-max from the letter that is being written."""
    positions_HT = torch.from_numpy(prediction.result.attention().weights_HTS.argmax(-1))[:, : len(prediction.source)]
    return positions_HT - (len(prediction.source) - 1 - torch.arange(positions_HT.shape[1]))


# --- all jobs ----------------------------------------------------------------------------------------------------------------


def start(name: str, seed: int) -> Outcome:
    command = [sys.executable, __file__, "--job", name, str(seed)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return Outcome(**json.loads(done.stdout.splitlines()[-1]))


def verdict(name: str, outcomes: list[Outcome]) -> str:
    """Says how many seeds meet the requirements."""

    def exact(one: Outcome) -> bool:
        if name.startswith("length"):
            short, long = one.exact[f"at {SHORT}"], one.exact[f"at {LONG}"]
            return short - long >= 0.3 if "fixed" in name else long >= 0.95
        return one.exact["exact"] > (0.95 if name.startswith("recall") else 0.99)

    aligned = [one.aligned >= 0.95 for one in outcomes if one.aligned is not None]
    text = f"right enough {sum(map(exact, outcomes))} of {len(outcomes)}"
    return text + (f", aligned {sum(aligned)} of {len(aligned)}" if aligned else "")


def row(name: str, outcomes: list[Outcome]) -> str:
    def shares(values: list[float]) -> str:
        return " ".join(f"{100 * value:5.1f}" for value in values)

    cells = [f"{key} {shares([one.exact[key] for one in outcomes])}" for key in outcomes[0].exact]
    found = [one.aligned for one in outcomes if one.aligned is not None]
    cells += [f"aligned {shares(found)}"] if found else []
    seconds = " ".join(f"{one.seconds:.0f}" for one in outcomes)
    return f"{name:<22}  {'; '.join(cells):<53}  {JOBS[name].train.steps:5}  {seconds} s  {verdict(name, outcomes)}"


def main(parts: list[str]) -> None:
    names = [name for name in JOBS if not parts or any(part in name for part in parts)]
    if not names:
        raise SystemExit(f"no job is named {' or '.join(parts)}; the jobs are: {'; '.join(JOBS)}")
    lines = [
        f"torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}; seeds {SEEDS}; one thread each",
        "name; % per seed; updates; processor seconds per seed; number of seeds that meet the requirements",
    ]
    print(*lines, sep="\n", flush=True)
    signatures = []
    with ThreadPoolExecutor(2) as workers:
        running = {name: [workers.submit(start, name, seed) for seed in SEEDS] for name in names}
        for name, futures in running.items():
            outcomes = [future.result() for future in futures]
            lines.append(row(name, outcomes))
            signatures += [f"{name}: {one.signature}" for one in outcomes]
            print(lines[-1], flush=True)
    if not parts:
        settings = [f"{name}: {JOBS[name]}" for name in names]
        write_result(__file__, [*lines, "", *settings, "", *signatures])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--job"]:
        print(json.dumps(asdict(measure(JOBS[sys.argv[2]], int(sys.argv[3])))))
    else:
        main(sys.argv[1:])
