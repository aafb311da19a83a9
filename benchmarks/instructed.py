"""Fusion of two sources: spoken digits, and a written instruction that says what to do with them.

    python benchmarks/instructed.py DATA [key=value ...]      DATA: the folder with recordings_4speakers.tar.xz

The sources are a string of two to five spoken digits (by one of four speakers; five recordings of each digit are only in the
test strings, the others only in the training strings) and one of five instructions: "as it is", "reverse", "sort", "every
second", "only the last". There are 12,000 training strings and 500 test strings; greedy search; only exactly right outputs
count. Three models are trained with the same settings (the last for 300 updates, after which it is at its upper bound):

    both      the sound attends to the words of the instruction, Attention(Q_audio, K_text, V_text): more than 90 % right
    sound     without the instruction: near the upper bound, the likeliest output for every string, which is printed
    text      without the sound: near the upper bound, the likeliest output for every instruction

Then the first model is tested with one of its sources missing, and with other instructions, which its output must follow.
Shares are of exactly right outputs, with 95 % confidence intervals (Wilson). key=value changes settings as --set does. The
result is written to a dated file in the folder of this script, unless settings are changed.
"""

from __future__ import annotations

import math
import multiprocessing
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
import torch
from dated import write_result
from rich.console import Console
from spoken import NAMES, Recordings, spoken, unpack, write
from torch import Tensor

from regard.data.corpus import Pair
from regard.models.rnn_seq2seq import RnnSettings
from regard.training.data import in_memory
from regard.training.overrides import override
from regard.training.run import Trained, run
from regard.training.settings import DataSettings, RunSettings, TrainSettings

ORDERS: Mapping[str, Callable[[list[int]], list[int]]] = {
    "as it is": lambda digits: digits,
    "reverse": lambda digits: digits[::-1],
    "sort": sorted,
    "every second": lambda digits: digits[1::2],
    "only the last": lambda digits: digits[-1:],
}
SHORTEST, LONGEST, NUM_TRAINING, NUM_TEST = 2, 5, 12000, 500
NUM_TEST_RECORDINGS = 5
"""Recordings of each digit and speaker that are used for test strings only."""
SETTINGS = RunSettings(
    data=DataSettings(source_columns=("audio", "how"), source_unit="sound", target_unit="symbols", augment=0.1),
    model=RnnSettings(frontend="sound", width=128, embedding=128, channels=32, decoder="bahdanau", dropout=0.1),
    train=TrainSettings(steps=6000, batch_tokens=1024, learning_rate=4e-3, ema=0.995, shortest_first=True),
)


@dataclass(frozen=True)
class Task:
    name: str
    how: str
    digits: list[int]

    def pair(self, *, sound: bool = True, text: bool = True) -> Pair:
        return Pair((self.name if sound else "", self.how if text else ""), self.target(self.how))

    def target(self, how: str) -> str:
        return " ".join(NAMES[digit] for digit in ORDERS[how](self.digits))


def make_tasks(recordings: Recordings, number: int, folder: Path, seed: int) -> list[Task]:
    rng, tasks = random.Random(seed), []
    for count in range(number):
        digits = rng.choices(range(10), k=rng.randint(SHORTEST, LONGEST))
        name = f"{seed}-{count}.wav"
        write(folder / name, spoken(recordings[rng.choice(sorted(recordings))], digits, rng))
        tasks.append(Task(name, rng.choice(list(ORDERS)), digits))
    return tasks


def split(recordings: Recordings) -> tuple[Recordings, Recordings]:
    """Returns (training recordings, test recordings). `unpack` sorts by name: 0, 1, 10, 11, …"""

    def some(part: slice) -> dict[str, dict[int, Sequence[Tensor]]]:
        return {who: {digit: takes[part] for digit, takes in digits.items()} for who, digits in recordings.items()}

    return some(slice(NUM_TEST_RECORDINGS, None)), some(slice(NUM_TEST_RECORDINGS))


def upper_bounds() -> tuple[float, float]:
    """Returns the best possible shares of right outputs if only the sound, and if only the instruction, is known."""
    lengths = range(SHORTEST, LONGEST + 1)
    by_sound, by_text = 0.0, {how: Counter[tuple[int, ...]]() for how in ORDERS}
    for length in lengths:
        share = 1 / len(lengths) / len(ORDERS) / 10**length
        for digits in product(range(10), repeat=length):
            outputs = {how: tuple(order(list(digits))) for how, order in ORDERS.items()}
            by_sound += share * max(Counter(outputs.values()).values())
            for how, output in outputs.items():
                by_text[how][output] += share
    return by_sound, sum(max(shares.values()) for shares in by_text.values())


def interval(right: int, number: int) -> str:
    """Returns a share with its Wilson confidence interval, as text."""
    z, share = 1.96, right / number
    middle, width = share + z * z / (2 * number), z * math.sqrt(share * (1 - share) / number + (z / (2 * number)) ** 2)
    low, high = ((middle + sign * width) / (1 + z * z / number) for sign in (-1, 1))
    return f"{share:.1%} ({low:.1%} to {high:.1%})"


def share(trained: Trained, pairs: Sequence[tuple[str, str]]) -> str:
    outputs = trained.translator.batch([source for source, _ in pairs], max_length=20)
    return interval(sum(one.text == text for one, (_, text) in zip(outputs, pairs, strict=True)), len(pairs))


def job(data: Path, name: str, settings: RunSettings) -> list[str]:
    """Trains and tests one of the three models; returns the lines of its report."""
    torch.set_num_threads(1)
    lines: list[str] = []

    def report(line: str) -> None:
        lines.append(line)
        print(line, flush=True)

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for_training, for_test = split(unpack(data, folder / "recordings"))
        training, test = make_tasks(for_training, NUM_TRAINING, folder, 1), make_tasks(for_test, NUM_TEST, folder, 2)
        sources = {"sound": name != "text", "text": name != "sound"}
        pairs = [[task.pair(**sources) for task in tasks] for tasks in (training, test)]
        if name == "text":
            pairs = [[pair._replace(source=pair.source.strip().replace("\t", " ")) for pair in some] for some in pairs]
        began = time.perf_counter()
        training_data = in_memory(name, *pairs, settings.data, root=folder)
        trained = run(training_data, settings, Console(stderr=True, force_terminal=False), torch.device("cpu"))
        minutes = (time.perf_counter() - began) / 60
        report(f"{name}: {share(trained, pairs[1])} of {len(test)} exactly right; {minutes:.1f} min; {trained.signature}")
        if name == "both":
            measure_fusion(trained, test, report)
    return lines


def measure_fusion(both: Trained, test: Sequence[Task], report: Callable[[str], None]) -> None:
    """Tests the model of both sources with one source, with every instruction, and for the words that the sound attends to."""
    for name, sources in (("without its sound", {"sound": False}), ("without its instruction", {"text": False})):
        report(f"  {name}: {share(both, [(task.pair(**sources).source, task.pair().target) for task in test])}")
    for how in ORDERS:
        pairs = [((task.name, how), task.target(how)) for task in test]
        report(f"  all strings with {how!r}: {share(both, pairs)}")
    report("  words that the sound attends to, mean over heads, positions and 50 strings:")
    for how in ORDERS:
        maps = [both.translator((task.name, how)).attention("fusion") for task in test[:50]]
        words = np.mean([one.mean_TS.mean(0) for one in maps], axis=0).tolist()
        report("    " + ", ".join(f"{word} {weight:.2f}" for word, weight in zip(maps[0].source, words, strict=True)))


def main(data: Path, *changes: str) -> None:
    settings = override(SETTINGS, changes)
    sound = replace(settings, data=replace(settings.data, source_columns=()))
    text = replace(
        sound,
        data=replace(sound.data, source_unit="words", augment=0.0),
        model=replace(settings.model, frontend="tokens"),
        train=replace(settings.train, steps=min(300, settings.train.steps)),
    )
    jobs = {"both": settings, "sound": sound, "text": text}
    print(bounds := "upper bounds: {:.1%} with the sound alone, {:.1%} with the text alone".format(*upper_bounds()), flush=True)
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as processes:
        lines = [line for report in processes.map(job, [data] * 3, jobs, jobs.values()) for line in report]
    lines.insert(0, bounds)
    lines.append(f"torch {torch.__version__}, two processes with one thread each; {asdict(settings)}")
    if not changes:
        write_result(__file__, lines)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
