"""Two sources that need each other: spoken digits, and a written instruction that says what to do with them.

    python benchmarks/instructed.py DATA [key=value ...]      DATA: the folder with recordings_4speakers.tar.xz

A string of two to five spoken digits (all four speakers; five recordings of each digit are only in what is asked for, the
others only in what is learnt from) and one of five instructions: "as it is", "reverse", "sort", "every second", "only the
last".
Learnt from 12,000 strings, asked for 500; greedy search. The names must come out exactly. Three models, trained alike (the
last for 300 updates, which take it to its ceiling):

    both      the sound attends to the words of the instruction, Attention(Q_audio, K_text, V_text): more than 90 % right
    sound     without the instruction: near what the likeliest answer to every string gets, which is printed
    text      without the sound: near what the likeliest answer to every instruction gets

and the first one again, asked with one of its sources missing, or with another instruction: its output must follow the
instruction. Shares are of exactly right outputs, with intervals of 95 % (Wilson). key=value changes settings as --set does. The
result is written beside this script, with its date, unless settings are changed.
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

import torch
from dated import write_result
from rich.console import Console
from spoken import NAMES, Recordings, spoken, unpack, write
from torch import Tensor

from regard.data.corpus import Pair, join_columns
from regard.models.rnn_seq2seq import RnnSettings
from regard.training.data import in_memory
from regard.training.run import Trained, run
from regard.training.settings import DataSettings, RunSettings, TrainSettings, override

ORDERS: Mapping[str, Callable[[list[int]], list[int]]] = {
    "as it is": lambda digits: digits,
    "reverse": lambda digits: digits[::-1],
    "sort": sorted,
    "every second": lambda digits: digits[1::2],
    "only the last": lambda digits: digits[-1:],
}
SHORTEST, LONGEST, NUM_LEARNT, NUM_ASKED = 2, 5, 12000, 500
KEPT_BACK = 5
"""Recordings of each digit and speaker that are not learnt from."""
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
        cells = (self.name if sound else "", self.how if text else "")
        return Pair(join_columns(cells), self.answer(self.how))

    def answer(self, how: str) -> str:
        return " ".join(NAMES[digit] for digit in ORDERS[how](self.digits))


def make_tasks(recordings: Recordings, number: int, folder: Path, seed: int) -> list[Task]:
    chance, tasks = random.Random(seed), []
    for count in range(number):
        digits = chance.choices(range(10), k=chance.randint(SHORTEST, LONGEST))
        name = f"{seed}-{count}.wav"
        write(folder / name, spoken(recordings[chance.choice(sorted(recordings))], digits, chance))
        tasks.append(Task(name, chance.choice(list(ORDERS)), digits))
    return tasks


def split(recordings: Recordings) -> tuple[Recordings, Recordings]:
    """(those to learn from, those that are asked for). `unpack` sorts by name: 0, 1, 10, 11, …"""

    def some(part: slice) -> dict[str, dict[int, Sequence[Tensor]]]:
        return {who: {digit: takes[part] for digit, takes in digits.items()} for who, digits in recordings.items()}

    return some(slice(KEPT_BACK, None)), some(slice(KEPT_BACK))


def ceilings() -> tuple[float, float]:
    """What is right at most, on average over all strings, where only the sound is known, and where only the instruction is."""
    lengths = range(SHORTEST, LONGEST + 1)
    by_sound, by_text = 0.0, {how: Counter[tuple[int, ...]]() for how in ORDERS}
    for length in lengths:
        share = 1 / len(lengths) / len(ORDERS) / 10**length
        for digits in product(range(10), repeat=length):
            predictions = {how: tuple(order(list(digits))) for how, order in ORDERS.items()}
            by_sound += share * max(Counter(predictions.values()).values())
            for how, answer in predictions.items():
                by_text[how][answer] += share
    return by_sound, sum(max(shares.values()) for shares in by_text.values())


def interval(right: int, number: int) -> str:
    """Wilson's."""
    z, share = 1.96, right / number
    middle, width = share + z * z / (2 * number), z * math.sqrt(share * (1 - share) / number + (z / (2 * number)) ** 2)
    low, high = ((middle + sign * width) / (1 + z * z / number) for sign in (-1, 1))
    return f"{share:.1%} ({low:.1%} to {high:.1%})"


def share(trained: Trained, asked: Sequence[tuple[str, str]]) -> str:
    outputs = trained.translator.batch([source for source, _ in asked], max_length=20)
    return interval(sum(one.text == text for one, (_, text) in zip(outputs, asked, strict=True)), len(asked))


def job(data: Path, name: str, settings: RunSettings) -> list[str]:
    """Trains one of the three models and asks it; what to tell of it."""
    torch.set_num_threads(1)
    lines: list[str] = []

    def tell(line: str) -> None:
        lines.append(line)
        print(line, flush=True)

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        learnt_from, kept_back = split(unpack(data, folder / "recordings"))
        learning, asked = make_tasks(learnt_from, NUM_LEARNT, folder, 1), make_tasks(kept_back, NUM_ASKED, folder, 2)
        there = {"sound": name != "text", "text": name != "sound"}
        pairs = [[task.pair(**there) for task in tasks] for tasks in (learning, asked)]
        if name == "text":
            pairs = [[pair._replace(source=pair.source.strip().replace("\t", " ")) for pair in some] for some in pairs]
        began = time.perf_counter()
        training_data = in_memory(name, *pairs, settings.data, root=folder)
        trained = run(training_data, settings, Console(stderr=True, force_terminal=False), torch.device("cpu"))
        minutes = (time.perf_counter() - began) / 60
        tell(f"{name}: {share(trained, pairs[1])} of {len(asked)} exactly right; {minutes:.1f} min; {trained.signature}")
        if name == "both":
            ask(trained, asked, tell)
    return lines


def ask(both: Trained, asked: Sequence[Task], tell: Callable[[str], None]) -> None:
    """What the model that has both makes of one alone, and of every instruction; and which words the sound looks at."""
    for name, there in (("without its sound", {"sound": False}), ("without its instruction", {"text": False})):
        tell(f"  {name}: {share(both, [(task.pair(**there).source, task.pair().target) for task in asked])}")
    for how in ORDERS:
        pairs = [(join_columns((task.name, how)), task.answer(how)) for task in asked]
        tell(f"  all asked with {how!r}: {share(both, pairs)}")
    tell("  which words the sound looks at, mean of heads, places and 50 strings:")
    for how in ORDERS:
        maps = [both.translator(join_columns((task.name, how))).attention("fusion") for task in asked[:50]]
        words = torch.stack([one.mean_TS.mean(0) for one in maps]).mean(0).tolist()
        tell("    " + ", ".join(f"{word} {weight:.2f}" for word, weight in zip(maps[0].source, words, strict=True)))


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
    print(ceiling := "at most, with the sound alone {:.1%}, with the text alone {:.1%}".format(*ceilings()), flush=True)
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as processes:
        lines = [line for told in processes.map(job, [data] * 3, jobs, jobs.values()) for line in told]
    lines.insert(0, ceiling)
    lines.append(f"torch {torch.__version__}, two processes of one thread; {asdict(settings)}")
    if not changes:
        write_result(__file__, lines)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
