"""regard align model pairs.tsv"""

from pathlib import Path
from typing import Annotated, Literal

import typer

from regard.cli.options import (
    Device,
    From,
    Header,
    Model,
    Pieces,
    Score,
    SkipBadLines,
    Threads,
    To,
    on_bad_lines,
    open_model,
    split_columns,
)
from regard.errors import UserError, plural


def align(
    model: Model,
    pairs: Annotated[
        Path,
        typer.Argument(
            help="Pairs: a .tsv (source<TAB>target), .csv, .jsonl or .xlsx file. Text files may be compressed (.gz)."
        ),
    ],
    from_: From = None,
    to: To = None,
    header: Header = None,
    skip_bad_lines: SkipBadLines = False,
    gold: Annotated[
        Path | None,
        typer.Option(
            help="Manual alignments, one line per pair: 0-0 is a sure link, 1p2 a possible one. Choose the head that matches "
            "them best.",
            show_default=False,
        ),
    ] = None,
    one_based: Annotated[
        bool, typer.Option("--one-based", help="The manual alignments count words from 1, not from 0.")
    ] = False,
    backward: Annotated[
        Path | None,
        typer.Option(
            help="Model folder for the opposite direction. Choose the heads of both models that agree best.", show_default=False
        ),
    ] = None,
    symmetrise: Annotated[
        Literal["intersection", "union", "grow-diag-final-and"] | None,
        typer.Option(
            metavar="HOW",
            help="With --backward: join the links of both models. HOW is intersection, union or grow-diag-final-and.",
            show_default=False,
        ),
    ] = None,
    pieces: Pieces = None,
    score: Score = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Print word alignments in Pharaoh format, one line per pair: 1-2 links source word 1 with target word 2.

    Words are separated by white space and counted from 0. On a side whose unit is characters, characters are counted.

    With --gold or --backward, first find the layer and head that align best, and save them in the model folder.
    """
    import sys

    from regard.checkpoint.alignment import write_alignment_head
    from regard.data.corpus import read_pairs
    from regard.data.lines import read_lines
    from regard.data.source_text import flat
    from regard.data.sources import FileCodec, SourceCodec
    from regard.data.trained import TrainedOn
    from regard.inspection import align
    from regard.interop.formats import format_of
    from regard.links import parse_pharaoh, pharaoh, symmetrised, turned

    if gold and backward:
        raise UserError("--gold and --backward are two ways to find the best head; use only one of them")
    if symmetrise and not backward:
        raise UserError("--symmetrise joins the links of two models; give the model of the opposite direction with --backward")
    if one_based and not gold:
        raise UserError("--one-based says how --gold counts words; give --gold, too")
    for folder in (model, backward) if gold or backward else ():
        if folder and format_of(folder):
            raise UserError(
                f"{folder} is of another format, which cannot keep an alignment head; regard convert {folder} OUT first"
            )
    translator = open_model(model, score, device, threads, listed_in=pairs)
    align.alignment_heads(translator)  # raises if the model cannot align texts, before any error about columns
    columns = TrainedOn.from_facts(translator.training).columns(
        [pairs], split_columns(from_), (to,) if to else (), header=header, bad_lines=on_bad_lines(skip_bad_lines)
    )
    corpus = read_pairs(pairs, columns.each[0], normalisation=translator.normalisation)
    for line in (*columns.describe(), *corpus.counts.describe_reading()):
        print(f"regard: {line}", file=sys.stderr)
    texts = [(pair.source, pair.target) for pair in corpus.pairs]
    sides: dict[str, SourceCodec] = {"source": translator.source, "target": translator.target}
    spelled = [side for side, codec in sides.items() if not isinstance(codec, FileCodec) and codec.has_characters]
    if gold and spelled and pieces is None:
        print(f"regard: --gold is expected to count characters in the {' and '.join(spelled)}; --words: words", file=sys.stderr)
    head = translator.alignment_head
    aligned = align.align_pairs(translator, texts, None if gold or backward else [head], pieces=pieces)
    if gold:
        lines = list(read_lines(gold))
        if len(lines) != len(texts):
            sizes = f"{gold} has {plural(len(lines), 'line')}, but {pairs} has {plural(len(texts), 'pair')}"
            raise UserError(f"{sizes}; expected one line per pair")
        links = [parse_pharaoh(line, 1 if one_based else 0) for line in lines]
        head, error = align.best_alignment_head(aligned, [sure for sure, _ in links], [possible for _, possible in links])
        write_alignment_head(model, head, error_rate=error, by="gold")
    if backward:
        other = open_model(backward, score, device, threads)
        exchanged = align.align_pairs(other, [(target, flat(source)) for source, target in texts], pieces=pieces)
        head, backward_head, error = align.best_agreement(aligned, exchanged)
        write_alignment_head(model, head, error_rate=error, by="agreement")
        write_alignment_head(backward, backward_head, error_rate=error, by="agreement")
    if gold or backward:
        print(f"regard: aligned by {head}, alignment error rate {error:.3f}; saved in {model}", file=sys.stderr)
    found = [pair.links(head) for pair in aligned]
    if symmetrise:
        others = [turned(pair.links(backward_head)) for pair in exchanged]
        found = [symmetrised(mine, theirs, symmetrise) for mine, theirs in zip(found, others, strict=True)]
    for links_of_pair in found:
        print(pharaoh(links_of_pair))
