"""Draws the curves of a run, from the lines of its log, as a picture (SVG) that any browser opens."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

Point = tuple[float, float]

WIDTH, HEIGHT = 720, 260
"""The size of one panel, in pixels."""
LEFT, RIGHT, TOP, BOTTOM = 64, 150, 34, 34
"""The margins of a panel; the legend stands on the right."""
COLOURS = ("#3366cc", "#cc4125", "#2d8a4e", "#7a4fb5")
MAX_POINTS = 300
"""The largest number of points in a curve; longer curves are averaged in groups of neighbours."""
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#333}.title{font-weight:600;font-size:13px}.grid{stroke:#ddd}"
    "path{fill:none;stroke-width:1.8}svg{background:#fff}"
    "@media(prefers-color-scheme:dark){svg{background:#16181d}text{fill:#ddd}.grid{stroke:#3a3d45}}"
)


@dataclass(frozen=True)
class Curve:
    """One curve: its name in the legend, and its points. dots: whether the points are marked, because they are few."""

    name: str
    points: Sequence[Point]
    dots: bool = False


def draw_curves(log: Iterable[Mapping[str, Any]]) -> str:
    """Returns an SVG with the losses of a run and, below, what its validations measured apart from the loss.

    log: the lines of log.jsonl, as dictionaries. Numbers that are not finite are left out.
    """
    losses: list[Point] = []
    measured: dict[str, list[Point]] = {}
    for facts in log:
        update = facts["update"]
        if "loss" in facts:
            losses.append((update, facts["loss"]))
        elif "validation" in facts and facts.get("weights") == "current":
            for name, value in facts["validation"].items():
                measured.setdefault(name, []).append((update, value))
    held_out = measured.pop("loss", [])
    panels = [("loss per target token", [Curve("training", thinned(losses)), Curve("held out", held_out, dots=True)])]
    rates = [Curve(name.replace("_", " "), points, dots=True) for name, points in measured.items() if name != "bleu"]
    if rates:
        panels.append(("error rates on held-out sources", rates))
    if "bleu" in measured:
        panels.append(("BLEU on held-out sources", [Curve("BLEU", measured["bleu"], dots=True)]))
    last = max((update for update, _ in (*losses, *held_out)), default=1.0)
    drawn = [
        f'<g transform="translate(0 {number * HEIGHT})">{_panel(title, curves, last)}</g>'
        for number, (title, curves) in enumerate(panels)
    ]
    size = f'width="{WIDTH}" height="{HEIGHT * len(panels)}" viewBox="0 0 {WIDTH} {HEIGHT * len(panels)}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img"><title>Curves of a training run</title>'
        f"<style>{STYLE}</style>{''.join(drawn)}</svg>\n"
    )


def thinned(points: Sequence[Point]) -> list[Point]:
    """Returns at most MAX_POINTS points: the means of groups of neighbours."""
    size = math.ceil(len(points) / MAX_POINTS)
    groups = [points[first : first + size] for first in range(0, len(points), size or 1)]
    return [(sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group)) for group in groups]


def ticks(low: float, high: float, number: int = 4) -> list[float]:
    """Returns about `number` round values between two values: multiples of 1, 2 or 5 times a power of ten."""
    span = high - low
    if span <= 0:
        return [low]
    power = 10.0 ** math.floor(math.log10(span / number))
    step = next(power * factor for factor in (1, 2, 5, 10) if span / (power * factor) <= number)
    first = math.ceil(low / step)
    return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]


def _panel(title: str, curves: Sequence[Curve], last: float) -> str:
    """Draws curves with one pair of axes. last: the last update."""
    finite = [Curve(curve.name, [point for point in curve.points if math.isfinite(point[1])], curve.dots) for curve in curves]
    shown = [curve for curve in finite if curve.points]
    values = [value for curve in shown for _, value in curve.points]
    low, high = min([0.0, *values]), max(values, default=1.0)
    high = high if high > low else low + 1.0

    def x(update: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * update / last, 1)

    def y(value: float) -> float:
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - low) / (high - low), 1)

    parts = [f'<text class="title" x="{LEFT}" y="20">{escape(title)}</text>']
    for value in ticks(low, high):
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value)}" y2="{y(value)}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(value) + 4}" text-anchor="end">{value:g}</text>')
    for update in ticks(0, last, 6):
        parts.append(f'<text x="{x(update)}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{update:,g}</text>')
    parts.append(f'<text x="{WIDTH - RIGHT + 8}" y="{HEIGHT - BOTTOM + 18}">updates</text>')
    for number, (curve, colour) in enumerate(zip(shown, COLOURS, strict=False)):
        marks = [(x(update), y(value)) for update, value in curve.points]
        line = " L".join(f"{at} {height}" for at, height in marks)
        parts.append(f'<path d="M{line}" stroke="{colour}"/>')
        if curve.dots:
            parts += [f'<circle cx="{at}" cy="{height}" r="3" fill="{colour}"/>' for at, height in marks]
        row = TOP + 14 + 20 * number
        parts.append(f'<rect x="{WIDTH - RIGHT + 8}" y="{row - 8}" width="14" height="4" fill="{colour}"/>')
        parts.append(f'<text x="{WIDTH - RIGHT + 28}" y="{row}">{escape(curve.name)}</text>')
    return "".join(parts)
