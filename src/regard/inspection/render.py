"""Draws the attention of a model as pictures (PNG, SVG or PDF, by file extension) or as shades in the terminal. figures.py and
diagram.py draw other things; only these three modules use matplotlib."""

from __future__ import annotations

import importlib.util
import math
import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from rich.cells import cell_len
from rich.style import Style
from rich.text import Text

from regard.checkpoint.files import new_file
from regard.contracts import Array
from regard.core.spectrum import HOP, extremes, log_mel
from regard.data.frames import num_frames, read_frames, spaced
from regard.data.labels import label
from regard.data.pictures import open_picture
from regard.data.sound import Sound, read_sound
from regard.errors import UserError
from regard.results import AttentionMap

if TYPE_CHECKING:
    from regard.inspection.roles import Roles

ENDINGS = (".png", ".svg", ".pdf")
SHADES = " ░▒▓█"
WIDEST = 120
"""Maximum width in a terminal of unknown size, in character cells."""
MOST_COLUMNS = 1000
"""Maximum number of columns of a picture over time; finer detail would be smaller than its pixels."""
LEAST_APART = 0.09
"""Distance between two labels of a logarithmic axis, as a share of its length."""
MOST_ACROSS = 16
"""Maximum number of frames of a video that stand side by side."""
FINEST = 16_000
"""Highest sample rate for spectrograms; audible frequencies lie below half of it."""


def can_draw() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def check_drawing(path: str | Path) -> None:
    """Raises UserError if a picture cannot be drawn to this path; meant to be called before any other work."""
    if not can_draw():
        raise UserError('drawing pictures needs matplotlib; type: pip install "regard[plot]"')
    if Path(path).suffix.lower() not in ENDINGS:
        raise UserError(f"{path}: the file extension selects the format; expected one of {', '.join(ENDINGS)}")


def draw(maps: AttentionMap | Sequence[AttentionMap], path: str | Path, *, over: str | Path | None = None) -> Path:
    """Draws attention maps to a .png, .svg or .pdf file and returns its path; see `figure_of`. Raises UserError as
    `check_drawing` does."""
    check_drawing(path)
    return save(figure_of(maps, over), path)


def figure_of(maps: AttentionMap | Sequence[AttentionMap], over: str | Path | None = None) -> Any:
    """Returns a figure of attention maps, averaged over their heads, next to each other. Rows are target tokens, columns are
    source tokens.

    Maps over a sound are drawn below each other, on one axis of seconds; each is scaled to its largest weight.
    over: the picture or video that the map belongs to, over which the weights of each word are drawn; or the sound that the
    maps belong to, whose waveform and spectrogram are drawn above them.
    """
    maps = list(maps) if isinstance(maps, Sequence) else [maps]
    if not maps:
        raise ValueError("got no map to draw, expected one or more")
    maps = [labelled(attention) for attention in maps]
    if all(attention.seconds for attention in maps):
        return _over_time(maps, over)
    if over is not None:
        if len(maps) > 1:
            raise ValueError("got several maps, but only one can be drawn over a picture")
        return _over_picture(maps[0], over)
    from matplotlib.figure import Figure

    columns = min(3, len(maps))
    rows = math.ceil(len(maps) / columns)
    wide, high = max(len(attention.source) for attention in maps), max(len(attention.target) for attention in maps)
    cell = min(0.32, 24 / max(wide * columns, high * rows))  # inches; a long text gets small cells, not a huge picture
    figure = Figure(figsize=(columns * (1.2 + cell * wide), rows * (1.2 + cell * high)), layout="constrained")
    font = _font(maps, 10 * cell / 0.32)
    for index, attention in enumerate(maps):
        source, target = attention.source, attention.target
        axes = figure.add_subplot(rows, columns, index + 1)
        axes.imshow(attention.mean_TS.tolist(), cmap="Blues", vmin=0.0, vmax=1.0, aspect="equal", interpolation="nearest")
        wider_than_cell = max(map(len, source)) > 4
        axes.set_xticks(range(len(source)), source, rotation=90 if wider_than_cell else 0, **font)
        axes.set_yticks(range(len(target)), target, **font)
        axes.xaxis.tick_top()
        axes.tick_params(length=0)
        axes.set_xticks([x - 0.5 for x in range(1, len(source))], minor=True)
        axes.set_yticks([y - 0.5 for y in range(1, len(target))], minor=True)
        axes.grid(which="minor", color="#e6e6e6", linewidth=0.5)
        axes.tick_params(which="minor", length=0)
    return figure


def draw_over(attention: AttentionMap, picture: str | Path, path: str | Path) -> Path:
    """Draws the weights of each word over the picture, and returns the path; see `_over_picture`."""
    check_drawing(path)
    return save(_over_picture(labelled(attention), picture), path)


def _over_picture(attention: AttentionMap, picture: str | Path) -> Any:
    """Returns a figure with the weights of each word over the picture (Xu et al. 2015, fig. 2).

    Regions with little weight are veiled, smoothly in the upper row and cell by cell in the lower. Each map is scaled to its
    largest weight, which is printed below it. A video is drawn as a strip of frames for each word.
    """
    if len(attention.axes) == 3:
        return _film(attention, Path(picture))
    from matplotlib.figure import Figure

    maps_TRC, image = attention.maps_TRC, open_picture(Path(picture))
    rows, columns = attention.axes
    across = min(6, len(attention.target))
    bands = math.ceil(len(attention.target) / across)
    shape = min(max(image.height / image.width, 0.2), 3)
    wide = 7.5 if across < 3 else 12.0
    figure = Figure(figsize=(wide, bands * 2 * (wide / across * shape + 0.32)), layout="constrained")
    font = _font([attention], 11)
    for number, word in enumerate(attention.target):
        largest = max(float(np.abs(maps_TRC[number]).max()), 1e-9)
        veil = _veil(maps_TRC[number], largest)
        for below in (0, 1):
            index = (2 * (number // across) + below) * across + number % across + 1
            axes = figure.add_subplot(2 * bands, across, index)
            axes.imshow(image, extent=(0, columns, rows, 0), cmap="gray", vmin=0, vmax=255, aspect="auto")
            axes.imshow(veil, extent=(0, columns, rows, 0), interpolation="nearest" if below else "bilinear", aspect="auto")
            axes.set_box_aspect(shape)
            axes.set_xticks([])
            axes.set_yticks([])
            axes.spines[:].set_visible(False)
            if below:
                axes.set_xlabel(f"{largest:.2f}", fontsize=8, color="#66727f", labelpad=2)
            else:
                axes.set_title(word, pad=3, **font)
    return figure


def _veil(weights_RC: Array, largest: float) -> list[list[tuple[float, ...]]]:
    """Returns the colour of each cell: grey where the weight is small, transparent where it is the largest."""
    return [[(0.41, 0.47, 0.54, 0.82 * (1 - min(1.0, abs(weight) / largest))) for weight in row] for row in weights_RC.tolist()]


def _film(attention: AttentionMap, video: Path) -> Any:
    """Returns a figure with a strip of frames for each word. Weights are veiled as over a picture, and scaled to the largest of
    the strip. The number below a frame, and the bar, are its share of the weight."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    maps_TFRC = attention.maps_TFRC
    number, rows, columns = attention.axes
    frames = read_frames(video, number, lambda frame: frame.copy())
    indices = spaced(num_frames(video), number)
    across = min(number, MOST_ACROSS)
    bands = math.ceil(number / across)
    shape = min(max(frames[0].height / frames[0].width, 0.2), 3)
    cell = min(1.1, 16 / across)  # inches
    high = cell * shape + 0.26
    narrow = ConstrainedLayoutEngine(w_pad=0.02, h_pad=0.01, wspace=0.0, hspace=0.02)
    figure = Figure(figsize=(1.3 + across * cell, 0.3 + len(attention.target) * bands * high), layout=narrow)
    font = _font([attention], 11)
    grid = figure.add_gridspec(len(attention.target) * bands, across)
    for row, (word, maps_FRC) in enumerate(zip(attention.target, maps_TFRC, strict=True)):
        largest = max(float(np.abs(maps_FRC).max()), 1e-9)
        shares_F = np.abs(maps_FRC).sum((1, 2)) / max(float(np.abs(maps_FRC).sum()), 1e-9)
        for index, frame in enumerate(frames):
            axes = figure.add_subplot(grid[row * bands + index // across, index % across])
            extent = (0, columns, rows, 0)
            axes.imshow(frame, extent=extent, cmap="gray", vmin=0, vmax=255, aspect="auto", interpolation="nearest")
            axes.imshow(_veil(maps_FRC[index], largest), extent=extent, interpolation="nearest", aspect="auto")
            axes.set_box_aspect(shape)
            axes.set_xticks([])
            axes.set_yticks([])
            axes.spines[:].set_visible(False)
            axes.set_xlabel(f"{shares_F[index]:.2f}", fontsize=8, color="#66727f", labelpad=2)
            axes.plot([0, columns * shares_F[index]], [rows, rows], color="#1f6f8b", linewidth=4, clip_on=True)
            axes.set_xlim(0, columns)
            axes.set_ylim(rows, 0)
            if row == 0:
                axes.set_title(f"frame {indices[index]}" if index == 0 else str(indices[index]), fontsize=8, color="#66727f")
            if index == 0:
                axes.set_ylabel(word, rotation=0, ha="right", va="center", **font)
    return figure


def draw_roles(found: Roles, path: Path) -> Path:
    """Draws the shares of the roles of all heads, one panel for each kind of attention, above the mean distance by layer."""
    check_drawing(path)
    from matplotlib.figure import Figure

    names, kinds = (*found.heads[0].shares, "explained"), found.kinds
    heads = {kind: [head for head in found.heads if head.kind == kind] for kind in kinds}
    high = 0.9 + 0.26 * max(map(len, heads.values()))
    figure = Figure(figsize=(5.4 * len(kinds) + 0.4, high + 2.8), layout="constrained")
    grid = figure.add_gridspec(2, len(kinds), height_ratios=(high, 2.6))
    for column, kind in enumerate(kinds):
        axes = figure.add_subplot(grid[0, column])
        shares = [[*head.shares.values(), head.explained] for head in heads[kind]]
        uniform = [[*head.uniform.values(), head.explained_uniform] for head in heads[kind]]
        axes.imshow(shares, cmap="Blues", vmin=0, vmax=1.1, aspect="auto")
        for row, (values, expected) in enumerate(zip(shares, uniform, strict=True)):
            for index, (share, chance) in enumerate(zip(values, expected, strict=True)):
                colour = "white" if share > 0.6 else "#1d2733"
                axes.text(index, row, f"{share:.2f} ({chance:.2f})", ha="center", va="center", fontsize=6, color=colour)
        axes.set_xticks(range(len(names)), names, fontsize=8, rotation=30, ha="right")
        labels = [f"layer {head.layer} head {head.head}: {head.role}" for head in heads[kind]]
        axes.set_yticks(range(len(labels)), labels, fontsize=8)
        axes.tick_params(length=0)
        axes.set_title(f"{kind}: share of the weight (uniform attention)", fontsize=9)
        below = figure.add_subplot(grid[1, column])
        layers = sorted({head.layer for head in heads[kind]})
        of_uniform = [next(head.distance_uniform for head in heads[kind] if head.layer == layer) for layer in layers]
        below.plot([head.layer for head in heads[kind]], [head.distance for head in heads[kind]], "o", color="C0", alpha=0.35)
        below.plot(layers, found.distances(kind), "-o", color="C0", label="mean of the heads")
        below.plot(layers, of_uniform, "--", color="#66727f", label="uniform attention")
        below.set_xticks(layers)
        below.set_ylim(0, 1.1 * max(0.1, *of_uniform, *(head.distance for head in heads[kind])))
        below.set_xlabel("layer", fontsize=8)
        below.set_title("mean distance", fontsize=9)
        below.tick_params(labelsize=8)
        below.grid(color="#e6e6e6", linewidth=0.6)
        below.legend(fontsize=7, frameon=False)
    return save(figure, path)


class Curve(NamedTuple):
    """label: its name in the legend.  points: (x, y), all above 0.  colour: its number in matplotlib's cycle."""

    label: str
    points: Sequence[tuple[float, float]]
    colour: int = 0
    dashed: bool = False


class Panel(NamedTuple):
    """Curves over one pair of logarithmic axes. marks: (x, y, label) of points to point out."""

    title: str
    unit: str
    curves: Sequence[Curve]
    marks: Sequence[tuple[float, float, str]] = ()


def draw_curves(panels: Sequence[Panel], path: str | Path, *, across: str) -> Path:
    """Draws curves on logarithmic axes, on which powers are straight lines, and returns the path.

    path: a .png, .svg or .pdf file. across: what the horizontal axis shows. Raises UserError as `draw` does.
    """
    check_drawing(path)
    from matplotlib.figure import Figure

    columns = min(2, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(5.6 * columns, 4.2 * rows), layout="constrained")
    for number, panel in enumerate(panels):
        axes = figure.add_subplot(rows, columns, number + 1)
        axes.set(xscale="log", yscale="log", title=panel.title, xlabel=across, ylabel=panel.unit)
        for curve in panel.curves:
            xs, ys = zip(*curve.points, strict=True) if curve.points else ((), ())
            style = "--" if curve.dashed else "-"
            axes.plot(xs, ys, style, marker="o", markersize=3, color=f"C{curve.colour}", label=curve.label, linewidth=1.4)
        for x, y, words in panel.marks:
            axes.plot([x], [y], "o", markersize=9, markerfacecolor="none", color="#1d2733")
            behind = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.0}
            axes.annotate(words, (x, y), xytext=(8, -14), textcoords="offset points", fontsize=9, parse_math=False, bbox=behind)
        positions = sorted({x for curve in panel.curves for x, _ in curve.points})
        if _are_apart(positions):
            axes.set_xticks(positions, [f"{x:,.0f}" if x == round(x) else f"{x:g}" for x in positions])
            axes.set_xticks([], minor=True)
        axes.grid(which="major", color="#e6e6e6", linewidth=0.6)
        axes.legend(fontsize=8, frameon=False)
    return save(figure, path)


def _are_apart(positions: Sequence[float]) -> bool:
    """Whether there is room for a label at each position of a logarithmic axis."""
    whole = math.log(positions[-1] / positions[0]) if positions else 0.0
    return whole > 0 and all(math.log(after / before) >= LEAST_APART * whole for before, after in pairwise(positions))


def _over_time(maps: Sequence[AttentionMap], over: str | Path | None) -> Any:
    """Returns a figure of maps over a sound. Time runs from left to right in all of them, so the positions of the sound are
    columns for `fusion` as well. over: the sound to draw above them."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    tables = [(map_.mean_TS.T, map_.source) if map_.kind == "fusion" else (map_.mean_TS, map_.target) for map_ in maps]
    num_rows = sum(len(names) for map_, (_, names) in zip(maps, tables, strict=True) if map_.kind != "encoder")
    cell = min(0.3, 24 / max(1, num_rows))
    above = [] if over is None else [0.7, 1.3]
    heights = [6.5 if map_.kind == "encoder" else cell * len(names) for map_, (_, names) in zip(maps, tables, strict=True)]
    heights = [*above, *heights]  # inches
    figure = Figure(figsize=(10, 0.8 + sum(heights) + 0.25 * len(heights)), layout="constrained")
    grid = figure.add_gridspec(len(heights), 2, width_ratios=(1, 0.012), height_ratios=heights)
    end = max(weights.shape[-1] * map_.seconds for map_, (weights, _) in zip(maps, tables, strict=True))
    panels = [figure.add_subplot(grid[number, 0]) for number in range(len(heights))]
    for axes in panels:
        axes.set_xlim(0, end)
        axes.xaxis.set_major_locator(MaxNLocator(12, steps=[1, 2, 2.5, 5, 10]))
        axes.tick_params(labelbottom=axes is panels[-1], labelsize=9)
    panels[-1].set_xlabel("seconds", fontsize=9)
    if over is not None:
        _draw_sound(panels, read_sound(Path(over)))
    font = _font(maps, min(10, 10 * cell / 0.2))
    for number, (map_, (weights, names)) in enumerate(zip(maps, tables, strict=True), len(above)):
        axes, size = panels[number], -(-weights.shape[-1] // MOST_COLUMNS)
        merged = merge(weights, size)
        low, high = min(0.0, merged.min().item()), max(merged.max().item(), 1e-9)
        bottom = len(names) * (map_.seconds if map_.kind == "encoder" else 1)
        extent = (0, merged.shape[-1] * size * map_.seconds, bottom, 0)
        if map_.kind == "encoder":
            axes.yaxis.set_major_locator(MaxNLocator(12, steps=[1, 2, 2.5, 5, 10]))
            axes.set_ylabel("seconds", fontsize=9)
        else:
            axes.set_yticks([index + 0.5 for index in range(len(names))], names, **font)
        image = axes.imshow(
            merged.tolist(), cmap="Blues", vmin=low, vmax=high, extent=extent, aspect="auto", interpolation="nearest"
        )
        axes.set_xlim(0, end)
        bar = figure.colorbar(image, cax=figure.add_subplot(grid[number, 1]), ticks=[low, high])
        bar.ax.set_title("weight", fontsize=9)
        bar.ax.set_yticklabels([f"{low:.2g}", f"{high:.2g}"], fontsize=9)
    return figure


def _draw_sound(panels: Sequence[Any], sound: Sound) -> None:
    """Draws the waveform in the first panel and the log-mel spectrogram in the second."""
    waves, spectrum = panels[:2]
    low, high = extremes(sound.samples_N, MOST_COLUMNS)
    times = [(index + 0.5) * sound.seconds / len(low) for index in range(len(low))]
    waves.fill_between(times, low.tolist(), high.tolist(), color="#1f6f8b", linewidth=0.5)
    waves.set_yticks([])
    coarse = sound.at(min(sound.rate, FINEST))
    logs_FS = log_mel(coarse.samples_N, coarse.rate).T
    limits = spectrum.get_xlim()
    extent = (0, logs_FS.shape[1] * HOP, 0, len(logs_FS))
    spectrum.imshow(logs_FS.tolist(), cmap="Greys", extent=extent, origin="lower", aspect="auto")
    spectrum.set_xlim(limits)
    spectrum.set_yticks([])
    spectrum.set_ylabel("low to high", fontsize=9)


def merge(weights_TS: Array, size: int) -> Array:
    """Returns the largest weight of every `size` neighbouring columns."""
    rows, columns = weights_TS.shape
    padded_TS = np.pad(weights_TS, ((0, 0), (0, -columns % size)), constant_values=-math.inf)
    merged: Array = padded_TS.reshape(rows, -1, size).max(-1)
    return merged


def labelled(attention: AttentionMap) -> AttentionMap:
    """Returns the map with readable labels on both axes. Raises UserError if it holds NaN or infinity."""
    if not np.isfinite(attention.weights_HTS).all():
        raise UserError(
            f"the {attention.kind} attention of layer {attention.layer} holds NaN or infinity, so it cannot be shown"
        )
    return replace(attention, source=tuple(map(label, attention.source)), target=tuple(map(label, attention.target)))


def _font(maps: Sequence[AttentionMap], size: float) -> dict[str, Any]:
    """Returns the font of the labels of maps."""
    return font_of((token for map_ in maps for token in (*map_.source, *map_.target)), size)


def font_of(labels: Iterable[str], size: float) -> dict[str, Any]:
    """Returns the font of labels: DejaVu Sans Mono, and for characters that it lacks any installed font that has them."""
    from matplotlib.font_manager import fontManager, get_font

    upright = [font for font in fontManager.ttflist if font.style == "normal" and not font.name.startswith("Last Resort")]
    files = {font.name: font.fname for font in sorted(upright, key=lambda font: font.weight == 400)}
    families, missing = list[str](), {char for token in labels for char in token}
    for family in sorted(files, key=lambda name: ("DejaVu Sans Mono", "DejaVu Sans", name).index(name)):
        available = {char for char in missing if get_font(files[family]).get_char_index(ord(char))}
        families += [family] if available else []
        missing -= available
        if not missing:
            break
    return {"family": families or ["DejaVu Sans Mono"], "fontsize": size, "parse_math": False}


def save(figure: Any, path: str | Path, *, tight: bool = False) -> Path:
    """Saves a picture and returns its path. It is written under a temporary name first, so that no half-written file is left
    behind. Warns if a font is missing. tight: whether the picture is as large as what it shows, so that no label is cut."""
    import matplotlib

    path = Path(path)

    with new_file(path) as fresh, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with matplotlib.rc_context({"svg.fonttype": "none"}):  # text stays text
            room = {"bbox_inches": "tight", "pad_inches": 0.1} if tight else {}
            figure.savefig(fresh, dpi=150, format=path.suffix[1:].lower(), **room)
    lacking = sorted({int(number) for warning in caught for number in re.findall(r"Glyph (\d+)", str(warning.message))})
    if lacking and path.suffix.lower() != ".svg":
        chars = " ".join(f"{chr(number)} (U+{number:04X})" for number in lacking[:10])
        more = f" and {len(lacking) - 10:,} more" if len(lacking) > 10 else ""
        warnings.warn(
            f"no installed font has {chars}{more}, so {path} shows boxes there; install one, or write an .svg, whose text any "
            "browser can show",
            stacklevel=3,
        )
    return path


def in_words(attention: AttentionMap) -> Text:
    """Describes a map over a picture: for each word, the cell with the largest weight. For a video also its frame, and the
    frame that receives most weight in total."""
    attention = labelled(attention)
    width = max(map(cell_len, attention.target)) + 1
    *frames, rows, columns = attention.axes
    grids = f"{frames[0]} frames, each with " if frames else ""
    text = Text(f"{grids}a grid of {rows} rows and {columns} columns; the cell with the largest weight, counted from 0:\n")
    for token, weights in zip(attention.target, attention.mean_TS, strict=True):
        frame, cell = divmod(int(weights.argmax()), rows * columns)
        row, column = divmod(cell, columns)
        where = f"frame {frame}, " if frames else ""
        text.append(f"{_pad(token, width)} {where}row {row}, column {column}: {weights.max().item():.2f}")
        if frames:
            totals = weights.reshape(frames[0], -1).sum(-1)
            text.append(f"; of all weight, {totals.max().item():.2f} is in frame {int(totals.argmax())}")
        text.append("\n")
    return text


def in_terminal(attention: AttentionMap, width: int = WIDEST) -> Text:
    """Draws a map in shades of grey, or as coloured cells if the terminal has colours.

    If that is too wide, as for the many positions of a sound, each position gets one cell, the largest weight is the darkest,
    and only labels that fit are shown. If even that is too wide, neighbours share a cell. Time runs from left to right, so the
    words are rows for `fusion` in a sound.
    """
    attention = labelled(attention)
    source, target = attention.source, attention.target
    if attention.seconds and attention.kind == "fusion":
        source, target = target, source
        attention = replace(attention, weights_HTS=attention.weights_HTS.swapaxes(1, 2), source=source, target=target)
    margin = max(map(cell_len, target)) + 1
    cells = [max(2, cell_len(token) + 1) for token in source]
    if margin + sum(cells) > width:
        return _in_narrow_cells(attention, margin, width - margin)
    text = Text(" " * margin + "".join(_pad(token, width) for token, width in zip(source, cells, strict=True)) + "\n")
    for token, weights in zip(target, attention.mean_TS.tolist(), strict=True):
        text.append(_pad(token, margin))
        for weight, width in zip(weights, cells, strict=True):
            shade = SHADES[max(0, min(len(SHADES) - 1, int(weight * len(SHADES))))]
            text.append(shade * (width - 1), _style(weight))
            text.append(" ")
        text.append("\n")
    return text


def _in_narrow_cells(attention: AttentionMap, margin: int, num_cells: int) -> Text:
    """Draws a map with one cell per position, or per group of neighbours, in at most `num_cells` columns."""
    wide = -(-len(attention.source) // max(1, num_cells))
    high = wide if attention.seconds and attention.kind == "encoder" else 1  # both axes are the same seconds
    source, target = attention.source[::wide], attention.target[::high]
    merged_TS = merge(merge(attention.mean_TS, wide).T, high).T
    header = ""
    for index, token in enumerate(source):
        fits = not header or (cell_len(token) < 12 and index + cell_len(token) <= num_cells)
        if cell_len(header) <= index and fits:
            header += " " * (index - cell_len(header)) + token + "  "
    text = Text(" " * margin + header.rstrip() + "\n")
    largest = max(merged_TS.max().item(), 1e-9)
    for token, weights in zip(target, merged_TS.tolist(), strict=True):
        text.append(_pad(token, margin))
        for weight in weights:
            share = weight / largest
            text.append(SHADES[max(0, min(len(SHADES) - 1, int(share * len(SHADES))))], _style(share))
        text.append("\n")
    if wide > 1:
        size = f"{wide}{f' x {high}' if high > 1 else ''}"
        text.append(f"each cell shows the largest weight of {size} positions; the darkest is {largest:.2g}\n")
    return text


RAMP = ((32, 58, 82), (31, 111, 139), (58, 147, 143), (151, 207, 162), (243, 246, 208))
"""Colours from little weight to all of it."""


def _style(weight: float) -> Style:
    """Returns a style with text and background in one colour, so that a cell looks full whatever its shade character. A weight
    near 0 has no colour."""
    if weight < 0.02:
        return Style.null()
    index = min(1.0, weight) * (len(RAMP) - 1)
    low = min(int(index), len(RAMP) - 2)
    mixed = (round(a + (b - a) * (index - low)) for a, b in zip(RAMP[low], RAMP[low + 1], strict=True))
    colour = f"rgb({','.join(map(str, mixed))})"
    return Style(color=colour, bgcolor=colour)


def _pad(token: str, width: int) -> str:
    return token + " " * (width - cell_len(token))
