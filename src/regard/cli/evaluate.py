"""regard evaluate model test.tsv"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    one_cell,
    open_model,
)
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.contracts import Result
    from regard.pipeline import Translator

SHOWN = 5
"""Files that are named, of those that cannot be read."""


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
    from regard.evaluation import NEEDS_SACREBLEU, NO_BLEU, can_use_sacrebleu, measures, read_test_set, signature

    data = whole = read_test_set(test, columns_of(from_), columns_of(to))
    search = check_search({"beam": beam, "length_penalty": length_penalty, "max_length": max_length})

    from functools import partial

    import torch

    from regard.checkpoint.folder import weights_digest
    from regard.data.sources import FileCodec
    from regard.evaluation import by_length
    from regard.pipeline import Refused
    from regard.training.record import counted

    console = make_console()
    tally = partial(counted, what="translating", console=make_console(stderr=True))
    bad: dict[int, str] = {}  # sources that a model cannot read, by their places

    def results_of(translator: "Translator") -> "dict[int, Result]":
        found: dict[int, Result] = {}
        for place, one in enumerate(translator.translate(whole.sources, tally=tally, **search)):
            if not isinstance(one, Refused):
                found[place] = one
            elif isinstance(translator.source, FileCodec):
                bad.setdefault(place, f"line {whole.lines[place][0]}: {one.reason}")
            else:  # without its longest texts a test set would flatter
                raise UserError(f"{whole.name}: line {whole.lines[place][0]}: {one.reason}")
        return found

    def opened(folder: Path) -> "Translator":
        translator = open_model(folder, score, device, threads, max_source, names_in=test[0])
        for source in whole.sources:
            translator.check_columns(source)
        return translator

    translator, rival = opened(model), None if against is None else opened(against)
    found, found_by_rival = results_of(translator), {} if rival is None else results_of(rival)
    if not (good := [place for place in found if place not in bad]):
        raise UserError(f"none of the {len(whole.sources):,} files in {whole.name} can be read; the first: {bad[min(bad)]}")
    data, results = whole.only(good), [found[place] for place in good]
    texts = [result.text for result in results]
    others = None if rival is None else [found_by_rival[place].text for place in good]

    def symbols(text: str) -> tuple[str, ...]:
        return translator.target.pieces(text)

    if outputs:
        for source, text, known in zip(data.sources, texts, data.references, strict=True):
            print(*map(one_cell, (source, text, known[0])), sep="\t")  # a console would make spaces of TABs
    num_references = sum(map(len, data.references))
    console.print(f"{data.name}: {len(data.sources):,} sources, {num_references:,} references")
    for note in data.notes:
        console.print(note)
    if data.num_empty:
        console.print(f"{data.num_empty:,} lines left out because a side is empty")
    if data.num_repeats:
        console.print(f"{data.num_repeats:,} rows repeat a source: outputs that differ are further references")
    if bad:
        console.print(f"files that cannot be read and are left out: {len(bad):,}")
        for _, reason in sorted(bad.items())[:SHOWN]:
            console.print(f"  {reason}")
        if len(bad) > SHOWN:
            console.print(f"  and {len(bad) - SHOWN:,} more")
    if stopped := sum(not result.finished for result in results):
        console.print(f"{stopped:,} outputs did not end and were stopped at {max_length} tokens")
    if unknown := sum(len(result.unknown) for result in results):
        console.print(f"{unknown:,} source symbols were never seen in training")
    sizes = [len(result.source_tokens) for result in results]
    groups = by_length(sizes if any(sizes) else [len(symbols(known[0])) for known in data.references])
    parts = [
        measures([texts[i] for i in inside], [data.references[i] for i in inside], symbols, intervals=False)
        for _, inside in groups
    ]
    for measure in measures(texts, data.references, symbols, others):
        console.print(str(measure))
    if not can_use_sacrebleu():
        console.print(NEEDS_SACREBLEU)
    elif not all(any(one.name == "BLEU" for one in part) for part in parts):
        console.print(NO_BLEU)

    console.print("\nby source length (tokens):" if any(sizes) else "\nby length of the reference (tokens):")
    for (lengths, inside), part in zip(groups, parts, strict=True):
        figures = ", ".join(f"{one.name} {one.value * (100 if one.percent else 1):.2f}{'%' * one.percent}" for one in part)
        console.print(f"  {lengths:>9}: {len(inside):,} sources: {figures}")
    facts = {
        "data": f"{data.name}:{data.fingerprint}",
        "weights": weights_digest(translator.model)[:6],  # type: ignore[arg-type]
        **({"against": weights_digest(rival.model)[:6]} if rival else {}),  # type: ignore[arg-type]
        "search": f"beam={beam},length_penalty={length_penalty},max_length={max_length}",
        "threads": torch.get_num_threads(),
    }
    console.print(f"\n{signature(facts)}")
