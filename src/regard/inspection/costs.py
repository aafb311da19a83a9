"""The cost of attention and of the layers that it replaced, over lengths: formulas, and measurements of real layers.

The formulas are those of core/costs.py. `measure` runs the layers themselves, without bias, in a child process:

    python -m regard.inspection.costs < request.json

which forks once per measurement, so that each starts from the same state. It prints one line of JSON per measurement.
"""

from __future__ import annotations

import gc
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from itertools import combinations, product
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.core.costs import COSTS, Cost, CostedLayer, Form, cost
from regard.errors import UserError, plural
from regard.inspection.render import Curve, Panel, draw_curves
from regard.layers.attention import MultiHeadAttention
from regard.layers.mixing import Convolution, Dense
from regard.layers.recurrent import run

NO_TIME = "no time left"
REPEATS, ENOUGH_SECONDS = 7, 0.5
"""A measurement is repeated so often, or for so long."""


@dataclass(frozen=True)
class Sizes:
    """Widths of the input, of the values and of the queries and keys, and the number of positions under the kernel. The
    defaults are those of the lecture notes."""

    width: int = 512
    value_width: int = 512
    key_width: int = 64
    kernel: int = 5

    def cost(self, layer: CostedLayer, length: int, form: Form = "exact") -> Cost:
        return cost(layer, length, self.width, self.value_width, key_width=self.key_width, kernel=self.kernel, form=form)


@dataclass(frozen=True)
class Meeting:
    """Two layers need the same number of operations at this length; below it the first needs fewer."""

    length: float
    layers: tuple[CostedLayer, CostedLayer]


def meetings(sizes: Sizes, form: Form = "exact") -> list[Meeting]:
    """Returns the lengths at which two layers need equally many operations, if they do, the shortest first.

    The operations of every layer are L · (a + b·L), so two layers meet at one length at most.
    """
    found = []
    for one, other in combinations(COSTS, 2):
        (a, b), (c, d) = (_coefficients(sizes, layer, form) for layer in (one, other))
        if b != d and (c - a) / (b - d) > 0:
            below = (one, other) if b > d else (other, one)  # the one that grows faster needs fewer below
            found.append(Meeting(float((c - a) / (b - d)), below))
    return sorted(found, key=lambda meeting: meeting.length)


def _coefficients(sizes: Sizes, layer: CostedLayer, form: Form) -> tuple[Fraction, Fraction]:
    """Returns a and b of operations = L · (a + b·L)."""
    first, second = (Fraction(sizes.cost(layer, length, form).operations, length) for length in (1, 2))
    return 2 * first - second, second - first


def slope(points: Sequence[tuple[int, float]]) -> float:
    """Returns the exponent p of number ≈ c · length^p between the last two points."""
    (before, small), (last, large) = points[-2:]
    return math.log(large / small) / math.log(last / before)


def draw(sizes: Sizes, lengths: Sequence[int], measured: Sequence[Measured], path: str | Path) -> Path:
    """Draws operations over lengths, in both forms and with the lengths at which layers meet, next to what was measured.

    path: a .png, .svg or .pdf file. Raises UserError as `regard.draw` does.
    """
    panels = [
        Panel(
            {"notes": "operations, as the notes count", "exact": "operations, exact"}[form],
            "multiply-adds",
            [_curve(layer, [(L, sizes.cost(layer, L, form).operations) for L in lengths]) for layer in COSTS],
            [
                (one.length, sizes.cost(one.layers[0], max(1, round(one.length)), form).operations, f"L = {one.length:,.4g}")
                for one in meetings(sizes, form)
                if min(lengths) <= one.length <= max(lengths)
            ],
        )
        for form in ("notes", "exact")
    ]
    done = [one for one in measured if not one.skipped]
    threads = sorted({one.threads for one in done})
    for title, unit, number in (
        ("measured time", "seconds", attrgetter("seconds")),
        ("measured peak memory", "bytes", attrgetter("nbytes")),
    ):
        curves = [
            _curve(layer, [(one.length, number(one)) for one in done if (one.layer, one.threads) == (layer, used)], used, index)
            for layer, (index, used) in product(COSTS, enumerate(threads))
        ]
        panels += [Panel(title, unit, [curve for curve in curves if curve.points])] if done else []
    return draw_curves(panels, path, across="length L")


def _curve(layer: CostedLayer, points: Sequence[tuple[int, float]], threads: int = 0, dashed: int = 0) -> Curve:
    """Returns the curve of a layer, with its slope in the label. Points of 0, below what can be measured, are left out."""
    points = [(length, number) for length, number in points if number > 0]
    steep = f", slope {slope(points):.2f}" if len(points) > 1 else ""
    used = f", {plural(threads, 'thread')}" if threads else ""
    return Curve(f"{layer.replace('_', '-')}{used}{steep}", points, list(COSTS).index(layer), bool(dashed))


# --- measurements ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """One layer at one length with a number of threads. seconds: median time of a forward pass.  nbytes: peak memory beyond
    that of the process before the layer was made: weights, input, output and everything between.
    skipped: why there is no measurement, if so."""

    layer: CostedLayer
    length: int
    threads: int
    seconds: float = math.nan
    nbytes: int = 0
    skipped: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {key: None if value != value else value for key, value in asdict(self).items()}  # JSON has no NaN


def make_layer(name: str, length: int, sizes: Sizes) -> nn.Module:
    """Returns a layer of Regard without bias, as core/costs.py counts it: one head, no output projection."""
    match name:
        case "self_attention":
            return MultiHeadAttention(
                sizes.width, 1, key_dim=sizes.key_width, value_dim=sizes.value_width, bias=False, project_output=False
            )
        case "recurrent":
            return nn.RNN(sizes.width, sizes.value_width, bias=False, batch_first=True)
        case "convolution":
            return Convolution(sizes.width, sizes.value_width, sizes.kernel // 2, bias=False)
        case _:
            return Dense(length, sizes.width, sizes.value_width, bias=False)


def forward(layer: nn.Module, x_BLD: Tensor) -> Tensor:
    result: Tensor = run(layer, x_BLD)[0] if isinstance(layer, nn.RNNBase) else layer(x_BLD)
    return result


def measure(
    sizes: Sizes,
    lengths: Sequence[int],
    threads: Sequence[int] = (1, 2),
    *,
    seconds: float = 30.0,
    memory: int = 1 << 30,
    layers: Sequence[CostedLayer] = tuple(COSTS),
) -> Iterator[Measured]:
    """Measures time and memory of a forward pass of each layer, on one sequence, for each length and number of threads.

    Yields every measurement as it is made, the shortest lengths first, and then those that are skipped: a layer that needs more
    than `memory` bytes, and whatever was not finished within `seconds`, the start of the child process not counted.

    Raises UserError if the kernel is even, because the layer has a middle, or if the system cannot fork.
    """
    if not sizes.kernel % 2:
        raise UserError(f"--kernel {sizes.kernel}: a layer can only be measured with an odd kernel, which has a middle")
    if not hasattr(os, "fork"):
        raise UserError("measuring needs os.fork, which this system does not have; the formulas work without --measure")
    pairs = product(sorted(set(lengths)), sorted(set(threads)), layers)
    wanted = [Measured(layer, length, number) for length, number, layer in pairs]
    fits = {(layer, length): _estimate(sizes, layer, length) <= memory for layer in layers for length in lengths}
    todo = [one for one in wanted if fits[one.layer, one.length]]
    done = set()
    for one in _measure(sizes, todo, seconds):
        done.add((one.layer, one.length, one.threads))
        yield one
    for one in wanted:
        if (one.layer, one.length, one.threads) not in done:
            needs = _estimate(sizes, one.layer, one.length)
            reason = NO_TIME if fits[one.layer, one.length] else f"needs {needs / 2**30:,.1f} GB"
            yield Measured(one.layer, one.length, one.threads, skipped=reason)


def _estimate(sizes: Sizes, layer: CostedLayer, length: int) -> int:
    """Returns about how many bytes a layer needs: weights, input, output, and what is between. Attention is fused: it holds no
    matrix of L × L."""
    per_position = sizes.width + 3 * sizes.value_width + 2 * sizes.key_width
    return 4 * (sizes.cost(layer, length).parameters + length * per_position)


def _measure(sizes: Sizes, todo: Sequence[Measured], seconds: float) -> Iterator[Measured]:
    """Starts the child process that measures, and yields what it prints until the time is over."""
    request = {
        "sizes": asdict(sizes),
        "todo": [(one.layer, one.length, one.threads) for one in todo],
        "seconds": seconds,
    }
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-P", "-m", "regard.inspection.costs"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(json.dumps(request))
        child.stdin.close()
        try:
            for line in child.stdout:
                yield Measured(**json.loads(line))
        finally:
            child.kill()


def main() -> None:
    """The child process: forks for every measurement until the time is over. It runs no tensor operation itself, because the
    threads of one would not exist after a fork."""
    request = json.load(sys.stdin)
    sizes, until = Sizes(**request["sizes"]), time.time() + request["seconds"]
    for layer, length, threads in request["todo"]:
        if time.time() >= until:
            return
        child = os.fork()
        if not child:
            status = 1
            signal.setitimer(signal.ITIMER_REAL, max(0.01, until - time.time()))  # ends the process
            try:
                print(json.dumps(asdict(measured(layer, length, threads, sizes))), flush=True)
                status = 0
            finally:
                os._exit(status)
        os.waitpid(child, 0)


def measured(layer: CostedLayer, length: int, threads: int, sizes: Sizes) -> Measured:
    """Measures one layer in this process: a warm-up, then the median of the repeats."""
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    with torch.inference_mode():
        small = Sizes(4, 4, 4, sizes.kernel)
        forward(make_layer(layer, 2, small), torch.randn(1, 2, 4))  # loads the code, so that it is not counted as memory
        gc.collect()
        before = peak_memory()
        module, x_BLD = make_layer(layer, length, sizes), torch.randn(1, length, sizes.width)
        forward(module, x_BLD)
        times = [_timed(lambda: forward(module, x_BLD))]
        while len(times) < REPEATS and sum(times) < ENOUGH_SECONDS:
            times.append(_timed(lambda: forward(module, x_BLD)))
    return Measured(layer, length, threads, statistics.median(times), peak_memory() - before)


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def peak_memory() -> int:
    """Returns the largest resident memory of this process so far, in bytes."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


if __name__ == "__main__":
    main()
