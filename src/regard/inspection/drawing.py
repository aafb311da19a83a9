"""`regard.draw`: a picture of anything, in one line. It decides by kind and shape what to draw; figures.py draws a reader's own
numbers, render.py the attention of a model."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from regard.contracts import Array
from regard.data.labels import label, readable
from regard.errors import UserError, did_you_mean, shown
from regard.inspection import figures, render
from regard.inspection.figures import Curve, Panels
from regard.results import AttentionMap, Result

# P panels  R rows  C columns

Picture = Literal["map", "lines", "arcs", "bars", "arrows", "curves"]
Drawable = Result | AttentionMap | Sequence[AttentionMap] | ArrayLike | Mapping[str, ArrayLike] | tuple[ArrayLike, ArrayLike]
"""What can be drawn. An ArrayLike is a NumPy array, a torch tensor, or nested lists."""

SHAPES: dict[str, str] = {
    "map": "(rows, columns) or (panels, rows, columns)",
    "lines": "(rows, columns) or (panels, rows, columns)",
    "arcs": "(words, words) or (panels, words, words), or a list of links (from, to) or (from, to, weight)",
    "bars": "(columns,) or (rows, columns)",
    "arrows": "a pair (queries, keys), each (2,) or (number, 2)",
    "curves": "(points,) or (points, curves), or a dictionary of curves by name",
}
"""Kind -> the shapes that fit it."""
MOST_PANELS = 64
MOST_NUMBERS = 12
"""Rows and columns of the largest matrix whose cells show their numbers by default."""


class Drawing:
    """A picture: a notebook shows it, and `save` writes it as a .png, .svg or .pdf file.

    path: the file that `regard.draw` has written, if it was given one.

    >>> drawing = regard.draw([[0.9, 0.1], [0.2, 0.8]])
    >>> drawing.save("weights.png").name
    'weights.png'
    """

    def __init__(self, figure: object, *, tight: bool = True) -> None:
        self._figure, self._tight = figure, tight
        self.path: Path | None = None

    def __repr__(self) -> str:
        return f"<Drawing{f', written to {self.path}' if self.path else ''}>"

    def save(self, path: str | Path) -> Path:
        """Writes the picture and returns the path. Raises UserError if the file extension is none of .png, .svg and .pdf."""
        render.check_drawing(path)
        self.path = render.save(self._figure, path, tight=self._tight)
        return self.path

    def _repr_svg_(self) -> str:
        """Returns the picture for a notebook."""
        with tempfile.TemporaryDirectory(prefix="regard-") as folder:
            return render.save(self._figure, Path(folder) / "drawing.svg", tight=self._tight).read_text()


def draw(
    what: Drawable,
    path: str | Path | None = None,
    *,
    kind: Picture | None = None,
    rows: Iterable[object] | None = None,
    columns: Iterable[object] | None = None,
    panels: Iterable[object] | None = None,
    scale: tuple[float, float] | Literal["own", "diverging", "log", "log-log"] | None = None,
    numbers: bool | None = None,
    allow: ArrayLike | None = None,
    over: str | Path | None = None,
    x: str = "",
    y: str = "",
    title: str = "",
) -> Drawing:
    """Draws anything: weights, scores, masks, queries and keys, curves, or the attention of a model.

    what: numbers, as a NumPy array, a torch tensor or lists; a dictionary of them, whose names become titles; or a `Result`, an
    `AttentionMap` or a list of maps.
    path: a .png, .svg or .pdf file to write; without one, the drawing has a method `save`, and a notebook shows it.
    kind: by default curves for a dictionary of rows, bars for one row, else a map.

    - map: a matrix (rows, columns), or several (panels, rows, columns). A boolean matrix is a mask, where True is blue.
    - lines: the same between two rows of words, `rows` above and `columns` below; the thickness of a line is the weight.
    - arcs: a matrix over the words of one sentence; or a list of links (from, to) or (from, to, weight).
    - bars: one row (columns,), or a panel for each row (rows, columns).
    - arrows: a pair (queries, keys) of vectors in the plane; blue if q·k > 0, red if q·k < 0. One panel per query.
    - curves: one curve (points,), one for each column (points, curves), or a dictionary of curves; a curve in a dictionary may
      also be points (x, y). `rows` are the positions of the points: numbers, or words.

    rows, columns, panels: their labels, of any language.
    scale: (low, high), the values of the lightest and the darkest colour; "own", from the smallest value to the largest;
    "diverging", red below 0 and blue above it. By default diverging if there are values below and above 0, else from 0 to the
    largest value. For curves "log", or "log-log" for both axes, where values that are not above 0 are left out; or limits.
    numbers: whether the cells of a map show their numbers; by default if it is small.
    allow: a mask; cells where it is False are grey, as are those whose value is −∞.
    over: the picture or the sound of an attention map; or, for numbers (panels, rows, columns), a picture to draw them over.
    x, y: what the axes show.

    An attention map is drawn as the mean over its heads, or with `kind` head by head.

    Raises UserError if matplotlib is missing or the file extension is unknown, TypeError for what cannot be drawn, and
    ValueError for numbers, labels or options that do not fit the kind.

    >>> weights = regard.attention_weights(torch.eye(3), torch.eye(3))
    >>> regard.draw(weights, "weights.svg", rows="abc", columns="abc")
    <Drawing, written to weights.svg>
    >>> regard.draw(weights, kind="lines", rows="abc", columns="abc").save("lines.pdf").name
    'lines.pdf'
    >>> query, keys = (1.0, 1.0), [(2.0, 1.0), (-1.0, 0.5)]
    >>> regard.draw((query, keys), "arrows.png", kind="arrows").path.name
    'arrows.png'
    """
    render.check_drawing(path or "drawing.svg")
    if kind is not None and kind not in get_args(Picture):
        kinds = list(get_args(Picture))
        raise ValueError(f"kind is {shown(kind)}, expected one of {', '.join(kinds)}{did_you_mean(kind, kinds)}")
    given = {"rows": rows, "columns": columns, "panels": panels}
    labels = {name: tuple(value) for name, value in given.items() if value is not None}
    frame = Panels(np.zeros((1, 1, 1)), x=readable(x), y=readable(y), title=readable(title))
    maps = _attention_maps(what)
    if maps is not None and kind is None:
        _refuse(
            labels | _given(scale=scale, numbers=numbers, allow=allow), "an attention map has labels and a scale of its own"
        )
        figure = render.figure_of(maps, over)
    elif maps is not None:
        what, labels = _heads(maps, labels)
        figure = _figure(what, kind, labels, scale, numbers, allow, frame)
    elif over is not None:
        figure = render.figure_of(_over_picture(_numbers(what), labels), over)
    else:
        figure = _figure(what, kind, labels, scale, numbers, allow, frame)
    drawing = Drawing(figure, tight=maps is None or kind is not None)  # maps of a model have a layout of their own
    if path is not None:
        drawing.save(path)
    return drawing


Labels = dict[str, tuple[object, ...]]
"""Axis -> the labels that were given."""


def _attention_maps(what: Drawable) -> list[AttentionMap] | None:
    """Returns the attention maps to draw; None if `what` is something else."""
    if isinstance(what, Result):
        return [what.attention()]
    if isinstance(what, AttentionMap):
        return [what]
    if not isinstance(what, Sequence) or isinstance(what, str):
        return None
    if what and not any(isinstance(one, AttentionMap | Result) for one in what):
        return None
    for one in what:
        if not isinstance(one, AttentionMap):
            raise TypeError(f"got a list of attention maps that holds a {type(one).__name__}; draw results one by one")
    return list(what)


def _heads(maps: Sequence[AttentionMap], labels: Labels) -> tuple[Array, Labels]:
    """Returns the weights of one map, head by head, with its labels, unless others were given."""
    if len(maps) != 1:
        raise ValueError(f"got {len(maps)} attention maps, but a kind is drawn for one map only; leave out kind, or draw each")
    attention = maps[0]
    heads = attention.heads or tuple(range(len(attention.weights_HTS)))
    names = tuple(f"head {head}" for head in heads) if len(heads) > 1 else ()
    own: Labels = {"rows": attention.target, "columns": attention.source, "panels": names}
    return attention.weights_HTS, own | labels


def _over_picture(values: Array, labels: Labels) -> AttentionMap:
    """Returns numbers (panels, rows, columns) as an attention map over a picture."""
    if values.ndim == 2:
        values = values[None]
    if values.ndim != 3:
        raise ValueError(
            f"got numbers of shape {values.shape} over a picture, expected (rows, columns) or (panels, rows, columns)"
        )
    names = _labels("panels", labels, len(values)) or tuple(map(str, range(len(values))))
    weights = values.reshape(1, len(values), -1)
    cells = tuple(map(str, range(weights.shape[-1])))
    return AttentionMap(weights, cells, names, "cross", 0, axes=values.shape[1:])


# --- numbers -----------------------------------------------------------------------------------------------------------------


def _figure(
    what: Any, kind: Picture | None, labels: Labels, scale: object, numbers: bool | None, allow: Any, frame: Panels
) -> Any:
    if isinstance(what, Mapping):
        if not what:
            raise ValueError("got an empty dictionary, expected numbers by name")
        what = {str(name): _numbers(values) for name, values in what.items()}
        if kind is None and any(values.ndim == 1 for values in what.values()):
            kind = "curves"
        if kind != "curves":
            labels = {**labels, "rows" if kind == "bars" else "panels": tuple(what)}
            what = _stacked(what)
    if kind == "curves":
        _refuse(_given(numbers=numbers, allow=allow), "curves have none")
        return _curves(what, labels, scale, frame)
    if kind == "arrows":
        _refuse(_given(numbers=numbers, allow=allow, scale=scale), "arrows have none")
        return _arrows(what, labels, frame)
    links = _links(what, labels) if kind == "arcs" else None
    values = _numbers(what) if links is None else links
    kind = kind or ("bars" if values.ndim == 1 else "map")
    values_PRC = _panels(values, kind)
    if values_PRC.size == 0:
        raise ValueError(
            f"got numbers of shape {values.shape}, which is empty; expected {SHAPES[kind]} with at least one number"
        )
    return _panels_figure(values_PRC, kind, labels, scale, numbers, allow, frame, directed=links is not None)


def _panels_figure(
    values_PRC: Array,
    kind: Picture,
    labels: Labels,
    scale: object,
    numbers: bool | None,
    allow: Any,
    frame: Panels,
    *,
    directed: bool,
) -> Any:
    is_mask = values_PRC.dtype == bool
    values_PRC = values_PRC.astype(np.float64)
    if allow is not None:
        values_PRC = np.where(_mask(allow, values_PRC.shape), values_PRC, -np.inf)
    if np.isnan(values_PRC).any() or np.isposinf(values_PRC).any():
        raise UserError("the numbers hold NaN or +∞, so they cannot be drawn")
    hidden = np.isneginf(values_PRC)
    if hidden.any() and kind == "bars":
        raise ValueError("got −∞ or a mask, which bars cannot show; draw a map, or weights after the softmax")
    number, high, wide = values_PRC.shape
    low, most, diverging = _scale(values_PRC[~hidden], scale, kind)
    small = max(high, wide) <= MOST_NUMBERS and number <= 4 and not is_mask
    panels = replace(
        frame,
        values_PRC=values_PRC,
        rows=_labels("rows", labels, high),
        columns=_labels("columns", labels, wide),
        titles=_labels("panels", labels, number),
        scale=(low, most),
        diverging=diverging,
        numbers=small if numbers is None else numbers,
        is_mask=is_mask,
    )
    if number > MOST_PANELS:
        raise ValueError(f"got {number} panels, but a picture has room for {MOST_PANELS}; draw some of them")
    if kind == "lines":
        return figures.lines_figure(panels)
    if kind == "arcs":
        return figures.arcs_figure(panels, directed=directed)
    return figures.bars_figure(panels) if kind == "bars" else figures.map_figure(panels)


def _panels(values: Array, kind: Picture) -> Array:
    """Returns the numbers as (panels, rows, columns). Raises ValueError if their shape does not fit the kind."""
    shape = values.shape
    while kind != "bars" and values.ndim > 3 and len(values) == 1:  # a batch of one sentence
        values = values[0]
    if kind == "bars":
        fits, values = values.ndim in (1, 2), values[None, None] if values.ndim == 1 else values[None]
    else:
        fits, values = values.ndim in (2, 3), values[None] if values.ndim == 2 else values
    if not fits:
        raise ValueError(f"got numbers of shape {shape}, but kind={kind} expects {SHAPES[kind]}")
    if kind == "arcs" and values.shape[1] != values.shape[2]:
        raise ValueError(
            f"got numbers of shape {shape}, but arcs connect the words of one sentence and expect {SHAPES[kind]}; "
            "kind=lines connects two sentences"
        )
    return values


def _links(what: Any, labels: Labels) -> Array | None:
    """Returns a list of links as a matrix (from, to); None if `what` is a matrix already."""
    if not isinstance(what, Sequence) or not what or not all(isinstance(link, tuple) for link in what):
        return None
    for link in what:
        if len(link) not in (2, 3) or not all(isinstance(end, int | np.integer) and end >= 0 for end in link[:2]):
            raise ValueError(f"got the link {link}, expected (from, to) or (from, to, weight) with word indices from 0")
    words = labels.get("columns", labels.get("rows"))
    number = len(words) if words is not None else 1 + max(max(link[:2]) for link in what)
    matrix = np.zeros((number, number))
    for start, end, *weight in what:
        if max(start, end) >= number:
            raise ValueError(f"got the link {(start, end)}, but there are {number} words, counted from 0")
        matrix[start, end] = weight[0] if weight else 1.0
    return matrix


def _arrows(what: Any, labels: Labels, frame: Panels) -> Any:
    is_pair = isinstance(what, Sequence) and len(what) == 2
    if not is_pair:
        got = f"shape {np.shape(what)}" if not isinstance(what, Sequence) else f"{len(what)} entries"
        raise ValueError(f"got {got}, but kind=arrows expects {SHAPES['arrows']}")
    queries, keys = (np.atleast_2d(_numbers(vectors).astype(np.float64)) for vectors in what)
    for name, vectors in (("queries", queries), ("keys", keys)):
        if vectors.ndim != 2 or vectors.shape[1] != 2 or not len(vectors):
            raise ValueError(
                f"got {name} of shape {vectors.shape}, but kind=arrows expects {SHAPES['arrows']}; project wider vectors first"
            )
        if not np.isfinite(vectors).all():
            raise UserError(f"the {name} hold NaN or infinity, so they cannot be drawn")
    panels = replace(
        frame,
        values_PRC=(queries @ keys.T)[None],
        rows=_labels("rows", labels, len(queries)),
        columns=_labels("columns", labels, len(keys)),
        titles=_labels("panels", labels, len(queries)),
    )
    return figures.arrows_figure(queries, keys, panels)


def _curves(what: Any, labels: Labels, scale: object, frame: Panels) -> Any:
    logarithmic = scale in ("log", "log-log")
    if scale is not None and not logarithmic and not isinstance(scale, tuple):
        raise ValueError(f'scale is {shown(scale)}, but curves expect "log", "log-log" or limits (low, high)')
    xs = labels.get("rows", ())
    numeric = bool(xs) and all(isinstance(x, int | float | np.number) for x in xs)
    if isinstance(what, Mapping):
        series = {label(name): values for name, values in what.items()}
    else:
        values = _numbers(what)
        if values.ndim not in (1, 2):
            raise ValueError(f"got numbers of shape {values.shape}, but kind=curves expects {SHAPES['curves']}")
        columns = values[:, None] if values.ndim == 1 else values
        names = _labels("columns", labels, columns.shape[1])
        series = dict(zip(names or map(str, range(columns.shape[1])), columns.T, strict=True))
    curves = []
    for name, values in series.items():
        if values.ndim == 2 and values.shape[1] == 2 and isinstance(what, Mapping):
            along, heights = values.T
        elif values.ndim == 1:
            _check_number("rows", xs, len(values))
            along, heights = np.array(xs, dtype=np.float64) if numeric else np.arange(len(values)), values
        else:
            raise ValueError(
                f"the curve {name} has shape {values.shape}, expected (points,), or points (x, y) of shape (points, 2)"
            )
        drawn = np.isfinite(heights) & (heights > 0 if logarithmic else True) & (along > 0 if scale == "log-log" else True)
        named = name if isinstance(what, Mapping) or "columns" in labels or len(series) > 1 else ""
        curves.append(Curve(named, np.asarray(along, dtype=np.float64)[drawn], np.asarray(heights, dtype=np.float64)[drawn]))
    if not any(len(curve.xs) for curve in curves):
        raise ValueError("there is no point to draw: values that are not finite are left out, and with scale=log those up to 0")
    low, high = scale if isinstance(scale, tuple) else (0.0, 0.0)
    words = () if numeric or not xs else _labels("rows", labels, len(xs))
    panels = replace(frame, rows=words, scale=(low, high))
    return figures.curves_figure(curves, panels, log_x=scale == "log-log", log_y=logarithmic)


# --- checks ------------------------------------------------------------------------------------------------------------------


def _numbers(what: Any) -> Array:
    """Returns numbers of any library as a NumPy array; booleans stay booleans. Raises TypeError for anything else."""
    if isinstance(what, list | tuple):
        parts = [_numbers(part) if hasattr(part, "detach") or isinstance(part, list | tuple) else part for part in what]
        try:
            values = np.array(parts)
        except ValueError:
            raise ValueError("got rows of different lengths, expected a matrix") from None
    elif hasattr(what, "detach"):  # a tensor
        tensor = what.detach().cpu()
        values = (tensor.double() if tensor.is_floating_point() else tensor).numpy()
    else:
        values = np.asarray(what)
    if values.dtype.kind not in "biuf":
        raise TypeError(f"draw expects numbers, an attention map or a result, but got a {type(what).__name__}")
    return values


def _stacked(matrices: Mapping[str, Array]) -> Array:
    shapes = {values.shape for values in matrices.values()}
    if len(shapes) > 1:
        sizes = ", ".join(f"{name} {values.shape}" for name, values in matrices.items())
        raise ValueError(f"got panels of different shapes ({sizes}); draw them one by one, or kind=curves")
    return np.stack(list(matrices.values()))


def _mask(allow: Any, shape: tuple[int, ...]) -> Array:
    mask = _numbers(allow)
    if mask.dtype != bool:
        raise TypeError(f"allow holds {mask.dtype} numbers, expected booleans, where True means that a query may attend")
    try:
        return np.broadcast_to(mask, shape)
    except ValueError:
        raise ValueError(f"allow has shape {mask.shape}, expected that of the numbers, {shape[1:]}") from None


def _labels(axis: str, labels: Labels, number: int) -> tuple[str, ...]:
    """Returns the labels of an axis, or () if there are none. Raises ValueError for another number of them."""
    given = labels.get(axis, ())
    _check_number(axis, given, number)
    return tuple(label(str(one)) for one in given)


def _check_number(axis: str, given: Sequence[object], number: int) -> None:
    if given and len(given) != number:
        raise ValueError(f"{axis} has {len(given)} labels, but there are {number} {axis}; give one label for each")


def _scale(values: Array, scale: object, kind: Picture) -> tuple[float, float, bool]:
    """Returns (low, high, whether the colours diverge). Bars get (0, 0), which means limits by their values."""
    if kind in ("lines", "arcs") and scale is not None:
        raise ValueError(f"scale is {shown(scale)}, but the thickness of {kind} is the weight; leave it out")
    smallest, largest = (float(values.min()), float(values.max())) if values.size else (0.0, 1.0)
    if isinstance(scale, tuple | list):
        if (
            len(scale) != 2
            or not all(isinstance(end, int | float) and math.isfinite(end) for end in scale)
            or scale[0] >= scale[1]
        ):
            raise ValueError(f"scale is {shown(scale)}, expected (low, high) with low < high")
        return float(scale[0]), float(scale[1]), scale[0] < 0 < scale[1]
    if scale not in (None, "own", "diverging"):
        raise ValueError(f'scale is {shown(scale)}, but {kind} expects "own", "diverging" or (low, high)')
    if kind != "map":
        return 0.0, 0.0, False
    if scale == "own":
        return smallest, largest, False
    if scale == "diverging" or smallest < 0 < largest:
        most = max(abs(smallest), abs(largest)) or 1.0
        return -most, most, True
    return (0.0, largest or 1.0, False) if smallest >= 0 else (smallest, largest, False)


def _given(**options: object) -> dict[str, object]:
    return {name: value for name, value in options.items() if value is not None}


def _refuse(options: Mapping[str, object], why: str) -> None:
    if options:
        raise ValueError(
            f"got {', '.join(options)}, but {why}; leave {'it' if len(options) == 1 else 'them'} out, or set a kind"
        )
