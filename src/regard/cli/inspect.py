"""regard inspect model "a text" --out page.html"""

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.options import Device, Model, Score, Threads, With, make_console, open_model

PAGE, ARRAYS = ".html", ".npz"


def inspect(
    model: Model,
    text: Annotated[str, typer.Argument(help="Text to translate, or path of a picture, video or sound.")],
    out: Annotated[
        Path | None,
        typer.Option(
            help="Also write a file: .html (an interactive page that works offline), .png, .svg or .pdf (a picture), or .npz "
            "(all numbers).",
            show_default=False,
        ),
    ] = None,
    auxiliary: Annotated[
        str | None, typer.Option(help="Auxiliary text that comes with the picture, video or sound.", show_default=False)
    ] = None,
    kind: Annotated[
        str,
        typer.Option(
            help="Kind of attention: cross (output to source), encoder, decoder, or fusion (source to auxiliary text)."
        ),
    ] = "cross",
    layer: Annotated[int, typer.Option(help="Index of the layer, from 0; -1 is the last.")] = -1,
    with_: With = None,
    score: Score = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Translate one text and show where the model looked for each token of the output."""
    import os
    import sys
    import warnings
    from typing import get_args

    import regard
    from regard.data.labels import readable, visible
    from regard.data.pictures import Pictures
    from regard.data.source_text import file_and_text
    from regard.data.videos import Videos
    from regard.errors import UserError
    from regard.inspection.capture import translate_whole
    from regard.inspection.render import ENDINGS, WIDEST, check_drawing, draw, draw_over, in_terminal, in_words
    from regard.look import Kind

    if kind not in get_args(Kind):
        raise UserError(f"unknown kind {kind!r}; expected one of {', '.join(get_args(Kind))}")
    ending = "" if out is None else out.suffix.lower()
    if out is not None and ending not in (PAGE, ARRAYS):
        if ending not in ENDINGS:
            raise UserError(
                f"{out}: the file extension selects the format; expected one of {', '.join((PAGE, ARRAYS, *ENDINGS))}"
            )
        check_drawing(out)
    translator = open_model(model, score, device, threads, others=with_)
    reader = translator.reader
    source = reader.line(text) if auxiliary is None else (text.strip(), auxiliary.strip())
    result = translate_whole(translator, source, {})
    console = make_console()
    console.print(f"{readable(reader.title(result.source))} -> {readable(result.text)}\n")
    all_layers = ending in (PAGE, ARRAYS)
    try:
        attention = result.attention(kind, layer) if len(result.source_tokens) + len(result.tokens) <= 400 else None  # type: ignore[arg-type]
    except UserError:
        if not all_layers:
            raise
        attention = None  # a model without attention still has gates and probabilities to show
    if attention is not None:
        width = console.width if console.is_terminal or "COLUMNS" in os.environ else WIDEST
        console.print(in_words(attention) if attention.axes else in_terminal(attention, width))
    if result.unknown:
        console.print(f"never seen in training: {visible(dict.fromkeys(result.unknown))}")
    if not result.finished:
        console.print("the output did not end and was stopped")
    if out is None:
        return
    if all_layers:
        from regard.inspection.capture import inspect
        from regard.inspection.report import first_layer, write_npz, write_page

        inspection = inspect(
            translator, source, output=result.ids, finished=result.finished, what=("weights", "scores", "norms")
        )
        first_layer(inspection, kind, layer)  # type: ignore[arg-type]  # raises if there is no such layer
        name = f"{model} · regard {regard.__version__}"
        if ending == PAGE:
            console.print(f"written to {write_page(inspection, out, model=name, kind=kind, layer=layer)}; open it in a browser")  # type: ignore[arg-type]
        else:
            console.print(f"written to {write_npz(inspection, out)}")
        return
    attention = attention or result.attention(kind, layer)  # type: ignore[arg-type]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        file, _ = file_and_text(source)
        if attention.axes and kind == "cross" and isinstance(translator.source, Pictures | Videos):
            drawn = draw_over(attention, file, out)
        else:
            drawn = draw(attention, out, over=file if attention.seconds else None)
    console.print(f"written to {drawn}")
    for warning in caught:
        print(f"regard: {warning.message}", file=sys.stderr)
