"""Quality with nothing configured: letters to phonemes with 800 and with 8,000 pairs (SIGMORPHON 2021).

    python benchmarks/quality.py DATA [--test] [--seeds N] [languages ...]      DATA: the folder with low/ady_train.tsv, …

Every language is trained by `regard train X_train.tsv --held-out X_dev.tsv`, one at a time with one thread. Settings are chosen
on dev sets only; --test reads the test sets too, once everything else is decided. mlt_latn and bul were left out of all tuning.
WER is the share of words with an error, with beam 5; "hard" is the same with `--hard`, for models that sum over all choices.
CPU seconds are those of `regard train`, start and validations included: the machine may be busy. The result is written to a
dated file in the folder of this script if all low languages were measured.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import torch
from dated import write_result
from g2p import file_of

import regard
from regard.data.corpus import read_pairs
from regard.look import Edit

LOW = ["ady", "gre", "ita", "mlt_latn", "rum"]
LEFT_OUT = ("mlt_latn", "bul")
HARD = (Edit("cross", key="largest"),)


@dataclass(frozen=True)
class Outcome:
    """rates: WER in per cent by part, such as "dev" or "dev, hard". seconds: of a CPU, for training."""

    rates: dict[str, float]
    seconds: float


def share_of_wrong_words(model: Path, file: Path, *, hard: bool) -> float:
    pairs = list(read_pairs([file]).pairs)
    results = regard.load(model).translate([pair.source for pair in pairs], beam=5, edits=HARD if hard else ())
    return 100 * statistics.mean(result.text != pair.target for result, pair in zip(results, pairs, strict=True))


def measure(data: Path, language: str, seed: int, parts: list[str]) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / language
        command = [sys.executable, "-m", "regard", "train", file_of(data, language, "train"), "--out", model]
        command += ["--held-out", file_of(data, language, "dev"), "--threads", "1", "--set", f"seed={seed}"]
        before = cpu_seconds()
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{language}: {done.stdout}{done.stderr}")
        seconds = cpu_seconds() - before
        kinds = {"": False, ", hard": True} if "monotone" in done.stdout else {"": False}
        rates = {
            part + name: share_of_wrong_words(model, file_of(data, language, part), hard=hard)
            for part in parts
            for name, hard in kinds.items()
        }
    return Outcome(rates, seconds)


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def mean(outcomes: list[Outcome]) -> Outcome:
    rates = {name: statistics.mean(one.rates[name] for one in outcomes) for name in outcomes[0].rates}
    return Outcome(rates, statistics.mean(one.seconds for one in outcomes))


def row(name: str, outcome: Outcome) -> str:
    return f"| {name} | {' | '.join(f'{rate:.1f}' for rate in outcome.rates.values())} | {outcome.seconds:.0f} |"


def main(data: Path, languages: list[str], parts: list[str], seeds: int) -> None:
    torch.set_num_threads(1)
    found: dict[str, Outcome] = {}
    for language in languages:
        found[language] = mean([measure(data, language, seed, parts) for seed in range(1, seeds + 1)])
        print(row(language, found[language]), flush=True)
    names = list(next(iter(found.values())).rates)
    lines = [
        f"{date.today()}, torch {torch.__version__}, one thread, seeds 1 to {seeds}, WER in per cent",
        "",
        f"| language | {' | '.join(names)} | CPU s |",
        "|---" * (len(names) + 2) + "|",
        *(row(f"{name} (left out of tuning)" if name in LEFT_OUT else name, one) for name, one in found.items()),
        row("mean", mean(list(found.values()))),
    ]
    print(*lines, sep="\n")
    if set(languages) >= set(LOW):
        write_result(__file__, lines)


if __name__ == "__main__":
    arguments = sys.argv[2:]
    parts, seeds = ["dev"], 1
    if "--test" in arguments:
        arguments.remove("--test")
        parts = ["dev", "test"]
    if "--seeds" in arguments:
        index = arguments.index("--seeds")
        seeds = int(arguments[index + 1])
        del arguments[index : index + 2]
    main(Path(sys.argv[1]), arguments or LOW, parts, seeds)
