"""Time and memory of attention in one run: regard, raw SDPA, the plain formula, the materialised matrix and Keras.

    python benchmarks/attention.py [lengths ...]      default: 128 512 2048 8192

2 threads; medians of interleaved rounds with their spread (first to third quartile). The share of GEMM is the rate of the two
matrix products, 4·H·L²·d operations, over the rate of torch.mm on 1024 x 1024 matrices in the same rounds. Memory is the growth
of the RSS over the inputs at its peak (sampled every half millisecond), each case in a fresh process. A case is skipped if it
would hold more than 12 GB or if one run takes more than 2 minutes. The result is written to a dated file in the folder of this
script; if lengths are given it is only printed.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

os.environ["KERAS_BACKEND"] = "torch"
os.environ["KERAS_HOME"] = os.devnull  # so that it neither reads nor writes settings

import keras
import torch
import torch.nn.functional as F
from dated import write_result

import regard
from regard.core.attention import additive_scores
from regard.layers.scores import Additive, Cosine, Distance, General

HEADS, WIDTH = 8, 64
LENGTHS = 128, 512, 2048, 8192
MOST_BYTES, MOST_SECONDS = 12e9, 120.0


@dataclass(frozen=True)
class Case:
    run: Callable[[], object]
    holds: int = 0
    """Approximate number of values that it holds at once, if that grows with L²."""
    products: int = 0
    """Floating-point operations of its matrix products, if these are most of its work."""


def forward(length: int) -> dict[str, Case]:
    """8 heads of width 64, forward only; (1, H, L, d), for Keras' function (1, L, H, d) and for its layer (H, L, d)."""
    torch.manual_seed(0)
    query, key, value = inputs = [torch.randn(1, HEADS, length, WIDTH) for _ in range(3)]
    swapped = [tensor.transpose(1, 2).contiguous() for tensor in inputs]
    general = General(WIDTH, WIDTH).requires_grad_(False)
    layer = keras.layers.Attention(use_scale=True, trainable=False)
    layer.build([(HEADS, length, WIDTH)] * 3)
    layer.scale.assign(WIDTH**-0.5)
    matrix, products = HEADS * length**2, 4 * HEADS * length**2 * WIDTH

    def materialise() -> object:
        weights = regard.attention_weights(query, key)
        return weights.topk(8), -torch.special.xlogy(weights, weights).sum(-1), weights.sum(-2), weights @ value

    return {
        "SDPA": Case(lambda: F.scaled_dot_product_attention(query, key, value), products=products),
        "attend": Case(lambda: regard.attend(query, key, value), products=products),
        "attend General": Case(lambda: regard.attend(query, key, value, score=general), products=products),
        "attend Cosine": Case(lambda: regard.attend(query, key, value, score=Cosine()), products=products),
        "attend Distance": Case(lambda: regard.attend(query, key, value, score=Distance()), products=products),
        "plain formula": Case(
            lambda: (query @ key.transpose(-1, -2) / WIDTH**0.5).softmax(-1) @ value, holds=2 * matrix, products=products
        ),
        "Keras dot_product_attention": Case(lambda: keras.ops.nn.dot_product_attention(*swapped), products=products),
        "Keras Attention": Case(lambda: layer([query[0], value[0], key[0]]), holds=2 * matrix, products=products),
        "attend + summarise": Case(lambda: (regard.attend(query, key, value), regard.summarise(query, key))),
        "materialise and summarise": Case(materialise, holds=3 * matrix),
    }


def additive(length: int) -> dict[str, Case]:
    """1 head of width 64, forward and backward; (1, L, d). Keras' layer projects neither queries nor keys."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, length, WIDTH, requires_grad=True) for _ in range(3))
    score, layer = Additive(WIDTH, WIDTH, WIDTH), keras.layers.AdditiveAttention()
    hidden = length**2 * WIDTH

    def run(attention: Callable[[], torch.Tensor]) -> Callable[[], None]:
        return lambda: attention().sum().backward()

    def plain() -> torch.Tensor:
        return additive_scores(score.query(query), score.key(key), score.v).softmax(-1) @ value

    return {
        "plain formula": Case(run(plain), holds=3 * hidden),
        "attend Additive": Case(run(lambda: regard.attend(query, key, value, score=score))),
        "Keras AdditiveAttention": Case(run(lambda: layer([query, value, key])), holds=4 * hidden),
    }


KINDS = {"forward": forward, "additive": additive}


def check_equal_results() -> None:
    cases = forward(128)
    expected = cases["SDPA"].run()
    for name in ("attend", "plain formula", "Keras Attention"):
        torch.testing.assert_close(cases[name].run().reshape_as(expected), expected)
    torch.testing.assert_close(cases["Keras dot_product_attention"].run().transpose(1, 2), expected)


def timed(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def reason_to_skip(case: Case) -> str | None:
    """Runs a case once if it fits into memory, which also warms it up; returns why it is skipped, or None."""
    if case.holds * 4 > MOST_BYTES:
        return f"would hold about {case.holds * 4 / 1e9:.0f} GB"
    seconds = timed(case.run)
    return f"took {seconds:.0f} s" if seconds > MOST_SECONDS else None


def times(cases: dict[str, Case], rounds: int) -> tuple[dict[str, list[float]], float]:
    """Returns (seconds of every case, GEMM rate). Rounds are interleaved, so that a slow minute affects all cases equally."""
    one, other = torch.randn(1024, 1024), torch.randn(1024, 1024)
    found: dict[str, list[float]] = {name: [] for name in cases}
    gemm = []
    for _ in range(rounds):
        gemm += [timed(lambda: torch.mm(one, other)) for _ in range(3)]
        for name, case in cases.items():
            found[name].append(timed(case.run))
    return found, 2 * 1024**3 / statistics.median(gemm)


def peak_growth(kind: str, length: int, name: str) -> float:
    """Returns the peak growth of a case in MB, measured in a fresh process."""
    command = [sys.executable, __file__, "--memory", kind, str(length), name]
    return float(json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout))


def measure_memory(kind: str, length: int, name: str) -> None:
    torch.set_num_threads(2)
    KINDS[kind](64)[name].run()  # loads libraries and starts thread pools
    case = KINDS[kind](length)[name]
    before = peak = resident()
    with ThreadPoolExecutor(1) as worker:
        running = worker.submit(case.run)
        while not running.done():
            peak = max(peak, resident())
            time.sleep(0.0005)
        running.result()
    print(json.dumps((peak - before) / 2**20))


def resident() -> int:
    """Returns the resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def table(kind: str, length: int, rounds: int) -> list[str]:
    """Returns the lines of one table. The first case is the baseline of the others."""
    cases = KINDS[kind](length)
    base = next(iter(cases))
    skipped = {name: why for name, case in cases.items() if (why := reason_to_skip(case))}
    found, gemm_rate = times({name: case for name, case in cases.items() if name not in skipped}, rounds)
    rows = [f"\n{kind}, L = {length} ({rounds} interleaved rounds; GEMM rate {gemm_rate / 1e9:.0f} GFLOP/s)"]
    for name, case in cases.items():
        if name in skipped:
            rows.append(f"  {name:<27} skipped: {skipped[name]}")
            continue
        low, middle, high = (1e3 * seconds for seconds in statistics.quantiles(found[name], n=4))
        ratio = share = ""
        if base in found:
            ratios = [one / other for one, other in zip(found[name], found[base], strict=True)]
            ratio = f"{statistics.median(ratios):.2f} x {base}"
        if case.products:
            share = f"{case.products / (middle / 1e3) / gemm_rate:.0%} of GEMM"
        spread = f"({low:.2f}-{high:.2f})"
        growth = peak_growth(kind, length, name)
        rows.append(f"  {name:<27} {middle:9.2f} ms {spread:<20} {ratio:>21} {share:>12} {growth:8.1f} MB")
    print(*rows, sep="\n", flush=True)
    return rows


def main(lengths: list[int]) -> None:
    torch.set_num_threads(2)
    check_equal_results()
    lines = [
        f"torch {torch.__version__}, Keras {keras.__version__} on torch, 2 threads",
        *(f"{kind}: {make.__doc__}" for kind, make in KINDS.items()),
    ]
    print(*lines, sep="\n", flush=True)
    for kind in KINDS:
        for length in lengths or LENGTHS:
            lines += table(kind, length, rounds=20 if length <= 2048 else 5)
    if not lengths:
        write_result(__file__, lines)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--memory"]:
        measure_memory(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    else:
        main([int(length) for length in sys.argv[1:]])
