"""From what a user gives to what a user receives: a Reader makes requests, an Engine runs them, answers become results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from regard.contracts import AlignmentHead, Engine, Forced, Hypothesis, Request, SourceRow, SourceText
from regard.core.source import Source
from regard.data.batch import source_batch
from regard.data.corpus import Normalisation
from regard.data.reader import MAX_SOURCE, Given, GivenOutput, Plan, Reader, Segment, line_of
from regard.data.sources import FileCodec, SourceCodec
from regard.data.tokenizers.codec import EOS, PAD, SOS, SPECIALS, UNK, Codec
from regard.decoding import schedule
from regard.decoding.torch_engine import TorchEngine
from regard.decoding.workers import Workers, can_fork
from regard.errors import UserError, shown
from regard.look import Edit, Kind, Look, Tap
from regard.models.contract import Seq2Seq
from regard.results import Alternative, AttentionMap, Partial, Refused, Result, Scored

Outcome = Result | Refused
Numbered = tuple[int, Outcome]
ProgressCallback = Callable[[Iterator[Numbered], int], Iterator[Numbered]]
"""Wraps the results as they arrive, in any order, for example to show a progress bar: takes an iterator of (number of the text,
result) and the number of texts, and yields the same items."""


def engine_of(model: Seq2Seq, device: torch.device) -> TorchEngine:
    """Returns the engine that runs a torch model on a device, with the special tokens of our vocabularies."""
    collate = partial(_batch_on, device)
    return TorchEngine(model, collate, sos=SOS, eos=EOS, never=(PAD, UNK, SOS), device=device)


def _batch_on(device: torch.device, rows: Sequence[SourceRow]) -> Source:
    return source_batch(rows).to(device)


@dataclass(frozen=True)
class Translator:
    """Translates texts with a trained model. `regard.load` returns one.

        translator = regard.load("model")
        translator("hello").text
        translator.batch(["hello", "goodbye"], beam=5)

    All methods that translate accept the fields of `SearchOptions` as keyword arguments, `prefix` (a text that outputs start
    with, or its token ids) and `seed` (of samples); `banned` may be a list of words. A text that is too long is split into
    sentences, which are translated separately. If the model reads several columns, a source is a tuple of them, such as
    ("walk", "V;PST"). If it reads pictures or sounds, a source is the name of a file, or its path; with an auxiliary text, a
    tuple of both. A language model has no source: it continues the text.

    reader: makes requests of what the user gives.  engine: runs them.
    alignment_head: the layer and head that alignments are read from.
    training: the section `training` of config.json: data, seed, versions, settings and metrics.
    """

    reader: Reader
    engine: Engine
    alignment_head: AlignmentHead = AlignmentHead()
    training: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_model(
        cls,
        model: Seq2Seq,
        source: SourceCodec,
        target: Codec,
        device: torch.device | str = "cpu",
        *,
        max_source: int = MAX_SOURCE,
        **others: Any,
    ) -> Translator:
        """Returns a Translator that runs a torch model.

        source, target: encode the sources and the outputs.  device: where the model is.
        max_source: the maximum number of tokens translated in one go.  others: further fields of the Translator.
        """
        return cls(Reader(source, target, model.traits, max_source), engine_of(model, torch.device(device)), **others)

    @property
    def source(self) -> SourceCodec:
        """The codec of the sources."""
        return self.reader.source

    @property
    def target(self) -> Codec:
        """The codec of the outputs."""
        return self.reader.target

    @property
    def torch_engine(self) -> TorchEngine:
        """The engine, if it runs a torch model, whose every number can be shown. Raises UserError if it does not."""
        if not isinstance(self.engine, TorchEngine):
            raise UserError("this model is not run by torch, so its inside cannot be shown; load it with the torch engine")
        return self.engine

    @property
    def model(self) -> Seq2Seq:
        """The torch model. Raises UserError if another engine runs the model."""
        return self.torch_engine.model

    @property
    def normalisation(self) -> Normalisation:
        """How the sources and targets of pairs are normalised for this model."""
        return Normalisation(self.source.normalises, self.target.normalises, isinstance(self.source, FileCodec))

    def at(self, folder: Path) -> Translator:
        """Returns a Translator whose file names are relative to `folder`."""
        return replace(self, reader=self.reader.at(folder))

    # --- translation ---

    def __call__(self, text: Given, **options: Any) -> Result:
        """Translates one text.

        text: the text, or a file name or path if the model reads files, or a tuple of columns.
        options: fields of `SearchOptions`, prefix, seed.

        Returns a `Result`, which is empty if the source is empty. Raises UserError if the text cannot be translated or an
        option has an invalid value, and TypeError if `text` is not a text or an option is unknown.
        """
        return self.batch([self.reader.accept(text, "a call of the model")], **options)[0]

    def batch(self, texts: Iterable[Given], *, progress: ProgressCallback | None = None, **options: Any) -> list[Result]:
        """Translates many texts, which is faster than one call for each.

        texts: a list of texts; or file names, paths or tuples of columns.
        progress: wraps the results as they arrive, for example to show a progress bar.
        options: fields of `SearchOptions`, prefix, seed.

        Returns one `Result` per text, in the same order. Raises UserError if a text cannot be translated (`translate` reports
        such texts without raising) or an option has an invalid value, and TypeError if `texts` is not a list of texts or an
        option is unknown.
        """
        chosen = self.reader.options(options)
        sources = enumerate(self.reader.accept_all(texts, "batch"))
        return self.answer_all([self.reader.plan(source, chosen, line) for line, source in sources], progress=progress)

    def translate(
        self,
        texts: Iterable[Given | None],
        *,
        first: int = 0,
        progress: ProgressCallback | None = None,
        workers: Workers | None = None,
        edits: Sequence[Edit] = (),
        **options: Any,
    ) -> Iterator[Outcome]:
        """Translates any number of texts and yields each result as soon as it and all earlier ones are ready.

        texts: a list or any other iterable of texts (see `batch`), read as needed, at most some ten thousand ahead of the
        results. None stands for a pause: the texts before it are answered before more are read.
        first: the number of the first text, for texts that come in several calls; samples depend on the number of a text.
        progress: see `batch`; for lists only.
        workers: processes that were started before, by `Translator.workers`; they are not closed. By default, processes are
        started if there are many texts.
        edits: changes of the attention weights; Edit("cross", key="largest") makes the attention to the source hard.
        options: fields of `SearchOptions`, prefix, seed.

        Yields, for each text and in the same order, a `Result`, or a `Refused` if the text cannot be translated. Once iteration
        starts, it raises UserError if an option has an invalid value, and TypeError if `texts` is not a list of texts or an
        option is unknown.
        """
        total = len(texts) if isinstance(texts, Sequence) else 0
        sources = self.reader.accept_all(texts, "translate")
        plans = self.reader.plans(sources, self.reader.options(options), first)
        if edits:
            plans = (plan and plan.edited(edits) for plan in plans)
        yield from self.answer(plans, progress=progress, workers=workers, total=total)

    def workers(self) -> Workers | None:
        """Returns worker processes for this model, which are not started yet; None if this process cannot use them: with one
        thread, on a GPU, or while other threads run. An engine that is not torch uses its own threads."""
        number = torch.get_num_threads()
        on_cpu = isinstance(self.engine, TorchEngine) and self.engine.device.type == "cpu"
        return Workers(self.engine, number) if on_cpu and number > 1 and can_fork() else None

    def answer_all(self, plans: Sequence[Plan], *, progress: ProgressCallback | None = None) -> list[Result]:
        """Runs sources that were read before, and returns their results. Raises UserError if one of them has none."""
        results = []
        for number, result in enumerate(self.answer(plans, progress=progress, total=len(plans)), start=1):
            if isinstance(result, Refused):
                raise UserError(f"text {number}: {result.reason}" if len(plans) > 1 else result.reason)
            results.append(result)
        return results

    def answer(
        self,
        plans: Iterable[Plan | None],
        *,
        progress: ProgressCallback | None = None,
        workers: Workers | None = None,
        total: int = 0,
    ) -> Iterator[Outcome]:
        """Runs sources that were read before, and yields their results in the same order.

        plans: from `Reader.plans`; None stands for a pause.
        total: the number of plans, if it is known; all are packed together then.
        progress, workers: see `translate`.
        """
        own = None
        if workers is None:
            workers = own = self.workers()
        elif workers.engine is not self.engine:
            raise ValueError("these workers run another model; use those of this Translator, or leave them out")
        try:
            arrived = self._arrivals(plans, workers, max(total, schedule.WINDOW))
            if progress is not None:
                arrived = progress(arrived, total)
            early: dict[int, Outcome] = {}
            following = 0
            for number, outcome in arrived:
                early[number] = outcome
                while following in early:
                    yield early.pop(following)
                    following += 1
        finally:
            if own is not None:
                own.close()

    def _arrivals(self, plans: Iterable[Plan | None], workers: Workers | None, window: int) -> Iterator[Numbered]:
        """Yields (index of the plan, result) as soon as a result is ready, in any order."""
        ready: list[Numbered] = []
        waiting: dict[int, Waiting] = {}

        def requests() -> Iterator[Request | None]:
            index = 0
            for plan in plans:
                if plan is None:
                    yield None
                    continue
                if plan.segments:
                    waiting[plan.line] = Waiting(index, plan)
                    yield from (segment.request for segment in plan.segments)
                else:
                    ready.append((index, Refused(plan.refused) if plan.refused else self._join(plan.source, [])))
                    if len(ready) >= schedule.WINDOW:
                        yield None  # so that these are answered, however many such sources follow
                index += 1

        for event in schedule.run(self.engine, requests(), workers, window=window):
            yield from ready
            ready.clear()
            if event is None:
                continue
            line = line_of(event.id)
            answered = waiting[line]
            answered.answers[event.id] = Refused(event.error) if event.error else event.hypotheses
            if len(answered.answers) == len(answered.plan.segments):
                del waiting[line]
                yield answered.index, self._outcome(answered)
        yield from ready

    def stream(self, text: Given, **options: Any) -> Iterator[Partial]:
        """Translates one text and yields the output while it is being written.

        text, options: as for a call of the translator.

        Yields `Partial`s, whose `text` only grows. The last one holds the complete `result`. Raises the errors of a call, once
        iteration starts.
        """
        source = self.reader.accept(text, "stream")
        segments = self.reader.segments(source, self.reader.options(options))
        search = self.engine.open()
        before, results = "", []
        try:
            for segment in segments:
                search.submit(replace(segment.request, stream=True))
                certain: tuple[int, ...] = ()
                is_last = False
                while not is_last:
                    for event in search.events():
                        if event.error:
                            raise UserError(event.error)
                        certain += event.ids
                        is_last = event.is_last
                        if is_last:
                            results.append(self._result(segment, event.hypotheses))
                        elif event.ids or event.tail:
                            so_far = self.target.decode(certain)
                            yield Partial(before + so_far, self.target.decode((*certain, *event.tail))[len(so_far) :])
                before = " ".join([*(result.text for result in results), ""])
        finally:
            search.close()
        result = self._join(source, results)
        yield Partial(result.text, "", result)

    # --- given outputs ---

    def score(self, sources: Iterable[Given], targets: Iterable[str]) -> list[Scored]:
        """Computes the log-probability of given outputs.

        sources: a list of texts; or file names, paths or tuples of columns. The output of a language model starts with its
        source, as in its results; an empty source leaves it free.
        targets: the outputs to score, one for each source. Symbols that have no token are scored as <unk>, and reported.

        Returns one `Scored` per pair, in the same order. Raises UserError if a pair cannot be scored, TypeError if an argument
        is not a list of texts, and ValueError if the lists differ in length.
        """
        results = []
        for number, result in enumerate(self.score_each(sources, targets), start=1):
            if isinstance(result, Refused):
                raise UserError(f"pair {number}: {result.reason}")
            results.append(result)
        return results

    def score_each(self, sources: Iterable[Given], targets: Iterable[str]) -> list[Scored | Refused]:
        """Computes the log-probability of given outputs, like `score`, but returns a `Refused` for each pair that cannot be
        scored."""
        given = list(self.reader.accept_all(sources, "score"))
        outputs = _texts(targets)
        if len(given) != len(outputs):
            raise ValueError(
                "score takes two lists of texts of the same length, sources and outputs, "
                f"got {len(given):,} sources and {len(outputs):,} outputs"
            )
        scored: dict[int, Scored | Refused] = {}
        pairs: dict[int, GivenOutput] = {}
        for number, (source, target) in enumerate(zip(given, outputs, strict=True)):
            try:
                pairs[number] = self.reader.given_output(source, target, number)
            except UserError as error:
                scored[number] = Refused(str(error))
        requests, written = [pair.request for pair in pairs.values()], [pair.written for pair in pairs.values()]
        for forced in self.engine.force(requests, written):
            if forced.error:
                scored[forced.id] = Refused(forced.error)
                continue
            texts, log_probs = pairs[forced.id].texts, forced.token_log_probs
            scored[forced.id] = Scored(
                sum(log_probs),
                tuple(piece for text in texts for piece in self.target.pieces(text)),
                log_probs,
                tuple(symbol for text in texts for symbol in self.target.unknown(text)),
            )
        return [scored[number] for number in range(len(given))]

    def attention(self, result: Result, kind: Kind = "cross", layer: int = -1) -> AttentionMap:
        """Computes the exact weights of a result in one forward pass with its output as the target (teacher forcing). Row t
        holds the weights of the step that wrote token t; the last step wrote <eos>. With marginal and monotone attention these
        are the posterior: how probable each source position is, given the whole output.

        Raises UserError if the model has no such attention, or if the text was split or is empty.
        """
        if result.parts:
            raise UserError(
                f"this text was translated in {len(result.parts)} parts; each part has its own attention, see `parts`"
            )
        segment, written = self.reader.segment(result.source), (*result.ids, EOS) if result.finished else result.ids
        if not written or not (segment.request.num_positions or segment.request.prefix or self.reader.traits.continues_text):
            raise UserError(f"the {'text' if written else 'output'} is empty, so there is no attention to show")
        forced = self._force(segment, written, Tap(kind, layer, what="posterior"))
        (seen, *_) = forced.seen
        source, target = self.reader.labels(segment.source, forced.axes), self.target.tokens(written)
        rows = source if kind in ("encoder", "fusion") else target
        columns = (SPECIALS[SOS], *target[:-1]) if kind == "decoder" else source
        axes, seconds = forced.axes if len(forced.axes) == 2 and kind in ("cross", "encoder") else (), 0.0
        if isinstance(self.source, FileCodec):
            if kind == "fusion":
                columns = self.source.auxiliary_labels(segment.source)
            if not self.source.has_file(segment.source):
                axes = ()
            elif kind != "decoder":
                seconds = self.source.seconds
        return AttentionMap(seen.weights_BHTS[0], columns, rows, kind, seen.layer, axes, seconds)

    def alignment(self, result: Result) -> tuple[tuple[int, int], ...]:
        """Returns the pairs (source token, target token) of a result; see `Result.alignment`."""
        if not result.parts:
            return tuple((i, j) for j, i in enumerate(self._aligned(result))) if result.tokens else ()
        links: list[tuple[int, int]] = []
        sources = targets = 0
        for part in result.parts:
            links += [(sources + i, targets + j) for i, j in self.alignment(part)]
            sources, targets = sources + len(part.source_tokens), targets + len(part.tokens)
        return tuple(links)

    def _aligned(self, result: Result) -> list[int]:
        """Returns, for each token of an output, the index of the source token that it attends to most."""
        segment = self.reader.segment(result.source)
        forced = self._force(segment, (*result.ids, EOS), Tap("cross", self.alignment_head.layer, what="posterior"))
        layers_HTS = [layer.weights_BHTS[0] for layer in forced.seen]
        row = segment.request.source
        num_sources = len(row) if isinstance(row, list) else layers_HTS[0].shape[-1]  # all positions of a file
        best: list[int] = self.alignment_head.weights_TS(layers_HTS, len(result.ids), num_sources).argmax(-1).tolist()
        return best

    def _force(self, segment: Segment, written: Sequence[int], tap: Tap) -> Forced:
        """Runs the model over an output. Raises UserError if the model has no such attention."""
        (forced,) = self.engine.force([replace(segment.request, look=Look((tap,)))], [written])
        if forced.error:
            raise UserError(forced.error)
        if not forced.seen:
            raise UserError(
                f"this model has no {tap.kind} attention; models that attend to their source have kind cross, Transformers "
                "also have encoder and decoder, and models that read an auxiliary text have fusion"
            )
        return forced

    # --- from hypotheses to results ---

    def _outcome(self, answered: Waiting) -> Outcome:
        """Returns the result of a source whose segments have all been answered."""
        results = []
        for segment in answered.plan.segments:
            answer = answered.answers[segment.request.id]
            if isinstance(answer, Refused):
                return answer
            results.append(self._result(segment, answer))
        return self._join(answered.plan.source, results)

    def _result(self, segment: Segment, hypotheses: tuple[Hypothesis, ...]) -> Result:
        """Returns the result of one segment from its n-best hypotheses."""
        n_best = tuple(
            Alternative(
                self.target.decode(hypothesis.ids),
                self.target.tokens(hypothesis.ids),
                hypothesis.log_prob,
                hypothesis.rank_score,
                hypothesis.finished,
                hypothesis.token_log_probs,
            )
            for hypothesis in hypotheses
        )
        best = n_best[0]
        return Result(
            text=best.text,
            tokens=best.tokens,
            source=segment.source,
            source_tokens=self.reader.pieces(segment.source),
            log_prob=best.log_prob,
            rank_score=best.rank_score,
            finished=best.finished,
            n_best=n_best,
            unknown=self.reader.unknown(segment.source),
            ids=hypotheses[0].ids,
        ).made_by(self)

    def _join(self, source: SourceText, parts: list[Result]) -> Result:
        """Returns the result of a whole text from those of its segments: one, several if it was split, none if it is empty."""
        if len(parts) == 1:
            return parts[0]
        whole = Alternative(
            " ".join(part.text for part in parts),
            tuple(token for part in parts for token in part.tokens),
            sum((part.log_prob for part in parts), 0.0),
            sum((part.rank_score for part in parts), 0.0),
            all(part.finished for part in parts),
            tuple(log_prob for part in parts for log_prob in part.n_best[0].token_log_probs),
        )
        return Result(
            text=whole.text,
            tokens=whole.tokens,
            source=self.reader.normalised(source),
            source_tokens=tuple(token for part in parts for token in part.source_tokens),
            log_prob=whole.log_prob,
            rank_score=whole.rank_score,
            finished=whole.finished,
            n_best=(whole,),
            unknown=tuple(symbol for part in parts for symbol in part.unknown),
            parts=tuple(parts),
            ids=tuple(token for part in parts for token in part.ids),
        ).made_by(self)


@dataclass
class Waiting:
    """A source whose segments are being searched: its index, and the answers so far, by the id of the request."""

    index: int
    plan: Plan
    answers: dict[int, tuple[Hypothesis, ...] | Refused] = field(default_factory=dict)


def _texts(targets: Iterable[str]) -> list[str]:
    """Returns given outputs as a list. Raises TypeError unless they are a list of texts."""
    if isinstance(targets, Iterable) and not isinstance(targets, str):
        texts = list(targets)
        if all(isinstance(text, str) for text in texts):
            return texts
    raise TypeError(f"score takes lists of texts, got {shown(targets, 60)}; put a single text into a list too")
