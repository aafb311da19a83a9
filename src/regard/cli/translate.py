"""regard translate model < in.txt"""

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.options import Device, Threads, prepare


def translate(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    max_length: Annotated[int, typer.Option(min=1, help="Stop an output after this many tokens.")] = 256,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Translate standard input, line by line. An empty line stays empty."""
    import sys
    from itertools import islice

    import regard
    from regard.data.corpus import decode_lines

    prepare(device, threads)
    translator = regard.load(model, device=device)
    num_unknown = num_stopped = 0
    lines = decode_lines(sys.stdin.buffer, "standard input")
    at_once = 1 if sys.stdin.isatty() else 1024
    while group := list(islice(lines, at_once)):
        for result in translator.batch(group, max_length=max_length):
            print(result.text, flush=at_once == 1)
            num_unknown += result.num_unknown
            num_stopped += not result.finished
    if num_unknown:
        print(f"regard: {num_unknown:,} source symbols were never seen in training", file=sys.stderr)
    if num_stopped:
        print(f"regard: {num_stopped:,} outputs were stopped at {max_length} tokens; see --max-length", file=sys.stderr)
