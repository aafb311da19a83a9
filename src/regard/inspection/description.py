"""The description of a model, as text and as a diagram. describe.py reads it from a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.cells import cell_len

from regard.inspection.diagram import diagram
from regard.inspection.drawing import Drawing
from regard.inspection.parts import ModelPart
from regard.inspection.render import check_drawing


@dataclass(frozen=True)
class Description:
    """What a model is made of. `print` shows it as text, a notebook as a diagram.

    title: its class and sizes.  parameters: all of the model.  parts: its stacks, such as encoder and decoder.

    >>> description = regard.describe("transformer", num_tokens=100)
    >>> description.parameters == sum(part.copies * part.parameters for part in description.parts)
    True
    >>> str(description).splitlines()[2].split()
    ['encoder', '409,600']
    >>> description.draw("transformer.svg")
    <Drawing, written to transformer.svg>
    """

    title: str
    parameters: int
    parts: tuple[ModelPart, ...]

    def __str__(self) -> str:
        rows = [row for part in self.parts for row in _rows(part, 0, 1)]
        name, shape = (max(cell_len(row[index]) for row in rows) + 2 for index in (0, 1))
        number = max(len(row[2]) for row in rows)
        lines = [f"{_pad(row[0], name)}{_pad(row[1], shape)}{row[2]:>{number}}".rstrip() for row in rows]
        letters = "B sentences, S source positions, T target positions"
        return "\n".join([f"{self.title}: {self.parameters:,} parameters ({letters})", "", *lines])

    def draw(self, path: str | Path | None = None) -> Drawing:
        """Draws the diagram, to a .png, .svg or .pdf file if one is given. Raises UserError as `regard.draw` does."""
        check_drawing(path or "diagram.svg")
        drawing = Drawing(diagram(self.title, self.parameters, self.parts))
        if path is not None:
            drawing.save(path)
        return drawing

    def _repr_svg_(self) -> str:
        """Returns the diagram for a notebook."""
        return self.draw()._repr_svg_()


def _rows(part: ModelPart, depth: int, copies: int) -> list[tuple[str, str, str]]:
    """Returns (name, shape, parameters) of a part and of its inner parts. copies: of the part around it."""
    times = f"{part.copies} × " if part.copies > 1 else ""
    formula = f": {part.formula}" if part.formula else ""
    copies *= part.copies
    number = f"{copies} × {part.parameters:,}" if copies > 1 and part.parameters else f"{part.parameters:,}"
    first = ("  " * depth + times + part.name + formula, part.shape, number if part.role != "input" else "")
    return [first, *(row for inner in part.parts for row in _rows(inner, depth + 1, copies))]


def _pad(text: str, width: int) -> str:
    return text + " " * (width - cell_len(text))
