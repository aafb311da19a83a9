"""From what a user gives to what a user receives: a Reader makes requests, an Engine runs them, answers become results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path, PurePath
from typing import Any, Unpack, cast, overload

import numpy as np
import torch
from torch import nn

from regard.checkpoint import folder
from regard.checkpoint.folder import CURVES, Saved
from regard.checkpoint.lock import locked
from regard.contracts import AlignmentHead, Array, Engine, Forced, Hypothesis, Request, SourceRow, SourceText
from regard.core.devices import choose_device
from regard.core.source import Source
from regard.data.batch import source_batch
from regard.data.blanks import BlankCodec
from regard.data.corpus import Normalisation
from regard.data.reader import MAX_SOURCE, Given, GivenOutput, Plan, Reader, Segment, line_of
from regard.data.sources import FileCodec, SourceCodec
from regard.data.tokenizers.codec import EOS, PAD, SOS, SPECIALS, UNK, Codec
from regard.decoding import schedule
from regard.decoding.torch_engine import TorchEngine
from regard.decoding.workers import Workers, can_fork
from regard.errors import UserError, shown
from regard.links import Links, Units, links_of, strongest
from regard.look import Edit, Kind, Look, Seen, Tap, pick
from regard.models.contract import Model, ModelSettings, Seq2Seq
from regard.models.ensemble import Ensemble
from regard.models.evaluation import device_of, in_evaluation
from regard.options import SearchKeywords
from regard.results import Alternative, AttentionMap, Encoded, Partial, Refused, Result, Scored
from regard.wording import python_words

ENCODED = 64
"""How many sources `encode` runs through the encoder at a time."""

FORCED_WINDOW = 1024
"""How many outputs are read and run through the model at a time, when their attention is computed."""

Outcome = Result | Refused
Numbered = tuple[int, Outcome]
ProgressCallback = Callable[[Iterator[Numbered], int], Iterator[Numbered]]
"""Wraps the results as they arrive, in any order, for example to show a progress bar: takes an iterator of (number of the text,
result) and the number of texts, and yields the same items."""


def engine_of(model: Seq2Seq) -> TorchEngine:
    """Returns the engine that runs a torch model, wherever it is, with the special tokens of our vocabularies."""
    return TorchEngine(model, partial(_batch_for, model), sos=SOS, eos=EOS, never=(PAD, UNK, SOS))


def _batch_for(model: Seq2Seq, rows: Sequence[SourceRow]) -> Source:
    """Returns a batch on the device of the model."""
    return source_batch(rows).to(device_of(model))


@dataclass(frozen=True)
class Translator:
    """Translates texts with a trained model. `regard.load` returns one.

    All methods that translate accept the fields of `SearchOptions` as keyword arguments, `prefix` (a text that outputs start
    with, or its token ids), `seed` (of samples), `look` (a `Look`, whose taps fill `Result.seen`) and `edits` (an `Edit` of
    attention, or several); `banned` may be a list of words. A text that is too long is split into sentences, which are
    translated separately. If the model reads several columns, a source is a tuple of them, such as
    ("walk", "V;PST"). If it reads pictures or sounds, a source is the name of a file, or its path; with an auxiliary text, a
    tuple of both. A language model has no source: it continues the text.

    reader: makes requests of what the user gives.  engine: runs them.
    alignment_head: the layer and head that alignments are read from.
    training: the section `training` of config.json: data, seed, versions, settings of the run and metrics.
    card: the text of the model card.  curves: the picture that it shows (SVG).
    alignment_facts: how the alignment head was chosen, as config.json states it.

    >>> model = regard.load("model")
    >>> model("cab").text
    'C A B'
    >>> [result.text for result in model.batch(["face", "head"], beam=5)]
    ['F A C E', 'H E A D']
    """

    reader: Reader
    engine: Engine
    alignment_head: AlignmentHead = AlignmentHead()
    training: Mapping[str, Any] = field(default_factory=dict)
    card: str = ""
    alignment_facts: Mapping[str, Any] = field(default_factory=dict)
    curves: str = ""

    @classmethod
    def of_model(
        cls,
        model: Seq2Seq,
        source: SourceCodec,
        target: Codec,
        *,
        max_source: int = MAX_SOURCE,
        alignment_head: AlignmentHead | None = None,
        training: Mapping[str, Any] | None = None,
    ) -> Translator:
        """Returns a Translator that runs a torch model.

        source, target: encode the sources and the outputs.
        max_source: the maximum number of tokens translated in one go.
        alignment_head, training: fields of the Translator.

        >>> model = regard.load("model")
        >>> again = regard.Translator.of_model(model.model, model.source, model.target)
        >>> again("cab") == model("cab")
        True
        """
        if model.traits.mask and isinstance(source, Codec):
            source = BlankCodec.of(source)
        reader, engine = Reader(source, target, model.traits, max_source), engine_of(model)
        return cls(reader, engine, alignment_head or AlignmentHead(), training or {})

    @classmethod
    def of_saved(
        cls, saved: Saved, *, alignment_head: AlignmentHead | None = None, training: Mapping[str, Any] | None = None
    ) -> Translator:
        """Returns a Translator that runs a model as a folder holds it; `regard.load` calls it.

        alignment_head, training: fields of the Translator.
        """
        facts = saved.training if training is None else training
        translator = cls.of_model(saved.model, saved.source, saved.target, alignment_head=alignment_head, training=facts)
        return replace(translator, card=saved.card, alignment_facts=saved.alignment, curves=saved.curves)

    @classmethod
    def ensemble(cls, members: Sequence[Translator]) -> Translator:
        """Returns a Translator in which several models write together: the probability of a token is the mean of theirs.

        members: Translators on the same device, with the same vocabularies. What they were trained on is taken from the first.
        Raises UserError if they do not fit together.

        >>> model = regard.load("model")
        >>> regard.Translator.ensemble([model, model])("cab").text
        'C A B'
        """
        if not members:
            raise UserError("an ensemble has at least one model, got none")
        first, *others = members
        for number, other in enumerate(others, start=2):
            for side, ours, theirs in (("source", first.source, other.source), ("target", first.target, other.target)):
                if ours.to_json() != theirs.to_json():
                    raise UserError(
                        f"model {number} and model 1 have different {side} vocabularies, but an ensemble writes one output, "
                        "token by token; train its models on the same data with the same data settings"
                    )
        together = Ensemble([member.model for member in members])
        return cls.of_model(together, first.source, first.target, max_source=first.reader.max_source, training=first.training)

    @property
    def source(self) -> SourceCodec:
        """The codec of the sources.

        >>> regard.load("model").source.pieces("cab")
        ('c', 'a', 'b')
        """
        return self.reader.source

    @property
    def target(self) -> Codec:
        """The codec of the outputs.

        >>> target = regard.load("model").target
        >>> target.decode(target.encode("C A B"))
        'C A B'
        """
        return self.reader.target

    @property
    def torch_engine(self) -> TorchEngine:
        """The engine, if it runs a torch model, whose every number can be shown. Raises UserError if it does not."""
        if not isinstance(self.engine, TorchEngine):
            raise UserError("this model is not run by torch, so its inside cannot be shown; load it with the torch engine")
        return self.engine

    @property
    def model(self) -> Model:
        """The torch model: a `torch.nn.Module`. Raises UserError if another engine runs the model.

        >>> sum(parameter.numel() for parameter in regard.load("model").model.parameters()) > 10_000
        True
        """
        return cast(Model, self.torch_engine.model)

    @property
    def normalisation(self) -> Normalisation:
        """How the sources and targets of pairs are normalised for this model."""
        return Normalisation(self.source.normalises, self.target.normalises, isinstance(self.source, FileCodec))

    def at(self, folder: Path) -> Translator:
        """Returns a Translator whose file names are relative to `folder`."""
        return replace(self, reader=self.reader.at(folder))

    # --- the model ---

    @property
    def settings(self) -> ModelSettings:
        """The settings of the model, such as `settings.width`; those of its run are in `training["settings"]`.

        Raises UserError for an ensemble.

        >>> model = regard.load("model")
        >>> model.settings.kind, model.training["settings"]["train"]["steps"]
        ('rnn', 200)
        """
        if isinstance(self.torch_engine.model, Ensemble):
            raise UserError("an ensemble has no settings and no folder of its own; use those of its models, one by one")
        return self.model.settings

    @property
    def device(self) -> torch.device:
        """Where the model is.

        >>> regard.load("model", device="cpu").device
        device(type='cpu')
        """
        return self.torch_engine.device

    def to(self, device: str | torch.device) -> Translator:
        """Moves the model to a device, "cpu", "cuda", "cuda:1", "mps" or a torch.device, and returns this Translator.

        Raises UserError if there is no such device.

        >>> regard.load("model").to("cpu").device.type
        'cpu'
        """
        with python_words():
            self.model.to(choose_device(device))
        return self

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yields the parameters of the model, for an optimiser.

        >>> model = regard.load("model")
        >>> optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
        """
        return self.model.parameters()

    def train(self, mode: bool = True) -> Translator:
        """Puts the model into training mode, in which `regard.loss` applies dropout, and returns this Translator.

        Translating is not affected: it never applies dropout.

        >>> model = regard.load("model").train()
        >>> model.model.training, model("cab").text
        (True, 'C A B')
        """
        self.model.train(mode)
        return self

    def eval(self) -> Translator:
        """Puts the model into evaluation mode, and returns this Translator.

        >>> regard.load("model").train().eval().model.training
        False
        """
        return self.train(False)

    def save(self, path: str | Path, *, overwrite: bool = False, card: str | None = None) -> None:
        """Writes a model folder, atomically, which `regard.load` and all commands open.

        overwrite: whether to replace the folder if it holds a model.  card: the text of card.md; by default that of this model.
        Raises UserError if the folder exists or cannot be written, or if a weight is not finite.

        >>> model = regard.load("model")
        >>> model.save("copy", overwrite=True, card="# Spells words")
        >>> regard.load("copy")("cab") == model("cab")
        True
        """
        out, alignment = Path(path), self.alignment_facts
        if alignment or self.alignment_head != AlignmentHead():
            alignment = {**alignment, **asdict(self.alignment_head)}
        text = self.card if card is None else card
        curves = self.curves if CURVES in text else ""
        saved = Saved(self.model, self.settings, self.source, self.target, self.training, text, alignment, curves)
        with python_words(), locked(out):
            folder.recover(out)
            folder.save(saved, out, replace=overwrite)

    # --- translation ---

    def __call__(
        self, text: Given, *, look: Look | None = None, edits: Edit | Sequence[Edit] = (), **options: Unpack[SearchKeywords]
    ) -> Result:
        """Translates one text.

        text: the text, or a file name or path if the model reads files, or a tuple of columns.
        options: fields of `SearchOptions`, prefix, seed, look, edits.

        Returns a `Result`, which is empty if the source is empty. Raises UserError if the text cannot be translated or an
        option has an invalid value, and TypeError if `text` is not a text or an option is unknown.

        >>> result = regard.load("model")("cab", beam=3, n_best=2)
        >>> result.text, result.finished, len(result.n_best)
        ('C A B', True, 2)
        """
        return self.batch([self.reader.accept(text, "a call of the model")], look=look, edits=edits, **options)[0]

    def batch(
        self,
        texts: Iterable[Given],
        *,
        look: Look | None = None,
        edits: Edit | Sequence[Edit] = (),
        progress: ProgressCallback | None = None,
        **options: Unpack[SearchKeywords],
    ) -> list[Result]:
        """Translates many texts, which is faster than one call for each.

        texts: a list of texts; or file names, paths or tuples of columns.
        progress: wraps the results as they arrive, for example to show a progress bar.
        options: fields of `SearchOptions`, prefix, seed, look, edits.

        Returns one `Result` per text, in the same order. Raises UserError if a text cannot be translated (`translate` reports
        such texts without raising) or an option has an invalid value, and TypeError if `texts` is not a list of texts or an
        option is unknown.

        >>> model = regard.load("model")
        >>> [result.text for result in model.batch(["cab", "face"], beam=5)]
        ['C A B', 'F A C E']
        """
        chosen = self.reader.options(options, look, edits)
        sources = enumerate(self.reader.accept_all(texts, "batch"))
        return self.answer_all([self.reader.plan(source, chosen, line) for line, source in sources], progress=progress)

    def translate(
        self,
        texts: Iterable[Given | None],
        *,
        first: int = 0,
        progress: ProgressCallback | None = None,
        workers: Workers | None = None,
        look: Look | None = None,
        edits: Edit | Sequence[Edit] = (),
        **options: Unpack[SearchKeywords],
    ) -> Iterator[Outcome]:
        """Translates any number of texts and yields each result as soon as it and all earlier ones are ready.

        texts: a list or any other iterable of texts (see `batch`), read as needed, at most some ten thousand ahead of the
        results. None stands for a pause: the texts before it are answered before more are read.
        first: the number of the first text, for texts that come in several calls; samples depend on the number of a text.
        progress: see `batch`; for lists only.
        workers: processes that were started before, by `Translator.workers`; they are not closed. By default, processes are
        started if there are many texts.
        options: fields of `SearchOptions`, prefix, seed, look, edits.

        Yields, for each text and in the same order, a `Result`, or a `Refused` if the text cannot be translated. Once iteration
        starts, it raises UserError if an option has an invalid value, and TypeError if `texts` is not a list of texts or an
        option is unknown.

        >>> model = regard.load("model")
        >>> for outcome in model.translate(["cab", "a" * 2000]):
        ...     print(outcome.reason if isinstance(outcome, regard.Refused) else outcome.text)
        C A B
        a sentence has 2,000 tokens, but this model translates at most 1,024 at a time; split it with line breaks or full stops
        """
        total = len(texts) if isinstance(texts, Sequence) else 0
        sources = self.reader.accept_all(texts, "translate")
        plans = self.reader.plans(sources, self.reader.options(options, look, edits), first)
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
            answered.answers[event.id] = Refused(event.error) if event.error else Answer(event.hypotheses, event.seen)
            if len(answered.answers) == len(answered.plan.segments):
                del waiting[line]
                yield answered.index, self._outcome(answered)
        yield from ready

    def stream(
        self, text: Given, *, look: Look | None = None, edits: Edit | Sequence[Edit] = (), **options: Unpack[SearchKeywords]
    ) -> Iterator[Partial]:
        """Translates one text and yields the output while it is being written.

        text, options: as for a call of the translator.

        Yields `Partial`s, whose `text` only grows. The last one holds the complete `result`. Raises the errors of a call, once
        iteration starts.

        >>> [partial.text for partial in regard.load("model").stream("cab")]
        ['C', 'C A', 'C A B', 'C A B']
        """
        source = self.reader.accept(text, "stream")
        segments = self.reader.segments(source, self.reader.options(options, look, edits))
        search = self.engine.open()
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
                            results.append(self._result(segment, Answer(event.hypotheses, seen)))
                        elif event.ids or event.tail:
                            so_far = self.target.decode(certain)
                            tail = self.target.decode((*certain, *event.tail))[len(so_far) :]
                            yield Partial(before + so_far, tail, seen=new)
                            new = ()
                before = " ".join([*(result.text for result in results), ""])
        finally:
            search.close()
        result = self._join(source, results)
        yield Partial(result.text, "", result, new)

    # --- the encoder alone ---

    @overload
    def encode(self, of: Given) -> Encoded: ...  # type: ignore[overload-overlap]  # a text is an iterable of texts, too
    @overload
    def encode(self, of: Iterable[Given]) -> list[Encoded]: ...
    def encode(self, of: Given | Iterable[Given]) -> Encoded | list[Encoded]:
        """Runs the encoder alone, and returns its states and one vector for the whole source.

        of: a text; or a file name or path if the model reads files, or a tuple of columns; or a list of them, which is faster
        than one call for each.

        Returns an `Encoded`; for a list, a list of them, in the same order. They do not depend on each other. Raises UserError
        if the model has no encoder, or if a source is empty, too long or cannot be read.

        >>> model = regard.load("model")
        >>> one, other = model.encode(["cab", "face"])
        >>> one.states.shape[0], other.tokens, one.vector.shape == other.vector.shape
        (4, ('f', 'a', 'c', 'e', '<eos>'), True)
        """
        if self.reader.traits.continues_text or isinstance(self.torch_engine.model, Ensemble):
            raise UserError(
                "this model has no encoder of its own: it is a language model, or several models that write together"
            )
        is_one = isinstance(of, str | PurePath | tuple)
        given: Iterable[Given] = [cast(Given, of)] if is_one else cast("Iterable[Given]", of)
        segments = []
        for number, source in enumerate(self.reader.accept_all(given, "encode"), start=1):
            try:
                segments.append(self._whole(source))
            except UserError as error:
                raise UserError(str(error) if is_one else f"text {number}: {error}") from None
        encoded = [
            one for start in range(0, len(segments), ENCODED) for one in self._encoded(segments[start : start + ENCODED])
        ]
        return encoded[0] if is_one else encoded

    def _whole(self, source: SourceText) -> Segment:
        """Returns a source as one segment. Raises UserError if it is empty, or too long to be read in one go."""
        segments = self.reader.segments(source)
        if len(segments) != 1:
            size = f"has more than {self.reader.max_tokens:,} tokens; shorten it" if segments else "is empty; give a text"
            raise UserError(f"the text {size}")
        return segments[0]

    @torch.no_grad()
    def _encoded(self, segments: Sequence[Segment]) -> Iterator[Encoded]:
        memory = in_evaluation(self.model).encode(_batch_for(self.model, [segment.request.source for segment in segments]))
        for number, segment in enumerate(segments):
            allow_S = memory.allow_BS[number]
            grid = allow_S.reshape(memory.axes)
            axes = (int(allow_S.sum()),) if grid.dim() == 1 else (int(grid.any(1).sum()), int(grid.any(0).sum()))
            states, vector = memory.values_BSE[number][allow_S], memory.summary_BE[number]
            yield Encoded(states.cpu().numpy(), self.reader.labels(segment.source, axes), vector.cpu().numpy(), axes)

    def probabilities(self, text: Given) -> list[dict[str, float]]:
        """Returns how probable each label is, for a model that gives labels: a classifier, a tagger, or one that fills blanks.

        text: as for a call of the model. Returns a dictionary for each label of the output, the most probable label first: one
        for a classifier, one for each token for a tagger, and one for each blank for a model that fills blanks.
        Raises UserError if the model writes texts, token after token; `score` gives the probability of a text.

        >>> pairs = [("ab", "first"), ("ba", "second"), ("aab", "first"), ("bba", "second")]
        >>> model = regard.train(pairs, kind="classifier", width=16, feed_forward=16, steps=40, learning_rate=0.01, quiet=True)
        >>> (labels,) = model.probabilities("ab")
        >>> sorted(labels), round(sum(labels.values()), 3)
        (['first', 'second'], 1.0)
        """
        traits = self.reader.traits
        if traits.learns_from == "pairs" or traits.continues_text:
            raise UserError("this model writes texts, token after token, so labels have no probabilities; use score")
        segment = self._whole(self.reader.accept(text, "probabilities"))
        row = segment.request.source
        number = 1 if traits.learns_from == "labels" else segment.request.num_positions
        (forced,) = self.engine.force([segment.request], [(UNK,) * number], log_probs=False, distributions=True)
        if forced.error:
            raise UserError(forced.error)
        assert forced.log_probs_TV is not None
        wanted = [at for at in range(number) if not traits.mask or (isinstance(row, list) and row[at] == UNK)]
        names = self.target.tokens(range(len(self.target)))
        labels = range(len(SPECIALS), len(self.target))
        return [
            {names[label]: float(probs_V[label]) for label in sorted(labels, key=lambda label: -probs_V[label])}
            for probs_V in np.exp(forced.log_probs_TV[wanted])
        ]

    # --- given outputs ---

    def score(self, sources: Iterable[Given], targets: Iterable[str], *, edits: Edit | Sequence[Edit] = ()) -> list[Scored]:
        """Computes the log-probability of given outputs.

        sources: a list of texts; or file names, paths or tuples of columns. The output of a language model starts with its
        source, as in its results; an empty source leaves it free.
        targets: the outputs to score, one for each source. Symbols that have no token are scored as <unk>, and reported.
        edits: changes of attention.

        Returns one `Scored` per pair, in the same order. Raises UserError if a pair cannot be scored, TypeError if an argument
        is not a list of texts, and ValueError if the lists differ in length.

        >>> model = regard.load("model")
        >>> right, wrong = model.score(["cab", "cab"], ["C A B", "B A C"])
        >>> right.log_prob > wrong.log_prob
        True
        """
        results = []
        for number, result in enumerate(self.score_each(sources, targets, edits=edits), start=1):
            if isinstance(result, Refused):
                raise UserError(f"pair {number}: {result.reason}")
            results.append(result)
        return results

    def score_each(
        self, sources: Iterable[Given], targets: Iterable[str], *, edits: Edit | Sequence[Edit] = ()
    ) -> list[Scored | Refused]:
        """Computes the log-probability of given outputs, like `score`, but returns a `Refused` for each pair that cannot be
        scored.

        >>> model = regard.load("model")
        >>> scored, refused = model.score_each(["cab", "a" * 2000], ["C A B", "A"])
        >>> scored.tokens
        ('C', 'A', 'B')
        >>> refused.reason
        'it has 2,000 source and 1 target tokens, the maximum is 1,024 each; shorten it'
        """
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
        look = Look.of(None, edits)
        requests = [replace(pair.request, look=look) for pair in pairs.values()]
        for forced in self.engine.force(requests, [pair.written for pair in pairs.values()]):
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

    @overload
    def attention(  # type: ignore[overload-overlap]  # a text is an iterable of texts, too: the first signature applies
        self,
        of: Result | Given,
        kind: Kind = "cross",
        layer: int = -1,
        head: int | None = None,
        *,
        alternative: int = 0,
        edits: Edit | Sequence[Edit] | None = None,
        **options: Unpack[SearchKeywords],
    ) -> AttentionMap: ...
    @overload
    def attention(
        self,
        of: Iterable[Result] | Iterable[Given],
        kind: Kind = "cross",
        layer: int = -1,
        head: int | None = None,
        *,
        alternative: int = 0,
        edits: Edit | Sequence[Edit] | None = None,
        **options: Unpack[SearchKeywords],
    ) -> list[AttentionMap]: ...
    def attention(
        self,
        of: Result | Given | Iterable[Result] | Iterable[Given],
        kind: Kind = "cross",
        layer: int = -1,
        head: int | None = None,
        *,
        alternative: int = 0,
        edits: Edit | Sequence[Edit] | None = None,
        **options: Unpack[SearchKeywords],
    ) -> AttentionMap | list[AttentionMap]:
        """Computes the exact weights of outputs in forward passes with these outputs as the targets (teacher forcing). Row t
        holds the weights of the step that wrote token t; the last step wrote <eos>. With marginal and monotone attention these
        are the posterior: how probable each source position is, given the whole output.

        of: a `Result` or a text; or a list of results or of texts.
        kind, layer, head: which attention; by default all heads.
        alternative: the index of an output in `n_best`, for each result.
        edits: changes of attention; by default those with which a result was translated.
        options: for texts, options of a call of the translator.

        Returns an `AttentionMap`; for a list, a list of them, in the same order. Raises UserError if the model has no such
        attention, or if a text was split, is empty or cannot be translated.

        >>> model = regard.load("model")
        >>> attention = model.attention(model("cab"), "cross", layer=-1)
        >>> attention.target, attention.mean_TS.shape
        (('C', 'A', 'B', '<eos>'), (4, 4))
        >>> [one.mean_TS.shape for one in model.attention(["cab", "face"])]  # translates the texts first
        [(4, 4), (5, 5)]
        """
        if layer is None:
            raise ValueError("layer is None, but a map shows one layer; regard.inspect(model, text) captures all of them")
        tap = Tap(kind, layer, head, what="posterior")
        is_one = isinstance(of, Result | str | PurePath) or (
            isinstance(of, tuple) and not any(isinstance(item, Result) for item in of)
        )
        results = self._results([of] if is_one else of, edits, options)
        maps = self._maps(results, tap, alternative, edits, numbered=not is_one)
        return next(maps) if is_one else list(maps)

    def _results(self, of: Any, edits: Edit | Sequence[Edit] | None, options: SearchKeywords) -> list[Result]:
        """Returns the results that `attention` was given, or those of the texts that it was given."""
        items = list(of) if isinstance(of, Iterable) else of
        if not isinstance(items, list) or not any(isinstance(item, Result) for item in items):
            sources = [*self.reader.accept_all(items, "attention")]
            return self.batch(sources, edits=() if edits is None else edits, **options)
        if not all(isinstance(item, Result) for item in items):
            raise TypeError("attention takes results or texts, got a list of both; translate the texts first, with batch")
        if options:
            raise TypeError(f"{', '.join(options)} given, but these results are translated already; give texts, or no options")
        return items

    def _maps(
        self,
        results: Sequence[Result],
        tap: Tap,
        alternative: int,
        edits: Edit | Sequence[Edit] | None,
        *,
        numbered: bool,
    ) -> Iterator[AttentionMap]:
        """Yields the attention of each result. numbered: whether an error names the number of its result."""
        outputs: list[WrittenOutput] = []
        for number, result in enumerate(results, start=1):
            try:
                outputs.append(self._written(result, alternative, edits))
            except UserError as error:
                raise UserError(f"text {number}: {error}" if numbered else str(error)) from None
        for number, (output, segment, forced) in enumerate(self._forced(outputs, tap), start=1):
            if reason := forced.error or ("" if forced.seen else _no_attention(tap.kind)):
                raise UserError(f"text {number}: {reason}" if numbered else reason)
            yield self._map(segment, output.written, forced)

    def _written(self, result: Result, alternative: int, edits: Edit | Sequence[Edit] | None) -> WrittenOutput:
        """Returns an output of a result. Raises UserError if there is none of this number, or nothing to show."""
        if result.parts:
            raise UserError(
                f"this text was translated in {len(result.parts)} parts; each part has its own attention, see `parts`"
            )
        (number,) = pick("alternative", (alternative,), len(result.n_best))
        output = result.n_best[number]
        if number and output.tokens and not output.ids:
            raise UserError("this result was stored by an older version, without the ids of its alternatives; translate again")
        ids = output.ids if number else result.ids
        written = (*ids, EOS) if output.finished else ids
        has_source = result.source_tokens or self.reader.traits.continues_text or isinstance(self.source, FileCodec)
        if not written or not has_source:
            raise UserError(f"the {'text' if written else 'output'} is empty, so there is no attention to show")
        return WrittenOutput(result.source, written, result.edits if edits is None else Look(edits=edits).edits)  # type: ignore[arg-type]

    def _forced(self, outputs: Iterable[WrittenOutput], tap: Tap) -> Iterator[tuple[WrittenOutput, Segment, Forced]]:
        """Runs the model over outputs in batches, and yields what a tap captures of each, in order."""
        remaining = iter(outputs)
        while window := list(islice(remaining, 1 if isinstance(self.source, FileCodec) else FORCED_WINDOW)):
            rows = self.reader.rows([self.reader.normalised(output.source) for output in window])
            segments = [
                self.reader.segment(output.source, line=number, row=row)
                for number, (output, row) in enumerate(zip(window, rows, strict=True))
            ]
            requests = [
                replace(segment.request, look=Look((tap,), output.edits))
                for segment, output in zip(segments, window, strict=True)
            ]
            written = [output.written for output in window]
            found = {forced.id: forced for forced in self.engine.force(requests, written, log_probs=False)}
            for number, output in enumerate(window):
                yield output, segments[number], found.pop(number)

    def _map(self, segment: Segment, written: Sequence[int], forced: Forced) -> AttentionMap:
        """Returns the attention of one output, with the tokens of both axes."""
        (seen, *_) = forced.seen
        kind = seen.kind
        source, target = self.reader.labels(segment.source, forced.axes), self.target.tokens(written)
        rows = source if kind in ("encoder", "fusion") else target
        columns = (SPECIALS[SOS], *target[:-1]) if kind == "decoder" else source
        axes, seconds = forced.axes if len(forced.axes) > 1 and kind in ("cross", "encoder") else (), 0.0
        if isinstance(self.source, FileCodec):
            if kind == "fusion":
                columns = self.source.auxiliary_labels(segment.source)
            if not self.source.has_file(segment.source):
                axes = ()
            elif kind != "decoder":
                seconds = self.source.seconds
        return AttentionMap(seen.weights_BHTS[0], columns, rows, kind, seen.layer, axes, seconds, seen.heads)

    def alignment(self, result: Result, *, pieces: bool | None = None) -> tuple[tuple[int, int], ...]:
        """Returns the links (source word, target word) of a result, sorted; see `Result.alignment`.

        >>> model = regard.load("model")
        >>> model.alignment(model("cab"))
        ((0, 0), (1, 1), (2, 2))
        """
        return self.alignments([result], pieces=pieces)[0]

    def alignments(self, results: Iterable[Result], *, pieces: bool | None = None) -> list[tuple[tuple[int, int], ...]]:
        """Returns the links (source word, target word) of each result, computed in batches; see `Result.alignment`.

        Raises UserError if the model has no attention to its source.

        >>> model = regard.load("model")
        >>> model.alignments(model.batch(["cab", "ad"]))
        [((0, 0), (1, 1), (2, 2)), ((0, 0), (1, 1))]
        """
        whole = list(results)
        parts = (part for result in whole for part in (result.parts or (result,)) if part.tokens)
        outputs = (WrittenOutput(part.source, (*part.ids, EOS), part.edits) for part in parts)
        runs = self._forced(outputs, self.alignment_head.tap)
        return [self._links(result, runs, pieces) for result in whole]

    def _links(
        self, result: Result, runs: Iterator[tuple[WrittenOutput, Segment, Forced]], pieces: bool | None
    ) -> tuple[tuple[int, int], ...]:
        """Returns the links of a result. runs: the forced passes of its parts, and of those of the results after it."""
        source = self.reader.units(result.source, result.source_tokens, pieces=pieces)
        target = self.target.units(result.text, result.tokens, pieces=pieces)
        links: set[tuple[int, int]] = set()
        sources = targets = 0
        for part in result.parts or (result,):
            next_sources, next_targets = sources + len(part.source_tokens), targets + len(part.tokens)
            if part.tokens:
                own = source and source.of(sources, next_sources), target.of(targets, next_targets)
                links |= self._part_links(next(runs)[2], *own)
            sources, targets = next_sources, next_targets
        return tuple(sorted(links))

    def _part_links(self, forced: Forced, source: Units | None, target: Units) -> Links:
        """Returns the links of a part that was translated in one go. source: None for a file, whose positions are counted."""
        if error := forced.error or ("" if forced.seen else _no_attention("cross")):
            raise UserError(error)
        layers_HTS = [layer.weights_BHTS[0] for layer in forced.seen]
        source = source or Units.tokens(layers_HTS[0].shape[-1])
        weights_TS = self.alignment_head.weights_TS(layers_HTS, len(target.of_tokens), len(source.of_tokens))
        return links_of(strongest(weights_TS, source, target))

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

    def _result(self, segment: Segment, answer: Answer) -> Result:
        """Returns the result of one segment from its n-best hypotheses."""
        n_best = tuple(
            Alternative(
                self.target.decode(hypothesis.ids),
                self.target.tokens(hypothesis.ids),
                hypothesis.log_prob,
                hypothesis.rank_score,
                hypothesis.finished,
                hypothesis.token_log_probs,
                hypothesis.ids,
            )
            for hypothesis in answer.hypotheses
        )
        best, look = n_best[0], segment.request.look
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
            ids=best.ids,
            edits=look.edits if look else (),
        ).made_by(self, _joined(answer.seen))

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
            tuple(token for part in parts for token in part.ids),
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
            ids=whole.ids,
            edits=parts[0].edits if parts else (),
        ).made_by(self)


def save(model: Translator, path: str | Path, *, overwrite: bool = False, card: str | None = None) -> None:
    """Writes a model folder, atomically, which `regard.load` and all commands open. The same as `model.save(path)`.

    overwrite: whether to replace the folder if it holds a model.  card: the text of card.md; by default that of the model.
    Raises UserError if the folder exists or cannot be written, or if a weight is not finite.

    >>> regard.save(regard.load("model"), "copy", overwrite=True)
    >>> regard.load("copy")("cab").text
    'C A B'
    """
    model.save(path, overwrite=overwrite, card=card)


@dataclass(frozen=True)
class Answer:
    """What a search found for one segment: its n-best outputs, and the attention captured while the best was written."""

    hypotheses: tuple[Hypothesis, ...]
    seen: tuple[Seen[Array], ...] = ()


@dataclass
class Waiting:
    """A source whose segments are being searched: its index, and the answers so far, by the id of the request."""

    index: int
    plan: Plan
    answers: dict[int, Answer | Refused] = field(default_factory=dict)


@dataclass(frozen=True)
class WrittenOutput:
    """An output that the model is run over: its source, its tokens, with <eos> if it is finished, and changes of attention."""

    source: SourceText
    written: tuple[int, ...]
    edits: tuple[Edit, ...] = ()


def _no_attention(kind: Kind) -> str:
    return (
        f"this model has no {kind} attention; models that attend to their source have kind cross, Transformers "
        "also have encoder and decoder, and models that read an auxiliary text have fusion"
    )


def _joined(seen: Sequence[Seen[Array]]) -> tuple[Seen[Array], ...]:
    """Joins what was captured token by token: one `Seen` per tap and layer, with a row for each token. A key that was not
    written yet has the weight 0, or the score −∞."""
    groups: dict[tuple[object, ...], list[Seen[Array]]] = {}
    for one in seen:
        groups.setdefault((one.kind, one.layer, one.heads, one.what), []).append(one)

    def join(parts: Sequence[Seen[Array]]) -> Seen[Array]:
        num_keys = max(part.weights_BHTS.shape[-1] for part in parts)
        missing = -np.inf if parts[0].what == "scores" else 0.0
        rows = [
            np.pad(part.weights_BHTS, [(0, 0)] * 3 + [(0, num_keys - part.weights_BHTS.shape[-1])], constant_values=missing)
            for part in parts
        ]
        return replace(
            parts[0], rows=tuple(row for part in parts for row in part.rows), weights_BHTS=np.concatenate(rows, axis=2)
        )

    return tuple(map(join, groups.values()))


def _texts(targets: Iterable[str]) -> list[str]:
    """Returns given outputs as a list. Raises TypeError unless they are a list of texts."""
    if isinstance(targets, Iterable) and not isinstance(targets, str):
        texts = list(targets)
        if all(isinstance(text, str) for text in texts):
            return texts
    raise TypeError(f"score takes lists of texts, got {shown(targets, 60)}; put a single text into a list too")
