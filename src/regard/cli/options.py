"""Options that several commands share."""

from typing import TYPE_CHECKING, Annotated

import typer

from regard.errors import UserError, did_you_mean

if TYPE_CHECKING:
    import torch
    from rich.console import Console

    from regard.layers.scores import ScoreMaker

Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads; all cores if not given.", show_default=False)]
Score = Annotated[
    str | None,
    typer.Option("--score", metavar="FILE.py:CLASS", help="A score function of your own (runs that file).", show_default=False),
]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, e.g. train.steps=300.")]


def own_score(place: str | None) -> "dict[str, ScoreMaker]":
    """Runs the file that the user names and takes the class out of it: {"its name": class}."""
    if place is None:
        return {}
    from importlib.util import module_from_spec, spec_from_file_location
    from pathlib import Path

    file, _, name = place.rpartition(":")
    spec = spec_from_file_location(Path(file).stem, file) if Path(file).is_file() else None
    if spec is None or spec.loader is None:
        raise UserError(f"--score {place}: expected FILE.py:CLASS with a Python file that exists")
    module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever the user's code raises
        raise UserError(f"--score {place}: {file} does not run: {type(error).__name__}: {error}") from error
    maker = getattr(module, name, None)
    if maker is None:
        raise UserError(f"--score {place}: {file} has no {name!r}{did_you_mean(name, dir(module))}")
    if not isinstance(getattr(maker, "name", None), str):
        raise UserError(
            f'--score {place}: {name} needs a name, such as name = "{name.lower()}", which model folders call it by'
        )
    return {maker.name: maker}


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
