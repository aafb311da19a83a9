"""regard distill ensemble pairs.tsv --out model"""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.options import Device, Header, Pairs, Score, Set, SkipBadLines, Threads, load_score, prepare_device
from regard.cli.train import HeldOut, Minutes, SourceColumns, TargetColumn, changes_of, check_files, reading_of


def distill(
    teacher: Annotated[Path, typer.Argument(help="Folder of an ensemble (of regard train --models), or a model folder.")],
    files: Pairs,
    with_: Annotated[
        list[Path] | None,
        typer.Option("--with", metavar="FOLDER", help="Further teachers. Can be repeated.", show_default=False),
    ] = None,
    out: Annotated[Path, typer.Option(help="Model folder to write.")] = Path("model"),
    from_: SourceColumns = None,
    to: TargetColumn = None,
    header: Header = None,
    skip_bad_lines: SkipBadLines = False,
    held_out: HeldOut = None,
    set_: Set = None,
    score: Score = None,
    minutes: Minutes = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Start over, and replace the model folder if it exists.")
    ] = False,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Train one model that learns from an ensemble, and is as small and fast as one of its models.

    The model has the vocabularies and the settings of the first teacher; --set changes the settings.

    To continue a run that was interrupted or killed, run the same command again.
    """
    check_files([teacher, *files, *(with_ or ())], held_out)

    from regard.training.console import RunConsole
    from regard.training.distill import teachers_of
    from regard.training.order import Order
    from regard.training.session import print_result, train_model

    order = Order(
        data=tuple(files),
        held_out=tuple(held_out or ()),
        out=out,
        reading=reading_of(from_, to, header, skip_bad_lines),
        changes=changes_of(set_),
        scores=load_score(score),
        minutes=minutes,
        start=teachers_of([teacher, *(with_ or ())]),
        overwrite=overwrite,
    )
    console = RunConsole()
    print_result(train_model(order, console, prepare_device(device, threads)), console)
    console.print(f"\nsaved in {out}; next: regard translate {shlex.quote(str(out))}")
