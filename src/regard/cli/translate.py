"""regard translate model < in.txt"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.options import Device, Score, Threads, own_score, prepare
from regard.errors import UserError


def groups(lines: Iterator[str], size: int) -> Iterator[list[str]]:
    """Lines by the handful, stripped as the sides of a pair are in training. A bad line ends it, after those before it."""
    group: list[str] = []
    try:
        for line in lines:
            group.append(line.strip())
            if len(group) == size:
                yield group
                group = []
    except UserError:
        yield group
        raise
    yield group


def translate(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    max_length: Annotated[int, typer.Option(min=1, help="Stop an output after this many tokens.")] = 256,
    score: Score = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Translate standard input, line by line. An empty line stays empty."""
    import sys
    from collections import Counter

    import regard
    from regard.data.corpus import decode_lines

    prepare(device, threads)
    translator = regard.load(model, device=device, scores=own_score(score))
    unknown: Counter[str] = Counter()
    num_stopped = 0
    lines = decode_lines(sys.stdin.buffer, "standard input")
    at_once = 1 if sys.stdin.isatty() else 1024
    for group in groups(lines, at_once):
        for result in translator.batch(group, max_length=max_length):
            print(result.text, flush=at_once == 1)
            unknown.update(result.unknown)
            num_stopped += not result.finished
    if unknown:
        most = " ".join(symbol for symbol, _ in unknown.most_common(10))
        print(f"regard: {unknown.total():,} source symbols were never seen in training: {most}", file=sys.stderr)
    if num_stopped:
        print(
            f"regard: outputs that did not end and were stopped at {max_length} tokens (--max-length): {num_stopped:,}",
            file=sys.stderr,
        )
