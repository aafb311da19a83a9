"""Letters to phonemes with default settings: SIGMORPHON 2021, American English and six languages of the medium set.

    python benchmarks/g2p.py DATA [languages ...]      DATA: the folder with high/eng_us_train.tsv, medium/dut_train.tsv, …
    python benchmarks/g2p.py DATA --race YOYODYNE      YOYODYNE: the command of an installed Yoyodyne 0.5

Every language is trained by `regard train X_train.tsv --held-out X_dev.tsv`, two at a time with one thread each, and the test
set is used once, with beam 5, the default of `regard evaluate`. The baselines to compare with are published with the data: an
ensemble of ten neural transducers (Makarov & Clematide 2018; Ashby et al. 2021). WER is the share of words with an error, as
in SIGMORPHON. The result of all languages is written to a dated file in the folder of this script.

The race is on Dutch, two threads, dev set: first regard with default settings, for as long as it takes, then Yoyodyne's LSTM
with soft attention, batches of 64 words, for five minutes; it validates after every epoch, and its best validation counts.
"""

from __future__ import annotations

import csv
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import torch
from dated import write_result

import regard
from regard.data.corpus import Pair, read_pairs

BASELINES = {"eng_us": 41.94, "dut": 14.7, "fre": 8.5, "hun": 1.8, "hbs_latn": 32.1, "bul": 18.3, "geo": 0.0}
"""WER on the test sets."""
MEDIUM = [language for language in BASELINES if language != "eng_us"]


@dataclass(frozen=True)
class Outcome:
    rates: dict[str, float]
    """WER by part: dev, test."""
    minutes: float
    signature: str


def file_of(data: Path, language: str, part: str) -> Path:
    (found,) = data.glob(f"*/{language}_{part}.tsv")
    return found


def share_of_wrong_words(model: Path, pairs: Iterable[Pair]) -> float:
    """Returns the WER in per cent. Every word of these sets has one pronunciation."""
    pairs = list(pairs)
    results = regard.load(model).batch([pair.source for pair in pairs], beam=5)
    return 100 * statistics.mean(result.text != pair.target for result, pair in zip(results, pairs, strict=True))


def train(data: Path, language: str, folder: Path, parts: Sequence[str] = ("dev", "test"), threads: int = 1) -> Outcome:
    model, began = folder / language, time.perf_counter()
    command = [sys.executable, "-m", "regard", "train", file_of(data, language, "train"), "--out", model]
    command += ["--held-out", file_of(data, language, "dev"), "--threads", str(threads)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{language}: {done.stdout}{done.stderr}")
    minutes = (time.perf_counter() - began) / 60
    rates = {part: share_of_wrong_words(model, read_pairs([file_of(data, language, part)]).pairs) for part in parts}
    signature = next(line.strip() for line in done.stdout.splitlines() if line.strip().startswith("data:"))
    print(language, *(f"{part} {rate:.1f}" for part, rate in rates.items()), f"{minutes:.1f} min", flush=True)
    return Outcome(rates, minutes, signature)


YOYODYNE = """
seed_everything: 1
data: {{model_dir: {folder}, train: {train}, val: {dev}, target_sep: " ", batch_size: 64}}
model:
  class_path: yoyodyne.models.SoftAttentionLSTMModel
  init_args: {{source_encoder: {{class_path: yoyodyne.models.modules.LSTMEncoder}}}}
checkpoint: {{monitor: val_accuracy, mode: max, filename: best}}
trainer: {{max_time: "00:00:05:00", accelerator: cpu, enable_progress_bar: false, default_root_dir: {folder}}}
"""


def race(data: Path, command: str) -> None:
    train_file, dev_file = (file_of(data, "dut", part) for part in ("train", "dev"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ours = train(data, "dut", folder, ["dev"], threads=2)
        (folder / "race.yaml").write_text(YOYODYNE.format(folder=folder / "yoyodyne", train=train_file, dev=dev_file))
        began = time.perf_counter()
        environment = {**os.environ, "OMP_NUM_THREADS": "2"}
        subprocess.run([command, "fit", "--config", folder / "race.yaml"], env=environment, check=True, capture_output=True)
        minutes = (time.perf_counter() - began) / 60
        (log,) = folder.glob("yoyodyne/**/metrics.csv")
        with open(log) as file:
            right = [float(row["val_accuracy"]) for row in csv.DictReader(file) if row["val_accuracy"]]
    lines = [
        f"{date.today()}, torch {torch.__version__}, 2 threads, WER on dut dev",
        f"regard, default settings: {ours.rates['dev']:.1f} % (beam 5) after {ours.minutes:.1f} minutes; {ours.signature}",
        f"Yoyodyne: {100 - 100 * max(right):.1f} % after {minutes:.1f} minutes, {len(right)} epochs",
    ]
    print(*lines, sep="\n")
    write_result(Path(__file__).with_name("g2p-race"), lines)


def table(outcomes: dict[str, Outcome]) -> str:
    lines = ["| language | WER dev | WER test | baseline (ensemble of 10), test | minutes, 1 thread |", "|---|---|---|---|---|"]
    lines += [
        f"| {language} | {one.rates['dev']:.1f} | {one.rates['test']:.1f} | {BASELINES[language]} | {one.minutes:.1f} |"
        for language, one in outcomes.items()
    ]
    if outcomes.keys() >= set(MEDIUM):
        dev, test = (statistics.mean(outcomes[name].rates[part] for name in MEDIUM) for part in ("dev", "test"))
        baseline = statistics.mean(BASELINES[name] for name in MEDIUM)
        lines.append(f"| the six medium ones, mean | {dev:.2f} | {test:.2f} | {baseline:.2f} | |")
    return "\n".join([*lines, "", *(f"{language}: {one.signature}" for language, one in outcomes.items())])


def main(data: Path, *languages: str) -> None:
    torch.set_num_threads(1)
    wanted = languages or tuple(BASELINES)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        outcomes = dict(zip(wanted, pool.map(lambda language: train(data, language, Path(folder)), wanted), strict=True))
    text = f"{date.today()}, torch {torch.__version__}, two runs at a time, one thread each\n\n{table(outcomes)}"
    print(text)
    if set(wanted) == set(BASELINES):
        write_result(__file__, [text])


if __name__ == "__main__":
    if "--race" in sys.argv:
        race(Path(sys.argv[1]), sys.argv[3])
    else:
        main(Path(sys.argv[1]), *sys.argv[2:])
