"""Speed of two versions of regard, taking turns: is the new one slower?

    python benchmarks/versions.py OLD NEW MODEL SENTENCES PAIRS [rounds]

OLD and NEW are folders with the source of regard (the folder `src` of a checkout). MODEL is a model folder that both can load,
SENTENCES a text file, plain or .gz, and PAIRS a file of pairs to train on. Each version runs in processes of its own: one
translates the same sentences again and again, on two threads, with a beam of 1 and of 5; and every round a new one trains a
small model, whose time per update is read from its log. The medians of the rounds are printed, and the spread of their ratios.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from dated import write_result

TRANSLATE = """
import gzip, sys, time
import torch
from regard.core.devices import keep_freed_memory
import regard
torch.set_num_threads(2)
keep_freed_memory()
model = regard.load(sys.argv[1], device="cpu")
path = sys.argv[2]
texts = [line.strip() for line in (gzip.open(path, "rt") if path.endswith(".gz") else open(path))][:int(sys.argv[3])]
for line in sys.stdin:
    start = time.perf_counter()
    model.batch(texts, beam=int(line), max_length=64)
    print(time.perf_counter() - start, flush=True)
"""
UPDATES = 60
NUM_SENTENCES = 500


class Version:
    """One version of the source, with a process that translates."""

    def __init__(self, source: str, model: str, sentences: str) -> None:
        self.env = {**os.environ, "PYTHONPATH": source}
        command = [sys.executable, "-c", TRANSLATE, model, sentences, str(NUM_SENTENCES)]
        self.process = subprocess.Popen(command, env=self.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def translate(self, beam: int) -> float:
        """Returns the seconds for all sentences."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(f"{beam}\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def train(self, pairs: str) -> float:
        """Returns the seconds per update, without the first few."""
        with tempfile.TemporaryDirectory() as folder:
            settings = [f"train.steps={UPDATES}", "train.validate_every=0", "train.checkpoint_every=100000"]
            options = [option for setting in settings for option in ("--set", setting)]
            command = [sys.executable, "-m", "regard", "train", pairs, "--out", f"{folder}/model", "--threads", "2", *options]
            subprocess.run(command, env=self.env, check=True, stdout=subprocess.DEVNULL)
            logged = [json.loads(line) for line in Path(f"{folder}/model.run/log.jsonl").read_text().splitlines()]
            times = [facts["time"] for facts in logged if "time" in facts][10:]
            return (times[-1] - times[0]) / (len(times) - 1)


def describe(what: str, old: list[float], new: list[float]) -> str:
    ratios = sorted(after / before for before, after in zip(old, new, strict=True))
    before, after, low, high = statistics.median(old), statistics.median(new), *(ratios[len(ratios) // 4 * at] for at in (1, 3))
    return (
        f"{what:<20} old {before:8.4f} s  new {after:8.4f} s  new/old {after / before:.3f}; "
        f"round by round: median {statistics.median(ratios):.3f}, middle half {low:.3f} to {high:.3f}"
    )


def main() -> None:
    old_source, new_source, model, sentences, pairs = sys.argv[1:6]
    rounds = int(sys.argv[6]) if len(sys.argv) > 6 else 15
    old, new = (Version(source, model, sentences) for source in (old_source, new_source))
    lines = []
    for what, measure in (
        ("translate, beam 1", lambda version: version.translate(1)),
        ("translate, beam 5", lambda version: version.translate(5)),
        ("train, per update", lambda version: version.train(pairs)),
    ):
        for version in (old, new):
            measure(version)  # warms up
        times: dict[Version, list[float]] = {old: [], new: []}
        for number in range(rounds):
            for version in (old, new) if number % 2 else (new, old):
                times[version].append(measure(version))
        lines.append(describe(what, times[old], times[new]))
        print(lines[-1], flush=True)
    write_result(__file__, [f"{rounds} rounds, {NUM_SENTENCES} sentences, {UPDATES} updates", *lines])


if __name__ == "__main__":
    main()
