"""English to German on Multi30k with the preset `tiny`: BLEU on test2016 by minutes of training on two cores.

    python benchmarks/multi30k.py DATA [minutes [key=value ...]]      DATA: the folder with train.en.gz, val.de.gz, …

Minutes (default 80) count training alone: at 10, 20, 30, 40, 45 and 80 minutes the clock is stopped and the test set is
translated. The clock also stops while a signal stops the process (SIGSTOP, if something else needs the machine). The number of
updates that fit into the time is measured before training, and the learning rate falls to 0 over them; so the earlier marks
are those of an unfinished run. key=value changes settings as --set does. The result is written to a dated file in the folder
of this script, unless settings or minutes are changed. Run the same command to continue a run that was killed: its checkpoints
and its clock are in the folder for temporary files.

The plain loop to compare with (same size, 8k vocabulary, greedy, cased, one seed, linear decay to 45 minutes): 26.6 BLEU after
10 minutes, 32.0 after 20, 34.9 after 30, 36.6 after 40, 37.0 after 45. Published for this size, lower-cased, tokenised, beam
5, average of ten checkpoints, up to 65 million target tokens on 2 GPUs: 41.02.
"""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import sacrebleu
import torch
from dated import write_result

from regard.checkpoint.files import replace_file, sha256
from regard.checkpoint.runs import Checkpoint, Checkpoints
from regard.core.devices import keep_freed_memory
from regard.data.corpus import Pair
from regard.models.build import build, num_parameters
from regard.models.transformer import PRESETS
from regard.pipeline import Translator
from regard.training.data import TrainingData, in_memory
from regard.training.learner import Learner
from regard.training.loop import Update, train
from regard.training.overrides import override
from regard.training.settings import DataSettings, RunSettings, TrainSettings

MARKS = 10, 20, 30, 40, 45, 80
SETTINGS = RunSettings(
    data=DataSettings(source_unit="bpe", target_unit="bpe", shared=True, vocabulary=8000),
    model=replace(PRESETS["tiny"], tie="all", dropout=0.3),
    train=TrainSettings(batch_tokens=1024, learning_rate=3e-3, warmup=0.0125, label_smoothing=0.1, ema=0.999),
)
STOPPED = 5.0
"""Seconds after which an update counts as stopped; it usually takes about half a second."""
CPU = torch.device("cpu")


def read(folder: Path, name: str) -> list[Pair]:
    sides = [gzip.decompress((folder / f"{name}.{language}.gz").read_bytes()).decode() for language in ("en", "de")]
    lines = zip(*(side.splitlines() for side in sides), strict=True)
    return [Pair(" ".join(source.split()), " ".join(target.split())) for source, target in lines]


@dataclass
class Clock:
    """The seconds spent in updates, and the lines printed so far; saved with every checkpoint."""

    steps: int
    waiting: list[float]
    """The next marks, in minutes."""
    seconds: float = 0.0
    num_targets: int = 0
    num_stops: int = 0
    lines: list[str] = field(default_factory=list)

    def report(self, line: str) -> None:
        self.lines.append(line)
        print(line, flush=True)


class Stopwatch:
    """Training callbacks that measure time; calls `reached` when a mark is passed and `save` when a checkpoint is due."""

    interrupted = False

    def __init__(
        self,
        clock: Clock,
        reached: Callable[[float, int], None] = lambda mark, update: None,
        save: Callable[[], None] = lambda: None,
    ) -> None:
        self.clock, self.reached, self.checkpoint = clock, reached, save
        self.last = time.perf_counter()

    def on_update(self, update: Update) -> None:
        clock, took = self.clock, time.perf_counter() - self.last
        if took < STOPPED:
            clock.seconds += took
        else:  # by a signal in the middle of an update, or by a checkpoint
            clock.seconds += clock.seconds / max(1, update.number)
            clock.num_stops += 1
        clock.num_targets += update.num_targets
        while clock.waiting and clock.seconds >= 60 * clock.waiting[0]:
            self.reached(clock.waiting.pop(0), update.number + 1)
        self.last = time.perf_counter()

    def validate(self) -> float:
        return 0.0

    def save_best(self) -> None: ...


def make_learner(training_data: TrainingData, settings: RunSettings) -> Learner:
    torch.manual_seed(settings.seed)
    return Learner(build(settings.model, *map(len, training_data.codecs)), settings.train)


def train_learner(learner: Learner, training_data: TrainingData, settings: RunSettings, watch: Stopwatch) -> None:
    batches = training_data.batches(settings.train, settings.data.subword_dropout, settings.seed)
    watch.last = time.perf_counter()
    train(learner, batches, settings.train, seed=settings.seed, callbacks=watch)


def first_clock(training_data: TrainingData, settings: RunSettings, minutes: float) -> Clock:
    """Returns a new clock; measures how many updates fit into the time."""
    watch = Stopwatch(Clock(60, []))
    short = replace(settings, train=replace(settings.train, steps=60))
    train_learner(make_learner(training_data, short), training_data, short, watch)
    steps = round(60 * minutes / (watch.clock.seconds / 60))
    clock = Clock(steps, [mark for mark in MARKS if mark < minutes])
    clock.report(f"{watch.clock.num_targets / watch.clock.seconds:,.0f} target tokens/s at first; {steps} updates; {settings}")
    return clock


def bleu(translator: Translator, pairs: list[Pair], beam: int) -> str:
    """Returns cased and lower-cased BLEU with signatures, as text."""
    outputs = [result.text for result in translator.batch([pair.source for pair in pairs], beam=beam, max_length=100)]
    metrics = [sacrebleu.BLEU(lowercase=lower) for lower in (False, True)]
    scores = [metric.corpus_score(outputs, [[pair.target for pair in pairs]]).score for metric in metrics]
    return ", ".join(f"{score:.2f} {metric.get_signature()}" for score, metric in zip(scores, metrics, strict=True))


class SavedRun:
    """The checkpoints of a run and its clock, from which it can continue."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.checkpoints = folder, Checkpoints(folder, keep=2)

    def save(self, learner: Learner, clock: Clock) -> None:
        self.folder.mkdir(exist_ok=True)
        replace_file(self._clock(learner.state.update), json.dumps(asdict(clock)).encode())
        self.checkpoints.write(learner.checkpoint())

    def clock(self) -> tuple[Clock, Checkpoint] | None:
        found = self.checkpoints.newest(print)
        return (Clock(**json.loads(self._clock(found.update).read_text())), found) if found else None

    def _clock(self, update: int) -> Path:
        return self.folder.with_name(f"{self.folder.name}.{update}.json")


def main(folder: Path, minutes: float = 80, *changes: str) -> None:
    keep_freed_memory()  # as `regard train` does
    torch.set_num_threads(2)
    settings = override(SETTINGS, changes)
    training_data = in_memory("multi30k", read(folder, "train"), [], settings.data)
    saved = SavedRun(Path(tempfile.gettempdir()) / f"multi30k-{sha256(repr((settings, minutes)).encode())[:8]}")
    before = saved.clock()
    clock = before[0] if before else first_clock(training_data, settings, minutes)
    settings = replace(settings, train=replace(settings.train, steps=clock.steps))
    learner = make_learner(training_data, settings)
    if before:
        learner.restore(before[1])
        print(*clock.lines, f"continuing after update {learner.state.update}", sep="\n", flush=True)
    sets = {name: read(folder, name) for name in ("val", "test_2016_flickr")}

    def reached(mark: float, update: int) -> None:
        clock.report(f"{mark:5.1f} min, update {update}, {clock.num_targets / 1e6:.1f} M target tokens")
        with learner.evaluation_weights() as model:
            translator = Translator.of_model(model, *training_data.codecs)
            for name, beam in (("val", 1), ("test_2016_flickr", 1), ("test_2016_flickr", 5)):
                clock.report(f"  {name}, beam {beam}: {bleu(translator, sets[name], beam)}")

    train_learner(learner, training_data, settings, Stopwatch(clock, reached, lambda: saved.save(learner, clock)))
    reached(clock.seconds / 60, clock.steps)
    order = training_data.batches(settings.train, 0.0, settings.seed).order
    clock.report(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads; {num_parameters(learner.model):,} parameters; "
        f"{clock.num_targets / clock.seconds:,.0f} target tokens/s; {clock.steps / order.epoch_length:.1f} epochs; "
        f"{order.padding():.1%} padding; stopped {clock.num_stops} times"
    )
    if not changes and minutes == 80:
        write_result(__file__, clock.lines)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(float, sys.argv[2:3]), *sys.argv[3:])
