"""regard cost --length 50 --width 512 --measure --plot cost.png"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.options import make_console
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.inspection.costs import Measured, Meeting, Sizes

LONGEST = 2**20


def cost(
    length: Annotated[int, typer.Option(min=1, max=LONGEST, help="Length L of the sequence in the table.")] = 50,
    width: Annotated[int, typer.Option(min=1, max=LONGEST, help="Width d of the input.")] = 512,
    value_width: Annotated[int, typer.Option(min=1, max=LONGEST, help="Width d_v of the values or the state.")] = 512,
    key_width: Annotated[int, typer.Option(min=1, max=LONGEST, help="Width d_k of queries and keys.")] = 64,
    kernel: Annotated[int, typer.Option(min=1, max=LONGEST, help="Number k of positions under the kernel.")] = 5,
    lengths: Annotated[
        str, typer.Option(metavar="L,L,…", help="Lengths to measure and to plot.")
    ] = "4,16,64,256,1024,4096,16384",
    measure: Annotated[
        bool, typer.Option("--measure", help="Also measure time and memory of real layers, in a child process.")
    ] = False,
    threads: Annotated[str, typer.Option(metavar="N,N,…", help="Numbers of threads to measure with.")] = "1,2",
    seconds: Annotated[float, typer.Option(min=1, max=86400, help="Time after which no further measurement starts.")] = 30.0,
    memory: Annotated[
        float, typer.Option(min=0.01, max=1024, help="Skip layers that need more memory than this, in GB.")
    ] = 1.0,
    plot: Annotated[Path | None, typer.Option(help="Draw all curves to a .png, .svg or .pdf file.", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all numbers as JSON.")] = False,
) -> None:
    """Compare the cost of self-attention, recurrence, convolution and dense mixing: operations, parameters, time, memory.

    Operations and parameters are given as the lecture notes count them and exactly. The defaults are those of the notes.
    """
    import json

    from regard.inspection import costs
    from regard.inspection.render import check_drawing

    sizes = costs.Sizes(width, value_width, key_width, kernel)
    many, numbers = _whole_numbers("--lengths", lengths, LONGEST), _whole_numbers("--threads", threads, 1024)
    if plot is not None:
        check_drawing(plot)
    console = make_console()
    if not as_json:
        _print_table(length, sizes)
    measured = []
    for one in costs.measure(sizes, many, numbers, seconds=seconds, memory=int(memory * 2**30)) if measure else ():
        measured.append(one)
        if not as_json and not one.skipped:
            if len(measured) == 1:
                console.print(
                    "\nmeasured: one forward pass on one sequence, median; peak memory beyond that of Python and torch"
                )
            console.print(_line(one, sizes))
    if not as_json:
        for line in _skipped(measured):
            console.print(line)
    if plot is not None:
        costs.draw(sizes, many, measured, plot)
    if as_json:
        typer.echo(
            json.dumps(
                {
                    "sizes": vars(sizes),
                    "length": length,
                    "layers": _table(length, sizes),
                    "meetings": {form: [vars(one) for one in costs.meetings(sizes, form)] for form in ("notes", "exact")},
                    "measured": [one.as_dict() for one in measured],
                }
            )
        )
    elif plot is not None:
        console.print(f"written to {plot}")


def _whole_numbers(option: str, text: str, most: int) -> list[int]:
    """Reads "16,64" into [16, 64], sorted. Raises UserError if it is something else."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isascii() and part.isdigit() and len(part) < 10 and 1 <= int(part) <= most for part in parts):
        raise UserError(f"{option} {text!r}: expected whole numbers from 1 to {most:,}, separated by commas, such as 16,64")
    if len(parts) > 50:
        raise UserError(f"{option} has {len(parts)} numbers, expected at most 50")
    return sorted(set(map(int, parts)))


def _shown(layer: str) -> str:
    return layer.replace("_", "-")


def _table(length: int, sizes: "Sizes") -> dict[str, dict[str, dict[str, int]]]:
    """Returns layer -> form -> numbers."""
    from regard.core.costs import COSTS

    return {layer: {form: vars(sizes.cost(layer, length, form)) for form in COSTS[layer]} for layer in COSTS}


def _print_table(length: int, sizes: "Sizes") -> None:
    from regard.inspection.costs import meetings

    console = make_console()
    console.print(
        f"L = {length:,}, d = {sizes.width:,}, d_v = {sizes.value_width:,}, d_k = {sizes.key_width:,}, k = {sizes.kernel:,}"
    )
    heads = ("operations (notes)", "(exact)", "parameters (notes)", "(exact)", "steps")
    rows: list[tuple[str, ...]] = [("layer", *heads)]
    for layer, forms in _table(length, sizes).items():
        numbers = [forms[form][what] for what in ("operations", "parameters") for form in ("notes", "exact")]
        rows.append((_shown(layer), *(f"{number:,}" for number in (*numbers, forms["exact"]["sequential_steps"]))))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for first, *others in rows:
        cells = (f"{cell:>{width}}" for cell, width in zip(others, widths[1:], strict=True))
        console.print("  ".join([f"{first:<{widths[0]}}", *cells]))
    for form in ("notes", "exact"):
        console.print(f"equally many operations ({form}): {'; '.join(map(_met, meetings(sizes, form))) or 'at no length'}")


def _met(meeting: "Meeting") -> str:
    one, other = map(_shown, meeting.layers)
    return f"{one} and {other} at L = {meeting.length:,.6g}"


def _line(one: "Measured", sizes: "Sizes") -> str:
    head = f"{_shown(one.layer):<14}  L = {one.length:<6,}  threads = {one.threads}"
    rate = sizes.cost(one.layer, one.length).operations / one.seconds / 1e9
    return f"{head}  {one.seconds * 1000:10.3f} ms  {rate:8.2f} Gop/s  {one.nbytes / 2**20:9.1f} MB"


def _skipped(measured: "Sequence[Measured]") -> list[str]:
    """Says what was not measured: of each layer, the shortest length that needs too much memory or time."""
    from regard.inspection.costs import NO_TIME

    lines = []
    for layer in dict.fromkeys(one.layer for one in measured):
        missing = [one for one in measured if one.layer == layer and one.skipped]
        for one in [one for one in missing if one.skipped != NO_TIME][:1]:
            lines.append(f"{_shown(layer)}: L = {one.length:,} {one.skipped}; --memory raises the limit")
        for one in [one for one in missing if one.skipped == NO_TIME][:1]:
            threads = f"{one.threads} thread{'s' * (one.threads > 1)}"
            lines.append(f"{_shown(layer)}: no time left for L = {one.length:,} with {threads}; --seconds raises the limit")
    return lines
