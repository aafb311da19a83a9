"""regard align model pairs.tsv"""

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.options import (
    Device,
    From,
    Header,
    Model,
    Score,
    SkipBadLines,
    Threads,
    To,
    columns_of,
    on_bad_lines,
    open_model,
)
from regard.errors import UserError, plural


def align(
    model: Model,
    pairs: Annotated[Path, typer.Argument(help="Pairs: .tsv (source<TAB>target), .csv or .jsonl; may be .gz.")],
    from_: From = None,
    to: To = None,
    header: Header = None,
    skip_bad_lines: SkipBadLines = False,
    gold: Annotated[
        Path | None, typer.Option(help="Alignments by people, a line for each pair, such as 0-0 1p2.", show_default=False)
    ] = None,
    backward: Annotated[
        Path | None, typer.Option(help="A model folder for the other direction, to agree with.", show_default=False)
    ] = None,
    score: Score = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Print word alignments in Pharaoh format, a line for each pair.

    With --gold or --backward, first find out which layer and head aligns best, and keep that in the model folder.
    """
    import sys

    from regard.data.corpus import read_pairs
    from regard.data.files import read_lines
    from regard.data.trained import TrainedOn
    from regard.inspection import align

    if gold and backward:
        raise UserError("--gold and --backward are two ways to find the best head; say one of them")
    translator = open_model(model, score, device, threads, names_in=pairs)
    align.inspect_pairs(translator, [])  # whether it reads texts at all, before anything is said about columns
    columns = TrainedOn.from_facts(translator.training).columns(
        [pairs], columns_of(from_), (to,) if to else (), header=header, bad_lines=on_bad_lines(skip_bad_lines)
    )
    corpus = read_pairs(pairs, columns.each[0], normalisation=translator.normalisation)
    for line in (*columns.describe(), *corpus.counts.describe_reading()):
        print(f"regard: {line}", file=sys.stderr)
    texts = [(pair.source, pair.target) for pair in corpus.pairs]
    cut = align.cut_differently(translator, texts)
    if gold and cut:
        raise UserError(
            f"--gold counts words, but the tokens of this model are not words: {cut}; take a model of words or symbols, or "
            "choose a head with --backward"
        )
    if cut:
        print(f"regard: the numbers count tokens, not words: {cut}", file=sys.stderr)
    head = align.read_alignment_head(model)
    seen = align.inspect_pairs(translator, texts)
    if gold:
        lines = list(read_lines(gold))
        if len(lines) != len(texts):
            sizes = f"{gold} has {plural(len(lines), 'line')}, but {pairs} has {plural(len(texts), 'pair')}"
            raise UserError(f"{sizes}; expected a line for each")
        people = [align.parse_pharaoh(line) for line in lines]
        head, error = align.best_alignment_head(seen, [sure for sure, _ in people], [possible for _, possible in people])
        align.write_alignment_head(model, head, error_rate=error, by="gold")
    elif backward:
        other = open_model(backward, score, device, threads)
        turned = align.inspect_pairs(other, [(target, source) for source, target in texts])
        head, there, error = align.best_agreement(seen, turned)
        align.write_alignment_head(model, head, error_rate=error, by="agreement")
        align.write_alignment_head(backward, there, error_rate=error, by="agreement")
    if gold or backward:
        print(f"regard: aligned by {head}, alignment error rate {error:.3f}; kept in {model}", file=sys.stderr)
    for one in seen:
        print(align.pharaoh(align.links(head, one)))
