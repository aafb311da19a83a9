"""English to German on Multi30k with the preset `tiny`: BLEU on test2016 after so many minutes of training on two cores.

    python benchmarks/multi30k.py DATA [minutes [key=value ...]]      DATA: the folder with train.en.gz, val.de.gz, …

Minutes (default 80) are those of training alone: at 10, 20, 30, 40, 45 and 80 minutes the clock is stopped, and the test set
translated. The clock also stands still while a signal stops the process (SIGSTOP: something else needs the machine). How many
updates fit into the time is measured before the first one, and the learning rate falls to 0 over them; so an earlier mark is a
run that is not finished. key=value changes settings as --set does. The result is written beside this script, with its date,
unless settings are changed or the time is another.

The plain loop to compare with (same size, 8k vocabulary, greedy, cased, one seed, linear decay to 45 minutes): 26.6 BLEU after
10 minutes, 32.0 after 20, 34.9 after 30, 36.6 after 40, 37.0 after 45. Published for this size, lower-cased, tokenised, beam 5,
average of ten checkpoints, up to 65 million target tokens on 2 GPUs: 41.02.
"""

from __future__ import annotations

import gzip
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from datetime import date
from pathlib import Path

import sacrebleu
import torch

from regard.data.corpus import Pair
from regard.models.build import build, num_parameters
from regard.models.transformer import PRESETS
from regard.pipeline import Translator
from regard.training.learner import Learner
from regard.training.loop import Update, train
from regard.training.material import Material, in_memory
from regard.training.settings import DataSettings, RunSettings, TrainSettings, override

MARKS = 10, 20, 30, 40, 45, 80
SETTINGS = RunSettings(
    data=DataSettings(source_unit="bpe", target_unit="bpe", shared=True, vocabulary=8000),
    model=replace(PRESETS["tiny"], tie="all", dropout=0.3),
    train=TrainSettings(batch_tokens=1024, learning_rate=3e-3, warmup=0.0125, label_smoothing=0.1, ema=0.999),
)
STOPPED = 5.0
"""Seconds; an update takes about half of one."""
CPU = torch.device("cpu")


def read(folder: Path, name: str) -> list[Pair]:
    sides = [gzip.decompress((folder / f"{name}.{language}.gz").read_bytes()).decode() for language in ("en", "de")]
    lines = zip(*(side.splitlines() for side in sides), strict=True)
    return [Pair(" ".join(source.split()), " ".join(target.split())) for source, target in lines]


class Stopwatch:
    """A supervisor that counts the seconds of updates, and nothing else; `reached` is called when a mark is passed."""

    def __init__(self, marks: Sequence[float], reached: Callable[[float, int, int], None]) -> None:
        self.waiting, self.reached = list(marks), reached
        self.last, self.seconds, self.num_targets, self.num_stops = time.perf_counter(), 0.0, 0, 0

    def record(self, update: Update) -> None:
        took = time.perf_counter() - self.last
        if took < STOPPED:
            self.seconds += took
        else:  # by a signal, in the middle of an update
            self.seconds += self.seconds / max(1, update.number)
            self.num_stops += 1
        self.num_targets += update.num_targets
        while self.waiting and self.seconds >= 60 * self.waiting[0]:
            self.reached(self.waiting.pop(0), update.number + 1, self.num_targets)
        self.last = time.perf_counter()

    def validate(self) -> float:
        return 0.0

    def keep(self) -> None: ...

    def checkpoint(self) -> None: ...


def begin(material: Material, settings: RunSettings) -> Learner:
    torch.manual_seed(settings.seed)
    return Learner(build(settings.model, *map(len, material.codecs)), settings.train)


def learn(learner: Learner, material: Material, settings: RunSettings, watch: Stopwatch) -> None:
    batches = material.batches(settings.train, settings.data.subword_dropout, settings.seed)
    watch.last = time.perf_counter()
    train(learner, batches, settings.train, seed=settings.seed, supervisor=watch)


def measured_pace(material: Material, settings: RunSettings) -> Stopwatch:
    watch = Stopwatch([], lambda *_: None)
    short = replace(settings, train=replace(settings.train, steps=60))
    learn(begin(material, short), material, short, watch)
    return watch


def bleu(translator: Translator, pairs: list[Pair], beam: int) -> str:
    """Cased and lower-cased, with signatures."""
    outputs = [result.text for result in translator.batch([pair.source for pair in pairs], beam=beam, max_length=100)]
    metrics = [sacrebleu.BLEU(lowercase=lower) for lower in (False, True)]
    scores = [metric.corpus_score(outputs, [[pair.target for pair in pairs]]).score for metric in metrics]
    return ", ".join(f"{score:.2f} {metric.get_signature()}" for score, metric in zip(scores, metrics, strict=True))


class Report:
    """Lines that are printed as they come, and written at the end."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, line: str) -> None:
        self.lines.append(line)
        print(line, flush=True)


def main(folder: Path, minutes: float = 80, *changes: str) -> None:
    torch.set_num_threads(2)
    report, settings = Report(), override(SETTINGS, changes)
    began = time.perf_counter()
    material = in_memory("multi30k", read(folder, "train"), [], settings.data)
    report.add(f"tokenised in {time.perf_counter() - began:.0f} s; {settings}")
    pace = measured_pace(material, settings)
    steps = round(60 * minutes / (pace.seconds / 60))
    settings = replace(settings, train=replace(settings.train, steps=steps))
    order = material.batches(settings.train, 0.0, settings.seed).order
    learner = begin(material, settings)
    report.add(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads; {num_parameters(learner.model):,} parameters; "
        f"{pace.num_targets / pace.seconds:,.0f} target tokens/s at first; {steps} updates, "
        f"{steps / order.epoch_length:.1f} epochs; {order.padding():.1%} padding"
    )
    sets = ("val", read(folder, "val"), 1), ("test2016", read(folder, "test_2016_flickr"), 1)

    def reached(mark: float, update: int, num_targets: int) -> None:
        report.add(f"{mark:5.1f} min, update {update}, {num_targets / 1e6:.1f} M target tokens")
        with learner.at_its_best() as model:
            translator = Translator(model, *material.codecs, CPU)
            for name, pairs, beam in (*sets, ("test2016", sets[1][1], 5)):
                report.add(f"  {name}, beam {beam}: {bleu(translator, pairs, beam)}")

    watch = Stopwatch([mark for mark in MARKS if mark < minutes], reached)
    learn(learner, material, settings, watch)
    reached(watch.seconds / 60, steps, watch.num_targets)
    report.add(f"{watch.num_targets / watch.seconds:,.0f} target tokens/s; stopped by a signal {watch.num_stops} times")
    if not changes and minutes == 80:
        result = Path(__file__).with_suffix(f".{date.today()}.txt")
        result.write_text("\n".join([*report.lines, str(asdict(settings))]) + "\n")
        print(f"written to {result.name}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(float, sys.argv[2:3]), *sys.argv[3:])
