"""Yields an output while it is being written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from regard.contracts import Array, Engine, SourceText
from regard.data.reader import Segment
from regard.errors import UserError
from regard.look import Seen
from regard.pipeline.assembly import Answer, Assembly
from regard.results import Partial


def stream(source: SourceText, segments: Sequence[Segment], engine: Engine, assembly: Assembly) -> Iterator[Partial]:
    """Translates the segments of a source one after the other; see `Translator.stream`."""
    target = assembly.reader.target
    search = engine.open()
    before, results = "", []
    new: tuple[Seen[Array], ...] = ()
    try:
        for segment in segments:
            search.submit(replace(segment.request, stream=True))
            certain: tuple[int, ...] = ()
            seen: tuple[Seen[Array], ...] = ()
            is_last = False
            while not is_last:
                for event in search.events():
                    if event.error:
                        raise UserError(event.error)
                    certain, seen, new = certain + event.ids, seen + event.seen, new + event.seen
                    is_last = event.is_last
                    if is_last:
                        results.append(assembly.of_segment(segment, Answer(event.hypotheses, seen)))
                    elif event.ids or event.tail:
                        so_far = target.decode(certain)
                        tail = target.decode((*certain, *event.tail))[len(so_far) :]
                        yield Partial(before + so_far, tail, seen=new)
                        new = ()
            before = " ".join([*(result.text for result in results), ""])
    finally:
        search.close()
    result = assembly.of_parts(source, results)
    yield Partial(result.text, "", result, new)
