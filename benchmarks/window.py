"""Time and memory of attention within a window, in one run with the fused kernel over all keys and with the window as a mask.

    python benchmarks/window.py [--rounds 5] [--kind sequence] [--alone]

One thread; 8 heads of width 64, float32. Medians of interleaved rounds, and their ratios to the window in the same round.
Memory is the growth of the RSS over the inputs at its peak (sampled every half millisecond), each case in a fresh process. The
result is written to a dated file in the folder of this script. --alone states that no other program ran, whatever the load
average.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from dated import write_result
from torch import Tensor

import regard

HEADS, WIDTH = 8, 64
Run = Callable[[], object]


def plain(query: Tensor, key: Tensor, value: Tensor, allow: Tensor) -> Tensor:
    """The formula as it is written, with the whole matrix."""
    scores = query @ key.transpose(-1, -2) / math.sqrt(WIDTH)
    return scores.masked_fill(~allow, -math.inf).softmax(-1) @ value


def make_inputs(length: int, *, grad: bool = False) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(1, HEADS, length, WIDTH, requires_grad=grad) for _ in range(3)]


def sequence(length: int = 8192, width: int = 64) -> dict[str, Run]:
    """L = 8,192, w = 64, forwards."""
    inputs = make_inputs(length)
    return {
        "window": lambda: regard.attend(*inputs, window=width),
        "all keys, fused": lambda: regard.attend(*inputs),
        "mask, fused": lambda: regard.attend(*inputs, allow=regard.masks.window(length, width=width)),
        "mask, plain": lambda: plain(*inputs, regard.masks.window(length, width=width)),
    }


def training(length: int = 8192, width: int = 64) -> dict[str, Run]:
    """L = 8,192, w = 64, forwards and backwards."""
    inputs = make_inputs(length, grad=True)
    return {
        "window": lambda: torch.autograd.grad(regard.attend(*inputs, window=width).sum(), inputs),
        "all keys, fused": lambda: torch.autograd.grad(regard.attend(*inputs).sum(), inputs),
    }


def grid(side: int = 96, width: int = 8) -> dict[str, Run]:
    """A grid of 96 x 96 cells, w = 8 rows and columns, forwards."""
    inputs = make_inputs(side * side)
    return {
        "window": lambda: regard.attend(*inputs, window=width, axes=(side, side)),
        "all keys, fused": lambda: regard.attend(*inputs),
        "mask, fused": lambda: regard.attend(*inputs, allow=regard.masks.grid_window(side, side, width=width)),
    }


KINDS: dict[str, Callable[..., dict[str, Run]]] = {"sequence": sequence, "training": training, "grid": grid}
SMALL = {"sequence": 256, "training": 256, "grid": 16}


def check_equal_results() -> None:
    for kind in ("sequence", "grid"):
        cases = KINDS[kind](SMALL[kind])
        expected = cases["mask, fused"]()
        for name in ("window", "mask, plain"):
            if name in cases:
                torch.testing.assert_close(cases[name](), expected)


def timed(run: Run) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def peak_growth(kind: str, name: str) -> float:
    """Returns the peak growth of a case in MB, measured in a fresh process."""
    command = [sys.executable, __file__, "--memory", kind, name]
    return float(json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout))


def measure_memory(kind: str, name: str) -> None:
    KINDS[kind](SMALL[kind])[name]()  # loads libraries and starts thread pools
    run = KINDS[kind]()[name]
    before = peak = resident()
    with ThreadPoolExecutor(1) as worker:
        running = worker.submit(run)
        while not running.done():
            peak = max(peak, resident())
            time.sleep(0.0005)
        running.result()
    print(json.dumps((peak - before) / 2**20))


def resident() -> int:
    """Returns the resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def table(kind: str, rounds: int) -> list[str]:
    cases = KINDS[kind]()
    cases["window"]()
    found: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, run in cases.items():
            found[name].append(timed(run))
    rows = [f"\n{KINDS[kind].__doc__} ({rounds} interleaved rounds)"]
    growths = {name: peak_growth(kind, name) for name in cases}
    for name in cases:
        ratio = statistics.median(one / other for one, other in zip(found[name], found["window"], strict=True))
        seconds = statistics.median(found[name])
        memory = f"{growths[name]:8.1f} MB ({growths[name] / growths['window']:.1f} x window)"
        rows.append(f"  {name:<16} {1e3 * seconds:9.1f} ms ({ratio:6.1f} x window) {memory}")
    print(*rows, sep="\n", flush=True)
    return rows


def main(rounds: int, chosen: str | None, *, alone: bool) -> None:
    check_equal_results()
    busy = "all other programs were stopped" if alone else f"load average {os.getloadavg()[0]:.1f} before it began"
    lines = [f"torch {torch.__version__}, 1 thread, {HEADS} heads of width {WIDTH}, float32; {os.cpu_count()} cores, {busy}"]
    print(*lines, flush=True)
    for kind in [chosen] if chosen else KINDS:
        lines += table(kind, rounds)
    write_result(__file__, lines, chosen or "")


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["--memory"]:
        measure_memory(*sys.argv[2:])
    else:
        parser = argparse.ArgumentParser()
        parser.add_argument("--rounds", type=int, default=5)
        parser.add_argument("--kind", choices=KINDS)
        parser.add_argument("--alone", action="store_true")
        given = parser.parse_args()
        main(given.rounds, given.kind, alone=given.alone)
