"""regard evaluate model test.tsv"""

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.options import (
    Beam,
    Device,
    From,
    LengthPenalty,
    MaxLength,
    MaxSource,
    Model,
    Pairs,
    Score,
    Threads,
    check_search,
    columns_of,
    make_console,
    open_model,
)


def evaluate(
    model: Model,
    test: Pairs,
    from_: From = None,
    to: Annotated[
        str | None,
        typer.Option(metavar="COL[,COL]", help="Columns of references; in a .tsv all but the first.", show_default=False),
    ] = None,
    against: Annotated[
        Path | None, typer.Option(help="Another model folder: is this one better? A paired test.", show_default=False)
    ] = None,
    beam: Beam = 5,
    length_penalty: LengthPenalty = "0.6",
    max_length: MaxLength = 256,
    outputs: Annotated[bool, typer.Option("--outputs", help="Also print every source, output and first reference.")] = False,
    max_source: MaxSource = 1024,
    score: Score = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Measure a model on a test set: BLEU, chrF, error rates, exact matches, with intervals and what reproduces them."""
    from regard.evaluation import NEEDS_SACREBLEU, can_use_sacrebleu, measures, read_test_set, signature

    data = read_test_set(test, columns_of(from_), columns_of(to))
    search = check_search({"beam": beam, "length_penalty": length_penalty, "max_length": max_length})

    from functools import partial

    import torch

    from regard.checkpoint.folder import weights_digest
    from regard.evaluation import by_length
    from regard.training.record import counted

    console = make_console()
    tally = partial(counted, what="translating", console=make_console(stderr=True))
    translator = open_model(model, score, device, threads, max_source, names_in=test[0])
    results = translator.batch(data.sources, tally=tally, **search)
    texts = [result.text for result in results]
    rival, others = None, None
    if against is not None:
        rival = open_model(against, score, device, threads, max_source, names_in=test[0])
        others = [result.text for result in rival.batch(data.sources, tally=tally, **search)]

    def symbols(text: str) -> tuple[str, ...]:
        return translator.target.pieces(text)

    if outputs:
        for source, text, known in zip(data.sources, texts, data.references, strict=True):
            console.print(f"{source}\t{text}\t{known[0]}")
    num_references = sum(map(len, data.references))
    console.print(f"{data.name}: {len(data.sources):,} sources, {num_references:,} references")
    for note in data.notes:
        console.print(note)
    if data.num_empty:
        console.print(f"{data.num_empty:,} lines left out because a side is empty")
    if stopped := sum(not result.finished for result in results):
        console.print(f"{stopped:,} outputs did not end and were stopped at {max_length} tokens")
    if unknown := sum(len(result.unknown) for result in results):
        console.print(f"{unknown:,} source symbols were never seen in training")
    for measure in measures(texts, data.references, symbols, others):
        console.print(str(measure))
    if not can_use_sacrebleu():
        console.print(NEEDS_SACREBLEU)

    sizes = [len(result.source_tokens) for result in results]
    console.print("\nby source length (tokens):" if any(sizes) else "\nby length of the reference (tokens):")
    for lengths, inside in by_length(sizes if any(sizes) else [len(symbols(known[0])) for known in data.references]):
        group = measures([texts[i] for i in inside], [data.references[i] for i in inside], symbols, intervals=False)
        figures = ", ".join(f"{one.name} {one.value * (100 if one.percent else 1):.2f}{'%' * one.percent}" for one in group)
        console.print(f"  {lengths:>9}: {len(inside):,} sources: {figures}")
    facts = {
        "data": f"{data.name}:{data.fingerprint}",
        "weights": weights_digest(translator.model)[:6],  # type: ignore[arg-type]
        **({"against": weights_digest(rival.model)[:6]} if rival else {}),  # type: ignore[arg-type]
        "search": f"beam={beam},length_penalty={length_penalty},max_length={max_length}",
        "threads": torch.get_num_threads(),
    }
    console.print(f"\n{signature(facts)}")
