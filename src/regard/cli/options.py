"""Options that several commands share."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import torch
    from rich.console import Console

Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads; all cores if not given.", show_default=False)]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, e.g. train.steps=300.")]


def make_console() -> "Console":
    """Prints what it is given: no colours of its own, no [markup], no broken lines in a log."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=True, markup=False)


def prepare(device: str, threads: int | None) -> "torch.device":
    """Sets the number of threads and gives the device."""
    import torch

    from regard.core.devices import choose_device

    if threads is not None:
        torch.set_num_threads(threads)
    return choose_device(device)
