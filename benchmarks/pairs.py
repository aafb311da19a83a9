"""Memory and time of reading, tokenising and ordering, from one million pairs to many.

    python benchmarks/pairs.py tsv|parquet [MILLIONS]      default: 10

Random sentences of 2 to 6 words (a fixed vocabulary of 20,000 words, by Zipf's law) are written to a file, and a process for
each size reads them as `regard train` does. Processor time per million pairs and the peak of resident memory are of each stage.
The result is written to a dated file in the folder of this script.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

import torch
from dated import write_result
from rich.console import Console

from regard.data.batch import BatchOrder
from regard.training.settings import DataSettings
from regard.training.survey import survey
from regard.training.tokenise import from_files

MILLION = 1_000_000
VOCABULARY = 20_000
UNITS = {"source_unit": "bpe", "target_unit": "words", "vocabulary": 8_000}


def sentences(seed: int) -> Iterator[str]:
    rng = random.Random(seed)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(rng.choices(letters, k=rng.randint(2, 8))) for _ in range(VOCABULARY)]
    bounds = list(accumulate(1 / rank for rank in range(1, VOCABULARY + 1)))
    while True:
        drawn = iter(rng.choices(words, cum_weights=bounds, k=100_000))
        while len(sentence := list(islice(drawn, rng.randint(2, 6)))) >= 2:
            yield " ".join(sentence)


def write_pairs(path: Path, number: int) -> None:
    pairs = islice(zip(sentences(1), sentences(2), strict=True), number)
    if path.suffix == ".tsv":
        with open(path, "w") as file:
            file.writelines(f"{source}\t{target}\n" for source, target in pairs)
        return
    import pyarrow as pa
    import pyarrow.parquet

    schema = pa.schema([("source", pa.string()), ("target", pa.string())])
    with pyarrow.parquet.ParquetWriter(path, schema) as file:
        while rows := list(islice(pairs, MILLION)):  # a row group, as large as pyarrow makes them
            sources, targets = zip(*rows, strict=True)
            file.write_table(pa.table([sources, targets], schema=schema))


def stages(path: Path) -> dict[str, list[float]]:
    """Returns the processor seconds and the peak megabytes of each stage, in this process."""
    figures = {}

    def stage(name: str, work: Callable[[], Any]) -> Any:
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak
        began = time.process_time()
        result = work()
        peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
        figures[name] = [time.process_time() - began, int(peak[1]) * 1024 / 1e6]
        return result

    torch.set_num_threads(1)
    settings = DataSettings(files=(str(path),), **UNITS)
    surveyed = stage("reading", lambda: survey(settings))
    data = stage("tokenising", lambda: from_files(settings, surveyed, path.parent / "run", Console(quiet=True)))

    def order() -> None:
        batches = BatchOrder(data.lengths, batch_tokens=4096, seed=1)
        batches.padding()
        for epoch in range(2):
            for index in batches.update(epoch * batches.epoch_length)[0]:
                data.examples[index]

    stage("ordering", order)
    return figures


def measured(suffix: str, number: int) -> dict[str, list[float]]:
    """Returns the figures of a new process that reads this many pairs."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"pairs.{suffix}"
        write_pairs(path, number)
        environment = {**os.environ, "RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        command = [sys.executable, __file__, "stages", str(path)]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        return json.loads(done.stdout.splitlines()[-1])


def main(suffix: str, millions: int = 10) -> None:
    lines = [
        f"{suffix}, 1 thread: processor seconds per million pairs, and peak memory, with 1 and with {millions} million pairs"
    ]
    small, large = measured(suffix, MILLION), measured(suffix, millions * MILLION)
    for name, (seconds, memory) in small.items():
        longer, more = large[name]
        longer /= millions
        line = f"{name}: {seconds:.2f} and {longer:.2f} s ({longer / seconds:.2f}); "
        lines.append(line + f"{memory:,.0f} and {more:,.0f} MB ({more / memory:.2f})")
    print("\n".join(lines))
    write_result(__file__, lines, suffix)


if __name__ == "__main__":
    if sys.argv[1] == "stages":
        print(json.dumps(stages(Path(sys.argv[2]))))
    else:
        main(sys.argv[1], *map(int, sys.argv[2:]))
