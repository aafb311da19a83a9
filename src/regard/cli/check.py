"""regard check mine.py"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.options import make_console
from regard.errors import UserError, one_line

if TYPE_CHECKING:
    from rich.console import Console

    from regard.checking.check import Report
    from regard.checking.diagnose import Diagnosis, Finding

ARRAYS = ("auto", "numpy", "torch", "lists")
CODES = {"right": 0, "wrong": 1, "failed": 2}
"""Verdict -> exit code."""


def check(
    file: Annotated[
        Path | None, typer.Argument(help="Python file with your functions.", metavar="FILE.py", show_default=False)
    ] = None,
    only: Annotated[
        str,
        typer.Option(
            metavar="NAME[,NAME]", help="Functions to check; a missing one fails. Default: all that the file defines."
        ),
    ] = "",
    arrays: Annotated[
        str, typer.Option(help="What the functions get: numpy, torch or lists. auto: what the file imports, or else lists.")
    ] = "auto",
    seconds: Annotated[float, typer.Option(min=0.1, max=3600, help="Time limit for each function.")] = 10.0,
    memory: Annotated[float, typer.Option(min=0.1, max=1024, help="Memory limit in GB of address space.")] = 2.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON, for graders.")] = False,
    template: Annotated[bool, typer.Option("--template", help="Print a Python file to start from.")] = False,
    worksheet: Annotated[
        bool, typer.Option("--worksheet", help="Print exercises for pen and paper, with solutions, as an HTML page.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Which worksheet: the same seed gives the same page.")] = 1,
    out: Annotated[
        Path | None, typer.Option(help="Write the worksheet to this .html file instead of printing it.", show_default=False)
    ] = None,
) -> None:
    """Check your own attention functions, and name the mistakes in them.

    FILE.py defines any of: softmax(x), scaled_dot_scores(query, key), attention(query, key, value, mask=None),
    causal_attention(query, key, value), multi_head(x, W_q, W_k, W_v, W_o, heads, mask=None),
    additive_scores(query, key, W_q, W_k, v), causal_mask(queries, keys), positions(length, width).
    Arguments are NumPy arrays, torch tensors or lists, one row per query or key; True in a mask means "may attend".

    The file is executed in a child process with limits on time and memory. This is no protection against malicious code.

    Exit code: 0 all right, 1 mistakes, 2 something could not be run.
    """
    try:
        code = _check(file, only, arrays, seconds, memory, as_json, template, worksheet, seed, out)
    except UserError as error:
        typer.echo(f"regard: {one_line(error, 1000)}", err=True)
        raise typer.Exit(2) from None
    raise typer.Exit(code)


def _check(
    file: Path | None,
    only: str,
    arrays: str,
    seconds: float,
    memory: float,
    as_json: bool,
    template: bool,
    worksheet: bool,
    seed: int,
    out: Path | None,
) -> int:
    """Does what the options say and returns the exit code."""
    if as_json and (template or worksheet):
        raise UserError("--json prints the report on a file; leave it out, or leave out --template and --worksheet")
    if template:
        from importlib.resources import files

        typer.echo(files("regard.checking").joinpath("template.txt").read_text(encoding="utf-8"), nl=False)
        return 0
    if worksheet:
        _worksheet(seed, out)
        return 0
    if file is None:
        raise UserError("name a Python file, e.g. regard check mine.py; regard check --template prints one to start from")
    if arrays not in ARRAYS:
        raise UserError(f"--arrays {arrays!r}: expected one of {', '.join(ARRAYS)}")
    from regard.checking.check import check_file
    from regard.checking.process import Limits

    names = [name.strip() for name in only.split(",") if name.strip()]
    report = check_file(file, only=names, arrays=arrays, limits=Limits(seconds, int(memory * 2**30)))  # type: ignore[arg-type]
    if as_json:
        import json

        from regard import __version__

        typer.echo(json.dumps({**report.as_dict(), "regard": __version__}, ensure_ascii=False))
    else:
        _print(report)
    if report.verdict != "right":
        mistakes = sum(len(function.mistakes) for function in report.functions) or 1
        typer.echo(f"regard: {report.file}: {mistakes} mistake{'s' * (mistakes > 1)} found", err=True)
    return CODES[report.verdict]


def _worksheet(seed: int, out: Path | None) -> None:
    from regard.checking.worksheet import page

    content = page(seed)
    if out is None:
        typer.echo(content, nl=False)
        return
    if out.suffix.lower() != ".html":
        raise UserError(f"{out}: expected the name of an .html file")
    from regard.checkpoint.files import new_file, write

    with new_file(out) as fresh:
        write(fresh, content.encode())
    make_console().print(f"written to {out}; open it in a browser, or print it")


def _print(report: "Report") -> None:
    """Prints a report in lines of text."""
    console = make_console()
    if report.problem is not None:
        console.print(f"{report.file}: could not be run", style="bold red")
        _print_finding(console, report.problem, "")
        return
    width = max(len(function.function) for function in report.functions)
    for function in report.functions:
        _print_function(console, function, width)


def _print_function(console: "Console", function: "Diagnosis", width: int) -> None:
    number = len(function.mistakes)
    words = {"right": "right", "wrong": f"{number} mistake{'s' * (number > 1)}", "failed": "could not be run"}
    style = {"right": "green", "wrong": "bold red", "failed": "bold red"}[function.verdict]
    given = {"numpy": "NumPy arrays", "torch": "torch tensors"}.get(function.arrays, function.arrays)
    console.print(f"{function.function:<{width}}  {words[function.verdict]}{f' ({given})' if given else ''}", style=style)
    shown = ""
    for mistake in function.mistakes:
        _print_finding(console, mistake, shown)
        shown = mistake.example + mistake.seen
    for name, holds in function.properties.items():
        console.print(f"    {'holds' if holds else 'fails'}: {name}", style="" if holds else "red")
    for note in function.notes:
        console.print(f"  note: {note.says}; {note.hint}", style="dim")


def _print_finding(console: "Console", finding: "Finding", shown: str) -> None:
    """Prints one mistake. shown: the example of the mistake before it, which is not repeated."""
    console.print(f"  {finding.name}: {finding.says}")
    if finding.seen and finding.example + finding.seen != shown:
        if finding.example:
            console.print(f"    example:  {finding.example}")
        console.print(f"    got:      {finding.seen}")
        console.print(f"    expected: {finding.expected}")
    console.print(f"    hint:     {finding.hint}")
