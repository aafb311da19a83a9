"""`regard`: one command, one small file. Nothing here imports torch, so that --help is quick."""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper
from typing import Annotated

import typer

from regard import __version__
from regard.cli import align, demo, doctor, evaluate, explain, inspect, score, train, translate
from regard.errors import UserError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"regard {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version.")
    ] = False,
    details: Annotated[
        bool, typer.Option("--details", help="After an error, print all that is known about it: regard --details translate …")
    ] = False,
) -> None:
    """Train, look inside, and ship sequence-to-sequence models with attention."""


app.command("demo")(demo.demo)
app.command("train")(train.train)
app.command("translate")(translate.translate)
app.command("evaluate")(evaluate.evaluate)
app.command("score")(score.score)
app.command("inspect")(inspect.inspect)
app.command("explain")(explain.explain)
app.command("align")(align.align)
app.command("doctor")(doctor.doctor)


def main() -> None:
    """Mistakes of the user end in one line; anything else is a bug of ours and keeps its traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")  # whatever the locale says; no name is unprintable
    try:
        app()
    except UserError as error:
        details = "--details" in sys.argv[1:2] and error.details
        sys.exit(f"regard: {error}" + (f"\n{details}" if details else ""))
    except BrokenPipeError:  # `regard translate … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:  # a full disk, a missing permission
        sys.exit(f"regard: {error}")
