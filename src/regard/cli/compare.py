"""regard compare reverse"""

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.options import Set
from regard.cli.train import HeldOut, SourceColumns, TargetColumn, changes_of

Only = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME[,NAME]", help="Mechanisms to compare, or patterns such as 'luong-*'. Default: all.", show_default=False
    ),
]
Without = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TRICK[,TRICK]",
        help="Parts of the Transformer to leave out, one at a time: scale, mask, positions, residual, norm, heads; or all.",
        show_default=False,
    ),
]


def compare(
    data: Annotated[
        list[str] | None,
        typer.Argument(
            help="A built-in task (copy, reverse, sort, recall, bag, dictionary), or pairs as for regard train.",
            show_default="reverse",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder to write: models, results and reports.")] = Path("compare"),
    only: Only = None,
    without: Without = None,
    updates: Annotated[int | None, typer.Option(help="Budget of each run: updates.", show_default=False)] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Budget of each run: minutes, turned into updates.", show_default=False)
    ] = None,
    operations: Annotated[
        float | None,
        typer.Option(
            help="Budget of each run: multiply-adds of its training, e.g. 1e12, turned into updates.", show_default=False
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Runs of each mechanism, with the seeds 1, 2, …")] = 1,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer mechanisms, updates and test sources: three minutes on two cores.")
    ] = False,
    held_out: HeldOut = None,
    from_: SourceColumns = None,
    to: TargetColumn = None,
    set_: Set = None,
    side_by_side: Annotated[
        int | None,
        typer.Option(min=1, max=1024, help="Runs at a time. Default: as many as there are cores.", show_default=False),
    ] = None,
    threads: Annotated[int, typer.Option(min=1, max=1024, help="CPU threads of each run.")] = 1,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Start over.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="Print all mechanisms and tasks.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Compare every mechanism on one task with an equal budget: quality with intervals, by length, parameters, speed, memory.

    Writes models, a table (.md, .json), a picture and a page (.html) to OUT. The same command again continues a comparison that
    was interrupted; with other mechanisms, more --without or more --seeds, it adds to it.
    """
    if list_:
        _print_list()
        return

    import json

    from regard.comparing.compare import compare as run

    given = data or ["reverse"]
    found = run(
        given[0] if len(given) == 1 else tuple(given),
        out,
        only=only or (),
        without=without or (),
        updates=updates,
        minutes=minutes,
        operations=operations,
        seeds=seeds,
        quick=quick,
        held_out=tuple(held_out) if held_out else None,
        source=tuple(from_.split(",")) if from_ else None,
        target=to,
        settings=changes_of(set_),
        overwrite=overwrite,
        side_by_side=side_by_side,
        threads=threads,
        quiet=as_json,
    )
    if as_json:
        print(json.dumps(found.as_dict(), ensure_ascii=False))


def _print_list() -> None:
    from regard.comparing.contenders import CONTENDERS, QUICK, WITHOUT
    from regard.comparing.tasks import TASKS

    print("mechanisms (* in --quick):")
    for one in (*CONTENDERS, *WITHOUT):
        mark = "*" if one.name in QUICK else " "
        print(f" {mark} {one.name:25} {one.about}{f' ({one.paper})' if one.paper else ''}")
    print("\ntasks:")
    for task in TASKS.values():
        print(f"   {task.name:25} {task.about}")
