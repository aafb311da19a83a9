"""The class that users hold: a trained model with what reads its sources and runs it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any, Unpack, cast, overload

import torch
from torch import nn

from regard.checkpoint import folder
from regard.checkpoint.folder import CURVES, Saved
from regard.checkpoint.lock import locked
from regard.contracts import AlignmentHead, Engine, SourceText
from regard.core.devices import choose_device
from regard.data.blanks import BlankCodec
from regard.data.corpus import Normalisation
from regard.data.reader import MAX_SOURCE, Given, Plan, Reader, Segment
from regard.data.sources import FileCodec, SourceCodec
from regard.data.tokenizers.codec import Codec
from regard.data.tokenizers.contract import TextCodec
from regard.decoding.torch_engine import TorchEngine
from regard.decoding.workers import Workers, can_fork
from regard.errors import UserError
from regard.languages import Languages
from regard.look import Edit, Kind, Look, Tap
from regard.models.contract import Model, ModelSettings, Seq2Seq
from regard.models.ensemble import Ensemble
from regard.options import EngineName, SearchKeywords
from regard.pipeline.alignment import Aligner
from regard.pipeline.assembly import Assembly
from regard.pipeline.attention import maps
from regard.pipeline.encoding import encode_all
from regard.pipeline.engines import describe_engine, engine_of
from regard.pipeline.scoring import label_probabilities, score_each
from regard.pipeline.streaming import stream
from regard.pipeline.translating import Outcome, ProgressCallback, in_order
from regard.results import AttentionMap, Encoded, Partial, Refused, Result, Scored
from regard.wording import python_words


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
    languages: what it reads and writes, as far as the folder says.

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
    languages: Languages = Languages()

    @classmethod
    def of_model(
        cls,
        model: Seq2Seq,
        source: SourceCodec,
        target: TextCodec,
        *,
        max_source: int = MAX_SOURCE,
        alignment_head: AlignmentHead | None = None,
        training: Mapping[str, Any] | None = None,
        engine: EngineName = "torch",
    ) -> Translator:
        """Returns a Translator that runs a torch model.

        source, target: encode the sources and the outputs.
        max_source: the maximum number of tokens translated in one go.
        alignment_head, training: fields of the Translator.
        engine: as in `regard.load`.

        >>> model = regard.load("model")
        >>> again = regard.Translator.of_model(model.model, model.source, model.target)
        >>> again("cab") == model("cab")
        True
        """
        if model.traits.mask and isinstance(source, Codec):
            source = BlankCodec.of(source)
        reader, runs = Reader(source, target, model.traits, max_source), engine_of(model, source, target, engine)
        return cls(reader, runs, alignment_head or AlignmentHead(), training or {})

    @classmethod
    def of_saved(
        cls,
        saved: Saved,
        *,
        alignment_head: AlignmentHead | None = None,
        training: Mapping[str, Any] | None = None,
        engine: EngineName = "torch",
    ) -> Translator:
        """Returns a Translator that runs a model as a folder holds it; `regard.load` calls it.

        alignment_head, training: fields of the Translator.  engine: as in `regard.load`.
        """
        facts = saved.training if training is None else training
        translator = cls.of_model(
            saved.model, saved.source, saved.target, alignment_head=alignment_head, training=facts, engine=engine
        )
        return replace(
            translator, card=saved.card, alignment_facts=saved.alignment, curves=saved.curves, languages=saved.all_languages
        )

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
    def target(self) -> TextCodec:
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
    def engine_report(self) -> str:
        """Which engine takes the steps of searches, native or torch, and why.

        >>> regard.load("model", engine="torch").engine_report
        'torch, as asked for'
        """
        return describe_engine(self.torch_engine)

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
        saved = Saved(
            self.model, self.settings, self.source, self.target, self.training, text, alignment, curves, self.languages.stated
        )
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
        if not isinstance(self.engine, TorchEngine) or self.engine.device.type != "cpu" or number == 1 or not can_fork():
            return None
        self.engine.stepping(None)  # packs the weights for native steps, which the workers then share
        return Workers(self.engine, number)

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
            yield from in_order(plans, self.engine, self._assembly, workers=workers, progress=progress, total=total)
        finally:
            if own is not None:
                own.close()

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
        yield from stream(source, segments, self.engine, self._assembly)

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
        encoded = encode_all(segments, self.reader, self.model)
        return encoded[0] if is_one else encoded

    def _whole(self, source: SourceText) -> Segment:
        """Returns a source as one segment. Raises UserError if it is empty, or too long to be read in one go."""
        segments = self.reader.segments(source)
        if len(segments) != 1:
            size = f"has more than {self.reader.max_tokens:,} tokens; shorten it" if segments else "is empty; give a text"
            raise UserError(f"the text {size}")
        return segments[0]

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
        return label_probabilities(segment, self.reader, self.engine)

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
        return score_each(given, targets, self.reader, self.engine, edits)

    # --- attention and alignments of outputs ---

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
        found = maps(results, tap, self.reader, self.engine, alternative=alternative, edits=edits, numbered=not is_one)
        return next(found) if is_one else list(found)

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
        return Aligner(self.reader, self.engine, self.alignment_head, pieces).links(results)

    @property
    def _assembly(self) -> Assembly:
        """What makes results of what a search found."""
        return Assembly(self.reader, self)


def save(model: Translator, path: str | Path, *, overwrite: bool = False, card: str | None = None) -> None:
    """Writes a model folder, atomically, which `regard.load` and all commands open. The same as `model.save(path)`.

    overwrite: whether to replace the folder if it holds a model.  card: the text of card.md; by default that of the model.
    Raises UserError if the folder exists or cannot be written, or if a weight is not finite.

    >>> regard.save(regard.load("model"), "copy", overwrite=True)
    >>> regard.load("copy")("cab").text
    'C A B'
    """
    model.save(path, overwrite=overwrite, card=card)
