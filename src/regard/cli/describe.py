"""regard describe model --out model.svg"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.options import Score, Set, load_score, make_console
from regard.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from regard.inspection.description import Description


def describe(
    model: Annotated[
        str,
        typer.Argument(
            help="Model folder, run folder, run.yaml, preset (tiny, small, base, …) or family (rnn, transformer, …)."
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="Draw the diagram to a .png, .svg or .pdf file.", show_default=False)] = None,
    tokens: Annotated[
        str | None,
        typer.Option(
            metavar="N[,N]",
            help="For a preset, a family or a run.yaml: number of source and target tokens. Default: 8000.",
            show_default=False,
        ),
    ] = None,
    set_: Set = None,
    score: Score = None,
) -> None:
    """Show the parts of a model, with the shape of every output and the number of parameters, before anything is trained."""
    if out is not None:
        from regard.inspection.render import check_drawing

        check_drawing(out)
    description = _describe(model, tokens, set_ or [], score)
    console = make_console()
    console.print(str(description))
    if out is not None:
        console.print(f"\nwritten to {description.draw(out).path}")


def _describe(model: str, tokens: str | None, changes: list[str], score: str | None) -> "Description":
    """Describes what the user named; a folder or a file comes before a preset of the same name."""
    import regard
    from regard.models.build import FAMILIES, presets
    from regard.training.config import read_config
    from regard.training.overrides import override
    from regard.training.untrained import model_settings

    scores, path = load_score(score), Path(model)
    if path.is_dir():
        if changes or tokens:
            raise UserError(f"{model} is a trained model, whose settings are fixed; leave out --set and --tokens")
        return regard.describe(regard.load(path, device="cpu", scores=scores))
    if path.is_file():
        settings = override(read_config(path, scores), changes, scores).model
    elif model not in (names := [*FAMILIES, *presets()]):
        raise UserError(
            f"{model}: there is no such folder or file, and no preset or family of this name ({', '.join(names)})"
            f"{did_you_mean(model, names)}"
        )
    else:
        settings = model_settings(model, changes, scores)
    return regard.describe(settings, num_tokens=_numbers(tokens), scores=scores)


def _numbers(tokens: str | None) -> int | tuple[int, int] | None:
    if tokens is None:
        return None
    numbers = [int(number) for number in tokens.split(",") if number.strip().isdecimal()]
    if len(numbers) not in (1, 2) or len(numbers) != len(tokens.split(",")) or 0 in numbers:
        raise UserError(f"--tokens {tokens}: expected one or two numbers above 0, such as 8000 or 8000,6000")
    return numbers[0] if len(numbers) == 1 else (numbers[0], numbers[1])
