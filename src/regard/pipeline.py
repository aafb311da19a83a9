"""From text to text: a model, its source and target vocabularies, and a search. A source may also be the name of a picture or
sound file."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil, isfinite
from pathlib import PurePath
from typing import Any, NoReturn

import torch

from regard.contracts import AlignmentHead, Engine, Event, Hypothesis
from regard.data.batch import source_batch
from regard.data.corpus import Normalisation, join_columns
from regard.data.sources import FileCodec, SourceCodec, SourceRow, num_positions, split_source
from regard.data.tokenizers.codec import EOS, PAD, SOS, SPECIALS, UNK, Codec
from regard.decoding import scoring
from regard.decoding.search import TorchEngine
from regard.decoding.workers import can_fork, run_in_workers
from regard.errors import UserError, did_you_mean, shown
from regard.look import Kind, Look, Tap
from regard.models.build import ModelSettings
from regard.models.contract import Seq2Seq, Source
from regard.models.decoder_only import DecoderOnly
from regard.models.rnn_lm import RnnLm
from regard.options import SearchOptions
from regard.results import Alternative, AttentionMap, Result

BATCH_HYPOTHESES = 320
"""Maximum number of rows of a decoder step: sentences times hypotheses. More rows are no faster on a CPU."""

BUDGET = 1 << 30
"""Maximum memory, in bytes, of the states of all batches that run at the same time, with outputs of maximum length."""

MIN_TEXTS_PER_WORKER = 64
"""With fewer texts, one process searches with all threads, since a worker takes some hundredths of a second to start."""

ENCODED_POSITIONS = 1024
"""Number of source positions that are encoded in one pass. Fewer are slow; more need more padding."""

MAX_SOURCE = 1024
"""Default of `Translator.max_source`: the maximum number of source tokens that are translated in one go."""

MAX_POSITIONS = 100_000
"""Maximum number of positions of a file: more than an hour of sound."""

TOKEN_CHARACTERS = 1000
"""An upper bound on the characters of a token. A sentence with more characters per allowed token is refused before it is
encoded, since encoding it would take much time and memory."""

_BORDER = re.compile(r"""[.!?…]["'»”’)\]]*(\s+)(?![a-zß-öø-ÿ])|[。！？]["'」』）]*()""")


@dataclass(frozen=True)
class Refused:
    """The result for a text that cannot be translated or scored.

    reason: why, and what to do.
    """

    reason: str


@dataclass(frozen=True)
class Partial:
    """An intermediate result of `Translator.stream`.

    text: the beginning of the output, which will not change.  tail: the rest of the best hypothesis, which may still change.
    result: the complete result, in the last item only.
    """

    text: str
    tail: str
    result: Result | None = None


@dataclass(frozen=True)
class Scored:
    """The log-probability of a given output.

    log_prob: the sum over all tokens and <eos>, not normalised by length.  tokens: the tokens of the output.
    token_log_probs: the log-probability of each token and, last, of <eos>.
    unknown: symbols of the output that have no token.
    """

    log_prob: float
    tokens: tuple[str, ...]
    token_log_probs: tuple[float, ...]
    unknown: tuple[str, ...]


@dataclass(frozen=True)
class Segment:
    """A unit of translation: a whole text, or one sentence of a text that is too long.

    number: identifies the segment; samples depend on it.  text: the text that was encoded, normalised and with its columns
    joined.  ids: the encoded source.
    """

    number: int
    text: str
    ids: SourceRow


Text = str | PurePath
"""A text. A path is accepted by models whose sources are files."""

SegmentOutput = tuple[Segment, tuple[Hypothesis, ...]]
ProgressCallback = Callable[[Iterator[SegmentOutput], int], Iterator[SegmentOutput]]
"""Wraps the iterator of outputs, for example to show a progress bar: takes the iterator and the number of segments, and yields
the same outputs. They arrive in any order."""


@dataclass(frozen=True)
class Translator:
    """Translates texts with a trained model. `regard.load` returns one.

        translator = regard.load("model")
        translator("hello").text
        translator.batch(["hello", "goodbye"], beam=5)

    All methods that translate accept the fields of `SearchOptions` as keyword arguments; `prefix` may also be a text, and
    `banned` a list of words. A text that is too long is split into sentences, which are translated separately. If the model
    reads pictures or sounds, a text is the name of a file, or its path. A language model has no source: it continues the text.

    model: the model.  source, target: encode the sources and the outputs.  device: where the model runs.
    max_source: the maximum number of tokens translated in one go; longer texts are split.
    max_positions: the number of positions that the model supports, <eos> included; None if it is unlimited.
    alignment_head: the layer and head that alignments are read from.
    training: the section `training` of config.json: data, seed, versions, settings and metrics.
    """

    model: Seq2Seq
    source: SourceCodec
    target: Codec
    device: torch.device
    max_source: int = MAX_SOURCE
    max_positions: int | None = None
    alignment_head: AlignmentHead = AlignmentHead()
    training: Mapping[str, Any] = field(default_factory=dict)

    @property
    def normalisation(self) -> Normalisation:
        """How the sources and targets of pairs are normalised for this model."""
        return Normalisation(self.source.normalises, self.target.normalises, isinstance(self.source, FileCodec))

    def __call__(self, text: Text, **options: Any) -> Result:
        """Translates one text.

        text: the text, or a file name or path if the model reads files.  options: fields of `SearchOptions`.

        Returns a `Result`, which is empty if the source is empty. Raises UserError if the text cannot be translated or an
        option has an invalid value, and TypeError if `text` is not a text or an option is unknown.
        """
        return self.batch([self._text(text, "a call of the model")], **options)[0]

    def batch(self, texts: Sequence[Text], *, progress: ProgressCallback | None = None, **options: Any) -> list[Result]:
        """Translates many texts, which is faster than one call for each.

        texts: a list of texts; or file names or paths if the model reads files.
        progress: wraps the iterator of outputs, for example to show a progress bar.  options: fields of `SearchOptions`.

        Returns one `Result` per text, in the same order. Raises UserError if a text cannot be translated (`translate` reports
        such texts without raising) or an option has an invalid value, and TypeError if `texts` is not a list of texts or an
        option is unknown.
        """
        texts, results = self._texts(texts, "batch"), []
        for number, result in enumerate(self.translate(texts, progress=progress, **options)):
            if isinstance(result, Refused):
                raise UserError(f"text {number + 1}: {result.reason}" if len(texts) > 1 else result.reason)
            results.append(result)
        return results

    def translate(
        self, texts: Sequence[Text], *, first: int = 0, progress: ProgressCallback | None = None, **options: Any
    ) -> Iterator[Result | Refused]:
        """Translates many texts and yields each result as soon as it and all earlier ones are ready.

        texts, progress, options: see `batch`.
        first: the number of the first text, for texts that come in several calls; samples depend on the number of a text.

        Yields, for each text and in the same order, a `Result`, or a `Refused` if the text cannot be translated. Once iteration
        starts, it raises UserError if an option has an invalid value or the model computes a log-probability that is not
        finite, and TypeError if `texts` is not a list of texts or an option is unknown.
        """
        texts = self._texts(texts, "translate")
        search = self._options(options)
        plans = [self._plan(text, first + number, search) for number, text in enumerate(texts)]
        waiting = {segment.number for plan in plans if isinstance(plan, list) for segment in plan}
        results: dict[int, Result] = {}
        segments = [segment for plan in plans if isinstance(plan, list) for segment in plan]
        finished = self._run(segments, search)
        if progress is not None:
            finished = progress(finished, len(segments))
        for plan in plans:
            if isinstance(plan, Refused):
                yield plan
                continue
            while any(segment.number in waiting for segment in plan):
                segment, hypotheses = next(finished)
                waiting.discard(segment.number)
                results[segment.number] = self._result(segment, hypotheses)
            yield self._join([results.pop(segment.number) for segment in plan])

    def stream(self, text: Text, **options: Any) -> Iterator[Partial]:
        """Translates one text and yields the output while it is being written.

        text, options: as for a call of the translator.

        Yields `Partial`s, whose `text` only grows. The last one holds the complete `result`. Raises the errors of a call, once
        iteration starts.
        """
        text = self._text(text, "stream")
        search = replace(self._options(options), stream=True)
        plan = self._plan(text, 0, search)
        if isinstance(plan, Refused):
            raise UserError(plan.reason)
        before, results = "", []
        for segment in plan:
            certain: tuple[int, ...] = ()
            for event in self._events([segment], search):
                certain += event.ids
                if event.hypotheses:
                    results.append(self._result(segment, event.hypotheses))
                elif event.ids or event.tail:
                    so_far = self.target.decode(certain)
                    yield Partial(before + so_far, self.target.decode((*certain, *event.tail))[len(so_far) :])
            before = " ".join([*(result.text for result in results), ""])
        result = self._join(results)
        yield Partial(result.text, "", result)

    def score(self, sources: Sequence[Text], targets: Sequence[str]) -> list[Scored]:
        """Computes the log-probability of given outputs.

        sources: a list of texts; or file names or paths if the model reads files. A language model ignores them.
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

    def score_each(self, sources: Sequence[Text], targets: Sequence[str]) -> list[Scored | Refused]:
        """Computes the log-probability of given outputs, like `score`, but returns a `Refused` for each pair that cannot be
        scored. Raises UserError only if the model computes a log-probability that is not finite."""
        sources, targets = self._texts(sources, "score"), self._texts(targets, "score", paths=False)
        if len(sources) != len(targets):
            raise ValueError(
                "score takes two lists of texts of the same length, sources and outputs, "
                f"got {len(sources):,} sources and {len(targets):,} outputs"
            )
        scored: dict[int, Scored | Refused] = {}
        read: dict[int, SourceRow] = {}
        outputs: dict[int, list[int]] = {}
        room = self.max_tokens
        for number, (text, target) in enumerate(zip(sources, targets, strict=True)):
            try:
                ids: SourceRow = [] if self.is_language_model else self.read(text).ids
                outputs[number] = output = self.target.encode(target)
            except UserError as error:
                scored[number] = Refused(str(error))
                continue
            size = len(ids) if isinstance(ids, list) else 0
            if max(size, len(output)) > room:
                reason = f"it has {size:,} source and {len(output):,} target tokens, the maximum is {room:,} each; shorten it"
                scored[number] = Refused(reason)
            else:
                read[number] = ids
        order = sorted(read, key=lambda index: (len(outputs[index]), num_positions(read[index])))
        while order:
            longest = max(num_positions(ids) + 1 for ids in (outputs[order[0]], read[order[0]]))
            chunk, order = order[: (size := max(1, 4096 // longest))], order[size:]
            batch = source_batch([read[index] for index in chunk]).to(self.device)
            rows = scoring.score(self.model, batch, [outputs[index] for index in chunk], sos=SOS, eos=EOS)
            for index, row in zip(chunk, rows, strict=True):
                text = targets[index]
                _check_number(sum(row))
                scored[index] = Scored(sum(row), self.target.pieces(text), tuple(row), self.target.unknown(text))
        return [scored[index] for index in range(len(sources))]

    # --- from text to segments ---

    @property
    def is_language_model(self) -> bool:
        """Whether this is a language model, which continues a text."""
        return isinstance(self.model, DecoderOnly | RnnLm)

    def check_columns(self, source: str) -> None:
        """Raises UserError if a source has an auxiliary text that this model does not read."""
        if isinstance(self.source, FileCodec) and self.source.auxiliary is None and "\t" in source:
            name, text = split_source(source)
            raise UserError(
                f"this model reads no auxiliary text with its {self.source.nouns}, got {text!r} with {name or 'no file'}; "
                "give file names only"
            )

    def _text(self, given: object, call: str) -> str:
        """Returns a text, or a path as a file name if sources are files. Raises TypeError for all else."""
        if isinstance(given, str) or (isinstance(given, PurePath) and isinstance(self.source, FileCodec)):
            return str(given)
        what = f"got {shown(given, 60)}; for a list of texts call batch"
        if isinstance(given, PurePath):
            what = f"got the path {str(given)!r}, but this model reads no files; read the text from the file first"
        raise TypeError(f"{call} takes one text, {what}")

    def _texts(self, given: Sequence[Text], call: str, *, paths: bool = True) -> list[str]:
        """Returns a list of texts, with paths as file names if sources are files. Raises TypeError for all else."""
        if isinstance(given, Iterable) and not isinstance(given, str | PurePath | torch.Tensor):
            given = list(given)
            accepted = str | PurePath if paths and isinstance(self.source, FileCodec) else str
            if all(isinstance(text, accepted) for text in given):
                return [str(text) for text in given]
        alone = "put a single text into a list too" if call == "score" else "for one text call the model itself"
        raise TypeError(f"{call} takes {'lists' if call == 'score' else 'a list'} of texts, got {shown(given, 60)}; {alone}")

    @property
    def max_tokens(self) -> int:
        """The maximum number of tokens of a text that is translated in one go."""
        return self.max_source if self.max_positions is None else min(self.max_source, self.max_positions - 1)

    def read(self, source: str, number: int = 0) -> Segment:
        """Encodes a source. Translation, scoring and inspection all encode here, so that they see the same input.

        source: the text. A model that was trained on several columns takes them separated by TABs, as in its table:
        "walk<TAB>V;PST". If sources are files, the name of the file, which is read.
        number: the number of the segment.

        Returns the source as one segment, even if it is too long. Raises UserError if the file cannot be read.
        """
        source = self._text(source, "the model")
        if isinstance(self.source, FileCodec):
            return Segment(number, source, self._file(source, self.source))
        codec = self.target if self.is_language_model else self.source
        text = codec.normalised(source)
        if self.source.has_features and "\t" in text:
            text = join_columns(text.split("\t"))
        return Segment(number, text, codec.encode(text))

    def encoder_batch(self, segments: Sequence[Segment]) -> Source:
        """Returns the segments as an input of the encoder. For a language model, which has no encoder, the input is empty."""
        return source_batch([[] if self.is_language_model else segment.ids for segment in segments]).to(self.device)

    def labels(self, segment: Segment, axes: tuple[int, ...]) -> tuple[str, ...]:
        """Returns a label for each position of the memory.

        axes: those of the memory, `Memory.axes`.
        """
        codec = self.target if self.is_language_model else self.source
        return codec.labels(segment.text, axes)

    def translate_unsplit(self, text: str, **options: Any) -> Result:
        """Translates one text for inspection. Raises UserError if the text had to be split, as well as the errors of a call."""
        result = self(text, **options)
        if result.parts:
            raise UserError(
                f"this text is too long and was translated in {len(result.parts)} parts; inspect one sentence at a time"
            )
        return result

    def _file(self, source: str, codec: FileCodec) -> SourceRow:
        """Reads a file and its auxiliary text, if the model has one."""
        self.check_columns(source)
        try:
            return codec.encode(source)
        except UserError as error:
            if codec.auxiliary is None or "\t" in source or os.path.exists(codec.root / source):
                raise
            ending = min(codec.suffixes, key=lambda suffix: (len(suffix), suffix))
            raise UserError(
                f"{error}; this model reads a file and an auxiliary text: expected a line such as a{ending}<TAB>every second, "
                "which starts with a TAB if there is no file"
            ) from None

    def _plan(self, text: str, number: int, search: SearchOptions) -> list[Segment] | Refused:
        """Returns the segments of a text, none if it is empty; or why it cannot be translated."""
        try:
            segments = self._segments(text, number)
        except UserError as error:
            return Refused(str(error))
        positions = max((num_positions(segment.ids) for segment in segments), default=0)
        if isinstance(self.source, FileCodec) and positions > MAX_POSITIONS:
            return Refused(f"it has {positions:,} positions, the maximum is {MAX_POSITIONS:,}; split it into shorter files")
        if self.is_language_model and self.max_output is not None and positions + len(search.prefix) >= self.max_output:
            return Refused(
                f"text and prefix have {positions + len(search.prefix):,} tokens, but this model supports {self.max_output:,} "
                "tokens in total, of which it must write at least one; shorten them"
            )
        return segments

    def _segments(self, text: str, number: int) -> list[Segment]:
        """Returns the whole text as one segment, or its sentences if it has too many tokens. Files are never split."""
        if isinstance(self.source, FileCodec):
            return [self.read(text, number)] if text else []
        self._check_characters(text)
        segment = self.read(text, number)
        size = num_positions(segment.ids)
        if self.is_language_model and size > self.max_tokens:
            raise UserError(
                f"it has {size:,} tokens, but this model continues texts of up to {self.max_tokens:,} tokens; shorten it"
            )
        if size <= self.max_tokens:
            return [segment] if size or self.is_language_model else []
        segments = [self.read(sentence, number + (part << 40)) for part, sentence in enumerate(sentences(segment.text))]
        longest = max((num_positions(segment.ids) for segment in segments), default=0)
        if longest > self.max_tokens:
            raise UserError(
                f"a sentence has {longest:,} tokens, but this model translates at most {self.max_tokens:,} at a time; "
                "split it with line breaks or full stops"
            )
        return [segment for segment in segments if segment.ids]

    def _check_characters(self, text: str) -> None:
        """Raises UserError if a text is certainly too long, before it is encoded."""
        room = max(self.max_source, MAX_SOURCE) * TOKEN_CHARACTERS
        if len(text) <= room:
            return
        longest = max(map(len, [text] if self.is_language_model else sentences(text)), default=0)
        if longest > room:
            raise UserError(
                f"a sentence has {longest:,} characters, but this model translates at most {self.max_source:,} tokens at a "
                "time; split it with line breaks or full stops"
            )

    def _options(self, options: dict[str, Any]) -> SearchOptions:
        """Returns search options from keyword arguments: checked, with words as token ids, and within the model's positions."""
        known = list(SearchOptions.__dataclass_fields__)
        for name in options:
            if name not in known:
                raise TypeError(
                    f"unknown search option {name!r}; expected one of {', '.join(known)}{did_you_mean(name, known)}"
                )
        given = dict(options)
        if isinstance(prefix := given.get("prefix"), str):
            given["prefix"] = ids = tuple(self.target.encode(prefix))
            if UNK in ids:
                raise UserError(f"the prefix {prefix!r:.60} contains symbols that the model cannot write; remove them")
        if isinstance(given.get("banned"), Iterable) and not isinstance(given["banned"], torch.Tensor):
            given["banned"] = tuple(self._banned(given["banned"]))
        search = SearchOptions(**given)
        for ids in (search.prefix, *search.banned):
            if max(ids, default=0) >= len(self.target):
                raise UserError(
                    f"prefix or banned contains the token id {max(ids)}, but the vocabulary has ids 0 to "
                    f"{len(self.target) - 1}; give words, or ids of this vocabulary"
                )
        if self.max_output is None:
            return search
        if len(search.prefix) >= self.max_output:
            raise UserError(
                f"the prefix has {len(search.prefix):,} tokens, but this model supports outputs of up to {self.max_output:,} "
                "tokens and must write at least one; give a shorter prefix"
            )
        return replace(search, max_length=min(search.max_length, self.max_output))

    def _banned(self, words: Sequence[Any]) -> Iterator[tuple[int, ...]]:
        """Yields the token sequences of banned words, both at the start of a text and after a space. Sequences of ids pass
        through. Words with symbols outside the vocabulary are skipped, since the model cannot write them."""
        if isinstance(words, str):
            raise TypeError(f"banned takes a list of words, got {words!r:.60}")
        for word in words:
            if not isinstance(word, str):
                yield word
                continue
            forms = self.target.encode(word), self.target.encode(f" {word}")
            yield from dict.fromkeys(tuple(form) for form in forms if form and UNK not in form)

    @property
    def max_output(self) -> int | None:
        """The maximum number of tokens of an output, or None if it is unlimited."""
        return None if self.max_positions is None or isinstance(self.model, RnnLm) else max(1, self.max_positions - 1)

    # --- the search ---

    def _run(self, segments: Sequence[Segment], search: SearchOptions) -> Iterator[SegmentOutput]:
        """Yields the hypotheses of each segment, in any order; searches in worker processes if there are many segments."""
        can_share = self.device.type == "cpu" and can_fork()
        workers = max(1, min(torch.get_num_threads(), len(segments) // MIN_TEXTS_PER_WORKER)) if can_share else 1
        # prompts differ in length, so a language model gets one at a time
        batches = [[segment] for segment in segments] if self.is_language_model else self._batches(segments, search, workers)
        by_number = {segment.number: segment for segment in segments}
        if workers == 1:
            for batch in batches:
                for event in self._final_events(batch, search):
                    yield by_number[event.sentence], event.hypotheses
            return
        for number, hypotheses in run_in_workers([partial(self._as_json, batch, search) for batch in batches], workers):
            yield by_number[number], tuple(_hypothesis(**hypothesis) for hypothesis in hypotheses)

    def _as_json(self, batch: Sequence[Segment], search: SearchOptions) -> Iterator[tuple[int, list[dict[str, Any]]]]:
        """Yields the number and the hypotheses of each segment as data that JSON can hold, for a worker process."""
        events = self._final_events(batch, search)
        return ((event.sentence, [vars(hypothesis) for hypothesis in event.hypotheses]) for event in events)

    def _final_events(self, batch: Sequence[Segment], search: SearchOptions) -> Iterator[Event]:
        return (event for event in self._events(batch, search) if event.hypotheses)

    def _events(self, segments: Sequence[Segment], search: SearchOptions) -> Iterator[Event]:
        """Searches one batch. A language model reads its segment as a prefix."""
        if self.is_language_model:
            prompt = tuple(segments[0].ids) + search.prefix
            limit = search.max_length + len(prompt)
            search = replace(
                search, prefix=prompt, max_length=limit if self.max_output is None else min(limit, self.max_output)
            )
        sources = [self.encoder_batch(part) for part in similar_lengths(segments)]
        return self._engine().generate(sources, search, numbers=[segment.number for segment in segments], room=len(segments))

    def _batches(self, segments: Sequence[Segment], search: SearchOptions, workers: int = 1) -> list[list[Segment]]:
        """Groups segments of similar length into batches, the longest first. A batch is as large as the memory budget and
        BATCH_HYPOTHESES allow, but no larger than an equal share for every worker."""
        rows = search.num_hypotheses
        most = max(1, BATCH_HYPOTHESES // rows)
        rounds = max(1 if workers == 1 else 2, ceil(len(segments) / (most * workers)))
        most = ceil(len(segments) / (rounds * workers))
        order = sorted(segments, key=lambda segment: num_positions(segment.ids), reverse=True)
        fixed, per_position = self._state_bytes(rows, search.max_length, order[0].ids) if len(segments) > 1 else (0, 0)
        batches: list[list[Segment]] = []
        while order:
            needed = fixed + per_position * (num_positions(order[0].ids) + 1)
            fitting = max(1, min(most, BUDGET // workers // max(1, needed)))
            batches.append(order[:fitting])
            order = order[fitting:]
        return batches

    @torch.inference_mode()
    def _state_bytes(self, rows: int, max_length: int, longest: SourceRow | None = None) -> tuple[int, int]:
        """Returns the memory of a sentence with an output of maximum length, in bytes: (of its hypotheses, of each source
        position). Measured on small inputs."""

        def nbytes(row: SourceRow, written: int) -> int:
            memory = self.model.encode(source_batch([row]).to(self.device))
            return self.model.start(memory, torch.full((1, written), SOS, device=self.device)).nbytes

        small: SourceRow = [UNK] if longest is None or isinstance(longest, list) else longest
        two_tokens = nbytes(small, 2)
        per_token = nbytes(small, 3) - two_tokens
        if isinstance(small, list):
            per_position = nbytes([UNK, UNK], 2) - two_tokens
        else:
            per_position = two_tokens // (num_positions(small) + 1)
        fixed = max(0, two_tokens - (num_positions(small) + 1) * per_position - 2 * per_token)
        logits = 4 * 4 * len(self.target)  # logits, log-probabilities, and the memory for sorting them
        return rows * (fixed + 2 * per_token * (max_length + 1) + logits), per_position

    def _engine(self) -> Engine:
        return TorchEngine(self.model, sos=SOS, eos=EOS, never=(PAD, UNK, SOS))

    # --- from hypotheses to results ---

    def _result(self, segment: Segment, hypotheses: tuple[Hypothesis, ...]) -> Result:
        """Returns the result of one segment from its n-best hypotheses."""
        codec = self.target if self.is_language_model else self.source
        pieces = codec.pieces(segment.text)
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
        _check_number(best.log_prob)
        return Result(
            text=best.text,
            tokens=best.tokens,
            source_tokens=pieces,
            log_prob=best.log_prob,
            rank_score=best.rank_score,
            finished=best.finished,
            n_best=n_best,
            unknown=codec.unknown(segment.text),
            map_attention=partial(self._attention, segment, hypotheses[0]),
            align=partial(self._alignment, segment, hypotheses[0]),
            ids=hypotheses[0].ids,
        )

    def _join(self, parts: list[Result]) -> Result:
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
            source_tokens=tuple(token for part in parts for token in part.source_tokens),
            log_prob=whole.log_prob,
            rank_score=whole.rank_score,
            finished=whole.finished,
            n_best=(whole,),
            unknown=tuple(symbol for part in parts for symbol in part.unknown),
            map_attention=partial(_no_attention, len(parts)),
            align=tuple,
            parts=tuple(parts),
        )

    @torch.no_grad()
    def _attention(self, segment: Segment, output: Hypothesis, kind: Kind, layer: int) -> AttentionMap:
        """Computes attention weights in one teacher-forced pass over an output. Row t holds the weights of the step that wrote
        token t; the last step wrote <eos>. Raises UserError if the model has no such attention."""
        look = Look(taps=(Tap(kind, layer),))
        written = (*output.ids, EOS) if output.finished else output.ids
        memory = self.model.encode(self.encoder_batch([segment]), look)
        read = torch.tensor([[SOS, *written[:-1]]], device=self.device)
        seen = memory.seen + self.model.decode(read, memory, look).seen
        if not seen:
            raise UserError(_NO_SUCH_ATTENTION.format(kind=kind))
        source, target = self.labels(segment, memory.axes), self.target.tokens(written)
        rows = source if kind in ("encoder", "fusion") else target
        columns = (SPECIALS[SOS], *target[:-1]) if kind == "decoder" else source
        axes, seconds = memory.axes if len(memory.axes) == 2 and kind in ("cross", "encoder") else (), 0.0
        if isinstance(self.source, FileCodec):
            if kind == "fusion":
                columns = self.source.auxiliary_labels(segment.text)
            if not self.source.has_file(segment.text):
                axes = ()
            elif kind != "decoder":
                seconds = self.source.seconds
        return AttentionMap(seen[0].weights_BHTS[0], columns, rows, kind, seen[0].layer, axes, seconds)

    @torch.no_grad()
    def _alignment(self, segment: Segment, output: Hypothesis) -> tuple[int, ...]:
        """Returns, for each token of an output, the index of the source token that it attends to most."""
        look = Look(taps=(Tap("cross", self.alignment_head.layer),))
        memory = self.model.encode(self.encoder_batch([segment]), look)
        seen = self.model.decode(torch.tensor([[SOS, *output.ids]], device=self.device), memory, look).seen
        if not seen:
            raise UserError(_NO_SUCH_ATTENTION.format(kind="cross"))
        layers_HTS = [layer.weights_BHTS[0] for layer in seen]
        num_sources = len(segment.ids) if isinstance(segment.ids, list) else layers_HTS[0].shape[-1]  # all positions of a file
        best: list[int] = self.alignment_head.weights_TS(layers_HTS, len(output.ids), num_sources).argmax(-1).tolist()
        return tuple(best)


_NO_SUCH_ATTENTION = (
    "this model has no {kind} attention; models that attend to their source have kind cross, Transformers also have encoder "
    "and decoder, and models that read an auxiliary text have fusion"
)


def _check_number(log_prob: float) -> None:
    """Raises UserError if a log-probability is not finite: the output of such a model is arbitrary, and NaN has no order."""
    if not isfinite(log_prob):
        raise UserError(f"this model computed a log-probability of {log_prob}; its weights are damaged or too large")


def _no_attention(num_parts: int, kind: Kind, layer: int) -> NoReturn:
    """Raises UserError: a text that was split or is empty has no attention map."""
    if num_parts:
        raise UserError(f"this text was translated in {num_parts} parts; each part has its own attention, see `parts`")
    raise UserError("the text is empty, so there is no attention to show")


def _hypothesis(ids: list[int], token_log_probs: list[float], **others: Any) -> Hypothesis:
    """Returns a hypothesis from JSON data, in which tuples became lists."""
    return Hypothesis(ids=tuple(ids), token_log_probs=tuple(token_log_probs), **others)


def similar_lengths(segments: Sequence[Segment]) -> Iterator[Sequence[Segment]]:
    """Splits a batch, which is sorted by length, into parts that are encoded together: each has about ENCODED_POSITIONS
    positions, few of them padding."""
    while segments:
        size = max(1, ENCODED_POSITIONS // (num_positions(segments[0].ids) + 1))
        yield segments[:size]
        segments = segments[size:]


def known_positions(settings: ModelSettings) -> int | None:
    """Returns the number of positions that a model with these settings supports, in source and target, <eos> included; None if
    it is unlimited."""
    limits = []
    if getattr(settings, "positions", None) == "learned":
        limits.append(settings.max_positions)  # type: ignore[union-attr]
    if getattr(settings, "positions", None) == "one_hot":
        limits.append(settings.appended or settings.width)  # type: ignore[union-attr]
    if getattr(settings, "score", None) == "location" and settings.beyond == "error":  # type: ignore[union-attr]
        limits.append(settings.max_positions)  # type: ignore[union-attr]
    return min(limits, default=None)


def sentences(text: str) -> list[str]:
    """Splits a text into sentences: after . ! ? or … and closing quotes, if a space follows and then no lower-case Latin
    letter; and after the full stops of Chinese and Japanese, which no space follows."""
    ends = [match.end() for match in _BORDER.finditer(text)]
    pieces = (text[start:end].strip() for start, end in zip([0, *ends], [*ends, len(text)], strict=True))
    return [piece for piece in pieces if piece]
