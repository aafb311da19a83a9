"""The `regard` command, with one small file per subcommand. Nothing here imports torch, so that --help is fast."""

from __future__ import annotations

import os
import sys
import warnings
from collections import Counter
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer

from regard import __version__
from regard.cli import (
    align,
    check,
    compare,
    convert,
    cost,
    demo,
    describe,
    distill,
    doctor,
    evaluate,
    explain,
    inspect,
    keys,
    plan,
    roles,
    score,
    serve,
    train,
    translate,
)
from regard.errors import UserError, UserErrors, is_utf_8, plural

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def show_version(requested: bool) -> None:
    if requested:
        typer.echo(f"regard {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version.")
    ] = False,
    details: Annotated[
        bool, typer.Option("--details", help="After an error, also print its details: regard --details translate …")
    ] = False,
) -> None:
    """Train, look inside, and ship sequence-to-sequence models with attention."""


app.command("demo")(demo.demo)
app.command("train")(train.train)
app.command("plan")(plan.plan)
app.command("distill")(distill.distill)
app.command("translate")(translate.translate)
app.command("evaluate")(evaluate.evaluate)
app.command("score")(score.score)
app.command("inspect")(inspect.inspect)
app.command("describe")(describe.describe)
app.command("explain")(explain.explain)
app.command("align")(align.align)
app.command("roles")(roles.roles)
app.command("compare")(compare.compare)
app.command("convert")(convert.convert)
app.command("check")(check.check)
app.command("cost")(cost.cost)
app.command("serve")(serve.serve)
app.add_typer(keys.app, name="keys")
app.command("doctor")(doctor.doctor)


def main() -> None:
    """Runs the command line. Errors that the user can fix are printed in one line; any other exception is a bug of regard and
    keeps its traceback."""
    for name in ("stdout", "stderr"):  # closed, as by `regard … >&-`: discard what is printed
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 open until the process ends
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")  # whatever the locale; every name can be printed
    warned = Warned()
    warnings.showwarning = warned.show
    try:
        check_folder()
        check_arguments(sys.argv[1:])
        sys.exit(app(prog_name="regard", standalone_mode=False))
    except UsageError as error:
        sys.exit(print_usage_error(error))
    except UserError as error:
        details = "--details" in sys.argv[1:2] and error.details
        lines = error.lines if isinstance(error, UserErrors) else [str(error)]
        sys.exit("regard: " + "\n".join(map(printable, lines)) + (f"\n{details}" if details else ""))
    except BrokenPipeError:  # `regard translate … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:  # a full disk, a missing permission
        what = error.strerror or str(error)
        sys.exit(f"regard: {printable(f'{error.filename}: {what}' if error.filename else what)}")
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "allocate memory" not in str(error):
            raise
        sys.exit("regard: out of memory; try a smaller --beam, --n-best or --max-length, a smaller model, or a smaller batch")
    finally:
        warned.count_rest()


class Warned:
    """Prints warnings in one line each: the first few from each line of code, and how many more there were at the end."""

    MOST = 5

    def __init__(self) -> None:
        self.numbers: Counter[tuple[str, int]] = Counter()

    def show(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: object = None,
        line: object = None,
    ) -> None:
        """Replaces `warnings.showwarning`."""
        self.numbers[filename, lineno] += 1
        if self.numbers[filename, lineno] <= self.MOST:
            what = str(message) if "regard" in Path(filename).parts else f"{filename}: {category.__name__}: {message}"
            print(f"regard: {printable(what)}", file=sys.stderr)

    def count_rest(self) -> None:
        """Prints how many warnings were not printed."""
        if rest := sum(max(0, number - self.MOST) for number in self.numbers.values()):
            print(f"regard: and {plural(rest, 'more such warning')}", file=sys.stderr)


UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""The exception that typer raises for unknown or invalid commands and options."""


def check_folder() -> None:
    """Raises if the current folder was removed: relative paths would not resolve, and torch would end the process."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise UserError("the current folder has been removed; change to one that exists, e.g. cd ~") from None


def check_arguments(arguments: list[str]) -> None:
    """Raises if an argument is not UTF-8: texts and file names are printed, and written to settings and model folders."""
    for number, argument in enumerate(arguments, start=1):
        if not is_utf_8(argument):
            typed = printable(os.fsencode(argument).decode(errors="backslashreplace"), 60)
            raise UserError(
                f"argument {number} ({typed}) is not UTF-8; type texts in UTF-8, and rename files whose names are not"
            )


def print_usage_error(error: Exception) -> int:
    """Prints a usage error in one line and returns the exit code."""
    message = printable(" ".join(error.format_message().split()).removesuffix("."))  # type: ignore[attr-defined]
    if message:  # otherwise the help was printed
        context = error.ctx  # type: ignore[attr-defined]
        command = context.command_path if context else "regard"
        print(f"regard: {message[0].lower()}{message[1:]} (see {command} --help)", file=sys.stderr)
    code: int = error.exit_code  # type: ignore[attr-defined]
    return code


def printable(text: str, width: int = 1000) -> str:
    """Returns `text` as one line without control characters; a line longer than `width` is shortened in the middle."""
    line = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
    half = width // 2
    return line if len(line) <= width else f"{line[:half]}…{line[-half:]}"
