"""Speed of the whole training loop with the preset `small` on Multi30k: regard, and MarianMTModel in a plain loop.

    python benchmarks/throughput.py DATA [rounds]      DATA: the folder with train.en.gz and train.de.gz; default: 10 rounds

English to German; target tokens per second, 2 threads, batches of 4,096 tokens, 8,000 shared subwords, dropout 0.1, label
smoothing 0.1. Both get the same batches, and the time includes making them; the plain loop has fused AdamW and clipping too.
Each round has six updates of either; the output is the median of the rounds, their spread (first to third quartile) and the
median of the ratios. The result is written to a dated file in the folder of this script, unless rounds are given.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from dated import write_result
from models import marian
from multi30k import Clock, Stopwatch, make_learner, read
from torch import nn

from regard.data.batch import Batches
from regard.models.build import num_parameters
from regard.models.transformer import PRESETS
from regard.training.data import in_memory
from regard.training.loop import train
from regard.training.settings import DataSettings, RunSettings, TrainSettings

UPDATES = 6
SETTINGS = RunSettings(
    data=DataSettings(source_unit="bpe", target_unit="bpe", shared=True, vocabulary=8000),
    model=PRESETS["small"],
    train=TrainSettings(batch_tokens=4096, learning_rate=1e-3, schedule="constant", warmup=0.0, label_smoothing=0.1),
)

Advance = Callable[[int], None]
"""Runs the updates of one round, from the given number on."""


def ours(batches: Batches, learner: object) -> Advance:
    def advance(first: int) -> None:
        settings = replace(SETTINGS.train, steps=first + UPDATES)
        train(learner, batches, settings, seed=1, callbacks=Stopwatch(Clock(0, [])))  # type: ignore[arg-type]

    return advance


def plain_loop(batches: Batches) -> tuple[Advance, nn.Module]:
    model, loss = marian()
    optimiser = torch.optim.AdamW(model.parameters(), lr=SETTINGS.train.learning_rate, betas=(0.9, 0.98), fused=True)

    def advance(first: int) -> None:
        model.train()
        for number in range(first, first + UPDATES):
            (batch,) = batches(number)
            (loss(batch) / batch.num_targets).backward()
            nn.utils.clip_grad_norm_(model.parameters(), SETTINGS.train.clip)
            optimiser.step()
            optimiser.zero_grad()

    return advance, model


def main(folder: Path, rounds: int = 10, *, write: bool = False) -> None:
    torch.set_num_threads(2)
    torch.manual_seed(1)
    training_data = in_memory("multi30k", read(folder, "train"), [], SETTINGS.data)
    batches = training_data.batches(SETTINGS.train, 0.0, SETTINGS.seed)
    learner = make_learner(training_data, SETTINGS)
    theirs, model = plain_loop(batches)
    loops = {"regard small": ours(batches, learner), "MarianMTModel": theirs}
    speeds: dict[str, list[float]] = {name: [] for name in loops}
    for number in range(rounds + 1):
        first = number * UPDATES
        num_targets = sum(batch.num_targets for update in range(first, first + UPDATES) for batch in batches(update))
        for name, advance in loops.items():
            began = time.perf_counter()
            advance(first)
            if number:  # the first round is a warm-up
                speeds[name].append(num_targets / (time.perf_counter() - began))
    sizes = num_parameters(learner.model), num_parameters(model)
    lines = [
        f"torch {torch.__version__}, 2 threads; {rounds} rounds of {UPDATES} updates; {batches.order.padding():.1%} padding; "
        f"{sizes[0] / 1e6:.2f} M parameters (ours), {sizes[1] / 1e6:.2f} M (Marian)"
    ]
    for name, found in speeds.items():
        low, middle, high = statistics.quantiles(found, n=4)
        lines.append(f"{name:<14} {middle:7,.0f} target tokens/s ({low:,.0f}-{high:,.0f})")
    low, middle, high = statistics.quantiles([one / other for one, other in zip(*speeds.values(), strict=True)], n=4)
    lines.append(f"ratio {middle:.2f} ({low:.2f}-{high:.2f})")
    print(*lines, sep="\n")
    if write:
        write_result(__file__, lines)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]), write=not sys.argv[2:])
