"""regard explain model "a text" --token 2"""

from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.options import Device, Model, Score, Threads, make_console, open_model, trimmed

if TYPE_CHECKING:
    from regard.inspection.explain import Explanation, Line

SHOWN = 6
"""How many numbers of a vector are printed, and how many words."""


def explain(
    model: Model,
    text: Annotated[str, typer.Argument(help="What to translate.")],
    token: Annotated[int, typer.Option(help="Which token of the output, from 0; -1 is the last, <eos>.")] = 0,
    layer: Annotated[int, typer.Option(help="Transformers: which layer; -1 is the last.")] = -1,
    head: Annotated[int, typer.Option(help="Transformers: which head.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="All numbers as JSON.")] = False,
    score: Score = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Show how one output token came about, number by number: query, keys, scores, mask, softmax, context, logits, word."""
    import json

    from regard.data.labels import label, readable
    from regard.inspection.explain import explain as explained

    translator = open_model(model, score, device, threads)
    found = explained(translator, trimmed(translator, text), token, layer=layer, head=head)
    if as_json:
        print(json.dumps(found.as_dict(), ensure_ascii=False))
        return
    console = make_console()
    console.print(f"{readable(found.text)} -> {readable(found.output)}\n")
    console.print(f"token {found.position} of the output, {label(found.token)} ({found.about})\n")
    for line in found.lines:
        size = "×".join(map(str, line.values.shape))
        console.print(f"{line.name:<14} {line.formula}" + (f"   [{size}]" if size else ""), style="bold")
        for row in numbers(line, found):
            console.print(f"  {row}")


def numbers(line: "Line", found: "Explanation") -> list[str]:
    """A line for each token where there are tokens, else the first few numbers."""
    from rich.cells import cell_len

    from regard.data.labels import label

    values = line.values
    if values.dim() == 0:
        return [f"{values.item()}  {label(found.token)}"]
    if not line.rows:
        return [vector(values.tolist())]
    rows = range(len(values))
    if line.name in ("logits", "probabilities"):
        rows = values.topk(min(SHOWN, len(values))).indices.tolist()  # type: ignore[assignment]
    labels = [label(line.rows[row]) for row in rows]
    width = max(map(cell_len, labels))
    return [
        f"{one}{' ' * (width - cell_len(one))}  {shown(values[row].tolist())}" for one, row in zip(labels, rows, strict=True)
    ]


def shown(number: list[float] | float | int) -> str:
    if isinstance(number, list):
        return vector(number)
    return f"{number:9.4f}" if isinstance(number, float) else f"{number:4}"


def vector(numbers: list[float]) -> str:
    shown = "  ".join(f"{number:7.3f}" for number in numbers[:SHOWN])
    return shown + ("  …" if len(numbers) > SHOWN else "")
