"""regard train pairs.tsv --out model"""

import shlex
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli.options import (
    Device,
    Header,
    Score,
    Set,
    SkipBadLines,
    Threads,
    load_score,
    prepare_device,
    split_columns,
)
from regard.errors import UserError

Files = Annotated[
    list[Path],
    typer.Argument(
        help="Pairs: a .tsv (source<TAB>target), .csv, .jsonl or .xlsx file, or two parallel text files. Text files may be "
        "compressed (.gz). A source may be the path of a picture, video or sound. Or a run file (.yaml)."
    ),
]
SourceColumns = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="COL[,COL]",
        help="Source columns, by name or number. Default: recognised by name, or the first of two.",
        show_default=False,
    ),
]
TargetColumn = Annotated[
    str | None,
    typer.Option(
        metavar="COL",
        help="Target column, by name or number. Default: recognised by name, or the second of two.",
        show_default=False,
    ),
]
LanguageCodes = Annotated[
    str | None,
    typer.Option(
        metavar="SOURCE,TARGET",
        help="Codes of the languages, such as en,de, which servers and other programs ask the model for. With a name: "
        "en=English,de=German.",
        show_default=False,
    ),
]
HeldOut = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE",
        help="Pairs to validate on; give it twice for parallel files. Default: a part of the data.",
        show_default=False,
    ),
]
Minutes = Annotated[
    float | None,
    typer.Option(
        metavar="MINUTES",
        help="Time for the whole run; fixes the number of updates before the first. Default: chosen from the data.",
        show_default=False,
    ),
]


def train(
    files: Files,
    out: Annotated[Path, typer.Option(help="Model folder to write.")] = Path("model"),
    from_: SourceColumns = None,
    to: TargetColumn = None,
    header: Header = None,
    skip_bad_lines: SkipBadLines = False,
    languages: LanguageCodes = None,
    portable: Annotated[
        bool,
        typer.Option(
            "--portable",
            help="Train a model that can be converted for Hugging Face, CTranslate2, Argos and ONNX (regard convert).",
        ),
    ] = False,
    held_out: HeldOut = None,
    set_: Set = None,
    score: Score = None,
    encoder_from: Annotated[
        Path | None,
        typer.Option(
            help="Model folder whose trained encoder the new model starts with; or a BERT of Hugging Face.", show_default=False
        ),
    ] = None,
    freeze: Annotated[bool, typer.Option("--freeze", help="With --encoder-from: do not train that encoder.")] = False,
    start_from: Annotated[
        Path | None,
        typer.Option(help="Model folder to train further, with its settings and vocabulary.", show_default=False),
    ] = None,
    models: Annotated[
        int,
        typer.Option(
            min=1,
            max=1000,
            help="Number of models with different seeds, trained side by side; OUT becomes an ensemble of them.",
        ),
    ] = 1,
    minutes: Minutes = None,
    processes: Annotated[
        int,
        typer.Option(
            min=1,
            max=1024,
            help="Number of processes that train the model together and share the cores. On several machines: torchrun.",
        ),
    ] = 1,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also write the log for TensorBoard, to OUT.run/tensorboard.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Start over, and replace the model folder if it exists.")
    ] = False,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Train a model on pairs of texts. No configuration needed: the settings are chosen from the data and printed.

    They are also written to OUT.run/run.yaml, with the reasons. `regard train OUT.run/run.yaml` repeats the run.

    To continue a run that was interrupted or killed, run the same command again.
    """
    check_files(files, held_out)

    from regard.data.sources import FileCodec
    from regard.training.console import RunConsole
    from regard.training.follower import follow
    from regard.training.members import train_members
    from regard.training.order import Order
    from regard.training.ranks import num_restarts, several
    from regard.training.session import print_result, train_model
    from regard.training.settings import StartSettings

    order = Order(
        data=tuple(files),
        held_out=tuple(held_out or ()),
        out=out,
        reading={**reading_of(from_, to, header, skip_bad_lines), "languages": split_columns(languages)},
        changes=changes_of(set_),
        scores=load_score(score),
        minutes=minutes,
        portable=portable,
        start=StartSettings(model=str(start_from or ""), encoder=str(encoder_from or ""), freeze=freeze),
        tensorboard=tensorboard,
        overwrite=overwrite and not num_restarts(),
    )
    console = RunConsole()
    if models > 1 and processes > 1:
        raise UserError("--models trains several models, each in one process; leave out --processes or --models")
    if models > 1:
        torch_device = prepare_device(device, None)
        translator = train_members(order, models, console, torch_device, threads=threads, scores=partial(load_score, score))
        source = translator.source
    else:
        with several(processes) as ranks:
            torch_device = prepare_device(*ranks.share(device, threads))
            if ranks.rank:
                follow(out, order.scores, torch_device, ranks)
                return
            trained = train_model(order, console, torch_device, ranks=ranks)
        print_result(trained, console)
        source = trained.saved.source
    inputs = "names" if isinstance(source, FileCodec) else "texts"
    console.print(f"\nsaved in {out}; next: regard translate {shlex.quote(str(out))} {inputs}.txt")


def check_files(files: list[Path], held_out: list[Path] | None) -> None:
    """Raises UserError if a file does not exist; before torch is imported, so that a mistyped name is reported at once."""
    for file in [*files, *(held_out or ())]:
        if not file.exists():
            raise UserError(f"{file}: no such file")


def reading_of(from_: str | None, to: str | None, header: bool | None, skip_bad_lines: bool) -> dict[str, Any]:
    """Returns the data settings that options give by name."""
    return {
        "source_columns": split_columns(from_),
        "target_column": to,
        "header": None if header is None else "yes" if header else "no",
        "bad_lines": "skip" if skip_bad_lines else None,
    }


def changes_of(set_: list[str] | None) -> dict[str, Any]:
    """Returns the arguments of --set by key. Raises UserError with all errors in them."""
    from regard.training.overrides import parse_changes

    changes, errors = parse_changes(set_ or [])
    if errors:
        raise UserError("; ".join(errors))
    return changes
