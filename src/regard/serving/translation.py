"""Texts on their way through one model, or through two with a pivot language between them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from regard.contracts import Hypothesis, Request
from regard.data.reader import RequestOptions, Segment
from regard.errors import UserError
from regard.languages import Language
from regard.pipeline import Translator
from regard.serving.document import Document, Span, split
from regard.serving.runner import Lane, Runner


@dataclass(frozen=True, eq=False)
class Served:
    """A model that is served.

    folder: where it is.  source, target: two of its languages.
    """

    folder: Path
    source: Language
    target: Language
    translator: Translator
    lane: Lane

    def decode(self, hypothesis: Hypothesis) -> str:
        """Returns the text of an output."""
        return self.translator.target.decode(hypothesis.ids)


@dataclass(frozen=True)
class Part:
    """A part of a text, usually a sentence: how it was read, and the outputs of each segment, the best first."""

    segments: tuple[Segment, ...]
    outputs: tuple[tuple[Hypothesis, ...], ...]


@dataclass(frozen=True)
class Leg:
    """A text as one model translated it."""

    model: Served
    document: Document
    parts: tuple[Part, ...]

    def filled(self, number: int = 0) -> tuple[str, tuple[Span, ...]]:
        """Returns the output of this number, and where its parts are in it; of a part with fewer outputs its best one."""
        return self.document.filled(
            [
                " ".join(self.model.decode(outputs[number if number < len(outputs) else 0]) for outputs in part.outputs)
                for part in self.parts
            ]
        )

    @property
    def text(self) -> str:
        """The best output."""
        return self.filled()[0]

    def alternatives(self, number: int) -> list[str]:
        """Returns at most so many outputs apart from the best, all different."""
        most = max((len(outputs) for part in self.parts for outputs in part.outputs), default=1)
        texts = dict.fromkeys(self.filled(index)[0] for index in range(most))
        return list(texts)[1 : number + 1]


Route = Sequence[Served]


async def translate(
    runner: Runner, route: Route, texts: Sequence[str], options: Sequence[RequestOptions], *, is_running: bool = False
) -> list[tuple[Leg, ...]]:
    """Translates texts, all of them together, by each model of a route in turn. Returns the legs of each text.

    options: for each model of the route.  is_running: whether line breaks are spaces like others.
    """
    legs: list[tuple[Leg, ...]] = [() for _ in texts]
    for model, chosen in zip(route, options, strict=True):
        texts = [done[-1].text if done else text for done, text in zip(legs, texts, strict=True)]
        documents = [split(text, model.translator.reader, is_running=is_running) for text in texts]
        new = await _leg(runner, model, documents, chosen, is_running)
        legs = [(*done, leg) for done, leg in zip(legs, new, strict=True)]
    return legs


async def _leg(
    runner: Runner, model: Served, documents: Sequence[Document], options: RequestOptions, is_running: bool
) -> list[Leg]:
    """is_running: whether the white space inside of a part is one space each."""
    read = [
        [_segments(model, " ".join(part.split()) if is_running else part, options) for part in document.parts]
        for document in documents
    ]
    requests = [segment.request for parts in read for segments in parts for segment in segments]
    remaining = iter(await answers_of(runner, model, requests))
    return [_joined(model, document, parts, remaining) for document, parts in zip(documents, read, strict=True)]


def _joined(
    model: Served, document: Document, read: Sequence[Sequence[Segment]], answers: Iterator[tuple[Hypothesis, ...]]
) -> Leg:
    parts = [Part(tuple(segments), tuple(next(answers) for _ in segments)) for segments in read]
    return Leg(model, document, tuple(parts))


def _segments(model: Served, text: str, options: RequestOptions) -> list[Segment]:
    reader, prefix = model.translator.reader, model.target.prefix
    return reader.segments(reader.columns(f"{prefix} {text}" if prefix else text), options)


async def answers_of(runner: Runner, model: Served, requests: Sequence[Request]) -> list[tuple[Hypothesis, ...]]:
    """Returns the outputs of each request. If the client goes away meanwhile, they are cancelled."""
    found: dict[int, tuple[Hypothesis, ...]] = {}
    job = runner.submit(model.lane, requests)
    try:
        async for event in job:
            if event.error:
                raise UserError(event.error)
            if event.is_last:
                found[event.id] = event.hypotheses
    finally:
        runner.cancel(job)
    return [found[index] for index in range(len(requests))]


async def stream(runner: Runner, model: Served, text: str, options: RequestOptions) -> AsyncIterator[tuple[str, str] | Leg]:
    """Yields the beginning of the output, which is certain, and its tail, which may still change; at last the Leg."""
    document = split(text, model.translator.reader)
    read = [_segments(model, part, options) for part in document.parts]
    requests = [replace(segment.request, stream=True) for segments in read for segment in segments]
    certain: list[tuple[int, ...]] = [() for _ in requests]
    found: dict[int, tuple[Hypothesis, ...]] = {}
    shown = "", ""
    job = runner.submit(model.lane, requests)
    try:
        async for event in job:
            if event.error:
                raise UserError(event.error)
            certain[event.id] += event.ids
            if event.is_last:
                found[event.id] = event.hypotheses
            tail = event.tail if event.id == _first_open(found) else ()
            if (progress := _so_far(model, document, read, certain, found, tail)) != shown:
                yield (shown := progress)
    finally:
        runner.cancel(job)
    yield _joined(model, document, read, iter([found[index] for index in range(len(requests))]))


def _first_open(found: Mapping[int, object]) -> int:
    """Returns the index of the first request that has not ended."""
    return next(index for index in range(len(found) + 1) if index not in found)


def _so_far(
    model: Served,
    document: Document,
    read: Sequence[Sequence[Segment]],
    certain: Sequence[tuple[int, ...]],
    found: Mapping[int, object],
    tail: tuple[int, ...],
) -> tuple[str, str]:
    """Returns what is certain of an output up to the first part that has not ended, and the tail of that part."""
    decode, current = model.translator.target.decode, _first_open(found)
    outputs: list[str] = []
    number = 0
    for segments in read:
        own = range(number, number + len(segments))
        number += len(segments)
        outputs.append(" ".join(decode(certain[index]) for index in own if index <= current))
        if current in own:
            break
    spans = document.spans[: len(outputs)]
    end = spans[-1][1] if current < number and spans else len(document.text)
    text = Document(document.text[:end], spans).filled(outputs)[0]
    if not tail:
        return text, ""
    written = decode(certain[current])
    return text, decode((*certain[current], *tail))[len(written) :]
