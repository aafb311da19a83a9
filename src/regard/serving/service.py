"""What the server does, apart from HTTP: parameters in, answers out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

from regard.data.reader import RequestOptions
from regard.inspection.capture import inspect as inspection
from regard.inspection.report import page as written_page
from regard.serving import marked
from regard.serving.alignment import can_align, word_links
from regard.serving.detect import Detected, Detector
from regard.serving.document import split
from regard.serving.explanation import explain
from regard.serving.extras import NO_EXTRAS, Extras
from regard.serving.files import Downloads, text_of, translated
from regard.serving.languages import Directory
from regard.serving.limits import Limits
from regard.serving.marked import Chunk
from regard.serving.metrics import Metrics
from regard.serving.parameters import File, Parameters, Question, check_format
from regard.serving.parameters import text as text_parameter
from regard.serving.refusal import Refusal
from regard.serving.runner import Runner
from regard.serving.translation import Leg, Route, Served, stream, translate

Search = Mapping[str, Any]
"""Search options of all requests, such as the beam."""


NOTHING: Mapping[str, Any] = MappingProxyType({})


class Service:
    """Models, and the runner that all their requests go through.

    directory: the models by language; it is replaced when a model is reloaded.
    """

    def __init__(self, directory: Directory[Served], runner: Runner, limits: Limits, search: Search, metrics: Metrics) -> None:
        self.directory, self.runner, self.limits, self.search, self.metrics = directory, runner, limits, search, metrics
        self.detector = Detector(directory.sources)
        self.downloads = Downloads(limits)

    # --- LibreTranslate's answers ---

    async def translate(self, given: Parameters) -> dict[str, Any]:
        """Returns the answer of /translate."""
        question, extras = self._question(given)
        detected = [self.detector.detect(text)[0] for text in question.texts] if question.source == "auto" else []
        sources = [found.language for found in detected] or [question.source] * len(question.texts)
        routes = {code: self.directory.route(code, question.target) for code in dict.fromkeys(sources)}
        outputs = [Output(text) for text in question.texts]
        for code, route in routes.items():
            chosen = [index for index, own in enumerate(sources) if own == code and not _is_blank(detected, index)]
            done = await self._run(route, [question.texts[index] for index in chosen], question, extras)
            for index, output in zip(chosen, done, strict=True):
                outputs[index] = output
        return _answer(question, outputs, detected)

    async def stream(self, given: Parameters) -> AsyncIterator[dict[str, Any]]:
        """Yields {"text", "tail"} while a text is translated, and at last the answer of /translate."""
        question, extras = self._question(given)
        if question.is_batch or question.markup or len(question.texts) != 1:
            raise Refusal(400, "Invalid request: only a single text can be streamed; send no list and no HTML")
        (text,), source = question.texts, question.source
        detected = [self.detector.detect(text)[0]] if source == "auto" else []
        route = self.directory.route(detected[0].language if detected else source, question.target)
        if len(route) != 1 or _is_blank(detected, 0):
            yield await self.translate(given)
            return
        (options,) = self.options(route, question.alternatives, extras, [text])
        async for progress in stream(self.runner, route[0], text, options):
            if isinstance(progress, Leg):
                output = await self._output((progress,), question, extras)
                yield _answer(question, [output], detected)
            else:
                yield {"text": progress[0], "tail": progress[1]}

    async def inspect(self, given: Parameters) -> str:
        """Returns the live page of the attention of one sentence: all layers and heads, for the output of /translate."""
        question, extras = self._question(given)
        route = self.directory.route(question.source, question.target) if question.source != "auto" else ()
        if len(route) != 1 or len(question.texts) != 1:
            raise Refusal(409, "Invalid request: a page shows one text, from one language to another, by one model")
        model, (text,) = route[0], question.texts
        (options,) = self.options(route, extras=extras, texts=[text])
        ((leg,),) = await translate(self.runner, route, [text], [options])
        if len(leg.parts) != 1 or len(leg.parts[0].segments) != 1:
            raise Refusal(409, f"Invalid request: a page shows one sentence, but this text has {len(leg.parts)}")
        (segment,), ((best, *_),) = leg.parts[0].segments, leg.parts[0].outputs
        edits = options.look.edits if options.look else ()

        def page() -> str:
            seen = inspection(model.translator, segment.source, output=best.ids, finished=best.finished, edits=edits)
            return written_page(seen, model=str(model.folder.name))

        return await self.runner.call(page)

    def _question(self, given: Parameters) -> tuple[Question, Extras]:
        """Checks the parameters of /translate."""
        question = Question.of(given, self.limits)
        self.metrics.characters.inc(sum(map(len, question.texts)))
        source = "auto" if question.source == "auto" else self.directory.code(question.source)
        target = self.directory.code(question.target)
        check_format(given)
        return replace(question, source=source, target=target), Extras.of(given, self.limits)

    async def translate_file(self, given: Parameters, address: str) -> dict[str, Any]:
        """Returns the answer of /translate_file. address: of the server, as the client knows it."""
        for name in ("file", "source", "target"):
            if not given.get(name):
                raise Refusal(400, f"Invalid request: missing {name} parameter")
        file = given["file"]
        if not isinstance(file, File):
            file = File("text.txt", text_parameter(given, "file").encode(errors="replace"))  # a field without a file name
        text = text_of(file)
        if len(text) > self.limits.text:
            raise Refusal(400, f"Invalid request: request ({len(text)}) exceeds text limit ({self.limits.text})")
        self.metrics.characters.inc(len(text))
        is_auto = given["source"] == "auto"
        source = self.detector.detect(text)[0].language if is_auto else self.directory.code(given["source"])
        target = self.directory.code(given["target"])
        route = self.directory.route(source, target)
        done = await translated(file, target, partial(self.texts, route), partial(self.marked, route))
        return {"translatedFileUrl": f"{address}download_file/{self.downloads.add(done)}"}

    def detect(self, text: str) -> list[dict[str, Any]]:
        """Returns the answer of /detect."""
        return [found.as_dict() for found in self.detector.detect(text)]

    # --- translation ---

    async def _run(self, route: Route, texts: Sequence[str], question: Question, extras: Extras) -> list[Output]:
        if not route:
            return [Output(text) for text in texts]
        if question.markup:
            return [Output(text) for text in await self.marked(route, texts)]
        options = self.options(route, question.alternatives, extras, texts)
        legs = await translate(self.runner, route, texts, options)
        self._count(legs)
        return [await self._output(each, question, extras) for each in legs]

    async def _output(self, legs: tuple[Leg, ...], question: Question, extras: Extras) -> Output:
        explained = await explain(self.runner, extras, legs)
        return Output(legs[-1].text, legs[-1].alternatives(question.alternatives), explained)

    async def texts(self, route: Route, texts: Sequence[str]) -> list[str]:
        """Translates texts. An empty route leaves them as they are."""
        if not route:
            return list(texts)
        legs = await translate(self.runner, route, texts, self.options(route))
        self._count(legs)
        return [each[-1].text for each in legs]

    async def marked(self, route: Route, pages: Sequence[str]) -> list[str]:
        """Translates pieces of HTML, all of their texts together."""
        if not route:
            return list(pages)
        if not all(map(can_align, route)):
            split = [[chunk for whole in marked.chunks(page) for chunk in marked.apart(whole)] for page in pages]
        else:
            split = [marked.chunks(page) for page in pages]
        chunks = [chunk for page in split for chunk in page if chunk.text is not None]
        legs = await translate(self.runner, route, [chunk.text or "" for chunk in chunks], self.options(route), is_running=True)
        self._count(legs)
        done = iter([await self._filled(chunk, each) for chunk, each in zip(chunks, legs, strict=True)])
        return ["".join(chunk.marked if chunk.text is None else next(done) for chunk in page) for page in split]

    async def _filled(self, chunk: Chunk, legs: tuple[Leg, ...]) -> str:
        """Returns a translated piece of HTML with its tags. Only a piece that has tags needs an alignment."""
        links = [*await word_links(self.runner, legs)] if chunk.has_tags else []
        return chunk.filled(legs[-1].text, links)

    def options(
        self, route: Route, alternatives: int = 0, extras: Extras = NO_EXTRAS, texts: Sequence[str] = ()
    ) -> list[RequestOptions]:
        """Returns the search options for each model of a route.

        alternatives: how many outputs the last one writes apart from the best.
        extras: the optional parameters of a request.  texts: what it wants to have translated.
        """
        beam = extras.beam or self.search["beam"]
        last: dict[str, Any] = {"n_best": alternatives + 1, "beam": max(beam, alternatives + 1)}
        edits = extras.heads_off
        if extras.prefix:
            if sum(len(split(text, route[-1].translator.reader).parts) for text in texts) != 1 or len(route) > 1:
                raise Refusal(409, "Invalid request: a prefix is for one sentence and one model; send a single sentence")
            last["prefix"] = extras.prefix
        return [
            model.translator.reader.options(
                {**self.search, "beam": beam, **(last if model is route[-1] else {})}, edits=edits if model is route[-1] else ()
            )
            for model in route
        ]

    def _count(self, legs: Sequence[tuple[Leg, ...]]) -> None:
        self.metrics.sentences.inc(sum(len(leg.parts) for each in legs for leg in each))


class Output:
    """The translation of a text, with alternatives and explanations."""

    def __init__(self, text: str, alternatives: Sequence[str] = (), explained: Mapping[str, Any] = NOTHING) -> None:
        self.text, self.alternatives, self.explained = text, list(alternatives), explained


def _is_blank(detected: Sequence[Detected], number: int) -> bool:
    """Whether a text is in no language, so that it comes back as it is."""
    return bool(detected) and not detected[number].confidence


def _answer(question: Question, outputs: Sequence[Output], detected: Sequence[Detected]) -> dict[str, Any]:
    fields: dict[str, list[Any]] = {"translatedText": [output.text for output in outputs]}
    if detected:
        fields["detectedLanguage"] = [found.as_dict() for found in detected]
    if question.alternatives:
        fields["alternatives"] = [output.alternatives for output in outputs]
    for name in dict.fromkeys(name for output in outputs for name in output.explained):
        fields[name] = [output.explained.get(name) for output in outputs]
    return {name: values if question.is_batch else values[0] for name, values in fields.items()}
