"""regard score model pairs.tsv"""

from typing import Annotated

import typer

from regard.cli.options import (
    Device,
    From,
    Header,
    Model,
    Pairs,
    SkipBadLines,
    Threads,
    To,
    columns_of,
    on_bad_lines,
    one_cell,
    open_model,
)
from regard.cli.options import Score as OwnScore
from regard.errors import UserError, plural


def score(
    model: Model,
    pairs: Pairs,
    from_: From = None,
    to: To = None,
    header: Header = None,
    skip_bad_lines: SkipBadLines = False,
    json: Annotated[bool, typer.Option("--json", help="A JSON object per line, with every token.")] = False,
    own: OwnScore = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """How probable a model finds given outputs: log_prob<TAB>source<TAB>output, the natural logarithm, <eos> included."""
    import json as as_json
    import math
    import sys

    from regard.data.corpus import CorpusCounts, Pair, stream_pairs
    from regard.data.trained import TrainedOn
    from regard.pipeline import Refused, Scored

    translator = open_model(model, own, device, threads, names_in=pairs[0])
    columns = TrainedOn.from_facts(translator.training).columns(
        pairs, columns_of(from_), (to,) if to else (), header=header, bad_lines=on_bad_lines(skip_bad_lines)
    )
    counts, lines, given = CorpusCounts(), list[int](), list[Pair]()
    for pair in stream_pairs(pairs, columns.each[0], counts=counts, normalisation=translator.normalisation):
        given.append(pair)
        lines.append(counts.lines)
    for pair in given:
        translator.check_columns(pair.source)
    results = translator.score_each([pair.source for pair in given], [pair.target for pair in given])
    for line, pair, one in zip(lines, given, results, strict=True):
        if isinstance(one, Refused):
            print(f"regard: line {line} is left out: {one.reason}", file=sys.stderr)
            continue
        if json:
            record = {
                "source": pair.source,
                "output": pair.target,
                "log_prob": one.log_prob,
                "tokens": one.tokens,
                "token_log_probs": one.token_log_probs,
                "unknown": one.unknown,
            }
            print(as_json.dumps(record, ensure_ascii=False))
        else:
            print(f"{one.log_prob:.6f}\t{one_cell(pair.source)}\t{one_cell(pair.target)}")
    scored = [one for one in results if isinstance(one, Scored)]
    if not scored:
        raise UserError(f"none of the {len(given):,} pairs in {counts.name} can be scored, for the reasons above")
    tokens = sum(len(one.token_log_probs) for one in scored)
    mean = sum(one.log_prob for one in scored) / tokens
    sizes = f"{plural(len(scored), 'pair')}, {plural(tokens, 'token')}"
    print(f"regard: {sizes}, perplexity {math.exp(-mean):.4f}", file=sys.stderr)
    for note in (*columns.describe(), *counts.describe_reading()):
        print(f"regard: {note}", file=sys.stderr)
    if counts.empty:
        print(f"regard: {plural(counts.empty, 'line')} left out because a side is empty", file=sys.stderr)
    if unknown := sum(len(one.unknown) for one in scored):
        print(f"regard: symbols of the outputs that have no token and count as <unk>: {unknown:,}", file=sys.stderr)
    if bad := len(results) - len(scored):
        raise UserError(f"lines that could not be scored and were left out: {bad:,}")
