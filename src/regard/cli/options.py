"""Options that several commands share."""

import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from regard.errors import UserError, did_you_mean, plural

if TYPE_CHECKING:
    import torch
    from rich.console import Console

    from regard.layers.scores import ScoreMaker
    from regard.pipeline import Translator

Model = Annotated[Path, typer.Argument(help="A model folder.")]
Pairs = Annotated[
    list[Path],
    typer.Argument(
        help="Pairs: .tsv (source<TAB>target), .csv, .jsonl, .xlsx, or two parallel texts; texts may be .gz.", metavar="FILE"
    ),
]
From = Annotated[
    str | None, typer.Option("--from", metavar="COL[,COL]", help="Source columns, by name or number.", show_default=False)
]
To = Annotated[str | None, typer.Option(metavar="COL", help="Target column.", show_default=False)]
Header = Annotated[
    bool | None,
    typer.Option(
        "--header/--no-header", help="Line 1 holds names of columns, or data; else it is guessed.", show_default=False
    ),
]
SkipBadLines = Annotated[bool, typer.Option("--skip-bad-lines", help="Leave out lines with other columns, and say which.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
Threads = Annotated[int | None, typer.Option(min=1, max=1024, help="CPU threads; all cores if not given.", show_default=False)]
Score = Annotated[
    str | None,
    typer.Option("--score", metavar="FILE.py:CLASS", help="A score function of your own (runs that file).", show_default=False),
]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, e.g. train.steps=300.")]

Beam = Annotated[int, typer.Option(help="Hypotheses side by side; 1 is greedy search.")]
LengthPenalty = Annotated[
    str, typer.Option(metavar="NUMBER|mean", help="Outputs of n tokens rank by log_prob / ((5+n)/6)^NUMBER, or by their mean.")
]
MaxLength = Annotated[int, typer.Option(help="Stop an output after this many tokens.")]
MaxSource = Annotated[int, typer.Option(min=1, max=100_000, help="Longer texts (tokens) are split into sentences.")]


def check_search(given: dict[str, Any]) -> dict[str, Any]:
    """Search options as typed, checked before a model is loaded. Words are still words."""
    from regard.contracts import SearchOptions

    with suppress(ValueError):  # else it is "mean", or is refused like other words
        given["length_penalty"] = float(given["length_penalty"])
    SearchOptions(**{name: value for name, value in given.items() if name not in ("banned", "prefix")})
    return given


def open_model(
    folder: Path,
    score: str | None,
    device: str,
    threads: int | None,
    max_source: int | None = None,
    names_in: Path | None = None,
) -> "Translator":
    """names_in: a file that names pictures or sounds, which are then looked for from its folder."""
    from dataclasses import replace

    import regard

    prepare(device, threads)
    translator = regard.load(folder, device=device, scores=own_score(score))
    if names_in is not None:
        translator = replace(translator, source=translator.source.at(names_in.parent))
    return translator if max_source is None else replace(translator, max_source=max_source)


def own_score(spec: str | None) -> "dict[str, ScoreMaker]":
    """Runs the file that the user names and takes the class out of it: {"its name": class}."""
    if spec is None:
        return {}
    from types import ModuleType

    file, _, name = spec.rpartition(":")
    if not Path(file).is_file() or Path(file).suffix != ".py":
        raise UserError(f"--score {spec}: expected FILE.py:CLASS with a Python file that exists")
    module = ModuleType(Path(file).stem)
    module.__file__ = file
    try:
        exec(compile(Path(file).read_bytes(), file, "exec"), vars(module))  # an import would leave a __pycache__ behind
    except Exception as error:  # whatever the user's code raises
        raise UserError(f"--score {spec}: {file} does not run: {type(error).__name__}: {error}") from error
    maker = getattr(module, name, None)
    if maker is None:
        raise UserError(f"--score {spec}: {file} has no {name!r}{did_you_mean(name, dir(module))}")
    if not isinstance(getattr(maker, "name", None), str):
        raise UserError(f'--score {spec}: {name} needs a name, such as name = "{name.lower()}", which model folders call it by')
    return {maker.name: maker}


def columns_of(text: str | None) -> tuple[str, ...]:
    """ "lemma,features" as it was typed."""
    names = tuple(name.strip() for name in text.split(",")) if text else ()
    if not all(names):
        raise UserError(f"columns {text!r}: expected names or numbers with commas between them, such as 1,3; got an empty one")
    return names


def on_bad_lines(skip: bool) -> Literal["stop", "skip"]:
    return "skip" if skip else "stop"


def trimmed(translator: "Translator", text: str) -> str:
    """One text as `translate` reads a line: stripped as the sides of a pair are in training. Before the TAB of a text that
    stands beside a file, the name of that file may be missing."""
    from regard.data.sources import auxiliary_vocabulary_size

    if auxiliary_vocabulary_size(translator.source):
        return text.strip(" \r\n") if text.strip() else ""
    return text.strip()


def one_cell(text: str) -> str:
    """For a line of columns parted by TABs: those of a source are parted by spaces."""
    return " ".join(part.strip() for part in re.split(r"[\t\r\n]+", text)).strip()


def never_seen(number: int) -> str:
    return f"{plural(number, 'source symbol')} {'was' if number == 1 else 'were'} never seen in training"


def make_console(*, stderr: bool = False) -> "Console":
    """Prints what it is given: no colours of its own, no [markup], no broken lines in a log."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=True, markup=False, stderr=stderr)


def prepare(device: str, threads: int | None) -> "torch.device":
    """Sets up memory and the number of threads, and gives the device."""
    import torch

    from regard.core.devices import choose_device, keep_freed_memory

    keep_freed_memory()
    if threads is not None:
        torch.set_num_threads(threads)
    return choose_device(device)
