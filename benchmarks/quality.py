"""Quality with nothing configured: letters to phonemes with 800, 8,000 and 33,000 pairs (SIGMORPHON 2021), and names (Arabic to
English).

    python benchmarks/quality.py DATA [--test] [--models N] [low | medium | high | names | a language ...]

DATA: the folder that holds sigmorphon2021-g2p and google-ar2en. Every task is trained N times, with the seeds 1 to N, by
`regard train X_train.tsv --held-out X_dev.tsv`, two at a time with one thread each. Settings are chosen on dev sets; --test
reads the test sets too, once everything else is decided. mlt_latn and bul were left out of all tuning.

WER is the share of words with an error, CER the symbol error rate, both in per cent with beam 5: the mean of the N models, and
"together", the N models as an ensemble. "hard" is the WER with `--hard`. CPU seconds are those of one `regard train`, start and
validations included: the machine may be busy. The result of a whole set is written to a dated file in the folder of this
script.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import torch
from dated import write_result

import regard
from regard.data.corpus import read_pairs
from regard.evaluation import error_rates
from regard.look import Edit

SETS = {
    "low": ["ady", "gre", "ita", "mlt_latn", "rum"],
    "medium": ["bul", "dut", "fre", "geo", "hbs_latn", "hun"],
    "high": ["eng_us"],
    "names": ["names"],
}
LEFT_OUT = ("mlt_latn", "bul")
HARD = (Edit("cross", key="largest"),)


@dataclass(frozen=True)
class Outcome:
    """rates: in per cent, by name, such as "WER dev". seconds: of a CPU, for training one model."""

    rates: dict[str, float]
    seconds: float


def file_of(data: Path, task: str, part: str) -> Path:
    if task == "names":
        return data / "google-ar2en" / f"ar2en-{'eval' if part == 'dev' else part}.txt"
    (found,) = (data / "sigmorphon2021-g2p").glob(f"*/{task}_{part}.tsv")
    return found


def train(data: Path, task: str, seed: int, out: Path) -> float:
    """Trains a model. Returns the seconds of a CPU that it took."""
    command = [sys.executable, "-m", "regard", "train", str(file_of(data, task, "train")), "--out", str(out), "--threads", "1"]
    return cpu_seconds(
        [*command, "--held-out", str(file_of(data, task, "dev")), "--set", f"seed={seed}"], out.with_suffix(".log")
    )


def cpu_seconds(command: Sequence[str], log: Path) -> float:
    """Runs a command. Returns the seconds of a CPU that it took. log: a file for its output."""
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file)
        _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(log.read_text())
    return used.ru_utime + used.ru_stime


def rates(models: Sequence[Path], file: Path, *, edits: Sequence[Edit] = ()) -> tuple[float, float]:
    """Returns (WER, CER) of one model, or of several together."""
    pairs = list(read_pairs([file]).pairs)
    model = regard.load(models[0] if len(models) == 1 else list(models))
    results = model.translate([pair.source for pair in pairs], beam=5, edits=edits)
    target = regard.load(models[0]).target
    found = error_rates(
        [target.tokens(target.encode(result.text)) for result in results],
        [(tuple(target.tokens(target.encode(pair.target))),) for pair in pairs],
    )
    return 100 * found.sequence, 100 * found.symbol


def measure(data: Path, task: str, parts: Sequence[str], num_models: int) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        models = [Path(folder) / f"{task}-{seed}" for seed in range(1, num_models + 1)]
        with ThreadPoolExecutor(2) as pool:
            seconds = list(pool.map(lambda item: train(data, task, item[0], item[1]), enumerate(models, 1)))
        sums = getattr(regard.load(models[0]).settings, "attention", "") == "monotone"
        found: dict[str, float] = {}
        for part in parts:
            file = file_of(data, task, part)
            single = [rates([model], file) for model in models]
            found[f"WER {part}"], found[f"CER {part}"] = (statistics.mean(values) for values in zip(*single, strict=True))
            if sums:
                found[f"hard {part}"] = statistics.mean(rates([model], file, edits=HARD)[0] for model in models)
            if num_models > 1:
                found[f"together {part}"], found[f"together, CER {part}"] = rates(models, file)
    return Outcome(found, statistics.mean(seconds))


def mean(outcomes: Sequence[Outcome]) -> Outcome:
    names = [name for name in outcomes[0].rates if all(name in one.rates for one in outcomes)]
    means = {name: statistics.mean(one.rates[name] for one in outcomes) for name in names}
    return Outcome(means, statistics.mean(one.seconds for one in outcomes))


def row(name: str, names: Sequence[str], outcome: Outcome) -> str:
    cells = (f"{outcome.rates[key]:.1f}" if key in outcome.rates else "–" for key in names)
    return f"| {name} | {' | '.join(cells)} | {outcome.seconds:.0f} |"


def report(data: Path, tasks: Sequence[str], parts: Sequence[str], num_models: int) -> list[str]:
    found: dict[str, Outcome] = {}
    for task in tasks:
        found[task] = measure(data, task, parts, num_models)
        print(task, found[task], flush=True)
    names = list(next(iter(found.values())).rates)
    return [
        f"{date.today()}, torch {torch.__version__}, one thread, seeds 1 to {num_models}, per cent",
        "",
        f"| task | {' | '.join(names)} | CPU s |",
        "|---" * (len(names) + 2) + "|",
        *(row(f"{task} (left out of tuning)" if task in LEFT_OUT else task, names, one) for task, one in found.items()),
        *([row("mean", names, mean(list(found.values())))] if len(found) > 1 else []),
    ]


def main(arguments: list[str]) -> None:
    torch.set_num_threads(1)
    data, *wanted = arguments
    parts, num_models = ["dev"], 1
    if "--test" in wanted:
        wanted.remove("--test")
        parts = ["dev", "test"]
    if "--models" in wanted:
        index = wanted.index("--models")
        num_models = int(wanted[index + 1])
        del wanted[index : index + 2]
    for name in wanted or ["low"]:
        lines = report(Path(data), SETS.get(name, [name]), parts, num_models)
        print(*lines, sep="\n", flush=True)
        if name in SETS:
            write_result(__file__, lines, name)


if __name__ == "__main__":
    main(sys.argv[1:])
