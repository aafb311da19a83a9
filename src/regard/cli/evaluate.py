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
    With,
    check_search,
    describe_unknown,
    make_console,
    on_bad_lines,
    one_cell,
    open_model,
    split_columns,
)
from regard.errors import UserError, plural

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Console

    from regard.contracts import SourceText
    from regard.data.test_set import TestSet
    from regard.pipeline import Translator
    from regard.results import Result

NUM_LISTED = 5
"""How many of the files that cannot be read are listed."""


def evaluate(
    model: Model,
    test: Pairs,
    from_: From = None,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="COL[,COL]",
            help="Reference columns, by name or number. Default: the target column used in training; if none was chosen "
            "there, all columns of a .tsv but the first.",
            show_default=False,
        ),
    ] = None,
    header: Header = None,
    skip_bad_lines: SkipBadLines = False,
    against: Annotated[
        Path | None,
        typer.Option(help="Another model folder to compare with, by a paired significance test.", show_default=False),
    ] = None,
    with_: With = None,
    beam: Beam = 5,
    length_penalty: LengthPenalty = "0.6",
    max_length: MaxLength = 256,
    hard: Annotated[
        bool,
        typer.Option("--hard", help="Hard attention: each token attends to the source position with the largest weight only."),
    ] = False,
    outputs: Annotated[
        bool, typer.Option("--outputs", help="Also print each source, its output and its first reference.")
    ] = False,
    max_source: MaxSource = 1024,
    score: Score = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Measure a model on a test set: BLEU, chrF, error rates and exact match, with confidence intervals.

    A language model is measured on a file of texts: by its perplexity per token, word and character.

    The last line is a signature of all that is needed to reproduce the figures.
    """
    search = check_search({"beam": beam, "length_penalty": length_penalty, "max_length": max_length})

    import torch

    from regard.checkpoint.folder import weights_digest
    from regard.data.source_text import as_line
    from regard.data.test_set import read_test_set
    from regard.data.trained import TrainedOn
    from regard.signatures import signature

    folders = [model] if against is None else [model, against]
    systems = [
        open_model(folder, score, device, threads, max_source, listed_in=test[0], others=with_ if folder is model else None)
        for folder in folders
    ]
    if systems[0].reader.traits.learns_from == "texts":
        from regard.cli.evaluate_texts import evaluate_texts

        if hard or outputs or from_ or to:
            raise UserError("--hard, --outputs, --from and --to are for models that read a source; this one learns from texts")
        evaluate_texts(make_console(), folders, systems, test, lambda texts: describe_seen(folders, systems, texts))
        return
    trained = TrainedOn.from_facts(systems[0].training)
    columns = trained.columns(
        test, split_columns(from_), split_columns(to), header=header, bad_lines=on_bad_lines(skip_bad_lines)
    )
    test_set = read_test_set(test, columns.each, normalisation=systems[0].normalisation, one_reference=trained.one_reference)
    data, (results, *others), unreadable = translate_test_set(systems, test_set, search, hard=hard)
    texts = normalised_texts(systems[0], results)
    if outputs:
        for source, text, references in zip(data.sources, texts, data.references, strict=True):
            print(*map(one_cell, (as_line(source), text, references[0])), sep="\t")  # a console would turn TABs into spaces
    console = make_console()
    print_test_set(console, data, unreadable)
    for line in (*columns.describe(), *describe_seen(folders, systems, data.sources)):
        console.print(line)
    if stopped := sum(not result.finished for result in results):
        console.print(f"outputs that did not end and were stopped at {plural(max_length, 'token')}: {stopped:,}")
    if unknown := sum(len(result.unknown) for result in results):
        console.print(describe_unknown(unknown))
    sizes = [len(result.source_tokens) for result in results]
    rival = normalised_texts(systems[0], others[0]) if others else None
    print_measures(console, data, texts, rival, systems[0].target.pieces, sizes if any(sizes) else None)
    digests = [weights_digest(system.model)[:6] for system in systems]
    facts = {
        "data": f"{data.name}:{data.fingerprint}",
        **dict(zip(("weights", "against"), digests, strict=False)),
        "search": f"beam={beam},length_penalty={length_penalty},max_length={max_length}" + (",hard" if hard else ""),
        "threads": torch.get_num_threads(),
    }
    console.print(f"\n{signature(facts)}")


def normalised_texts(system: "Translator", results: "Sequence[Result]") -> list[str]:
    """Returns the outputs, normalised as the references are."""
    return [system.target.normalised(result.text) for result in results]


def describe_seen(
    folders: "Sequence[Path]", systems: "Sequence[Translator]", sources: "Sequence[SourceText]"
) -> "Iterator[str]":
    """Yields a line for each model that was trained on some of these sources."""
    from regard.data.trained import TrainedOn

    for folder, system in zip(folders, systems, strict=True):
        seen = TrainedOn.from_facts(system.training).sources
        if seen and (line := seen.describe_seen(sources)):
            yield f"{folder}: {line}"


def translate_test_set(
    systems: "Sequence[Translator]", test_set: "TestSet", search: dict[str, Any], *, hard: bool = False
) -> "tuple[TestSet, list[list[Result]], list[str]]":
    """Returns the part of the test set that all systems can read, the results of each system, and a line with the reason for
    each source that is skipped.

    hard: whether each token attends to the source position with the largest weight only.
    Raises UserError if a text is refused, if no file can be read, or if there is no attention to make hard.
    """
    from functools import partial

    from regard.data.sources import FileCodec
    from regard.look import Edit
    from regard.results import Refused
    from regard.training.progress import with_progress

    edits = (Edit.force(None, "largest"),) if hard else ()
    if hard and not all("cross" in system.reader.traits.attention for system in systems):
        raise UserError("--hard changes attention to the source, but this model has none; leave it out")
    progress = partial(with_progress, what="translating", console=make_console(stderr=True))
    unreadable: dict[int, str] = {}  # index of a source -> line and reason
    results: list[dict[int, Result]] = []
    for system in systems:
        for source in test_set.sources:
            system.reader.check_columns(source)
    for system in systems:
        translated: dict[int, Result] = {}
        for index, result in enumerate(system.translate(test_set.sources, progress=progress, edits=edits, **search)):
            if not isinstance(result, Refused):
                translated[index] = result
            elif isinstance(system.source, FileCodec):
                unreadable.setdefault(index, f"line {test_set.lines[index][0]}: {result.reason}")
            else:  # a test set without its longest texts would give too good a figure
                raise UserError(f"{test_set.name}: line {test_set.lines[index][0]}: {result.reason}")
        results.append(translated)
    readable = [index for index in range(len(test_set.sources)) if index not in unreadable]
    if not readable:
        raise UserError(
            f"none of the {len(test_set.sources):,} files in {test_set.name} can be read; the first error: {unreadable[0]}"
        )
    return (
        test_set.only(readable),
        [[translated[index] for index in readable] for translated in results],
        [unreadable[index] for index in sorted(unreadable)],
    )


def print_test_set(console: "Console", data: "TestSet", unreadable: "Sequence[str]") -> None:
    """Prints the size of the test set and what was skipped. unreadable: a line for each file, with the reason."""
    console.print(f"{data.name}: {plural(len(data.sources), 'source')}, {plural(sum(map(len, data.references)), 'reference')}")
    for note in data.notes:
        console.print(note)
    if data.num_empty:
        console.print(f"Skipped {plural(data.num_empty, 'line')} with an empty source or target")
    if data.num_repeats:
        repeats = plural(data.num_repeats, "row repeats", "rows repeat")
        console.print(f"{repeats} a source: different targets count as further references")
    if unreadable:
        console.print(f"files that cannot be read and are skipped: {len(unreadable):,}")
        for line in unreadable[:NUM_LISTED]:
            console.print(f"  {line}")
        if len(unreadable) > NUM_LISTED:
            console.print(f"  and {len(unreadable) - NUM_LISTED:,} more")


def print_measures(
    console: "Console",
    data: "TestSet",
    texts: "Sequence[str]",
    rival: "Sequence[str] | None",
    symbols: "Callable[[str], tuple[str, ...]]",
    sizes: "Sequence[int] | None",
) -> None:
    """Prints all figures, then those of groups of sources of similar length.

    rival: the outputs of the model to compare with. sizes: tokens per source; None if the sources are not made of tokens, then
    the length of the first reference counts.
    """
    from regard.evaluation import NEEDS_SACREBLEU, NO_BLEU, by_length, can_use_sacrebleu, measures, note_above_100

    groups = by_length(sizes or [len(symbols(references[0])) for references in data.references])
    parts = [
        measures([texts[i] for i in members], [data.references[i] for i in members], symbols, intervals=False)
        for _, members in groups
    ]
    for measure in measures(texts, data.references, symbols, rival):
        console.print(f"{measure}{note_above_100(measure.value) if measure.percent else ''}")
    if not can_use_sacrebleu():
        console.print(NEEDS_SACREBLEU)
    elif not all(any(measure.name == "BLEU" for measure in part) for part in parts):
        console.print(NO_BLEU)
    console.print("\nby source length (tokens):" if sizes else "\nby reference length (tokens):")
    for (lengths, members), part in zip(groups, parts, strict=True):
        figures = ", ".join(
            f"{measure.name} {measure.value * (100 if measure.percent else 1):.2f}{'%' * measure.percent}" for measure in part
        )
        console.print(f"  {lengths:>9}: {plural(len(members), 'source')}: {figures}")
