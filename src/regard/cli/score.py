"""regard score model pairs.tsv"""

from typing import Annotated

import typer

from regard.cli.options import Device, From, Model, Pairs, Threads, To, columns_of, open_model
from regard.cli.options import Score as OwnScore


def score(
    model: Model,
    pairs: Pairs,
    from_: From = None,
    to: To = None,
    json: Annotated[bool, typer.Option("--json", help="A JSON object per line, with every token.")] = False,
    own: OwnScore = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """How probable a model finds given outputs: log_prob<TAB>source<TAB>output, the natural logarithm, <eos> included."""
    import json as as_json
    import math
    import sys

    from regard.data.corpus import Columns, read_pairs

    corpus = read_pairs(pairs, Columns(columns_of(from_), to or ""))
    translator = open_model(model, own, device, threads, names_in=pairs[0])
    scored = translator.score([pair.source for pair in corpus.pairs], [pair.target for pair in corpus.pairs])
    for pair, one in zip(corpus.pairs, scored, strict=True):
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
            print(f"{one.log_prob:.6f}\t{pair.source}\t{pair.target}")
    tokens = sum(len(one.token_log_probs) for one in scored)
    mean = sum(one.log_prob for one in scored) / tokens
    print(f"regard: {len(scored):,} pairs, {tokens:,} tokens, perplexity {math.exp(-mean):.4f}", file=sys.stderr)
    if corpus.num_empty:
        print(f"regard: {corpus.num_empty:,} lines left out because a side is empty", file=sys.stderr)
    if unknown := sum(len(one.unknown) for one in scored):
        print(f"regard: {unknown:,} symbols of the outputs have no token and count as <unk>", file=sys.stderr)
