"""regard plan pairs.tsv"""

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.options import Device, Header, Score, Set, SkipBadLines, Threads, load_score, prepare_device
from regard.cli.train import Files, HeldOut, SourceColumns, TargetColumn, changes_of, check_files, reading_of


def plan(
    files: Files,
    from_: SourceColumns = None,
    to: TargetColumn = None,
    header: Header = None,
    skip_bad_lines: SkipBadLines = False,
    held_out: HeldOut = None,
    set_: Set = None,
    score: Score = None,
    processes: Annotated[
        int, typer.Option(min=1, max=1024, help="Number of processes that would train the model together.")
    ] = 1,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Show what `regard train` with the same options would cost: parameters, operations, time, memory; train nothing.

    Time and memory are measured on a copy of the run for about ten seconds.
    """
    check_files(files, held_out)

    from regard.training.console import RunConsole
    from regard.training.order import Order
    from regard.training.overrides import describe
    from regard.training.plan import plan_run

    order = Order(
        data=tuple(files),
        held_out=tuple(held_out or ()),
        out=Path("model"),
        reading=reading_of(from_, to, header, skip_bad_lines),
        changes=changes_of(set_),
        scores=load_score(score),
    )
    console = RunConsole()
    planned = plan_run(order, console, prepare_device(device, threads), processes)
    console.print(f"settings {order.settings_from}:")
    console.print(describe(planned.chosen.settings, planned.chosen.reasons))
    console.print(str(planned))
