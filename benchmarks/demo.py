"""Error rates, training time and use of the processor of a recurrent model on the dictionary of `regard demo`, dev split.

    python benchmarks/demo.py [seeds ...]      default: 1 2 3

The settings are those that the demo had until 2026-11-18, a GRU with Luong's attention; they stay as they are, so that the
figures of different versions can be compared. The demo itself has other settings now (docs/choosing.md), and the test split.
Training uses 2 threads. The GEMM rate is that of torch.mm on 1024 x 1024 matrices in the same process, before training.
The result is written to a dated file in the folder of this script.
"""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import replace

import torch
from dated import write_result
from rich.console import Console
from torch.utils.flop_counter import FlopCounterMode

from regard.data.dictionary import pronunciations
from regard.models.build import build
from regard.models.rnn_seq2seq import RnnSettings
from regard.native.flops import COUNTED_KERNELS
from regard.training.data import in_memory
from regard.training.learner import Learner
from regard.training.loop import Update, train
from regard.training.run import run
from regard.training.settings import DataSettings, RunSettings, TrainSettings

CPU = torch.device("cpu")
SETTINGS = RunSettings(
    data=DataSettings(target_unit="symbols"),
    model=RnnSettings(width=192, embedding=32, encoder_layers=2, score_width=64, dropout=0.0),
    train=TrainSettings(steps=3200, batch_tokens=512, learning_rate=8e-3),
)


class TokenCounter:
    """Training callbacks that only count target tokens."""

    num_targets = 0

    interrupted = False

    def on_update(self, update: Update) -> None:
        self.num_targets += update.num_targets

    def validate(self) -> float:
        return 0.0

    def save_best(self) -> None: ...

    def checkpoint(self) -> None: ...


def gemm_rate(size: int = 1024, repeats: int = 20) -> float:
    """Returns floating-point operations per second, the median over several products."""
    one, other = torch.randn(size, size), torch.randn(size, size)
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        torch.mm(one, other)
        times.append(time.perf_counter() - began)
    return 2 * size**3 / statistics.median(times)


def training_pace(num_updates: int = 200) -> tuple[float, float]:
    """Returns (target tokens/s, FLOPs of matrix products per target token with padding), both of the training loop."""
    training_data = in_memory("cmudict", pronunciations("train"), [], SETTINGS.data)
    model, settings = build(SETTINGS.model, *map(len, training_data.codecs)), replace(SETTINGS.train, steps=num_updates)
    batches = training_data.batches(settings, subword_dropout=0.0, seed=1)

    def train_once() -> int:
        count = TokenCounter()
        train(Learner(model, settings), batches, settings, seed=1, callbacks=count)
        return count.num_targets

    train_once()  # warm-up
    began = time.perf_counter()
    num_targets = train_once()
    seconds = time.perf_counter() - began
    with FlopCounterMode(display=False, custom_mapping=COUNTED_KERNELS) as counter:
        train_once()
    return num_targets / seconds, counter.get_total_flops() / num_targets


def main(seeds: list[int]) -> None:
    torch.set_num_threads(2)
    rate, (pace, flops) = gemm_rate(), training_pace()
    lines = [
        f"{SETTINGS}",
        f"training: {pace:,.0f} target tokens/s, {flops / 1e6:.2f} MFLOP of matrix products per token = "
        f"{pace * flops / 1e9:.1f} GFLOP/s, {pace * flops / rate:.0%} of the GEMM rate of {rate / 1e9:.0f} GFLOP/s",
    ]
    print(*lines, sep="\n", flush=True)
    training, dev = pronunciations("train"), pronunciations("dev")
    for seed in seeds:
        began = time.perf_counter()
        trained = run(
            in_memory("cmudict-dev", training, dev, SETTINGS.data), replace(SETTINGS, seed=seed), Console(quiet=True), CPU
        )
        seconds = time.perf_counter() - began
        lines.append(
            f"seed {seed}: phoneme error rate {trained.rates.symbol:.2%}, words with an error {trained.rates.sequence:.2%}, "
            f"{seconds:.0f} s for training and dev | {trained.signature}"
        )
        print(lines[-1], flush=True)
    write_result(__file__, lines)


if __name__ == "__main__":
    main([int(seed) for seed in sys.argv[1:]] or [1, 2, 3])
