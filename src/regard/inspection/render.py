"""Attention as pictures: a PNG (or SVG, PDF: by the ending), or shades in the terminal. The only home of matplotlib."""

from __future__ import annotations

import importlib.util
import math
import os
import secrets
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.cells import cell_len
from rich.style import Style
from rich.text import Text

from regard.contracts import AttentionMap
from regard.errors import UserError

ENDINGS = (".png", ".svg", ".pdf")
SHADES = " ░▒▓█"


def can_draw() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def check_drawing(path: str | Path) -> None:
    """Raises if a picture cannot be drawn there, before any work is done for it."""
    if not can_draw():
        raise UserError('drawing pictures needs matplotlib; type: pip install "regard[plot]"')
    if Path(path).suffix not in ENDINGS:
        raise UserError(f"{path}: the ending says what to draw; expected one of {', '.join(ENDINGS)}")


def draw(maps: AttentionMap | Sequence[AttentionMap], path: str | Path) -> Path:
    """Draws the average over the heads of each map, side by side. Rows are target tokens, columns source tokens."""
    check_drawing(path)
    from matplotlib.figure import Figure

    maps = [maps] if isinstance(maps, AttentionMap) else list(maps)
    if not maps:
        raise ValueError("there is no map to draw; expected one or more")
    path = Path(path)
    columns = min(3, len(maps))
    rows = math.ceil(len(maps) / columns)
    wide, high = max(len(one.source) for one in maps), max(len(one.target) for one in maps)
    cell = min(0.32, 24 / max(wide * columns, high * rows))  # inches; a long text gets small cells, not a huge picture
    figure = Figure(figsize=(columns * (1.2 + cell * wide), rows * (1.2 + cell * high)), layout="constrained")
    font: dict[str, Any] = {"family": "DejaVu Sans Mono", "fontsize": 10 * cell / 0.32, "parse_math": False}
    for place, one in enumerate(maps):
        axes = figure.add_subplot(rows, columns, place + 1)
        axes.imshow(one.mean_TS.tolist(), cmap="Blues", vmin=0.0, vmax=1.0, aspect="equal", interpolation="nearest")
        axes.set_xticks(range(len(one.source)), one.source, **font)
        axes.set_yticks(range(len(one.target)), one.target, **font)
        axes.xaxis.tick_top()
        axes.tick_params(length=0)
        axes.set_xticks([x - 0.5 for x in range(1, len(one.source))], minor=True)
        axes.set_yticks([y - 0.5 for y in range(1, len(one.target))], minor=True)
        axes.grid(which="minor", color="#e6e6e6", linewidth=0.5)
        axes.tick_params(which="minor", length=0)
    with warnings.catch_warnings(record=True) as caught:
        _save(figure, path)
    if any("Glyph" in str(one.message) for one in caught):
        warnings.warn(f"the font of {path} lacks some of the characters; in an .svg any browser shows them", stacklevel=2)
    return path


def _save(figure: Any, path: Path) -> None:
    """Under another name first, so that no half-written picture is left behind."""
    import matplotlib

    path.parent.mkdir(parents=True, exist_ok=True)
    name = path.with_name(f".{path.stem}-{secrets.token_hex(4)}{path.suffix}")
    try:
        with matplotlib.rc_context({"svg.fonttype": "none"}):  # text stays text
            figure.savefig(name, dpi=150)
        os.replace(name, path)
    finally:
        name.unlink(missing_ok=True)


def in_terminal(one: AttentionMap) -> Text:
    """The same as shades of grey; as coloured cells where the terminal has colours."""
    cells = [max(2, cell_len(token) + 1) for token in one.source]
    margin = max(map(cell_len, one.target)) + 1
    text = Text(" " * margin + "".join(_pad(token, width) for token, width in zip(one.source, cells, strict=True)) + "\n")
    for token, weights in zip(one.target, one.mean_TS.tolist(), strict=True):
        text.append(_pad(token, margin))
        for weight, width in zip(weights, cells, strict=True):
            shade = SHADES[max(0, min(len(SHADES) - 1, int(weight * len(SHADES))))]
            text.append(shade * (width - 1), _style(weight))
            text.append(" ")
        text.append("\n")
    return text


RAMP = ((32, 58, 82), (31, 111, 139), (58, 147, 143), (151, 207, 162), (243, 246, 208))
"""From little weight to all of it."""


def _style(weight: float) -> Style:
    """Letters and ground in one colour: a full cell, whatever shade stands in it. Next to nothing has none."""
    if weight < 0.02:
        return Style.null()
    place = min(1.0, weight) * (len(RAMP) - 1)
    low = min(int(place), len(RAMP) - 2)
    mixed = (round(a + (b - a) * (place - low)) for a, b in zip(RAMP[low], RAMP[low + 1], strict=True))
    colour = f"rgb({','.join(map(str, mixed))})"
    return Style(color=colour, bgcolor=colour)


def _pad(token: str, width: int) -> str:
    return token + " " * (width - cell_len(token))
