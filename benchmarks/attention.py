"""Time and memory of attention: ours beside raw SDPA, the plain formula and the materialised matrix, in one run.

    python benchmarks/attention.py

2 threads; medians of interleaved runs with their spread (first to third quartile); memory is the growth of the RSS over
the inputs at its peak (sampled every half millisecond), each case in a fresh process. The result is written beside this
script, with its date.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path

import torch
import torch.nn.functional as F

import regard
from regard.core.attention import additive_scores
from regard.layers.scores import Additive, Cosine, Distance, General

HEADS, WIDTH = 8, 64
Case = Callable[[], object]


def gemm_rate() -> float:
    """Floating-point operations per second of torch.mm on 1024 x 1024 matrices: what this machine can do at best."""
    one, other = torch.randn(1024, 1024), torch.randn(1024, 1024)
    return 2 * 1024**3 / statistics.median(timed(lambda: torch.mm(one, other)) for _ in range(20))


def timed(case: Case) -> float:
    began = time.perf_counter()
    case()
    return time.perf_counter() - began


def cases(length: int) -> dict[str, Case]:
    """8 heads of width 64, forward only."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, HEADS, length, WIDTH) for _ in range(3))
    general = General(WIDTH, WIDTH).requires_grad_(False)

    def materialise() -> object:
        weights = regard.attention_weights(query, key)
        return weights.topk(8), -torch.special.xlogy(weights, weights).sum(-1), weights.sum(-2), weights @ value

    return {
        "SDPA": lambda: F.scaled_dot_product_attention(query, key, value),
        "attend": lambda: regard.attend(query, key, value),
        "attend General": lambda: regard.attend(query, key, value, score=general),
        "attend Cosine": lambda: regard.attend(query, key, value, score=Cosine()),
        "attend Distance": lambda: regard.attend(query, key, value, score=Distance()),
        "plain formula": lambda: (query @ key.transpose(-1, -2) / WIDTH**0.5).softmax(-1) @ value,
        "attend + summarise": lambda: (regard.attend(query, key, value), regard.summarise(query, key)),
        "materialise and summarise": materialise,
    }


def additive_cases(length: int) -> dict[str, Case]:
    """One head, width 64, forward and backward."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, length, WIDTH, requires_grad=True) for _ in range(3))
    score = Additive(WIDTH, WIDTH, WIDTH)

    def plain() -> None:
        scores = additive_scores(score.query(query), score.key(key), score.v)
        (scores.softmax(-1) @ value).sum().backward()

    return {
        "additive, tiled, fwd+bwd": lambda: regard.attend(query, key, value, score=score).sum().backward(),
        "additive, plain, fwd+bwd": plain,
    }


def times(named: dict[str, Case], repeats: int) -> dict[str, list[float]]:
    """Round after round, so that a slow minute of the machine meets all cases alike."""
    found: dict[str, list[float]] = {name: [] for name in named}
    for case in named.values():
        case()
    for _ in range(repeats):
        for name, case in named.items():
            found[name].append(timed(case))
    return found


def peak_growth(kind: str, length: int, name: str) -> float:
    """MB, in a fresh process."""
    command = [sys.executable, __file__, "--memory", kind, str(length), name]
    return float(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))


def measure_memory(kind: str, length: int, name: str) -> None:
    torch.set_num_threads(2)
    {"forward": cases, "additive": additive_cases}[kind](64)[name]()  # libraries and thread pools are loaded
    case = {"forward": cases, "additive": additive_cases}[kind](length)[name]
    before = peak = resident()
    with ThreadPoolExecutor(1) as worker:
        running = worker.submit(case)
        while not running.done():
            peak = max(peak, resident())
            time.sleep(0.0005)
        running.result()
    print(json.dumps((peak - before) / 2**20))


def resident() -> int:
    """Bytes of this process that are in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def table(kind: str, length: int, named: dict[str, Case], base: str, repeats: int) -> list[str]:
    rows = [f"\n{kind}, L = {length} ({repeats} interleaved rounds)"]
    found = times(named, repeats)
    for name, seconds in found.items():
        low, middle, high = statistics.quantiles(seconds, n=4)
        ratios = [one / other for one, other in zip(seconds, found[base], strict=True)]
        growth = peak_growth(kind, length, name)
        rows.append(
            f"  {name:<27} {middle * 1e3:8.2f} ms ({low * 1e3:.2f}-{high * 1e3:.2f})   "
            f"{statistics.median(ratios):5.2f} x {base}   {growth:7.1f} MB"
        )
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    torch.set_num_threads(2)
    lines = [
        f"torch {torch.__version__}, 2 threads, GEMM rate {gemm_rate() / 1e9:.0f} GFLOP/s; "
        f"forward: {HEADS} heads of width {WIDTH}; additive: 1 head"
    ]
    for length, repeats in ((128, 20), (512, 20), (2048, 20), (8192, 3)):
        lines += table("forward", length, cases(length), "SDPA", repeats)
    for length, repeats in ((512, 20), (2048, 5)):
        lines += table("additive", length, additive_cases(length), "additive, plain, fwd+bwd", repeats)
    result = Path(__file__).with_suffix(f".{date.today()}.txt")
    result.write_text("\n".join(lines) + "\n")
    print(f"written to {result.name}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--memory"]:
        measure_memory(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    else:
        main()
