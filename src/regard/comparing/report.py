"""What a comparison found: one table, as text, Markdown, JSON, a picture and a page that opens offline."""

from __future__ import annotations

import html
import json
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from regard.checkpoint.files import new_file, replace_file, write, writing
from regard.comparing.cell import Cell, LengthGroup
from regard.comparing.contenders import Contender
from regard.errors import plural
from regard.inspection.drawing import Drawing, draw
from regard.inspection.figures import CURVES, Panels, intervals_figure
from regard.inspection.render import can_draw, check_drawing

WORSE_IF_LARGER = ("word error rate", "symbol error rate")


@dataclass(frozen=True)
class Row:
    """One mechanism of a comparison: its runs, one per seed.

    >>> row = regard.compare("pairs.tsv", only="luong-dot", updates=2, quiet=True).row("luong-dot")
    >>> row.name, row.updates, row.low <= row.value <= row.high, row.spread == (row.value, row.value), row.error, row.aligned
    ('luong-dot', 2, True, True, '', None)
    >>> row.training_loss > 1, row.parameters > 100_000, row.timing("tokens") > 0, len(row.by_length) > 1
    (True, True, True, True)
    >>> len(row.trained), list(row.as_dict())[:3]
    (1, ['name', 'about', 'paper'])
    """

    contender: Contender
    cells: tuple[Cell, ...]
    measured: str

    @property
    def name(self) -> str:
        """The name of the mechanism."""
        return self.contender.name

    @property
    def error(self) -> str:
        """Why it could not be trained, if so."""
        if not self.cells:
            return "not trained yet"
        return next((cell.error for cell in self.cells if cell.error), "")

    @property
    def trained(self) -> tuple[Cell, ...]:
        """The runs that have a result."""
        return tuple(cell for cell in self.cells if not cell.error)

    def _mean(self, number: Callable[[Cell], float]) -> float:
        return statistics.fmean(map(number, self.trained)) if self.trained else math.nan

    @property
    def value(self) -> float:
        """The mean quality over the seeds."""
        return self._mean(lambda cell: cell.measure(self.measured).value)

    @property
    def low(self) -> float:
        """The lower end of the 95 % bootstrap interval over the sources; its mean over the seeds."""
        return self._mean(lambda cell: cell.measure(self.measured).low)

    @property
    def high(self) -> float:
        """The upper end of the interval."""
        return self._mean(lambda cell: cell.measure(self.measured).high)

    @property
    def spread(self) -> tuple[float, float]:
        """The quality with the worst and the best seed."""
        values = [cell.measure(self.measured).value for cell in self.trained] or [math.nan]
        return min(values), max(values)

    @property
    def updates(self) -> int:
        """How many updates it made."""
        return max((cell.updates for cell in self.trained), default=0)

    @property
    def parameters(self) -> int:
        """How many parameters its model has."""
        return max((cell.parameters for cell in self.trained), default=0)

    @property
    def training_loss(self) -> float:
        """The mean loss of the last tenth of the updates."""
        return self._mean(lambda cell: cell.training_loss)

    @property
    def aligned(self) -> float | None:
        """The share of target tokens whose largest weight is at most one position from where they come from."""
        known = [cell.aligned for cell in self.trained if cell.aligned is not None]
        return statistics.fmean(known) if known else None

    @property
    def by_length(self) -> tuple[LengthGroup, ...]:
        """The quality of sources of similar length; the mean over the seeds."""
        groups = zip(*(cell.by_length for cell in self.trained), strict=True)
        return tuple(
            LengthGroup(
                same[0].lengths,
                same[0].sources,
                *(statistics.fmean(getattr(group, name) for group in same) for name in ("value", "low", "high")),
            )
            for same in groups
        )

    def timing(self, name: str) -> float:
        """Returns the mean of seconds, tokens (per second) or memory (bytes)."""
        return self._mean(lambda cell: float(getattr(cell.timings, name)))

    def as_dict(self, *, timings: bool = True) -> dict[str, Any]:
        """Returns everything as JSON can hold it. timings: whether with those."""
        cells = [asdict(cell) if timings else {**asdict(cell), "timings": None} for cell in self.cells]
        facts: dict[str, Any] = {
            "name": self.name,
            "about": self.contender.about,
            "paper": self.contender.paper,
            "settings": dict(self.contender.settings),
            "error": self.error,
            "cells": cells,
        }
        if self.trained:
            facts |= {"value": self.value, "low": self.low, "high": self.high, "spread": list(self.spread)}
        return facts


@dataclass(frozen=True)
class Comparison:
    """Several mechanisms on one task with one budget. rows: one per mechanism.  title: the data.  measured: the measure.

    >>> found = regard.compare("pairs.tsv", only="luong-dot", updates=2, quiet=True)
    >>> found.title, found.budget, found.measured, found.row("luong-dot").name
    ('pairs.tsv', '2 updates', 'exact match', 'luong-dot')
    >>> found.table().splitlines()[0].split("|")[1].strip(), found.as_dict()["rows"][0]["name"], found.markdown()[:11]
    ('mechanism', 'luong-dot', '# pairs.tsv')
    >>> found.draw("compare.png").name, found.draw("compare.html").name, found.save("reports").name
    ('compare.png', 'compare.html', 'reports')
    """

    rows: tuple[Row, ...]
    title: str
    budget: str
    measured: str

    def row(self, name: str) -> Row:
        """Returns the row of a mechanism. Raises KeyError if it was not compared."""
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(name)

    @property
    def _percent(self) -> bool:
        """Whether the measure is a share."""
        return any(cell.measure(self.measured).percent for row in self.rows for cell in row.trained)

    def _columns(self) -> list[str]:
        """Returns the names of the columns of the table."""
        aligned = ["looks at its origin %"] if any(row.aligned is not None for row in self.rows) else []
        seeds = ["seeds"] if any(len(row.trained) > 1 for row in self.rows) else []
        measured = f"{self.measured} %" if self._percent else self.measured
        lengths = [f"length {group}" for group in self._lengths()]
        speed = ["parameters", "updates", "tokens/s", "peak MB", "minutes"]
        return ["mechanism", f"{measured} [95 %]", *seeds, *lengths, *aligned, "training loss", *speed]

    def _lengths(self) -> list[str]:
        return next(([group.lengths for group in row.by_length] for row in self.rows if row.trained), [])

    def _cells(self, row: Row) -> list[str]:
        """Returns what the table says of a row, without its name."""
        columns = self._columns()
        if not row.trained:
            return [row.error, *[""] * (len(columns) - 2)]
        scale = 100 if self._percent else 1
        interval = f"{row.value * scale:.1f} [{row.low * scale:.1f}, {row.high * scale:.1f}]"
        seeds = ["–".join(f"{value * scale:.1f}" for value in row.spread)] if "seeds" in columns else []
        lengths = [f"{group.value * scale:.1f}" for group in row.by_length]
        looks = [] if row.aligned is None else [f"{row.aligned * 100:.0f}"]
        if "looks at its origin %" in columns and not looks:
            looks = ["–"]
        return [
            interval,
            *seeds,
            *lengths,
            *looks,
            f"{row.training_loss:.3f}",
            f"{row.parameters:,}",
            f"{row.updates:,}",
            f"{row.timing('tokens'):,.0f}",
            f"{row.timing('memory') / 2**20:,.0f}",
            f"{row.timing('seconds') / 60:.1f}",
        ]

    def table(self) -> str:
        """Returns the table as Markdown, whose columns are aligned, so that it reads as plain text, too."""
        rows = [self._columns(), *([row.name, *self._cells(row)] for row in self.rows)]
        failed = [number for number, row in enumerate(self.rows, start=1) if not row.trained]
        widths = [
            max(len(row[column]) for number, row in enumerate(rows) if column != 1 or number not in failed)
            for column in range(len(rows[0]))
        ]
        lines = []
        for row in rows:
            first, *others = zip(row, widths, strict=True)
            cells = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
            lines.append(f"| {' | '.join(cells)} |")
        rule = "|" + "|".join("-" * (width + 1) + (":" if at else "-") for at, width in enumerate(widths)) + "|"
        return "\n".join([lines[0], rule, *lines[1:]])

    def as_dict(self, *, timings: bool = True) -> dict[str, Any]:
        """Returns everything as JSON can hold it. timings: whether with those, which differ from run to run."""
        return {
            "title": self.title,
            "budget": self.budget,
            "measured": self.measured,
            "rows": [row.as_dict(timings=timings) for row in self.rows],
        }

    def markdown(self) -> str:
        """Returns the table with its title, and what the columns mean."""
        about = [f"- `{row.name}`: {_about(row.contender)}" for row in self.rows]
        return "\n".join([f"# {self.title}", "", _note(self), "", self.table(), "", *about, ""])

    def draw(self, path: str | Path) -> Path:
        """Draws the quality over the length of the source, or writes the page, and returns the path. Up to seven mechanisms are
        curves; more are rows, with their intervals, and a map of lengths.

        path: a .png, .svg or .pdf file, or a .html page. Raises UserError as `regard.draw` does.
        """
        path = Path(path)
        if path.suffix.lower() == ".html":
            with new_file(path) as fresh:
                write(fresh, self._page().encode())
            return path
        check_drawing(path)
        scale, rows = 100 if self._percent else 1, [row for row in self.rows if row.trained]
        lengths, measured = self._lengths(), f"{self.measured}{', %' if self._percent else ''}"
        by_length = {row.name: [group.value * scale for group in row.by_length] for row in rows}
        x, title = "length of the source", f"{self.title}, {self.budget} each"
        if len(rows) <= len(CURVES):
            return draw(by_length, kind="curves", rows=lengths, x=x, y=measured, title=title).save(path)
        panels = Panels(
            np.array([list(by_length.values())]),
            rows=tuple(by_length),
            columns=tuple(lengths),
            scale=(0.0, self._top() * scale),
            x=x,
            y=f"{measured} [95 %]",
            title=title,
        )
        intervals = np.array([(row.low, row.value, row.high) for row in rows]) * scale
        return Drawing(intervals_figure(intervals, panels)).save(path)

    def _page(self) -> str:
        """Returns the page: one HTML file that opens offline."""
        template = files("regard.comparing").joinpath("page.html").read_text(encoding="utf-8")
        contents = {
            "<!--TITLE-->": html.escape(self.title),
            "<!--NOTE-->": html.escape(_note(self)),
            "<!--BARS-->": "\n".join(map(self._bar, self.rows)),
            "<!--LENGTHS-->": self._by_length(),
            "<!--CURVES-->": "\n".join(_curve(row, self._losses()) for row in self.rows if row.trained),
            "<!--TABLE-->": self._html_table(),
        }
        for mark, content in contents.items():
            template = template.replace(mark, content)
        return template

    def save(self, folder: str | Path) -> Path:
        """Writes compare.md, .json, .html and, with matplotlib, .png into a folder, and returns it."""
        folder = Path(folder)
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / "compare.md", self.markdown().encode())
        replace_file(folder / "compare.json", json.dumps(self.as_dict(), ensure_ascii=False, indent=1).encode())
        self.draw(folder / "compare.html")
        if can_draw() and any(row.trained for row in self.rows):
            self.draw(folder / "compare.png")
        return folder

    def _repr_html_(self) -> str:
        """Returns the table for a notebook."""
        return self._html_table()

    def _top(self) -> float:
        """Returns the end of the scale of the bars."""
        return 1.0 if self._percent else max((row.high for row in self.rows if row.trained), default=1.0) or 1.0

    def _bar(self, row: Row) -> str:
        name = f"<b>{html.escape(row.name)}</b><small>{html.escape(_about(row.contender))}</small>"
        if not row.trained:
            return f'<div class="bar"><span>{name}</span><i class="failed">{html.escape(row.error)}</i></div>'
        parts = [f"{100 * min(1.0, value / self._top()):.2f}%" for value in (row.value, row.low, row.high)]
        style = f"--value:{parts[0]};--low:{parts[1]};--high:{parts[2]}"
        number = html.escape(self._cells(row)[0])
        return f'<div class="bar"><span>{name}</span><i style="{style}"><u></u></i><em>{number}</em></div>'

    def _by_length(self) -> str:
        scale = 100 if self._percent else 1
        head = "".join(f"<th>{html.escape(name)}</th>" for name in ("", *self._lengths()))
        lines = [f"<tr>{head}</tr>"]
        for row in self.rows:
            shades = [f"{max(0.0, min(1.0, group.value / self._top())):.3f}" for group in row.by_length]
            cells = [
                f'<td style="--share:{shade}" title="[{group.low * scale:.1f}, {group.high * scale:.1f}]">'
                f"{group.value * scale:.0f}</td>"
                for shade, group in zip(shades, row.by_length, strict=True)
            ]
            if row.trained:
                lines.append(f"<tr><th>{html.escape(row.name)}</th>{''.join(cells)}</tr>")
        return f'<table class="heat">{"".join(lines)}</table>'

    def _losses(self) -> tuple[float, float]:
        """Returns the ends of the logarithmic scale of the losses; the lower one is at least a hundredth of the other."""
        losses = [loss for row in self.rows for cell in row.trained for _, loss in _finite(cell.curve) if loss > 0]
        high = max(losses, default=1.0)
        return max(min(losses, default=1.0), high / 100), high

    def _html_table(self) -> str:
        lines = [_tr("th", self._columns())]
        lines += [_tr("td", [row.name, *self._cells(row)]) for row in self.rows]
        return f"<table>{''.join(lines)}</table>"


def _tr(tag: str, cells: Iterable[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"


def _about(contender: Contender) -> str:
    return f"{contender.about} ({contender.paper})" if contender.paper else contender.about


def _note(found: Comparison) -> str:
    """Returns what a reader must know of the figures."""
    seeds = plural(max((len(row.trained) for row in found.rows), default=0), "seed")
    better = "lower" if found.measured in WORSE_IF_LARGER else "higher"
    measured = found.measured[0].upper() + found.measured[1:]
    text = (
        f"{found.budget} for each mechanism, {seeds}; the same data, sizes, learning rate and order of batches. {measured}, "
        f"greedy search; {better} is better. In brackets: 95 % bootstrap interval over the sources, which does not cover the "
        "difference between seeds. Length: of the source in tokens."
    )
    if any(row.aligned is not None for row in found.rows):
        text += (
            " Looks at its origin: the share of target tokens whose largest weight is at most one position from where they "
            "come from, in the best head of the last layer."
        )
    return text + " Peak MB: memory beyond that of an idle process."


def _curve(row: Row, scale: tuple[float, float]) -> str:
    """Returns the training loss as a small picture, on a logarithmic scale."""

    def down(loss: float) -> float:
        low, high = scale
        share = math.log(max(loss, low) / low) / (math.log(high / low) or 1.0)
        return 39 - 37 * min(1.0, share)

    lines = []
    for cell in row.trained:
        last = max((update for update, _ in cell.curve), default=1.0) or 1.0
        points = " ".join(f"{100 * update / last:.1f},{down(loss):.1f}" for update, loss in _finite(cell.curve))
        lines.append(f'<polyline points="{points}"/>')
    name = html.escape(row.name)
    svg = f'<svg viewBox="0 0 100 41" preserveAspectRatio="none" role="img" aria-label="loss of {name}">{"".join(lines)}</svg>'
    return f"<figure>{svg}<figcaption>{name} <small>{row.training_loss:.3f}</small></figcaption></figure>"


def _finite(curve: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    return [(update, loss) for update, loss in curve if math.isfinite(loss)]
