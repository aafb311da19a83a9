"""regard roles model pairs.tsv"""

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.options import (
    Device,
    From,
    Header,
    Model,
    Pairs,
    Score,
    SkipBadLines,
    Threads,
    To,
    on_bad_lines,
    open_model,
    split_columns,
)
from regard.errors import plural


def roles(
    model: Model,
    pairs: Pairs,
    out: Annotated[
        Path | None,
        typer.Option(help="Also draw the shares and the distances: .png, .svg, .pdf or .html.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all numbers as JSON.")] = False,
    from_: From = None,
    to: To = None,
    header: Header = None,
    skip_bad_lines: SkipBadLines = False,
    score: Score = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Print what each head does, over given pairs: the share of its attention that is near, far, on the first or the last
    token, on the same word, on punctuation or on a sink, and behind it the share of uniform attention."""
    import json
    import sys

    from regard.data.corpus import stream_pairs
    from regard.data.counts import CorpusCounts
    from regard.data.trained import TrainedOn
    from regard.inspection.render import check_drawing
    from regard.inspection.roles import roles as measure

    if out is not None and out.suffix.lower() != ".html":
        check_drawing(out)
    translator = open_model(model, score, device, threads, listed_in=pairs[0])
    columns = TrainedOn.from_facts(translator.training).columns(
        pairs, split_columns(from_), (to,) if to else (), header=header, bad_lines=on_bad_lines(skip_bad_lines)
    )
    counts, continues = CorpusCounts(), translator.reader.traits.continues_text
    read = stream_pairs(
        pairs, columns.each[0], counts=counts, normalisation=translator.normalisation, needs_source=not continues
    )
    found = measure(translator, ((pair.source, pair.target) for pair in read))
    for note in (*columns.describe(), *counts.describe_reading()):
        print(f"regard: {note}", file=sys.stderr)
    if counts.empty:
        print(f"regard: Skipped {plural(counts.empty, 'line')} with an empty source or target", file=sys.stderr)
    if as_json:
        print(json.dumps(found.as_dict(), ensure_ascii=False))
    else:
        queries = ", ".join(f"{number:,} {kind}" for kind, number in found.num_queries.items())
        print(f"{plural(found.num_pairs, 'pair')}; queries: {queries}; in brackets: uniform attention of the same lengths\n")
        print(found.table())
        for kind in found.kinds:
            print(f"\nmean distance by layer, {kind}: {' '.join(f'{distance:.2f}' for distance in found.distances(kind))}")
    if out is not None:
        print(f"regard: written to {found.draw(out)}", file=sys.stderr)
