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
    With,
    on_bad_lines,
    one_cell,
    open_model,
    split_columns,
)
from regard.cli.options import Score as CustomScore
from regard.errors import UserError, plural


def score(
    model: Model,
    pairs: Pairs,
    with_: With = None,
    from_: From = None,
    to: To = None,
    header: Header = None,
    skip_bad_lines: SkipBadLines = False,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON object per pair, with every token.")] = False,
    custom_score: CustomScore = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Print how probable the model finds given outputs, one line per pair: log_prob<TAB>source<TAB>output.

    A language model scores a file of texts, whose source is empty, or pairs of a beginning and the whole text.

    log_prob is the natural logarithm of the probability, <eos> included.
    """
    import json as as_json
    import math
    import sys

    from regard.data.corpus import Pair, stream_pairs
    from regard.data.counts import CorpusCounts
    from regard.data.files import suffix_of
    from regard.data.source_text import as_line
    from regard.data.texts import TABLES
    from regard.data.trained import TrainedOn
    from regard.results import Refused, Scored

    translator = open_model(model, custom_score, device, threads, listed_in=pairs[0], others=with_)
    trained, reader = TrainedOn.from_facts(translator.training), translator.reader
    columns = trained.columns(
        pairs, split_columns(from_), (to,) if to else (), header=header, bad_lines=on_bad_lines(skip_bad_lines)
    )
    counts, lines, given = CorpusCounts(), list[int](), list[Pair]()
    if reader.traits.continues_text and suffix_of(pairs[0]) not in TABLES:
        stream = trained.texts(pairs, counts, translator.normalisation)
    else:
        needs_source = not reader.traits.continues_text
        stream = stream_pairs(
            pairs, columns.each[0], counts=counts, normalisation=translator.normalisation, needs_source=needs_source
        )
    for pair in stream:
        given.append(pair)
        lines.append(counts.lines)
        reader.check_columns(pair.source)
    results = translator.score_each([pair.source for pair in given], [pair.target for pair in given])
    for line, pair, result in zip(lines, given, results, strict=True):
        if isinstance(result, Refused):
            print(f"regard: line {line} is skipped: {result.reason}", file=sys.stderr)
            continue
        if json:
            record = {
                "source": as_line(pair.source),
                "output": pair.target,
                "log_prob": result.log_prob,
                "tokens": result.tokens,
                "token_log_probs": result.token_log_probs,
                "unknown": result.unknown,
            }
            print(as_json.dumps(record, ensure_ascii=False))
        else:
            print(f"{result.log_prob:.6f}\t{one_cell(as_line(pair.source))}\t{one_cell(pair.target)}")
    scored = [result for result in results if isinstance(result, Scored)]
    if not scored:
        raise UserError(f"none of the {len(given):,} pairs in {counts.name} can be scored, for the reasons above")
    tokens = sum(len(result.token_log_probs) for result in scored)
    mean = sum(result.log_prob for result in scored) / tokens
    sizes = f"{plural(len(scored), 'pair')}, {plural(tokens, 'token')}"
    print(f"regard: {sizes}, perplexity {math.exp(-mean):.4f}", file=sys.stderr)
    for note in (*columns.describe(), *counts.describe_reading()):
        print(f"regard: {note}", file=sys.stderr)
    if counts.empty:
        print(f"regard: Skipped {plural(counts.empty, 'line')} with an empty source or target", file=sys.stderr)
    if unknown := sum(len(result.unknown) for result in scored):
        print(f"regard: symbols of the outputs that are not in the vocabulary and count as <unk>: {unknown:,}", file=sys.stderr)
    if num_refused := len(results) - len(scored):
        raise UserError(f"lines that could not be scored and were skipped: {num_refused:,}")
