"""Options that several commands share."""

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from regard.errors import UserError, did_you_mean, plural

if TYPE_CHECKING:
    import torch
    from rich.console import Console

    from regard.layers.scores import ScoreMaker
    from regard.options import EngineName
    from regard.pipeline import Translator

Model = Annotated[Path, typer.Argument(help="Model folder.")]
Pairs = Annotated[
    list[Path],
    typer.Argument(
        help="Pairs: a .tsv (source<TAB>target), .csv, .jsonl or .xlsx file, or two parallel text files. Text files may be "
        "compressed (.gz).",
        metavar="FILE",
    ),
]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="COL[,COL]",
        help="Source columns, by name or number. Default: the columns used in training.",
        show_default=False,
    ),
]
To = Annotated[
    str | None,
    typer.Option(
        metavar="COL", help="Target column, by name or number. Default: the column used in training.", show_default=False
    ),
]
Header = Annotated[
    bool | None,
    typer.Option("--header/--no-header", help="Whether line 1 holds column names. Default: guessed.", show_default=False),
]
SkipBadLines = Annotated[
    bool,
    typer.Option(
        "--skip-bad-lines", help="Skip lines whose columns do not match, and report them. Default: stop with an error."
    ),
]
Pieces = Annotated[
    bool | None,
    typer.Option(
        "--pieces/--words",
        help="What alignments count: tokens, or words on both sides. Default: words, but characters where they are the unit.",
        show_default=False,
    ),
]
With = Annotated[
    list[Path] | None,
    typer.Option(
        "--with",
        metavar="FOLDER",
        help="Further model folders, which write the output together with the first (an ensemble). Can be repeated.",
        show_default=False,
    ),
]
Device = Annotated[str, typer.Option(help="Device to compute on: auto, cpu, cuda, cuda:1 or mps.")]
Threads = Annotated[
    int | None, typer.Option(min=1, max=1024, help="Number of CPU threads. Default: all cores.", show_default=False)
]
Score = Annotated[
    str | None,
    typer.Option("--score", metavar="FILE.py:CLASS", help="Custom score function. FILE.py is executed.", show_default=False),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, e.g. train.learning_rate=0.001. Can be repeated."),
]

Beam = Annotated[int, typer.Option(help="Number of hypotheses that the search keeps; 1 is greedy search.")]
LengthPenalty = Annotated[
    str,
    typer.Option(
        metavar="NUMBER|mean",
        help="Rank outputs of n tokens by log_prob / ((5+n)/6)^NUMBER, or by the mean log_prob of their tokens.",
    ),
]
MaxLength = Annotated[int, typer.Option(help="Stop an output after this many tokens.")]
MaxRatio = Annotated[
    float | None, typer.Option(help="Stop an output after this many tokens per source token, plus 10.", show_default=False)
]
MaxSource = Annotated[int, typer.Option(min=1, max=100_000, help="Split texts with more tokens than this into sentences.")]


EngineOption = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="NAME",
        help="What takes the steps of the search: native (C++), torch, or auto: native where it serves.",
    ),
]


def check_engine(name: str) -> "EngineName":
    """Returns the name of an engine as it was typed. Raises UserError if there is none of this name."""
    from regard.options import engine_name

    return engine_name(name)


def check_search(given: dict[str, Any]) -> dict[str, Any]:
    """Checks search options as typed, before a model is loaded, and returns them with length_penalty as a number.

    `banned` and `prefix` are still words, so the Reader of the model checks them, and the seed.
    """
    from regard.options import SearchOptions

    with suppress(ValueError):  # "mean" stays a word; any other word is refused by SearchOptions
        given["length_penalty"] = float(given["length_penalty"])
    SearchOptions(**{name: value for name, value in given.items() if name not in ("banned", "prefix", "seed")})
    return given


def open_model(
    folder: Path,
    score: str | None,
    device: str,
    threads: int | None,
    max_source: int | None = None,
    listed_in: Path | None = None,
    others: Sequence[Path] | None = None,
    engine: "EngineName" = "auto",
) -> "Translator":
    """Loads a model. listed_in: a file that lists pictures or sounds; their paths are relative to its folder. others: further
    models of an ensemble. engine: as in `regard.load`."""
    from dataclasses import replace

    import regard

    prepare_device(device, threads)
    folders = [folder, *others] if others else folder
    translator = regard.load(folders, device=device, scores=load_score(score), engine=engine)
    if listed_in is not None:
        translator = translator.at(listed_in.parent)
    return translator if max_source is None else replace(translator, reader=replace(translator.reader, max_source=max_source))


def load_score(spec: str | None) -> "dict[str, ScoreMaker]":
    """Executes the user's file FILE.py:CLASS and returns {name of the score: class}, or {} without a file.

    Raises UserError if the file cannot be executed or does not define a named score.
    """
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
        raise UserError(
            f'--score {spec}: {name} needs a name for model folders to refer to, such as name = "{name.lower()}" in the class'
        )
    return {maker.name: maker}


def split_columns(text: str | None) -> tuple[str, ...]:
    """Splits "lemma,features" into ("lemma", "features"). Raises UserError if one of them is empty."""
    names = tuple(name.strip() for name in text.split(",")) if text else ()
    if not all(names):
        raise UserError(f"columns {text!r}: expected names or numbers separated by commas, such as 1,3; got an empty one")
    return names


def on_bad_lines(skip: bool) -> Literal["stop", "skip"]:
    """Returns the value of `bad_lines` for --skip-bad-lines."""
    return "skip" if skip else "stop"


def one_cell(text: str) -> str:
    """Returns a text for a cell of a TAB-separated line: the TABs between source columns and line breaks become spaces."""
    return " ".join(part.strip() for part in re.split(r"[\t\r\n]+", text)).strip()


def describe_unknown(number: int) -> str:
    """Returns a sentence on how many source symbols were never seen in training."""
    return f"{plural(number, 'source symbol')} {'was' if number == 1 else 'were'} never seen in training"


def make_console(*, stderr: bool = False) -> "Console":
    """Returns a console that prints texts as they are: no highlighting, no [markup], no wrapped lines in a log."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=True, markup=False, stderr=stderr)


def prepare_device(device: str, threads: int | None) -> "torch.device":
    """Sets up memory and the number of threads, and returns the device."""
    import torch

    from regard.core.devices import choose_device, keep_freed_memory

    keep_freed_memory()
    if threads is not None:
        torch.set_num_threads(threads)
    return choose_device(device)
