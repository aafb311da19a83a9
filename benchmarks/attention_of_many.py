"""Time of the attention of many sentences, compared with the time of translating them.

    python benchmarks/attention_of_many.py DATA [threads]      DATA: the folder with train.en.gz, test_2016_flickr.de.gz, …

1,000 sentences of the test set of Multi30k, English to German, 8,000 shared subwords, greedy search. Three figures are
measured in turns: translating the sentences, the attention of all results (`model.attention(results)`), and both from texts
(`model.attention(texts)`). A ratio is that of two measurements of the same round; its median and range over all rounds are
printed. For comparison, some results are also inspected one by one.

One thread by default. With more, translating forks processes of one thread each, while the attention is computed by torch's
threads; these wait for each other in every operation, so the figures say nothing if other processes use the cores.

The models are not trained: their outputs are cut off at 0.3 tokens per source token plus 10, which is about the length of the
references. The result is written to a dated file in the folder of this script, unless a number of threads is given.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import TypeVar

import torch
from dated import write_result
from multi30k import read

from regard.core.devices import keep_freed_memory
from regard.data.tokenizers.codec import Codec
from regard.errors import plural
from regard.models.build import build
from regard.models.contract import ModelSettings
from regard.models.rnn_seq2seq import RnnSettings
from regard.models.transformer import PRESETS
from regard.pipeline import Translator
from regard.results import Result

MODELS: dict[str, ModelSettings] = {
    "transformer, tiny": PRESETS["tiny"],
    "rnn, luong": RnnSettings(width=256, embedding=128),
    "rnn, bahdanau": RnnSettings(width=256, embedding=128, decoder="bahdanau"),
}
SENTENCES, ROUNDS, ONE_BY_ONE = 1000, 3, 20
CLAIM, MAX_RATIO = 2.0, 0.3

T = TypeVar("T")


def timed(work: Callable[[], T]) -> tuple[float, T]:
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def spread(numbers: list[float], form: str) -> str:
    """Returns the median of some numbers, and the smallest and the largest."""
    low, middle, high = min(numbers), statistics.median(numbers), max(numbers)
    return f"{middle:{form}} ({low:{form}}–{high:{form}})"


def measure(name: str, translator: Translator, texts: list[str]) -> list[str]:
    def search() -> list[Result]:
        return translator.batch(texts, max_ratio=MAX_RATIO)

    results = search()
    translator.attention(results[:10])
    translating, attending, both = [], [], []
    for _ in range(ROUNDS):
        seconds, results = timed(search)
        translating.append(seconds)
        attending.append(timed(lambda: translator.attention(results))[0])  # noqa: B023
        both.append(timed(lambda: translator.attention(texts, max_ratio=MAX_RATIO))[0])
    alone, _ = timed(lambda: [result.attention() for result in results[:ONE_BY_ONE]])
    tokens = sum(len(result.ids) for result in results) / len(results)
    ratios = [one / other for one, other in zip(attending, translating, strict=True)]
    ratios_both = [one / other for one, other in zip(both, translating, strict=True)]
    return [
        f"{name}, {plural(torch.get_num_threads(), 'thread')}: {len(texts):,} sentences, {tokens:.1f} tokens per output",
        f"  translating              {spread(translating, '.2f')} s",
        f"  attention of the results {spread(attending, '.2f')} s, {spread(ratios, '.2f')} of translating (claim: {CLAIM:g})",
        f"  attention of the texts   {spread(both, '.2f')} s, {spread(ratios_both, '.2f')} of translating (claim: {CLAIM:g})",
        f"  one by one               {len(texts) * alone / ONE_BY_ONE:.1f} s for all, estimated from {ONE_BY_ONE}",
    ]


def main(arguments: list[str]) -> None:
    folder = Path(arguments[0])
    torch.set_num_threads(int(arguments[1]) if arguments[1:] else 1)
    keep_freed_memory()  # as `regard translate` does
    pairs = read(folder, "train")[:10_000]
    codec = Codec.train([text for pair in pairs for text in (pair.source, pair.target)], "bpe", vocabulary=8000)
    texts = [pair.source for pair in read(folder, "test_2016_flickr")[:SENTENCES]]
    load = os.getloadavg()[0]
    report = [
        f"{date.today()} | torch {torch.__version__} | {ROUNDS} rounds: median (range) | load before: {load:.1f} on 2 cores"
    ]
    for name, settings in MODELS.items():
        torch.manual_seed(1)
        model = build(settings, len(codec), len(codec)).eval()
        report += ["", *measure(name, Translator.of_model(model, codec, codec), texts)]
        print("\n".join(report[-5:]), flush=True)
    if not arguments[1:]:
        write_result(__file__, report)


if __name__ == "__main__":
    main(sys.argv[1:])
