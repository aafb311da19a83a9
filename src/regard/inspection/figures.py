"""Figures of a reader's own numbers: maps, lines, arcs, bars, arrows and curves. `regard.draw` (drawing.py) checks the numbers
and calls these functions; each returns a matplotlib figure.

Blue means more, or above zero; red means below zero. People who are colour-blind can distinguish both scales. What tests
and scripts may look for in an SVG has an id: cells-0 (the cells of panel 0), line-0-1-2 (panel, row, column), arc-0-1-2,
bar-0-1 (panel, column), key-0-1, query-0, curve-0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.cells import cell_len

from regard.contracts import Array
from regard.inspection.render import font_of

# P panels  R rows  C columns

BLUE, RED, GREY, INK = "#2166ac", "#b2182b", "#8a939c", "#1d2733"
HIDDEN = "#dcdfe3"
"""The colour of cells that may not be attended to."""
CURVES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
"""Colours that people who are colour-blind can tell apart (Okabe & Ito 2008), the darkest first."""
MOST_CELLS = 2500
"""Cells of a map that are drawn one by one; larger maps are drawn as an image."""
LETTER = 10 / 72 * 0.62
"""Width of a character of 10 points, in inches."""
THICKEST = 8.0
"""Width of the line of the largest weight, in points."""
FAINTEST = 0.01
"""Lines below this share of the largest weight are left out: they would be thinner than a pixel."""


@dataclass(frozen=True)
class Panels:
    """Matrices of one shape, drawn next to each other.

    values_PRC: their numbers; −∞ where a query may not attend.
    rows, columns: labels of the axes; empty for none.  titles: one per panel; empty for none.
    scale: the values of the lightest and the darkest colour.  diverging: whether colours diverge from 0.
    numbers: whether the cells show their numbers.  is_mask: whether all values are 0 (False) or 1 (True).
    x, y: what the axes show.  title: of the whole figure.
    """

    values_PRC: Array
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    titles: tuple[str, ...] = ()
    scale: tuple[float, float] = (0.0, 1.0)
    diverging: bool = False
    numbers: bool = False
    is_mask: bool = False
    x: str = ""
    y: str = ""
    title: str = ""

    @property
    def largest(self) -> float:
        """The largest absolute value that is finite; 1 if all are 0."""
        return float(np.abs(self.values_PRC[np.isfinite(self.values_PRC)]).max(initial=0.0)) or 1.0

    def labels(self) -> tuple[str, ...]:
        """Returns all labels, for the choice of a font."""
        return (*self.rows, *self.columns, *self.titles, self.x, self.y, self.title)


def map_figure(panels: Panels) -> Any:
    """Draws each matrix as a map of coloured cells, with one scale for all."""
    from matplotlib.colors import ListedColormap

    _, high, wide = panels.values_PRC.shape
    across = min(4 if wide <= 12 else 3, len(panels.values_PRC))
    down = math.ceil(len(panels.values_PRC) / across)
    cell = min(0.46 if panels.numbers else 0.32, 24 / max(wide * across, high * down))  # inches
    if not panels.rows and not panels.columns:
        cell = min(cell, 4.5 / max(wide, high))
    longest = max(map(cell_len, panels.columns), default=0)
    if wide * across <= 12 and longest <= 8:  # there is room for words that need not be turned
        cell = max(cell, LETTER * longest / 0.94)
    letter = min(1.0, cell / 0.32) * LETTER
    upright = longest * letter < cell * 0.95
    margin = 0.5 + letter * max(map(cell_len, panels.rows), default=2)
    above = 0.5 + (0.15 if upright else letter * longest) + 0.25 * bool(panels.titles)
    bar = 0.0 if panels.is_mask else 0.9
    smallest = max(1.2, 0.09 * cell_len(panels.title) / across)
    size = across * max(smallest, margin + cell * wide) + bar, down * max(1.2, above + cell * high) + 0.3 * bool(panels.title)
    figure = _figure(size, panels)
    font = font_of(panels.labels(), min(10.0, 10 * cell / 0.32))
    colours = _colours("RdBu" if panels.diverging else "Blues")
    if panels.is_mask:
        colours = ListedColormap(["#f7f7f7", BLUE])
    colours = colours.with_extremes(bad=HIDDEN)
    drawn = [
        _map(axes, number, panels, colours, font, upright, cell) for number, axes in _axes(figure, panels, down, across, font)
    ]
    if not panels.is_mask:
        low, high_value = panels.scale
        shown = figure.colorbar(drawn[0], ax=figure.axes, shrink=min(1.0, 2.5 / size[1]), aspect=14, pad=0.03)
        shown.outline.set_visible(False)
        shown.ax.tick_params(labelsize=8, length=0)
        if low == high_value:
            shown.set_ticks([low])
    return figure


def _map(
    axes: Any, number: int, panels: Panels, colours: Any, font: dict[str, Any], upright: bool, cell: float
) -> Any:  # the mesh or image
    values_RC = np.ma.masked_invalid(panels.values_PRC[number])
    high, wide = values_RC.shape
    low, most = panels.scale
    limits = {"vmin": low, "vmax": most if most > low else low + 1.0}
    if panels.values_PRC.size <= MOST_CELLS:
        edges = (np.arange(wide + 1) - 0.5, np.arange(high + 1) - 0.5)
        mesh = axes.pcolormesh(*edges, values_RC, cmap=colours, edgecolors="#e6e6e6", linewidth=0.5, **limits)
    else:
        mesh = axes.imshow(values_RC, cmap=colours, interpolation="nearest", **limits)
    mesh.set_gid(f"cells-{number}")
    axes.set(xlim=(-0.5, wide - 0.5), ylim=(high - 0.5, -0.5))
    axes.set_aspect("equal")
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.tick_params(length=0, labelsize=8)
    axes.spines[:].set_visible(False)
    _ticks(axes.xaxis, panels.columns, wide, cell, font | {"rotation": 0 if upright else 90})
    _ticks(axes.yaxis, panels.rows, high, cell, font)
    if panels.numbers:
        _write_numbers(axes, values_RC, mesh, panels, cell)
    return mesh


def _ticks(axis: Any, labels: Sequence[str], number: int, cell: float, font: dict[str, Any]) -> None:
    """Labels every position, or without labels as many positions by their index as there is room for. cell: its size in
    inches."""
    from matplotlib.ticker import MaxNLocator

    if labels:
        axis.set_ticks(range(number), labels, **font)
        return
    room = max(1, min(10, int(number * cell / 0.2)))
    if number <= room:
        axis.set_ticks(range(number))
    elif room < 3:
        axis.set_ticks([0])
    else:
        axis.set_major_locator(MaxNLocator(room, integer=True))


def _write_numbers(axes: Any, values_RC: Any, mesh: Any, panels: Panels, cell: float) -> None:
    """Writes the number of each cell in black or white, whichever is easier to read."""
    finite = panels.values_PRC[np.isfinite(panels.values_PRC)]
    write = number_format(finite)
    longest = max((len(write(value)) for value in finite), default=1)
    size = min(8.0, 72 * cell * 0.9 / (0.62 * longest))
    for row, column in np.ndindex(values_RC.shape):
        if values_RC.mask is not np.ma.nomask and values_RC.mask[row, column]:
            axes.text(column, row, "−∞", ha="center", va="center", fontsize=size, color=GREY)
            continue
        value = float(values_RC[row, column])
        axes.text(column, row, write(value), ha="center", va="center", fontsize=size, color=_ink(mesh, value))


def _ink(mesh: Any, value: float) -> str:
    """Returns the colour in which a number is easy to read on the cell of its value."""
    red, green, blue, _ = mesh.cmap(mesh.norm(value))
    return "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 0.55 else INK


STYLES = ((0.001, ".1e"), (0.01, ".4f"), (0.1, ".3f"), (10, ".2f"), (100, ".1f"))
"""(limit, format) of numbers that are smaller."""


def number_format(values: Array) -> Any:
    """Returns a function that writes numbers like these: whole ones without decimals, others with two decimals or three digits,
    and if all are below 0.1, with two digits of the largest. What is rounded to 0 has no sign."""
    largest = float(np.abs(values).max(initial=0.0))
    whole = np.all(values == np.round(values))
    style = ".0f" if whole else next((style for limit, style in STYLES if largest < limit), ".0f")

    def write(value: float) -> str:
        text = format(value, style)
        return text.replace("-", "−") if float(text) else format(0.0, style)

    return write


def lines_figure(panels: Panels) -> Any:
    """Draws the rows above, the columns below, and a line for each weight, whose thickness is the weight."""
    _, high, wide = panels.values_PRC.shape
    rows, columns = panels.rows or tuple(map(str, range(high))), panels.columns or tuple(map(str, range(wide)))
    (tops, above), (bottoms, below) = _spread(rows), _spread(columns)
    total = max(above, below)
    across = max(1, min(3, len(panels.values_PRC), int(15 / total)))
    figure, grid = _grid(panels, (total + 0.3, 2.4), across)
    font = font_of((*rows, *columns, *panels.labels()), 10)
    for number, axes in _axes(figure, panels, *grid, font):
        axes.set(xlim=(0, total), ylim=(-0.24, 1.24))
        axes.axis("off")
        top_x, bottom_x = (np.asarray(middles) + (total - length) / 2 for middles, length in ((tops, above), (bottoms, below)))
        for row, column, weight in _strong(panels, number):
            width, colour = THICKEST * abs(weight) / panels.largest, BLUE if weight > 0 else RED
            (line,) = axes.plot([top_x[row], bottom_x[column]], [1, 0], color=colour, linewidth=width, alpha=0.75)
            line.set(solid_capstyle="butt", gid=f"line-{number}-{row}-{column}")
        for middles, words, y, side in ((top_x, rows, 1.06, "bottom"), (bottom_x, columns, -0.06, "top")):
            for middle, word in zip(middles, words, strict=True):
                axes.text(middle, y, word, ha="center", va=side, color=INK, **font)
    return figure


def _spread(words: Sequence[str], size: float = 10) -> tuple[list[float], float]:
    """Returns the middle of each word on a line on which no two overlap, and the length of the line, in inches."""
    lengths = [max(0.45, (cell_len(word) + 1.5) * LETTER * size / 10) for word in words]
    ends = np.cumsum(lengths)
    return [float(end - length / 2) for end, length in zip(ends, lengths, strict=True)], float(ends[-1])


def _strong(panels: Panels, number: int) -> Iterator[tuple[int, int, float]]:
    """Yields (row, column, weight) of all weights that are drawn as lines, the weakest first."""
    values_RC = panels.values_PRC[number]
    for index in np.argsort(np.abs(values_RC), axis=None, kind="stable"):
        row, column = divmod(int(index), values_RC.shape[1])
        weight = float(values_RC[row, column])
        if math.isfinite(weight) and abs(weight) >= FAINTEST * panels.largest:
            yield row, column, weight


def arcs_figure(panels: Panels, *, directed: bool) -> Any:
    """Draws the words of one sentence and an arc for each weight, whose thickness is the weight.

    directed: True draws all arcs above, with an arrowhead at the column. False draws arcs to the left above the words, and arcs
    to the right below, so that the weights of both directions can be distinguished.
    """
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path

    words = panels.columns or panels.rows or tuple(map(str, range(panels.values_PRC.shape[-1])))
    middles, total = _spread(words, 11)
    strong = [list(_strong(panels, number)) for number in range(len(panels.values_PRC))]
    levels = [_levels([(row, column) for row, column, _ in links]) for links in strong]
    is_below = [[not directed and column > row for row, column, _ in links] for links in strong]
    up = max(
        [
            0.3,
            *(
                0.32 * level[row, column] + 0.25
                for links, level, under in zip(strong, levels, is_below, strict=True)
                for (row, column, _), low in zip(links, under, strict=True)
                if not low
            ),
        ]
    )
    deep = max(
        [
            0.0,
            *(
                0.32 * level[row, column] + 0.25
                for links, level, under in zip(strong, levels, is_below, strict=True)
                for (row, column, _), low in zip(links, under, strict=True)
                if low
            ),
        ]
    )
    across = max(1, min(2, len(panels.values_PRC), int(15 / total)))
    figure, grid = _grid(panels, (total + 0.3, up + deep + 0.6), across)
    font = font_of((*words, *panels.labels()), 11)
    for number, axes in _axes(figure, panels, *grid, font):
        axes.set(xlim=(0, total), ylim=(-0.25 - deep, 0.15 + up))
        axes.axis("off")
        for (row, column, weight), under in zip(strong[number], is_below[number], strict=True):
            start, end = middles[row], middles[column]
            base, height = (-0.13, -0.32) if under else (0.13, 0.32)
            top = base + height * levels[number][row, column] * 4 / 3  # a Bézier curve reaches 3/4 of its handles
            if row == column:
                start, end = start - 0.12, end + 0.12
            elif directed:  # arrows that leave and arrows that arrive do not touch
                start, end = start + math.copysign(0.05, end - start), end - math.copysign(0.05, end - start)
            curve = Path([(start, base), (start, top), (end, top), (end, base)], [1, 4, 4, 4])
            width = (3.0 if directed else THICKEST) * abs(weight) / panels.largest
            style = "-|>,head_length=5,head_width=2.5" if directed else "-"
            colour = BLUE if weight > 0 else RED
            arc = FancyArrowPatch(path=curve, arrowstyle=style, linewidth=width, color=colour, fill=directed)
            arc.set(
                facecolor=colour if directed else "none", alpha=None if directed else 0.75, gid=f"arc-{number}-{row}-{column}"
            )
            arc.set_capstyle("butt")
            axes.add_patch(arc)
        for middle, word in zip(middles, words, strict=True):
            axes.text(middle, 0, word, ha="center", va="center", color=INK, **font)
    return figure


def _levels(links: Sequence[tuple[int, int]]) -> dict[tuple[int, int], float]:
    """Returns the height of each arc: one more than the highest arc that it spans."""
    levels: dict[tuple[int, int], float] = {}
    for row, column in sorted(links, key=lambda link: abs(link[0] - link[1])):
        low, high = min(row, column), max(row, column)
        within = [
            level for (a, b), level in levels.items() if low <= min(a, b) and max(a, b) <= high and {a, b} != {row, column}
        ]
        levels[row, column] = max(within, default=0.0) + (1.0 if row != column else 0.6)
    return levels


def bars_figure(panels: Panels) -> Any:
    """Draws each row of the first matrix as bars over the columns."""
    values_RC = panels.values_PRC[0]
    words = panels.columns or tuple(map(str, range(values_RC.shape[1])))
    shown = Panels(values_RC[:, None], titles=panels.rows, x=panels.x, y=panels.y, title=panels.title)
    longest = LETTER * max(map(cell_len, words))
    slot = max(0.5, min(1.0, longest / 0.94)) if len(words) <= 12 else 0.34
    upright = longest < slot * 0.95
    width = max(2.2, len(words) * slot + 0.7)
    across = max(1, min(4, len(values_RC), int(15 / width)))
    below = 0.3 if upright else longest
    figure, grid = _grid(shown, (width, 1.7 + below + 0.25 * bool(panels.rows)), across)
    font = font_of((*words, *panels.labels()), 10)
    write = number_format(values_RC)
    low, high = min(0.0, float(values_RC.min())), max(0.0, float(values_RC.max()))
    low, high = panels.scale if panels.scale[0] < panels.scale[1] else (low, high)
    room = 0.12 * ((high - low) or 1.0)
    for number, axes in _axes(figure, shown, *grid, font):
        bars = axes.bar(range(len(words)), values_RC[number], 0.72, color=[BLUE if v >= 0 else RED for v in values_RC[number]])
        for column, bar in enumerate(bars):
            bar.set_gid(f"bar-{number}-{column}")
        if len(words) <= 12:
            for column, value in enumerate(values_RC[number].tolist()):
                side = {"va": "bottom", "xytext": (0, 1)} if value >= 0 else {"va": "top", "xytext": (0, -1)}
                axes.annotate(write(value), (column, value), textcoords="offset points", ha="center", fontsize=8, **side)
        axes.axhline(0, color=INK, linewidth=0.8)
        axes.set(ylim=(low - room * (low < 0), high + room), xlim=(-0.6, len(words) - 0.4))
        axes.set_xticks(range(len(words)), words, rotation=0 if upright else 90, **font)
        axes.tick_params(length=0)
        axes.tick_params(axis="y", labelsize=8)
        axes.spines[["top", "right", "bottom"]].set_visible(False)
    return figure


def arrows_figure(queries_N2: Array, keys_N2: Array, panels: Panels) -> Any:
    """Draws keys as arrows in the plane, one panel per query: blue if q·k > 0, red if q·k < 0, grey at right angles.

    A dashed line separates the keys that the query attracts from those that it repels. panels: the scores q·k, (1, queries,
    keys), and labels.
    """
    reach = 1.7 * max(float(np.abs(keys_N2).max(initial=0.0)), float(np.abs(queries_N2).max(initial=0.0)), 1e-9)
    names = panels.rows or (("q",) if len(queries_N2) == 1 else tuple(f"q{n}" for n in range(1, len(queries_N2) + 1)))
    words = panels.columns or tuple(f"k{n}" for n in range(1, len(keys_N2) + 1))
    shown = Panels(panels.values_PRC[0][:, None], titles=panels.titles, x=panels.x, y=panels.y, title=panels.title)
    across = min(3, len(queries_N2))
    figure, grid = _grid(shown, (4.2, 4.2), across)
    font = font_of((*names, *words, *panels.labels()), 10)
    write = number_format(panels.values_PRC)
    for number, axes in _axes(figure, shown, *grid, font):
        axes.set(xlim=(-reach, reach), ylim=(-reach, reach))
        axes.set_aspect("equal")
        axes.axhline(0, color="#d5d9dd", linewidth=0.8, zorder=0)
        axes.axvline(0, color="#d5d9dd", linewidth=0.8, zorder=0)
        axes.tick_params(labelsize=8, length=2, color=GREY)
        axes.spines[:].set_visible(False)
        query = queries_N2[number]
        if query.any():
            axes.axline((0, 0), (-query[1], query[0]), color=GREY, linewidth=0.8, linestyle=(0, (4, 4)), zorder=1)
        written = [(share * x, share * y, 0.03 * reach) for x, y in (query, *keys_N2) for share in (0.6, 0.8, 1.0)]
        _write_at_tip(axes, query, names[number], INK, reach, written, font | {"weight": "bold"})
        for column, key in enumerate(keys_N2):
            score = float(panels.values_PRC[0, number, column])
            colour = BLUE if score > 0 else RED if score < 0 else GREY
            _arrow(axes, key, colour, 1.6, f"key-{number}-{column}")
            text = f"{words[column]}  {write(score)}" if len(keys_N2) <= 16 else words[column]
            _write_at_tip(axes, key, text, colour, reach, written, font)
        _arrow(axes, query, INK, 3.0, f"query-{number}")
    return figure


def _arrow(axes: Any, tip: Array, colour: str, width: float, gid: str) -> None:
    from matplotlib.patches import FancyArrowPatch

    if not tip.any():
        (dot,) = axes.plot([0], [0], "o", color=colour, markersize=2 * width)
        dot.set_gid(gid)
        return
    arrow = FancyArrowPatch((0, 0), tuple(tip), arrowstyle="-|>,head_length=7,head_width=3.5", shrinkA=0, shrinkB=0)
    arrow.set(color=colour, linewidth=width, gid=gid)
    axes.add_patch(arrow)


def _write_at_tip(
    axes: Any, tip: Array, text: str, colour: str, reach: float, written: list[tuple[float, float, float]], font: dict[str, Any]
) -> None:
    """Writes a label beyond the tip of an arrow, moved up or down until it covers no other and no arrow, and inside the panel,
    because the numbers of the axes are outside. A label that had to move far is connected with its tip.

    written: (x, y, width) of what must not be covered.
    """
    wide, high = 2 * reach * 0.024 * cell_len(text), 2 * reach * 0.052  # a label of 10 points in a panel of 3.6 inches
    length = float(np.hypot(*tip)) or 1.0
    direction = tip / length
    x = float(tip[0] + direction[0] * (0.03 * reach + wide / 2))
    y = float(tip[1] + direction[1] * 0.09 * reach)
    inside = max(reach - wide / 2, 0.0)
    step = high if direction[1] >= 0 else -high
    if abs(x) > inside and abs(y - tip[1]) < high:  # it would cover the tip
        y = float(tip[1]) + step
    x = min(max(x, -inside), inside)
    while any(abs(x - other) < (wide + width) / 2 and abs(y - height) < high for other, height, width in written):
        y += step / 4
    written.append((x, y, wide))
    if abs(y - tip[1]) > 1.5 * high:
        axes.plot([tip[0], x], [tip[1], y], color=colour, linewidth=0.5, alpha=0.6, zorder=0.5)
    paper = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.5}
    axes.text(x, y, text, ha="center", va="center", color=colour, bbox=paper, **font)


@dataclass(frozen=True)
class Curve:
    """One curve: its name in the legend, or "", and its points."""

    name: str
    xs: Array
    ys: Array


def curves_figure(curves: Sequence[Curve], panels: Panels, *, log_x: bool, log_y: bool) -> Any:
    """Draws curves over one pair of axes. panels: `rows` label the points of the horizontal axis, `scale` limits the vertical
    one unless both its values are equal.

    Up to seven curves have a legend; more are coloured in their order, from dark to light, with the first and the last named.
    """
    longest = LETTER * max(map(cell_len, panels.rows), default=0)
    upright = longest * len(panels.rows) < 6
    figure = _figure((7.0, 3.6 + (0 if upright else longest)), panels)
    axes = figure.add_subplot()
    font = font_of((*panels.labels(), *(curve.name for curve in curves)), 10)
    many = len(curves) > len(CURVES)
    shades = _colours("viridis")
    for number, curve in enumerate(curves):
        colour = shades(0.9 * number / (len(curves) - 1)) if many else CURVES[number]
        style = ("-", "--", "-.", ":")[0 if many else number % 4]
        marker = "o" if len(curve.xs) <= 25 else None
        name = curve.name if not many or number in (0, len(curves) - 1) else ""
        (line,) = axes.plot(curve.xs, curve.ys, style, color=colour, linewidth=1.6, marker=marker, markersize=3.5)
        line.set(gid=f"curve-{number}", label=name or "_")
    axes.set(xscale="log" if log_x else "linear", yscale="log" if log_y else "linear")
    if panels.scale[0] < panels.scale[1]:
        axes.set_ylim(*panels.scale)
    if panels.rows:
        axes.set_xticks(range(len(panels.rows)), panels.rows, rotation=0 if upright else 90, **font)
    elif log_x and len(points := np.unique(np.concatenate([curve.xs for curve in curves]))) <= 12:
        axes.set_xticks(points, [f"{point:g}" for point in points])
        axes.set_xticks([], minor=True)
    axes.grid(color="#e6e6e6", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel(panels.x, **font)
    axes.set_ylabel(panels.y, **font)
    if any(curve.name for curve in curves):
        family = {"family": font["family"], "size": 9}
        legend = axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, prop=family)
        for text in legend.get_texts():
            text.set_parse_math(False)
    return figure


def intervals_figure(values_R3: Array, panels: Panels) -> Any:
    """Draws a value with its interval for each row, next to a map of the same rows.

    values_R3: low end, value and high end of each row.  panels: one matrix; `scale` is that of the values, too; `x` says what
    the columns are, `y` what the values are.
    """
    values_RC = panels.values_PRC[0]
    high, wide = values_RC.shape
    longest = max(map(cell_len, panels.columns), default=1)
    cell = max(0.55, LETTER * (longest + 1))
    names = LETTER * max(map(cell_len, panels.rows), default=1)
    figure = _figure((max(names + 3.4 + cell * wide + 0.4, 0.092 * cell_len(panels.title)), 1.0 + 0.27 * high), panels)
    font = font_of(panels.labels(), 9)
    left, right = figure.subplots(1, 2, width_ratios=(3.0, cell * wide), sharey=True)
    low, value, top = values_R3.T
    left.hlines(range(high), low, top, color=BLUE, linewidth=1.6, gid="intervals")
    left.plot(value, range(high), "o", color=BLUE, markersize=4.5, clip_on=False, gid="values")
    left.set(xlim=panels.scale, ylim=(high - 0.5, -0.5))
    left.set_yticks(range(high), panels.rows, **font)
    left.set_xlabel(panels.y, **font)
    left.grid(color="#e6e6e6", linewidth=0.6)
    left.set_axisbelow(True)
    left.spines[["top", "right", "left"]].set_visible(False)
    limits = {"vmin": panels.scale[0], "vmax": panels.scale[1]}
    edges = np.arange(wide + 1) - 0.5, np.arange(high + 1) - 0.5
    mesh = right.pcolormesh(*edges, values_RC, cmap=_colours("Blues"), edgecolors="white", linewidth=1.0, **limits)
    mesh.set_gid("cells-0")
    right.set_xlim(-0.5, wide - 0.5)
    for row, column in np.ndindex(high, wide):
        value = float(values_RC[row, column])
        right.text(column, row, f"{value:.0f}", ha="center", va="center", fontsize=8, color=_ink(mesh, value))
    right.set_xticks(range(wide), panels.columns, **font)
    right.set_xlabel(panels.x, **font)
    right.spines[:].set_visible(False)
    for axes in (left, right):
        axes.tick_params(length=0, labelsize=8)
    return figure


def _colours(name: str) -> Any:
    import matplotlib

    return matplotlib.colormaps[name]


def _figure(size: tuple[float, float], panels: Panels) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    if panels.title:
        font = font_of([panels.title], 11)
        figure.suptitle(panels.title, fontsize=11, fontfamily=font["family"], parse_math=False)
    return figure


def _grid(panels: Panels, size: tuple[float, float], across: int) -> tuple[Any, tuple[int, int]]:
    """Returns a figure for panels of this size in inches, and how many of them are below and next to each other."""
    down = math.ceil(len(panels.values_PRC) / across)
    named = 0.3 * bool(panels.titles)
    wide = max(across * size[0], 0.09 * cell_len(panels.title))
    return _figure((wide, down * (size[1] + named) + 0.3 * bool(panels.title)), panels), (down, across)


def _axes(figure: Any, panels: Panels, down: int, across: int, font: dict[str, Any]) -> Iterator[tuple[int, Any]]:
    """Yields the number and the axes of each panel, with its title and the names of its axes."""
    for number in range(len(panels.values_PRC)):
        axes = figure.add_subplot(down, across, number + 1)
        if panels.titles:
            axes.set_title(panels.titles[number], **(font | {"fontsize": 10}))
        axes.set_xlabel(panels.x, **(font | {"fontsize": 9}))
        axes.set_ylabel(panels.y, **(font | {"fontsize": 9}))
        yield number, axes
