"""regard train pairs.tsv --out model"""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.options import Device, Score, Set, Threads, make_console, own_score, prepare
from regard.errors import UserError


def train(
    pairs: Annotated[Path, typer.Argument(help="A UTF-8 file with one source<TAB>target per line; may be .gz.")],
    out: Annotated[Path, typer.Option(help="Where to put the model folder.")] = Path("model"),
    set_: Set = None,
    score: Score = None,
    encoder_from: Annotated[
        Path | None, typer.Option(help="A model folder whose encoder this model starts with.", show_default=False)
    ] = None,
    freeze: Annotated[bool, typer.Option("--freeze", help="That encoder stays as it is.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the model folder if it exists.")] = False,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Train a model on pairs of texts. Nothing to configure: the settings are chosen from the data and printed."""
    from regard.data.corpus import hold_out, read_pairs, shorten

    corpus = read_pairs(pairs)  # before torch is imported: a mistyped name is answered at once

    from regard.checkpoint import folder
    from regard.training.run import run
    from regard.training.settings import describe, override, suggest
    from regard.training.transfer import Transfer

    console = make_console()
    folder.check_place(out, replace=overwrite)
    scores = own_score(score)
    transfer = Transfer(folder.load(encoder_from, scores), freeze) if encoder_from else None
    if freeze and not transfer:
        raise UserError("--freeze keeps an encoder as it is, but there is none; say which with --encoder-from")
    suggested = suggest(corpus.pairs)
    if transfer:
        suggested = replace(suggested, model=transfer.saved.settings)
    settings = override(suggested, [*(set_ or []), *(f"model.score={name}" for name in scores)], scores)
    chosen = prepare(device, threads)
    if corpus.num_empty:
        console.print(f"{pairs}: {corpus.num_empty:,} lines left out because a side is empty")
    console.print(f"settings, chosen from the data; change any with --set:\n{describe(settings)}")
    learning, held_out = hold_out(corpus.pairs, settings.data.held_out)
    try:
        trained = run(corpus.name, learning, held_out, settings, console, chosen, scores, transfer)
    except KeyboardInterrupt:
        raise UserError("interrupted; nothing was saved") from None
    folder.save(trained.saved, out, replace=overwrite)

    console.print(f"\nheld out: {trained.rates}\n          {trained.signature}")
    for answered in trained.answers[:5]:
        mark = "=" if answered.right else f"(expected {shorten(' or '.join(answered.references))})"
        console.print(f"  {shorten(answered.source)} -> {shorten(answered.result.text)} {mark}")
    console.print(f"\nsaved in {out}; next: regard translate {out} < texts.txt")
