"""`regard`: one command, one small file. Nothing here imports torch, so that --help is quick."""

from __future__ import annotations

import os
import sys

import typer

from regard.cli import demo, doctor, inspect, train, translate
from regard.errors import UserError

app = typer.Typer(
    help="Train, look inside, and ship sequence-to-sequence models with attention.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("demo")(demo.demo)
app.command("train")(train.train)
app.command("translate")(translate.translate)
app.command("inspect")(inspect.inspect)
app.command("doctor")(doctor.doctor)


def main() -> None:
    """Mistakes of the user end in one line; anything else is a bug of ours and keeps its traceback."""
    try:
        app()
    except UserError as error:
        sys.exit(f"regard: {error}")
    except KeyboardInterrupt:
        sys.exit("regard: interrupted")
    except BrokenPipeError:  # `regard translate … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:  # a full disk, a missing permission
        sys.exit(f"regard: {error}")
