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
from regard.data.pictures import open_picture
from regard.errors import UserError

ENDINGS = (".png", ".svg", ".pdf")
SHADES = " ░▒▓█"
WIDEST = 120
"""Cells of a terminal."""


def can_draw() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def check_drawing(path: str | Path) -> None:
    """Raises if a picture cannot be drawn there, before any work is done for it."""
    if not can_draw():
        raise UserError('drawing pictures needs matplotlib; type: pip install "regard[plot]"')
    if Path(path).suffix not in ENDINGS:
        raise UserError(f"{path}: the ending says what to draw; expected one of {', '.join(ENDINGS)}")


def draw(maps: AttentionMap | Sequence[AttentionMap], path: str | Path, *, over: str | Path | None = None) -> Path:
    """Draws the average over the heads of each map, side by side. Rows are target tokens, columns source tokens.

    over: the picture that one map belongs to; then every word's part of it is drawn over that."""
    check_drawing(path)
    if over is not None:
        if not isinstance(maps, AttentionMap):
            raise ValueError("one map is drawn over a picture; got several")
        return draw_over(maps, over, path)
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
        long = max(map(len, one.source)) > 4  # more than a cell is wide
        axes.set_xticks(range(len(one.source)), one.source, rotation=90 if long else 0, **font)
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


def draw_over(one: AttentionMap, picture: str | Path, path: str | Path) -> Path:
    """Draws where the model looked for every word over the picture (Xu et al. 2015, fig. 2): what was not looked at is veiled,
    smoothly above and by cells below. Each map is scaled to its largest weight, which stands under it."""
    check_drawing(path)
    from matplotlib.figure import Figure

    maps_TRC, path, image = one.maps_TRC, Path(path), open_picture(Path(picture))
    rows, columns = one.axes
    across = min(6, len(one.target))
    bands = math.ceil(len(one.target) / across)
    shape = min(max(image.height / image.width, 0.2), 3)
    wide = 7.5 if across < 3 else 12.0
    figure = Figure(figsize=(wide, bands * 2 * (wide / across * shape + 0.32)), layout="constrained")
    for number, word in enumerate(one.target):
        largest = max(maps_TRC[number].abs().max().item(), 1e-9)
        veil = [[(0.41, 0.47, 0.54, 0.82 * (1 - min(1.0, abs(w) / largest))) for w in row] for row in maps_TRC[number].tolist()]
        for below in (0, 1):
            place = (2 * (number // across) + below) * across + number % across + 1
            axes = figure.add_subplot(2 * bands, across, place)
            axes.imshow(image, extent=(0, columns, rows, 0), cmap="gray", vmin=0, vmax=255, aspect="auto")
            axes.imshow(veil, extent=(0, columns, rows, 0), interpolation="nearest" if below else "bilinear", aspect="auto")
            axes.set_box_aspect(shape)
            axes.set_xticks([])
            axes.set_yticks([])
            axes.spines[:].set_visible(False)
            if below:
                axes.set_xlabel(f"{largest:.2f}", fontsize=8, color="#66727f", labelpad=2)
            else:
                axes.set_title(word, fontsize=11, pad=3, parse_math=False)
    _save(figure, path)
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


def in_words(one: AttentionMap) -> Text:
    """For maps over a picture: the cell that each word looked at most."""
    width = max(map(cell_len, one.target)) + 1
    text = Text(f"a grid of {one.axes[0]} rows and {one.axes[1]} columns; the cell that was looked at most, from 0:\n")
    for token, weights in zip(one.target, one.mean_TS, strict=True):
        row, column = divmod(int(weights.argmax()), one.axes[1])
        text.append(f"{_pad(token, width)} row {row}, column {column}: {weights.max().item():.2f}\n")
    return text


def in_terminal(one: AttentionMap) -> Text:
    """The same as shades of grey; as coloured cells where the terminal has colours.

    Where that would be too wide, as for the many places of a sound, each place gets one cell, the darkest being the largest
    weight, and those are named for whose names there is room.
    """
    if sum(max(2, cell_len(token) + 1) for token in one.source) > WIDEST:
        return _in_narrow_cells(one)
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


def _in_narrow_cells(one: AttentionMap) -> Text:
    margin = max(map(cell_len, one.target)) + 1
    header = ""
    for place, token in enumerate(one.source):
        if len(header) <= place and (not header or cell_len(token) < 12):
            header += " " * (place - len(header)) + token + "  "
    text = Text(" " * margin + header.rstrip() + "\n")
    largest = max(one.mean_TS.max().item(), 1e-9)
    for token, weights in zip(one.target, one.mean_TS.tolist(), strict=True):
        text.append(_pad(token, margin))
        for weight in weights:
            share = weight / largest
            text.append(SHADES[max(0, min(len(SHADES) - 1, int(share * len(SHADES))))], _style(share))
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
