"""Computes the attention of results: which output, and which tokens its axes show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from regard.contracts import Engine, Forced
from regard.data.reader import Reader, Segment
from regard.data.sources import FileCodec
from regard.errors import UserError
from regard.look import Edit, Look, Tap, pick
from regard.pipeline.forced import WrittenOutput, force_all, reason_for_none
from regard.results import AttentionMap, Result

Edits = Edit | Sequence[Edit] | None
"""Changes of attention; None stands for those with which a result was translated."""


def maps(
    results: Sequence[Result], tap: Tap, reader: Reader, engine: Engine, *, alternative: int, edits: Edits, numbered: bool
) -> Iterator[AttentionMap]:
    """Yields the attention of each result; see `Translator.attention`.

    numbered: whether an error names the number of its result.
    """
    outputs: list[WrittenOutput] = []
    for number, result in enumerate(results, start=1):
        try:
            outputs.append(written_output(result, alternative, edits, reader))
        except UserError as error:
            raise UserError(f"text {number}: {error}" if numbered else str(error)) from None
    for number, (output, segment, forced) in enumerate(force_all(outputs, tap, reader, engine), start=1):
        if reason := reason_for_none(forced, tap.kind):
            raise UserError(f"text {number}: {reason}" if numbered else reason)
        yield map_of(segment, output.written, forced, reader)


def written_output(result: Result, alternative: int, edits: Edits, reader: Reader) -> WrittenOutput:
    """Returns an output of a result. Raises UserError if there is none of this number, or nothing to show."""
    if result.parts:
        raise UserError(f"this text was translated in {len(result.parts)} parts; each part has its own attention, see `parts`")
    (number,) = pick("alternative", (alternative,), len(result.n_best))
    output = result.n_best[number]
    if number and output.tokens and not output.ids:
        raise UserError("this result was stored by an older version, without the ids of its alternatives; translate again")
    ids = output.ids if number else result.ids
    written = (*ids, reader.target.specials.eos) if output.finished else ids
    has_source = result.source_tokens or reader.traits.continues_text or isinstance(reader.source, FileCodec)
    if not written or not has_source:
        raise UserError(f"the {'text' if written else 'output'} is empty, so there is no attention to show")
    return WrittenOutput(result.source, written, result.edits if edits is None else Look(edits=edits).edits)  # type: ignore[arg-type]


def map_of(segment: Segment, written: Sequence[int], forced: Forced, reader: Reader) -> AttentionMap:
    """Returns the attention of one output, with the tokens of both axes."""
    (seen, *_) = forced.seen
    kind, codec = seen.kind, reader.source
    source, target = reader.labels(segment.source, forced.axes), reader.target.tokens(written)
    rows = source if kind in ("encoder", "fusion") else target
    columns = (*reader.target.tokens((reader.target.specials.start,)), *target[:-1]) if kind == "decoder" else source
    axes, seconds = forced.axes if len(forced.axes) > 1 and kind in ("cross", "encoder") else (), 0.0
    if isinstance(codec, FileCodec):
        if kind == "fusion":
            columns = codec.auxiliary_labels(segment.source)
        if not codec.has_file(segment.source):
            axes = ()
        elif kind != "decoder":
            seconds = codec.seconds
    return AttentionMap(seen.weights_BHTS[0], columns, rows, kind, seen.layer, axes, seconds, seen.heads)
