"""regard convert A B"""

from pathlib import Path
from typing import Annotated

import typer


def convert(
    source: Annotated[
        str,
        typer.Argument(
            metavar="A", help="A model folder; or a model of another format; or a name on Hugging Face that was downloaded."
        ),
    ],
    out: Annotated[Path, typer.Argument(metavar="B", help="What to write.")],
    to: Annotated[
        str | None,
        typer.Option(
            help="The format of B: regard, marian, ctranslate2, argos or onnx; by default what the name of B says, or regard "
            "if A is of another format.",
            show_default=False,
        ),
    ] = None,
    languages: Annotated[
        str | None,
        typer.Option(metavar="FROM,TO", help="The languages, such as en,de or en=English,de=German.", show_default=False),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace B if it exists.")] = False,
) -> None:
    """Convert a model from another format, or to one, and prove that both give the same outputs.

    Formats are recognised by their files. Nothing is written if the proof fails, or if the format cannot represent the model.
    """
    from regard.interop.convert import convert as run
    from regard.languages import Languages

    given = Languages.parse(languages.split(",")) if languages else None
    proof = run(Path(source), out, to, overwrite=overwrite, languages=given)
    if proof is not None:
        typer.echo(str(proof), err=True)
    typer.echo(f"saved in {out}", err=True)
