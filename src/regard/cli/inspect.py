"""regard inspect model "a text" --out picture.png"""

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.options import Device, Score, Threads, make_console, own_score, prepare


def inspect(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    text: Annotated[str, typer.Argument(help="What to translate.")],
    out: Annotated[Path | None, typer.Option(help="Also draw a picture: .png, .svg or .pdf.", show_default=False)] = None,
    kind: Annotated[str, typer.Option(help="cross, encoder or decoder.")] = "cross",
    layer: Annotated[int, typer.Option(help="Which layer; -1 is the last.")] = -1,
    score: Score = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Translate one text and show where the model looked for every token of the output."""
    from typing import get_args

    import regard
    from regard.contracts import Kind
    from regard.errors import UserError
    from regard.inspection.render import check_drawing, in_terminal

    if kind not in get_args(Kind):
        raise UserError(f"unknown kind {kind!r}; expected one of {', '.join(get_args(Kind))}")
    if out is not None:
        check_drawing(out)
    prepare(device, threads)
    result = regard.load(model, device=device, scores=own_score(score))(text)
    attention = result.attention(kind, layer)  # type: ignore[arg-type]
    console = make_console()
    console.print(f"{text} -> {result.text}\n")
    console.print(in_terminal(attention))
    if result.unknown:
        console.print(f"never seen in training: {' '.join(dict.fromkeys(result.unknown))}")
    if not result.finished:
        console.print("the output did not come to an end and was stopped")
    if out is not None:
        console.print(f"drawn in {regard.draw(attention, out)}")
