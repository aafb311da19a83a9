"""Runs the model over outputs that are written already, and captures attention: what `attention` and `alignment` read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

from regard.contracts import Engine, Forced, SourceText
from regard.data.reader import Reader, Segment
from regard.data.sources import FileCodec
from regard.look import Edit, Kind, Look, Tap

FORCED_WINDOW = 1024
"""How many outputs are read and run through the model at a time, when their attention is computed."""


@dataclass(frozen=True)
class WrittenOutput:
    """An output that the model is run over: its source, its tokens, with <eos> if it is finished, and changes of attention."""

    source: SourceText
    written: tuple[int, ...]
    edits: tuple[Edit, ...] = ()


def force_all(
    outputs: Iterable[WrittenOutput], tap: Tap, reader: Reader, engine: Engine
) -> Iterator[tuple[WrittenOutput, Segment, Forced]]:
    """Runs the model over outputs in batches, and yields what a tap captures of each, in order."""
    remaining = iter(outputs)
    while window := list(islice(remaining, 1 if isinstance(reader.source, FileCodec) else FORCED_WINDOW)):
        rows = reader.rows([reader.normalised(output.source) for output in window])
        segments = [
            reader.segment(output.source, line=number, row=row)
            for number, (output, row) in enumerate(zip(window, rows, strict=True))
        ]
        requests = [
            replace(segment.request, look=Look((tap,), output.edits)) for segment, output in zip(segments, window, strict=True)
        ]
        written = [output.written for output in window]
        found = {forced.id: forced for forced in engine.force(requests, written, log_probs=False)}
        for number, output in enumerate(window):
            yield output, segments[number], found.pop(number)


def reason_for_none(forced: Forced, kind: Kind) -> str:
    """Returns why there is no attention of this kind, or ""."""
    if forced.error or forced.seen:
        return forced.error
    return (
        f"this model has no {kind} attention; models that attend to their source have kind cross, Transformers "
        "also have encoder and decoder, and models that read an auxiliary text have fusion"
    )
