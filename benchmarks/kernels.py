"""Times of the native kernels, as ratios to what they replace, side by side in one process.

    python benchmarks/kernels.py LINE [rounds]      default: 12 rounds; the lines: additive-128, additive-512, additive-2048,
                                                    bahdanau, demo

additive-L: one head, width 64, forward and backward, against the plain formula and torch.compile of it; forward against our
scaled dot product. bahdanau: a training step of the decoder of recurrent.py (GRU), against the plain loop. demo: target tokens
per second of the demo's training, with kernels and without them. Two threads; medians of interleaved rounds, with the smallest
and the largest ratio. Each line is added to a dated file in the folder of this script. A line takes at most three minutes.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from dated import write_result

from regard.core import linear
from regard.native import additive as native
from regard.native import bahdanau as native_bahdanau
from regard.native import recurrent
from regard.native.library import report

THREADS = 2
WIDTH = 64


def timed(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def without_kernels(run: Callable[[], object]) -> Callable[[], None]:
    """Returns a function that runs the same on torch alone."""

    def once() -> None:
        modules = (native, native_bahdanau, recurrent)
        library = native._LIBRARY
        faster, linear.has_faster_products = linear.has_faster_products, lambda: False
        for module in modules:
            module._LIBRARY = None
        try:
            run()
        finally:
            linear.has_faster_products = faster
            for module in modules:
                module._LIBRARY = library

    return once


def compare(runs: dict[str, Callable[[], object]], rounds: int) -> list[str]:
    """Returns one line per case; ratios are those to the last case, within a round."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    for _ in range(rounds):
        for name, run in runs.items():
            found[name].append(timed(run))
    base = list(runs)[-1]
    lines = []
    for name, seconds in found.items():
        ratios = [other / own for own, other in zip(seconds, found[base], strict=True)]
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
        lines.append(f"  {name:<42} {1e3 * statistics.median(seconds):9.2f} ms   {base} takes {spread} times as long")
    return lines


def additive(length: int, rounds: int) -> list[str]:
    query, key, value = (torch.randn(1, 1, length, WIDTH, requires_grad=True) for _ in range(3))
    v, upstream = torch.randn(WIDTH, requires_grad=True), torch.randn(1, 1, length, WIDTH)

    def plain(query, key, v, value):
        return ((query.unsqueeze(-2) + key.unsqueeze(-3)).tanh() @ v).softmax(-1) @ value

    def ours(query, key, v, value):
        return native.additive_attention(query, key, v, value, None, most_kept=1 << 22)

    inputs = (query, key, v, value)

    def both(attend):
        return lambda: torch.autograd.grad(attend(*inputs), inputs, upstream)

    @torch.no_grad()
    def forward():
        return ours(*inputs)

    @torch.no_grad()
    def dot():
        return F.scaled_dot_product_attention(query, key, value)

    compiled = torch.compile(plain)
    for one, other in zip(both(ours)(), both(plain)(), strict=True):
        assert (one - other).abs().max() < 1e-4 * max(1.0, other.abs().max().item())  # torch sums v's gradient in float32
    lines = compare({"kernel": both(ours), "torch.compile": both(compiled), "plain formula": both(plain)}, rounds)
    lines += compare({"kernel": both(ours), "torch.compile of the formula": both(compiled)}, rounds)
    return [*lines, *compare({"scaled dot, forward": dot, "additive kernel, forward": forward}, rounds)]


def bahdanau(rounds: int) -> list[str]:
    from recurrent import CASES, make_runs

    runs = make_runs(CASES["bahdanau, gru"])
    ours = runs["ours"]
    return compare({"ours": ours, "ours, no kernels": without_kernels(ours), "plain loop": runs["plain loop"]}, rounds)


def demo(rounds: int) -> list[str]:
    from demo import SETTINGS, TokenCounter, build, in_memory, pronunciations

    from regard.training.learner import Learner
    from regard.training.loop import train

    training_data = in_memory("cmudict", pronunciations("train"), [], SETTINGS.data)
    model, settings = build(SETTINGS.model, *map(len, training_data.codecs)), replace(SETTINGS.train, steps=12)
    batches = training_data.batches(settings, subword_dropout=0.0, seed=1)

    def once():
        train(Learner(model, settings), batches, settings, seed=1, callbacks=TokenCounter())

    return compare({"demo, 12 updates": once, "demo without kernels": without_kernels(once)}, rounds)


LINES: dict[str, Callable[[int], list[str]]] = {
    **{f"additive-{length}": lambda rounds, length=length: additive(length, rounds) for length in (128, 512, 2048)},
    "bahdanau": bahdanau,
    "demo": demo,
}


def main(line: str, rounds: str = "12") -> None:
    torch.set_num_threads(THREADS)
    lines = [f"{line}: torch {torch.__version__}, {THREADS} threads, {rounds} interleaved rounds; native: {report()}"]
    lines += LINES[line](int(rounds))
    print(*lines, sep="\n", flush=True)
    write_result(__file__, lines, line)


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in LINES:
        main(*sys.argv[1:])
    else:
        sys.exit(f"expected one of {', '.join(LINES)}")
