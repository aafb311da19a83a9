"""regard evaluate model test.tsv"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.options import (
    Beam,
    Device,
    From,
    Header,
    LengthPenalty,
    MaxLength,
    MaxSource,
    Model,
    Pairs,
    Score,
    SkipBadLines,
    Threads,
    check_search,
    columns_of,
    make_console,
    never_seen,
    on_bad_lines,
    one_cell,
    open_model,
)
from regard.errors import UserError, plural

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Console

    from regard.contracts import Result
    from regard.evaluation import TestSet
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
    header: Header = None,
    skip_bad_lines: SkipBadLines = False,
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
    search = check_search({"beam": beam, "length_penalty": length_penalty, "max_length": max_length})

    import torch

    from regard.checkpoint.folder import weights_digest
    from regard.data.trained import TrainedOn
    from regard.evaluation import read_test_set, signature

    folders = [model] if against is None else [model, against]
    systems = [open_model(folder, score, device, threads, max_source, names_in=test[0]) for folder in folders]
    trained = TrainedOn.from_facts(systems[0].training)
    columns = trained.columns(test, columns_of(from_), columns_of(to), header=header, bad_lines=on_bad_lines(skip_bad_lines))
    whole = read_test_set(test, columns.each, normalisation=systems[0].normalisation, one_reference=trained.one_reference)
    data, (results, *others), bad = translated(systems, whole, search)
    texts = spelt_like(systems[0], results)
    if outputs:
        for source, text, known in zip(data.sources, texts, data.references, strict=True):
            print(*map(one_cell, (source, text, known[0])), sep="\t")  # a console would make spaces of TABs
    console = make_console()
    say_data(console, data, bad)
    for line in (*columns.describe(), *describe_seen(folders, systems, data.sources)):
        console.print(line)
    if stopped := sum(not result.finished for result in results):
        console.print(f"outputs that did not end and were stopped at {plural(max_length, 'token')}: {stopped:,}")
    if unknown := sum(len(result.unknown) for result in results):
        console.print(never_seen(unknown))
    sizes = [len(result.source_tokens) for result in results]
    rival = spelt_like(systems[0], others[0]) if others else None
    say_measures(console, data, texts, rival, systems[0].target.pieces, sizes if any(sizes) else None)
    digests = [weights_digest(system.model)[:6] for system in systems]  # type: ignore[arg-type]
    facts = {
        "data": f"{data.name}:{data.fingerprint}",
        **dict(zip(("weights", "against"), digests, strict=False)),
        "search": f"beam={beam},length_penalty={length_penalty},max_length={max_length}",
        "threads": torch.get_num_threads(),
    }
    console.print(f"\n{signature(facts)}")


def spelt_like(system: "Translator", results: "Sequence[Result]") -> list[str]:
    """Outputs in the spelling of the references."""
    return [system.target.normalised(result.text) for result in results]


def describe_seen(folders: "Sequence[Path]", systems: "Sequence[Translator]", sources: "Sequence[str]") -> "Iterator[str]":
    """What of the test set was seen in training, a line for each model."""
    from regard.data.trained import TrainedOn

    for folder, system in zip(folders, systems, strict=True):
        seen = TrainedOn.from_facts(system.training).sources
        if seen and (line := seen.describe_seen(sources)):
            yield f"{folder}: {line}"


def translated(
    systems: "Sequence[Translator]", whole: "TestSet", search: dict[str, Any]
) -> "tuple[TestSet, list[list[Result]], list[str]]":
    """(what all systems can read, what each makes of that, and of what is left out the lines and why)."""
    from functools import partial

    from regard.data.sources import FileCodec
    from regard.pipeline import Refused
    from regard.training.progress import with_progress

    progress = partial(with_progress, what="translating", console=make_console(stderr=True))
    bad: dict[int, str] = {}  # by their places
    found: list[dict[int, Result]] = []
    for system in systems:
        for source in whole.sources:
            system.check_columns(source)
    for system in systems:
        own: dict[int, Result] = {}
        for index, one in enumerate(system.translate(whole.sources, progress=progress, **search)):
            if not isinstance(one, Refused):
                own[index] = one
            elif isinstance(system.source, FileCodec):
                bad.setdefault(index, f"line {whole.lines[index][0]}: {one.reason}")
            else:  # without its longest texts a test set would flatter
                raise UserError(f"{whole.name}: line {whole.lines[index][0]}: {one.reason}")
        found.append(own)
    good = [index for index in range(len(whole.sources)) if index not in bad]
    if not good:
        raise UserError(f"none of the {len(whole.sources):,} files in {whole.name} can be read; the first: {bad[0]}")
    return whole.only(good), [[own[index] for index in good] for own in found], [bad[index] for index in sorted(bad)]


def say_data(console: "Console", data: "TestSet", bad: "Sequence[str]") -> None:
    """What is measured with. bad: what was left out of it, and why."""
    console.print(f"{data.name}: {plural(len(data.sources), 'source')}, {plural(sum(map(len, data.references)), 'reference')}")
    for note in data.notes:
        console.print(note)
    if data.num_empty:
        console.print(f"{plural(data.num_empty, 'line')} left out because a side is empty")
    if data.num_repeats:
        repeats = plural(data.num_repeats, "row repeats", "rows repeat")
        console.print(f"{repeats} a source: outputs that differ are further references")
    if bad:
        console.print(f"files that cannot be read and are left out: {len(bad):,}")
        for line in bad[:SHOWN]:
            console.print(f"  {line}")
        if len(bad) > SHOWN:
            console.print(f"  and {len(bad) - SHOWN:,} more")


def say_measures(
    console: "Console",
    data: "TestSet",
    texts: "Sequence[str]",
    rival: "Sequence[str] | None",
    symbols: "Callable[[str], tuple[str, ...]]",
    sizes: "Sequence[int] | None",
) -> None:
    """All figures, then those of sources of like length. sizes: tokens of the sources; None: they have none."""
    from regard.evaluation import NEEDS_SACREBLEU, NO_BLEU, above_all, by_length, can_use_sacrebleu, measures

    groups = by_length(sizes or [len(symbols(known[0])) for known in data.references])
    parts = [
        measures([texts[i] for i in inside], [data.references[i] for i in inside], symbols, intervals=False)
        for _, inside in groups
    ]
    for measure in measures(texts, data.references, symbols, rival):
        console.print(f"{measure}{above_all(measure.value) if measure.percent else ''}")
    if not can_use_sacrebleu():
        console.print(NEEDS_SACREBLEU)
    elif not all(any(one.name == "BLEU" for one in part) for part in parts):
        console.print(NO_BLEU)
    console.print("\nby source length (tokens):" if sizes else "\nby length of the reference (tokens):")
    for (lengths, inside), part in zip(groups, parts, strict=True):
        figures = ", ".join(f"{one.name} {one.value * (100 if one.percent else 1):.2f}{'%' * one.percent}" for one in part)
        console.print(f"  {lengths:>9}: {plural(len(inside), 'source')}: {figures}")
