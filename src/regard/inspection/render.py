"""Attention as pictures: a PNG (or SVG, PDF: by the ending), or shades in the terminal. The only home of matplotlib."""

from __future__ import annotations

import importlib.util
import math
import re
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from rich.cells import cell_len
from rich.style import Style
from rich.text import Text
from torch import Tensor

from regard.checkpoint.files import new_file
from regard.contracts import AttentionMap
from regard.core.spectrum import HOP, extremes, log_mel
from regard.data.labels import label
from regard.data.pictures import open_picture
from regard.data.sound import Sound, read_sound
from regard.errors import UserError

ENDINGS = (".png", ".svg", ".pdf")
SHADES = " ░▒▓█"
WIDEST = 120
"""Cells of a terminal."""
MOST_COLUMNS = 1000
"""Of a picture over time; what is finer than its pixels would be lost."""
FINEST = 16_000
"""Samples in a second; what is heard lies in the lower half."""


def can_draw() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def check_drawing(path: str | Path) -> None:
    """Raises if a picture cannot be drawn there, before any work is done for it."""
    if not can_draw():
        raise UserError('drawing pictures needs matplotlib; type: pip install "regard[plot]"')
    if Path(path).suffix.lower() not in ENDINGS:
        raise UserError(f"{path}: the ending says what to draw; expected one of {', '.join(ENDINGS)}")


def draw(maps: AttentionMap | Sequence[AttentionMap], path: str | Path, *, over: str | Path | None = None) -> Path:
    """Draws the average over the heads of each map, side by side. Rows are target tokens, columns source tokens.

    Maps over a sound stand one above the other, on one axis of seconds; each is scaled to its largest weight.
    over: the picture that one map belongs to; then every word's part of it is drawn over that. Or the sound that they belong
    to, whose waveform and spectrogram then stand above."""
    check_drawing(path)
    maps = list(maps) if isinstance(maps, Sequence) else [maps]
    if not maps:
        raise ValueError("there is no map to draw; expected one or more")
    for one in maps:
        if not isinstance(one, AttentionMap):
            what = f"a {type(one).__name__}"
            raise TypeError(f"draw takes attention maps, but got {what}; of a result they are result.attention()")
    maps = [labelled(one) for one in maps]
    if all(one.seconds for one in maps):
        return _draw_over_time(maps, Path(path), over)
    if over is not None:
        if len(maps) > 1:
            raise ValueError("one map is drawn over a picture; got several")
        return draw_over(maps[0], over, path)
    from matplotlib.figure import Figure

    path = Path(path)
    columns = min(3, len(maps))
    rows = math.ceil(len(maps) / columns)
    wide, high = max(len(one.source) for one in maps), max(len(one.target) for one in maps)
    cell = min(0.32, 24 / max(wide * columns, high * rows))  # inches; a long text gets small cells, not a huge picture
    figure = Figure(figsize=(columns * (1.2 + cell * wide), rows * (1.2 + cell * high)), layout="constrained")
    font = _font(maps, 10 * cell / 0.32)
    for index, one in enumerate(maps):
        axes = figure.add_subplot(rows, columns, index + 1)
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
    _save(figure, path)
    return path


def draw_over(one: AttentionMap, picture: str | Path, path: str | Path) -> Path:
    """Draws where the model looked for every word over the picture (Xu et al. 2015, fig. 2): what was not looked at is veiled,
    smoothly above and by cells below. Each map is scaled to its largest weight, which stands under it."""
    check_drawing(path)
    from matplotlib.figure import Figure

    one = labelled(one)
    maps_TRC, path, image = one.maps_TRC, Path(path), open_picture(Path(picture))
    rows, columns = one.axes
    across = min(6, len(one.target))
    bands = math.ceil(len(one.target) / across)
    shape = min(max(image.height / image.width, 0.2), 3)
    wide = 7.5 if across < 3 else 12.0
    figure = Figure(figsize=(wide, bands * 2 * (wide / across * shape + 0.32)), layout="constrained")
    font = _font([one], 11)
    for number, word in enumerate(one.target):
        largest = max(maps_TRC[number].abs().max().item(), 1e-9)
        veil = [[(0.41, 0.47, 0.54, 0.82 * (1 - min(1.0, abs(w) / largest))) for w in row] for row in maps_TRC[number].tolist()]
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
    _save(figure, path)
    return path


def _draw_over_time(maps: Sequence[AttentionMap], path: Path, over: str | Path | None) -> Path:
    """Time runs from left to right in all of them, so that of `fusion` the places of the sound are columns too."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    tables = [(one.mean_TS.T, one.source) if one.kind == "fusion" else (one.mean_TS, one.target) for one in maps]
    cell = min(0.3, 24 / max(1, sum(len(names) for one, (_, names) in zip(maps, tables, strict=True) if one.kind != "encoder")))
    above = [] if over is None else [0.7, 1.3]
    heights = [6.5 if one.kind == "encoder" else cell * len(names) for one, (_, names) in zip(maps, tables, strict=True)]
    heights = [*above, *heights]  # inches
    figure = Figure(figsize=(10, 0.8 + sum(heights) + 0.25 * len(heights)), layout="constrained")
    grid = figure.add_gridspec(len(heights), 2, width_ratios=(1, 0.012), height_ratios=heights)
    end = max(weights.shape[-1] * one.seconds for one, (weights, _) in zip(maps, tables, strict=True))
    panels = [figure.add_subplot(grid[number, 0]) for number in range(len(heights))]
    for axes in panels:
        axes.set_xlim(0, end)
        axes.xaxis.set_major_locator(MaxNLocator(12, steps=[1, 2, 2.5, 5, 10]))
        axes.tick_params(labelbottom=axes is panels[-1], labelsize=9)
    panels[-1].set_xlabel("seconds", fontsize=9)
    if over is not None:
        _draw_sound(panels, read_sound(Path(over)))
    font = _font(maps, min(10, 10 * cell / 0.2))
    for number, (one, (weights, names)) in enumerate(zip(maps, tables, strict=True), len(above)):
        axes, size = panels[number], -(-weights.shape[-1] // MOST_COLUMNS)
        merged = merge(weights, size)
        low, high = min(0.0, merged.min().item()), max(merged.max().item(), 1e-9)
        bottom = len(names) * (one.seconds if one.kind == "encoder" else 1)
        extent = (0, merged.shape[-1] * size * one.seconds, bottom, 0)
        if one.kind == "encoder":
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
    _save(figure, path)
    return path


def _draw_sound(panels: Sequence[Any], sound: Sound) -> None:
    """The waveform in the first, the log-mel spectrogram in the second."""
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


def merge(weights_TS: Tensor, size: int) -> Tensor:
    """Of every `size` columns the largest weight."""
    padded_TS = F.pad(weights_TS, (0, -weights_TS.shape[-1] % size), value=-math.inf)
    merged: Tensor = padded_TS.unflatten(-1, (-1, size)).amax(-1)
    return merged


def labelled(one: AttentionMap) -> AttentionMap:
    """With names on both axes that people can read."""
    if not bool(one.weights_HTS.isfinite().all()):
        raise UserError(f"the {one.kind} attention of layer {one.layer} holds NaN or infinity, so it cannot be shown")
    return replace(one, source=tuple(map(label, one.source)), target=tuple(map(label, one.target)))


def _font(maps: Sequence[AttentionMap], size: float) -> dict[str, Any]:
    """How labels are set: in DejaVu Sans Mono, and what that lacks in whatever font of this machine has it."""
    from matplotlib.font_manager import fontManager, get_font

    upright = [one for one in fontManager.ttflist if one.style == "normal" and not one.name.startswith("Last Resort")]
    files = {one.name: one.fname for one in sorted(upright, key=lambda one: one.weight == 400)}
    families, missing = list[str](), {char for one in maps for token in (*one.source, *one.target) for char in token}
    for family in sorted(files, key=lambda name: ("DejaVu Sans Mono", "DejaVu Sans", name).index(name)):
        found = {char for char in missing if get_font(files[family]).get_char_index(ord(char))}
        families += [family] if found else []
        missing -= found
        if not missing:
            break
    return {"family": families or ["DejaVu Sans Mono"], "fontsize": size, "parse_math": False}


def _save(figure: Any, path: Path) -> None:
    """Under another name first, so that no half-written picture is left behind."""
    import matplotlib

    with new_file(path) as fresh, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with matplotlib.rc_context({"svg.fonttype": "none"}):  # text stays text
            figure.savefig(fresh, dpi=150, format=path.suffix[1:].lower())
    lacking = sorted({int(number) for one in caught for number in re.findall(r"Glyph (\d+)", str(one.message))})
    if lacking and path.suffix.lower() != ".svg":
        chars = " ".join(f"{chr(number)} (U+{number:04X})" for number in lacking[:10])
        more = f" and {len(lacking) - 10:,} more" if len(lacking) > 10 else ""
        warnings.warn(
            f"no font of this machine has {chars}{more}, so {path} shows boxes there; install one, or write an .svg, "
            "whose text any browser shows",
            stacklevel=3,
        )


def in_words(one: AttentionMap) -> Text:
    """For maps over a picture: the cell that each word looked at most."""
    one = labelled(one)
    width = max(map(cell_len, one.target)) + 1
    text = Text(f"a grid of {one.axes[0]} rows and {one.axes[1]} columns; the cell that was looked at most, from 0:\n")
    for token, weights in zip(one.target, one.mean_TS, strict=True):
        row, column = divmod(int(weights.argmax()), one.axes[1])
        text.append(f"{_pad(token, width)} row {row}, column {column}: {weights.max().item():.2f}\n")
    return text


def in_terminal(one: AttentionMap, width: int = WIDEST) -> Text:
    """The same as shades of grey; as coloured cells where the terminal has colours.

    Where that would be too wide, as for the many places of a sound, each place gets one cell, the darkest being the largest
    weight, and those are named for whose names there is room. Neighbours share a cell where even that does not fit. Time runs
    from left to right, so that of `fusion` in a sound the words are rows.
    """
    one = labelled(one)
    if one.seconds and one.kind == "fusion":
        one = replace(one, weights_HTS=one.weights_HTS.transpose(1, 2), source=one.target, target=one.source)
    margin = max(map(cell_len, one.target)) + 1
    cells = [max(2, cell_len(token) + 1) for token in one.source]
    if margin + sum(cells) > width:
        return _in_narrow_cells(one, margin, width - margin)
    text = Text(" " * margin + "".join(_pad(token, width) for token, width in zip(one.source, cells, strict=True)) + "\n")
    for token, weights in zip(one.target, one.mean_TS.tolist(), strict=True):
        text.append(_pad(token, margin))
        for weight, width in zip(weights, cells, strict=True):
            shade = SHADES[max(0, min(len(SHADES) - 1, int(weight * len(SHADES))))]
            text.append(shade * (width - 1), _style(weight))
            text.append(" ")
        text.append("\n")
    return text


def _in_narrow_cells(one: AttentionMap, margin: int, room: int) -> Text:
    wide = -(-len(one.source) // max(1, room))
    high = wide if one.seconds and one.kind == "encoder" else 1  # both axes are the same seconds
    source, target = one.source[::wide], one.target[::high]
    merged_TS = merge(merge(one.mean_TS, wide).T, high).T
    header = ""
    for index, token in enumerate(source):
        fits = not header or (cell_len(token) < 12 and index + cell_len(token) <= room)
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
        text.append(
            f"a cell is the largest weight of {wide}{f' x {high}' if high > 1 else ''} places; the darkest is {largest:.2g}\n"
        )
    return text


RAMP = ((32, 58, 82), (31, 111, 139), (58, 147, 143), (151, 207, 162), (243, 246, 208))
"""From little weight to all of it."""


def _style(weight: float) -> Style:
    """Letters and ground in one colour: a full cell, whatever shade stands in it. Next to nothing has none."""
    if weight < 0.02:
        return Style.null()
    index = min(1.0, weight) * (len(RAMP) - 1)
    low = min(int(index), len(RAMP) - 2)
    mixed = (round(a + (b - a) * (index - low)) for a, b in zip(RAMP[low], RAMP[low + 1], strict=True))
    colour = f"rgb({','.join(map(str, mixed))})"
    return Style(color=colour, bgcolor=colour)


def _pad(token: str, width: int) -> str:
    return token + " " * (width - cell_len(token))
