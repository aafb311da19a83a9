"""The diagram of a model: its stacks next to each other, the first part at the bottom, as in Vaswani et al. 2017, fig. 1.

Every arrow says the shape of what it carries, every box the number of its parameters. Residual connections run along the right
of a stack; what a decoder reads from an encoder crosses from stack to stack; what a step reads of the step before it is dashed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.cells import cell_len

from regard.inspection.parts import ModelPart
from regard.inspection.render import font_of

WIDTH, HEIGHT, GAP = 3.1, 0.5, 0.36
"""Size of a box and length of an arrow, in inches."""
FORK = 0.16
"""How much longer an arrow is that splits into queries, keys and values."""
BETWEEN = 1.7
"""Distance between two stacks, with room for what one reads from the other."""
OUTSIDE, INSIDE = 0.28, 0.16
"""Length of an arrow outside of the frame around a layer, and room inside of it."""
LETTERS = 46
"""Characters of a formula and a number that fit into a box."""
COLOURS = {
    "input": "#ffffff",
    "embedding": "#fde3d0",
    "attention": "#fbcf9b",
    "norm": "#f5efb5",
    "layer": "#f4f5f7",
    "dense": "#cfe3f5",
    "recurrent": "#cdebe1",
    "output": "#e3daf0",
    "stack": "#ffffff",
    "other": "#eceef0",
}
"""Role of a part -> the colour of its box."""
INK, LINE, SOFT = "#1d2733", "#55616d", "#66727f"
STROKE = {"color": LINE, "linewidth": 1.0, "solid_joinstyle": "round"}
ARROW = {"arrowstyle": "-|>,head_length=0.25,head_width=0.12", "color": LINE, "linewidth": 1.0, "shrinkA": 0, "shrinkB": 0}

Font = dict[str, Any]


@dataclass(frozen=True)
class Box:
    """A drawn part.

    x, y: its middle.  copies: how often it occurs.  entry: where the arrow into it begins.  label: the height of the shape next
    to that arrow.  branch: where connections that skip the box leave that arrow.
    """

    part: ModelPart
    x: float
    y: float
    copies: int
    entry: float
    label: float
    branch: float

    @property
    def bottom(self) -> float:
        """The lower edge."""
        return self.y - HEIGHT / 2

    @property
    def top(self) -> float:
        """The upper edge."""
        return self.y + HEIGHT / 2


@dataclass
class Stack:
    """The boxes of a stack from bottom to top, and the frames around its layers: (part, lower end, upper end)."""

    name: str
    x: float
    boxes: list[Box] = field(default_factory=list)
    frames: list[tuple[ModelPart, float, float]] = field(default_factory=list)

    @property
    def top(self) -> float:
        """The upper edge of the last box or frame."""
        return max([self.boxes[-1].top, *(high for _, _, high in self.frames)])

    def add(self, part: ModelPart, copies: int, *, enters: bool = False) -> None:
        """Adds a box above the last box. enters: whether it is the first of a layer, so that a frame begins below it."""
        entry = self.boxes[-1].top if self.boxes else 0.0
        start = self.top if self.boxes else 0.0
        fork = FORK if part.role == "attention" else 0.0
        leaves = start > entry
        outside = OUTSIDE if enters or leaves else 0.0
        bottom = start + outside + (INSIDE + fork if enters else fork if leaves else GAP + fork)
        label = start + outside / 2 if outside else (entry + bottom - fork) / 2
        branch = start + outside + 0.07 if enters else entry + 0.07
        self.boxes.append(Box(part, self.x, bottom + HEIGHT / 2, copies, entry, label, branch))


def diagram(title: str, parameters: int, parts: Sequence[ModelPart]) -> Any:
    """Returns the diagram of a model as a matplotlib figure. parameters: of the whole model."""
    from matplotlib.figure import Figure

    stacks = [_stack(part, WIDTH / 2 + number * (WIDTH + BETWEEN)) for number, part in enumerate(_stacks(parts))]
    left, wide = 0.9, len(stacks) * (WIDTH + BETWEEN) - BETWEEN + 0.6
    high = max(stack.top for stack in stacks) + GAP + 0.2
    figure = Figure(figsize=(left + wide, high + 0.6))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(-left, wide), ylim=(0, high + 0.6))
    axes.axis("off")
    font = font_of([title, "×…,", *(text for part in parts for text in _texts(part))], 8)
    headline = f"{title}\n{parameters:,} parameters"
    axes.text((wide - left) / 2, high + 0.25, headline, ha="center", va="center", color=INK, **(font | {"fontsize": 10}))
    for number, stack in enumerate(stacks):
        _draw_stack(axes, stack, font)
        _draw_readings(axes, stack, stacks[number - 1] if number else None, font)
    return figure


def _stacks(parts: Sequence[ModelPart]) -> list[ModelPart]:
    """Returns the stacks of a model; those of the members of an ensemble; or all parts of a layer as one stack."""
    if not all(part.role == "stack" for part in parts):
        return [ModelPart("", parts=tuple(parts), role="stack")]
    nested = [inner for part in parts for inner in part.parts if inner.role == "stack"]
    return nested or list(parts)


def _stack(part: ModelPart, x: float) -> Stack:
    """Returns the boxes of a stack; a layer is a frame around its parts."""
    stack = Stack(part.name, x)
    for inner in part.parts:
        if inner.role != "layer" or not inner.parts:
            stack.add(inner, inner.copies)
            continue
        low = (stack.top if stack.boxes else 0.0) + OUTSIDE
        for number, block in enumerate(inner.parts):
            stack.add(block, inner.copies, enters=number == 0)
        stack.frames.append((inner, low, stack.boxes[-1].top + INSIDE))
    return stack


def _draw_stack(axes: Any, stack: Stack, font: Font) -> None:
    for part, low, high in stack.frames:
        corner = stack.x - WIDTH / 2 - 0.24, low
        _rectangle(axes, corner, (WIDTH + 0.48, high - low), COLOURS["layer"], "#b9c0c8", f"layer {part.module}", zorder=0)
        if part.copies > 1:
            times = f"{part.copies} ×"
            axes.text(corner[0] - 0.08, high - 0.2, times, ha="right", va="center", color=INK, **(font | {"fontsize": 12}))
    for number, box in enumerate(stack.boxes):
        _draw_box(axes, box, font)
        if number:
            _draw_arrow(axes, box, stack.boxes[number - 1].part, font)
        if box.part.skips:
            _draw_skip(axes, box, stack.boxes[number - box.part.skips])
    last, end = stack.boxes[-1], stack.top + GAP
    axes.annotate("", (stack.x, end), (stack.x, last.top), arrowprops=ARROW)
    _write_shape(axes, stack.x + 0.1, end - 0.14, last.part.shape, font)
    axes.text(stack.x - 0.1, end - 0.14, stack.name, ha="right", va="center", color=INK, **(font | {"fontsize": 9}))


def _draw_box(axes: Any, box: Box, font: Font) -> None:
    part = box.part
    edge = "#ffffff" if part.role == "input" else "#8a939c"
    corner = box.x - WIDTH / 2, box.bottom
    _rectangle(axes, corner, (WIDTH, HEIGHT), COLOURS[part.role], edge, f"part {part.module or part.name}")
    if part.role == "input":
        axes.text(box.x, box.y, f"{part.name} {part.shape}", ha="center", va="center", color=INK, **font)
        return
    times = f"{box.copies} × " if box.copies > 1 and part.parameters else ""
    number = f"{times}{part.parameters:,}" if part.parameters else ""
    below = "   ".join(filter(None, (_shortened(part.formula, LETTERS - len(number)), number)))
    axes.text(box.x, box.y + (0.1 if below else 0), part.name, ha="center", va="center", color=INK, **(font | {"fontsize": 9}))
    axes.text(box.x, box.y - 0.11, below, ha="center", va="center", color=SOFT, **(font | {"fontsize": 7}))


def _rectangle(
    axes: Any, corner: tuple[float, float], size: tuple[float, float], fill: str, edge: str, gid: str, zorder: float = 1
) -> None:
    from matplotlib.patches import FancyBboxPatch

    shape = FancyBboxPatch(corner, *size, boxstyle="round,pad=0,rounding_size=0.07")
    shape.set(facecolor=fill, edgecolor=edge, linewidth=0.9, gid=gid, zorder=zorder)
    axes.add_patch(shape)


def _write_shape(axes: Any, x: float, y: float, shape: str, font: Font) -> None:
    axes.text(x, y, shape, va="center", color=SOFT, **(font | {"fontsize": 7.5}))


def _shortened(text: str, most: int) -> str:
    return text if cell_len(text) <= most else text[: most - 1] + "…"


def _draw_arrow(axes: Any, box: Box, before: ModelPart, font: Font) -> None:
    """Draws the arrow into a box; attention splits it into queries, keys and values."""
    if before.role != "input":
        _write_shape(axes, box.x + 0.1, box.label, before.shape, font)
    if not box.part.follows:
        axes.plot([box.x, box.x], [box.entry, box.branch], **STROKE)
        return
    if box.part.role != "attention":
        axes.annotate("", (box.x, box.bottom), (box.x, box.entry), arrowprops=ARROW)
        return
    fork = box.bottom - FORK
    letters = ("Q",) if box.part.reads else ("Q", "K", "V")
    xs = [box.x + WIDTH * share for share in (-0.36, -0.26, -0.16)[-len(letters) :]]
    axes.plot([box.x, box.x, xs[0]], [box.entry, fork, fork], **STROKE)
    for x, letter in zip(xs, letters, strict=True):
        axes.annotate("", (x, box.bottom), (x, fork), arrowprops=ARROW)
        axes.text(x - 0.05, fork + 0.02, letter, ha="right", va="bottom", color=INK, **(font | {"fontsize": 7}))


def _draw_skip(axes: Any, box: Box, first: Box) -> None:
    """Draws a connection into a box from the arrow into the first box that it skips."""
    edge = box.x + WIDTH / 2
    right = edge + 0.06 * (1 + box.part.skips)
    axes.plot([box.x, right, right], [first.branch, first.branch, box.y], **STROKE)
    axes.annotate("", (edge, box.y), (right, box.y), arrowprops=ARROW)


def _draw_readings(axes: Any, stack: Stack, left: Stack | None, font: Font) -> None:
    """Draws what boxes read from elsewhere: from the stack to the left, or from a later part of their own one."""
    for name in dict.fromkeys(name for box in stack.boxes for name in box.part.reads):
        readers = [box for box in stack.boxes if name in box.part.reads]
        own = [box for box in stack.boxes if box.part.gives == name]
        if own:
            for box in readers:
                _draw_feedback(axes, own[-1], box, font)
        elif left is not None and (givers := [box for box in left.boxes if _gives(box, left, name)]):
            _draw_crossing(axes, left, givers[-1], readers, name, font)


def _gives(box: Box, stack: Stack, name: str) -> bool:
    """Whether the box gives this, or is the last of a layer that gives it."""
    layers = [part for part, low, high in stack.frames if low < box.y < high]
    return name in (box.part.gives, *(part.gives for part in layers))


def _draw_crossing(axes: Any, left: Stack, giver: Box, readers: Sequence[Box], name: str, font: Font) -> None:
    """Draws a line from the top of a box to boxes of the stack to the right. Each name has a lane of its own."""
    lane = giver.x + WIDTH / 2 + BETWEEN * {"memory": 0.3, "C": 0.4, "features": 0.6}.get(name, 0.5)
    around = [high for _, low, high in left.frames if low < giver.y < high]
    start = max([giver.top, *around]) + 0.07
    heights = [start, *(box.y for box in readers)]
    axes.plot([giver.x, lane], [start, start], **STROKE)
    axes.plot([lane, lane], [min(heights), max(heights)], **STROKE)
    for box in readers:
        axes.annotate("", (box.x - WIDTH / 2, box.y), (lane, box.y), arrowprops=ARROW)
        label = "K, V" if box.part.role == "attention" else name
        axes.text(lane + 0.06, box.y + 0.05, label, va="bottom", color=INK, **(font | {"fontsize": 7.5}))


def _draw_feedback(axes: Any, giver: Box, reader: Box, font: Font) -> None:
    """Draws a dashed line from the top of a box down to a box that reads its output one step later."""
    edge, start, height = giver.x - WIDTH / 2, giver.top + 0.07, reader.y - 0.14
    lane = edge - 0.14
    axes.plot([giver.x, lane, lane], [start, start, height], color=LINE, linewidth=1.0, linestyle=(0, (3, 2)))
    axes.annotate("", (edge, height), (lane, height), arrowprops=ARROW)
    label = "Q" if reader.part.role == "attention" else ""
    axes.text(lane - 0.04, height, label, ha="right", va="center", color=INK, **(font | {"fontsize": 7}))


def _texts(part: ModelPart) -> Iterator[str]:
    """Yields all texts of a part, for the choice of a font."""
    yield from (part.name, part.formula, part.shape)
    for inner in part.parts:
        yield from _texts(inner)
