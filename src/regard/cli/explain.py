"""regard explain model "a text" --token 2"""

from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.options import Device, Model, Score, Threads, make_console, open_model

if TYPE_CHECKING:
    from regard.inspection.explain import Explanation, ExplanationLine

NUM_SHOWN = 6
"""How many numbers of a vector are printed, and how many words of the vocabulary."""


def explain(
    model: Model,
    text: Annotated[str, typer.Argument(help="Text to translate.")],
    token: Annotated[int, typer.Option(help="Index of the output token, from 0; -1 is the last one, <eos>.")] = 0,
    layer: Annotated[int, typer.Option(help="Transformers: index of the layer, from 0; -1 is the last.")] = -1,
    head: Annotated[int, typer.Option(help="Transformers: index of the head, from 0.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print all numbers as JSON.")] = False,
    score: Score = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Show how one output token is computed, number by number: query, keys, scores, mask, softmax, context, logits, word."""
    import json

    from regard.data.labels import label, readable
    from regard.inspection.explain import explain as explain_token

    translator = open_model(model, score, device, threads)
    explanation = explain_token(translator, translator.reader.line(text), token, layer=layer, head=head)
    if as_json:
        print(json.dumps(explanation.as_dict(), ensure_ascii=False))
        return
    console = make_console()
    console.print(f"{readable(explanation.text)} -> {readable(explanation.output)}\n")
    console.print(f"token {explanation.position} of the output, {label(explanation.token)} ({explanation.about})\n")
    for line in explanation.lines:
        size = "×".join(map(str, line.values.shape))
        console.print(f"{line.name:<14} {line.formula}" + (f"   [{size}]" if size else ""), style="bold")
        for row in format_line(line, explanation):
            console.print(f"  {row}")


def format_line(line: "ExplanationLine", explanation: "Explanation") -> list[str]:
    """Returns a row for each token if the first axis is tokens, otherwise one row with the first few numbers."""
    from rich.cells import cell_len

    from regard.data.labels import label

    values = line.values
    if values.dim() == 0:
        return [f"{values.item()}  {label(explanation.token)}"]
    if not line.rows:
        return [format_vector(values.tolist())]
    rows = range(len(values))
    if line.name in ("logits", "probabilities"):
        rows = values.topk(min(NUM_SHOWN, len(values))).indices.tolist()  # type: ignore[assignment]
    labels = [label(line.rows[row]) for row in rows]
    width = max(map(cell_len, labels))
    return [
        f"{name}{' ' * (width - cell_len(name))}  {format_value(values[row].tolist())}"
        for name, row in zip(labels, rows, strict=True)
    ]


def format_value(value: list[float] | float | int) -> str:
    if isinstance(value, list):
        return format_vector(value)
    return f"{value:9.4f}" if isinstance(value, float) else f"{value:4}"


def format_vector(numbers: list[float]) -> str:
    first = "  ".join(f"{number:7.3f}" for number in numbers[:NUM_SHOWN])
    return first + ("  …" if len(numbers) > NUM_SHOWN else "")
