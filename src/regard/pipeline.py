"""Text in, text out: a model with its two vocabularies and an engine. A text may also be the name of a picture or a sound."""

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

from regard.contracts import (
    AlignmentHead,
    Alternative,
    AttentionMap,
    Engine,
    Event,
    Hypothesis,
    Kind,
    Look,
    Result,
    SearchOptions,
    Seq2Seq,
    Source,
    Tap,
)
from regard.data.batch import source_batch
from regard.data.corpus import Normalisation, join_columns
from regard.data.sources import FileCodec, SourceCodec, SourceRow, num_positions, split_source
from regard.data.tokenizers.codec import EOS, PAD, SOS, SPECIALS, UNK, Codec
from regard.decoding import scoring
from regard.decoding.search import TorchEngine
from regard.decoding.workers import can_fork, run_in_workers
from regard.errors import UserError, did_you_mean, shown
from regard.models.build import ModelSettings
from regard.models.decoder_only import DecoderOnly
from regard.models.rnn_lm import RnnLm

BATCH_HYPOTHESES = 320
"""Rows of a step: sentences times hypotheses. More does not make it faster on a CPU."""

BUDGET = 1 << 30
"""Bytes that the states of all batches that run at a time may take at their longest."""

WORTH_A_WORKER = 64
"""Texts; fewer are searched by all threads together, since processes take some hundredths of a second to begin."""

ENCODED_POSITIONS = 1024
"""Source places that are encoded at a time; fewer are slow, and more would hold more padding."""

MAX_SOURCE = 1024

MAX_POSITIONS = 100_000
"""Positions of one file that are taken at once: more than an hour of sound."""

TOKEN_CHARACTERS = 1000
"""More characters than a token has. A text with more than these for every token that is taken at once is refused before it is
encoded, which would take a long time and much memory."""

_BORDER = re.compile(r"""[.!?…]["'»”’)\]]*(\s+)(?![a-zß-öø-ÿ])|[。！？]["'」』）]*()""")


@dataclass(frozen=True)
class Refused:
    """A text that is not translated or scored, and why."""

    reason: str


@dataclass(frozen=True)
class Partial:
    """What a stream knows so far: the text that is certain, what may still change behind it, and at the end the result."""

    text: str
    tail: str
    result: Result | None = None


@dataclass(frozen=True)
class Scored:
    """The log-probability of a given output: raw sum, and of each token and <eos>. unknown: its symbols that have no token."""

    log_prob: float
    tokens: tuple[str, ...]
    token_log_probs: tuple[float, ...]
    unknown: tuple[str, ...]


@dataclass(frozen=True)
class Segment:
    """What is translated in one go: a text, or a sentence of one that was too long. text: as it was encoded, columns joined."""

    number: int
    text: str
    ids: SourceRow


Text = str | PurePath
"""A path is for sources that are files."""

SegmentOutput = tuple[Segment, tuple[Hypothesis, ...]]
ProgressCallback = Callable[[Iterator[SegmentOutput], int], Iterator[SegmentOutput]]
"""Sees what is found go by, in any order, to show how far it is; told how much will come."""


@dataclass(frozen=True)
class Translator:
    """Call it with a text, or `batch` with many; keywords are those of SearchOptions. For pictures and sounds the text is the
    name of the file, or its path.

    A language model has no source: it continues the text. max_source: tokens; longer texts are split into sentences.
    max_positions: what the model can count, with <eos>. place: where alignments are read. training: what config.json says of it.
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
        """How the texts of pairs are normalised for this model."""
        return Normalisation(self.source.normalises, self.target.normalises, isinstance(self.source, FileCodec))

    def __call__(self, text: Text, **options: Any) -> Result:
        return self.batch([self._text(text, "a call of the model")], **options)[0]

    def batch(self, texts: Sequence[Text], *, progress: ProgressCallback | None = None, **options: Any) -> list[Result]:
        """One result per text, in the same order."""
        texts, results = self._texts(texts, "batch"), []
        for number, result in enumerate(self.translate(texts, progress=progress, **options)):
            if isinstance(result, Refused):
                raise UserError(f"text {number + 1}: {result.reason}" if len(texts) > 1 else result.reason)
            results.append(result)
        return results

    def translate(
        self, texts: Sequence[Text], *, first: int = 0, progress: ProgressCallback | None = None, **options: Any
    ) -> Iterator[Result | Refused]:
        """One result per text, in the same order, each as soon as it and all before it are there.

        first: the number of the first text, where they come in several calls; samples depend on it.
        """
        texts = self._texts(texts, "translate")
        search = self._options(options)
        plans = [self._plan(text, first + number, search) for number, text in enumerate(texts)]
        waiting = {segment.number for plan in plans if isinstance(plan, list) for segment in plan}
        found: dict[int, Result] = {}
        segments = [segment for plan in plans if isinstance(plan, list) for segment in plan]
        finished = self._run(segments, search)
        if progress is not None:
            finished = progress(finished, len(segments))
        for text, plan in zip(texts, plans, strict=True):
            if isinstance(plan, Refused):
                yield plan
                continue
            while any(segment.number in waiting for segment in plan):
                segment, hypotheses = next(finished)
                waiting.discard(segment.number)
                found[segment.number] = self._result(segment, hypotheses)
            yield self._joined(text, [found.pop(segment.number) for segment in plan])

    def stream(self, text: Text, **options: Any) -> Iterator[Partial]:
        """The output while it is written. `text` only grows; the last one carries the result."""
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
        result = self._joined(text, results)
        yield Partial(result.text, "", result)

    def score(self, sources: Sequence[Text], targets: Sequence[str]) -> list[Scored]:
        """How probable the model finds each given output. Symbols that have no token count as <unk>, and are reported."""
        results = []
        for number, result in enumerate(self.score_each(sources, targets), start=1):
            if isinstance(result, Refused):
                raise UserError(f"pair {number}: {result.reason}")
            results.append(result)
        return results

    def score_each(self, sources: Sequence[Text], targets: Sequence[str]) -> list[Scored | Refused]:
        """The same, where pairs that cannot be scored do not stop the others."""
        sources, targets = self._texts(sources, "score"), self._texts(targets, "score", paths=False)
        if len(sources) != len(targets):
            raise ValueError(
                "score takes two lists of texts of the same length, sources and outputs, "
                f"got {len(sources):,} sources and {len(targets):,} outputs"
            )
        found: dict[int, Scored | Refused] = {}
        read: dict[int, SourceRow] = {}
        outputs: dict[int, list[int]] = {}
        room = self.room
        for number, (text, target) in enumerate(zip(sources, targets, strict=True)):
            try:
                ids: SourceRow = [] if self.continues else self.read(text).ids
                outputs[number] = output = self.target.encode(target)
            except UserError as error:
                found[number] = Refused(str(error))
                continue
            size = len(ids) if isinstance(ids, list) else 0
            if max(size, len(output)) > room:
                reason = f"it has {size:,} source and {len(output):,} target tokens, the most is {room:,} each; make it shorter"
                found[number] = Refused(reason)
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
                found[index] = Scored(sum(row), self.target.pieces(text), tuple(row), self.target.unknown(text))
        return [found[index] for index in range(len(sources))]

    # --- from text to units ---

    @property
    def continues(self) -> bool:
        """Whether this is a language model."""
        return isinstance(self.model, DecoderOnly | RnnLm)

    def check_columns(self, source: str) -> None:
        """An error where a text stands beside a file, and this model reads none."""
        if isinstance(self.source, FileCodec) and self.source.auxiliary is None and "\t" in source:
            name, text = split_source(source)
            raise UserError(
                f"this model reads no text beside its {self.source.nouns}, got {text!r} beside {name or 'no file'}; "
                "give it names of files alone"
            )

    def _text(self, given: object, call: str) -> str:
        """A path as the name of its file, where sources are files."""
        if isinstance(given, str) or (isinstance(given, PurePath) and isinstance(self.source, FileCodec)):
            return str(given)
        what = f"got {shown(given, 60)}; for a list of texts call batch"
        if isinstance(given, PurePath):
            what = f"got the path {str(given)!r}, but this model reads no files; read the text from it first"
        raise TypeError(f"{call} takes one text, {what}")

    def _texts(self, given: Sequence[Text], call: str, *, paths: bool = True) -> list[str]:
        if isinstance(given, Iterable) and not isinstance(given, str | PurePath | torch.Tensor):
            given = list(given)
            known = str | PurePath if paths and isinstance(self.source, FileCodec) else str
            if all(isinstance(one, known) for one in given):
                return [str(one) for one in given]
        alone = "put one text into a list too" if call == "score" else "for one text call the model itself"
        raise TypeError(f"{call} takes {'lists' if call == 'score' else 'a list'} of texts, got {shown(given, 60)}; {alone}")

    @property
    def room(self) -> int:
        """How many tokens a text may have to be translated in one go."""
        return self.max_source if self.max_positions is None else min(self.max_source, self.max_positions - 1)

    def read(self, source: str, number: int = 0) -> Segment:
        """What the model is given for a source. Whoever translates, scores or looks inside encodes here and nowhere else.

        A model that learnt from several columns takes them as they stand in a table: "walk<TAB>V;PST". A file is read.
        """
        source = self._text(source, "the model")
        if isinstance(self.source, FileCodec):
            return Segment(number, source, self._file(source, self.source))
        codec = self.target if self.continues else self.source
        text = codec.normalised(source)
        if self.source.has_features and "\t" in text:
            text = join_columns(text.split("\t"))
        return Segment(number, text, codec.encode(text))

    def encoder_batch(self, segments: Sequence[Segment]) -> Source:
        """What the encoder reads of these; a language model has none, and reads nothing."""
        return source_batch([[] if self.continues else segment.ids for segment in segments]).to(self.device)

    def labels(self, segment: Segment, axes: tuple[int, ...]) -> tuple[str, ...]:
        """A name for every position of the memory."""
        codec = self.target if self.continues else self.source
        return codec.labels(segment.text, axes)

    def whole(self, text: str, **options: Any) -> Result:
        """The result of a text for those who look inside: one output of one source."""
        result = self(text, **options)
        if result.parts:
            raise UserError(
                f"this text was too long and was translated in {len(result.parts)} parts; look at one sentence at a time"
            )
        return result

    def _file(self, source: str, codec: FileCodec) -> SourceRow:
        self.check_columns(source)
        try:
            return codec.encode(source)
        except UserError as error:
            if codec.auxiliary is None or "\t" in source or os.path.exists(codec.root / source):
                raise
            ending = min(codec.suffixes, key=lambda one: (len(one), one))
            raise UserError(
                f"{error}; this model reads a file and the text beside it: expected a line such as a{ending}<TAB>every second, "
                "with a leading TAB where the file is missing"
            ) from None

    def _plan(self, text: str, number: int, search: SearchOptions) -> list[Segment] | Refused:
        """What to translate in which pieces; nothing for an empty text."""
        try:
            segments = self._segments(text, number)
        except UserError as error:
            return Refused(str(error))
        positions = max((num_positions(segment.ids) for segment in segments), default=0)
        if isinstance(self.source, FileCodec) and positions > MAX_POSITIONS:
            return Refused(f"it has {positions:,} positions, the most is {MAX_POSITIONS:,}; cut it into shorter files")
        if self.continues and self.longest is not None and positions + len(search.prefix) >= self.longest:
            return Refused(
                f"text and prefix have {positions + len(search.prefix):,} tokens, but this model counts only {self.longest:,} "
                "in all, and writes at least one of them; shorten them"
            )
        return segments

    def _segments(self, text: str, number: int) -> list[Segment]:
        """The whole text, or its sentences where that has more tokens than are taken at once. A file is never split."""
        if isinstance(self.source, FileCodec):
            return [self.read(text, number)] if text else []
        self._check_characters(text)
        segment = self.read(text, number)
        size = num_positions(segment.ids)
        if self.continues and size > self.room:
            raise UserError(f"it has {size:,} tokens, but this model continues texts of up to {self.room:,}")
        if size <= self.room:
            return [segment] if size or self.continues else []
        segments = [self.read(sentence, number + (part << 40)) for part, sentence in enumerate(sentences(segment.text))]
        longest = max((num_positions(segment.ids) for segment in segments), default=0)
        if longest > self.room:
            raise UserError(
                f"a sentence of {longest:,} tokens is longer than the {self.room:,} that are taken at once; "
                "split it, by line ends or full stops"
            )
        return [segment for segment in segments if segment.ids]

    def _check_characters(self, text: str) -> None:
        """Raises for a text that is certainly too long, before it is encoded."""
        room = max(self.max_source, MAX_SOURCE) * TOKEN_CHARACTERS
        if len(text) <= room:
            return
        longest = max(map(len, [text] if self.continues else sentences(text)), default=0)
        if longest > room:
            raise UserError(
                f"a sentence of {longest:,} characters is longer than the {self.max_source:,} tokens that are taken at "
                "once; split it, by line ends or full stops"
            )

    def _options(self, options: dict[str, Any]) -> SearchOptions:
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
                raise UserError(f"the prefix {prefix!r:.60} holds symbols that the model cannot write; leave them out")
        if isinstance(given.get("banned"), Iterable) and not isinstance(given["banned"], torch.Tensor):
            given["banned"] = tuple(self._banned(given["banned"]))
        search = SearchOptions(**given)
        for ids in (search.prefix, *search.banned):
            if max(ids, default=0) >= len(self.target):
                raise UserError(
                    f"there is no token {max(ids)} in prefix or banned: the model writes tokens 0 to {len(self.target) - 1}; "
                    "give words, or ids of its own vocabulary"
                )
        if self.longest is None:
            return search
        if len(search.prefix) >= self.longest:
            raise UserError(
                f"the prefix has {len(search.prefix):,} tokens, but this model counts only {self.longest:,} in an output, "
                "and writes at least one of them; give a shorter prefix"
            )
        return replace(search, max_length=min(search.max_length, self.longest))

    def _banned(self, words: Sequence[Any]) -> Iterator[tuple[int, ...]]:
        """Words as sequences of tokens, at the beginning of a text and behind a space. What has no token cannot be written."""
        if isinstance(words, str):
            raise TypeError(f"banned takes a list of words, got {words!r:.60}")
        for word in words:
            if not isinstance(word, str):
                yield word
                continue
            forms = self.target.encode(word), self.target.encode(f" {word}")
            yield from dict.fromkeys(tuple(form) for form in forms if form and UNK not in form)

    @property
    def longest(self) -> int | None:
        """How many tokens an output of this model can have; None: any number."""
        return None if self.max_positions is None or isinstance(self.model, RnnLm) else max(1, self.max_positions - 1)

    # --- the search ---

    def _run(self, segments: Sequence[Segment], search: SearchOptions) -> Iterator[SegmentOutput]:
        """What was found for each unit, in any order."""
        can_share = self.device.type == "cpu" and can_fork()
        workers = max(1, min(torch.get_num_threads(), len(segments) // WORTH_A_WORKER)) if can_share else 1
        # prompts differ in length, so each goes alone
        batches = [[segment] for segment in segments] if self.continues else self._packed(segments, search, workers)
        by_number = {segment.number: segment for segment in segments}
        if workers == 1:
            for batch in batches:
                for event in self._ends(batch, search):
                    yield by_number[event.sentence], event.hypotheses
            return
        for number, found in run_in_workers([partial(self._reported, batch, search) for batch in batches], workers):
            yield by_number[number], tuple(_hypothesis(**one) for one in found)

    def _reported(self, batch: Sequence[Segment], search: SearchOptions) -> Iterator[tuple[int, list[dict[str, Any]]]]:
        return ((event.sentence, [vars(one) for one in event.hypotheses]) for event in self._ends(batch, search))

    def _ends(self, batch: Sequence[Segment], search: SearchOptions) -> Iterator[Event]:
        return (event for event in self._events(batch, search) if event.hypotheses)

    def _events(self, segments: Sequence[Segment], search: SearchOptions) -> Iterator[Event]:
        if self.continues:
            prompt = tuple(segments[0].ids) + search.prefix
            limit = search.max_length + len(prompt)
            search = replace(search, prefix=prompt, max_length=limit if self.longest is None else min(limit, self.longest))
        sources = [self.encoder_batch(part) for part in similar_lengths(segments)]
        return self._engine().generate(sources, search, numbers=[segment.number for segment in segments], room=len(segments))

    def _packed(self, segments: Sequence[Segment], search: SearchOptions, workers: int = 1) -> list[list[Segment]]:
        """Units of like length side by side, the longest first: as many as the budget of memory and the width of a step allow,
        and no more than leaves every worker its share."""
        rows = search.num_hypotheses
        most = max(1, BATCH_HYPOTHESES // rows)
        rounds = max(1 if workers == 1 else 2, ceil(len(segments) / (most * workers)))
        most = ceil(len(segments) / (rounds * workers))
        order = sorted(segments, key=lambda segment: num_positions(segment.ids), reverse=True)
        size = self._sizes(rows, search.max_length, order[0].ids) if len(segments) > 1 else (0, 0)
        batches: list[list[Segment]] = []
        while order:
            needed = size[0] + size[1] * (num_positions(order[0].ids) + 1)
            fitting = max(1, min(most, BUDGET // workers // max(1, needed)))
            batches.append(order[:fitting])
            order = order[fitting:]
        return batches

    @torch.inference_mode()
    def _sizes(self, rows: int, max_length: int, longest: SourceRow | None = None) -> tuple[int, int]:
        """Bytes of a sentence at its longest: (what its hypotheses take, what a source place takes); tried out small."""

        def nbytes(row: SourceRow, written: int) -> int:
            memory = self.model.encode(source_batch([row]).to(self.device))
            return self.model.start(memory, torch.full((1, written), SOS, device=self.device)).nbytes

        small: SourceRow = [UNK] if longest is None or isinstance(longest, list) else longest
        one, further = nbytes(small, 2), nbytes(small, 3)
        token = further - one
        alignment_head = nbytes([UNK, UNK], 2) - one if isinstance(small, list) else one // (num_positions(small) + 1)
        fixed = max(0, one - (num_positions(small) + 1) * alignment_head - 2 * token)
        logits = 4 * 4 * len(self.target)  # logits, log-probabilities and what sorting them takes
        return rows * (fixed + 2 * token * (max_length + 1) + logits), alignment_head

    def _engine(self) -> Engine:
        return TorchEngine(self.model, sos=SOS, eos=EOS, never=(PAD, UNK, SOS))

    # --- from hypotheses to results ---

    def _result(self, segment: Segment, hypotheses: tuple[Hypothesis, ...]) -> Result:
        codec = self.target if self.continues else self.source
        pieces = codec.pieces(segment.text)
        n_best = tuple(
            Alternative(
                self.target.decode(one.ids),
                self.target.tokens(one.ids),
                one.log_prob,
                one.rank_score,
                one.finished,
                one.token_log_probs,
            )
            for one in hypotheses
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

    def _joined(self, text: str, parts: list[Result]) -> Result:
        """The result of a whole text: of its one part, or of the sentences that it was split into, or of nothing at all."""
        if len(parts) == 1:
            return parts[0]
        whole = Alternative(
            " ".join(part.text for part in parts),
            tuple(token for part in parts for token in part.tokens),
            sum((part.log_prob for part in parts), 0.0),
            sum((part.rank_score for part in parts), 0.0),
            all(part.finished for part in parts),
            tuple(one for part in parts for one in part.n_best[0].token_log_probs),
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
        """One forced pass over an output. Row t holds the weights of the step that wrote token t; the last one wrote <eos>."""
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
                columns = self.source.words(segment.text)
            if not self.source.has_file(segment.text):
                axes = ()
            elif kind != "decoder":
                seconds = self.source.seconds
        return AttentionMap(seen[0].weights_BHTS[0], columns, rows, kind, seen[0].layer, axes, seconds)

    @torch.no_grad()
    def _alignment(self, segment: Segment, output: Hypothesis) -> tuple[int, ...]:
        """For each token of an output the source token that it looks at most."""
        look = Look(taps=(Tap("cross", self.alignment_head.layer),))
        memory = self.model.encode(self.encoder_batch([segment]), look)
        seen = self.model.decode(torch.tensor([[SOS, *output.ids]], device=self.device), memory, look).seen
        if not seen:
            raise UserError(_NO_SUCH_ATTENTION.format(kind="cross"))
        layers_HTS = [one.weights_BHTS[0] for one in seen]
        num_sources = len(segment.ids) if isinstance(segment.ids, list) else layers_HTS[0].shape[-1]  # all places of a file
        best: list[int] = self.alignment_head.weights_TS(layers_HTS, len(output.ids), num_sources).argmax(-1).tolist()
        return tuple(best)


_NO_SUCH_ATTENTION = (
    "this model has no {kind} attention; models that look at their source have kind cross, Transformers encoder and decoder "
    "too, and those that read a text beside a file fusion"
)


def _check_number(log_prob: float) -> None:
    """A model whose numbers overflow writes at random, and nothing can be compared with NaN."""
    if not isfinite(log_prob):
        raise UserError(f"this model computes {log_prob} as a log-probability; its weights are damaged or too large")


def _no_attention(num_parts: int, kind: Kind, layer: int) -> NoReturn:
    if num_parts:
        raise UserError(f"this text was translated in {num_parts} parts; look at `parts`, each of which has its own attention")
    raise UserError("the text is empty, so there is no attention to show")


def _hypothesis(ids: list[int], token_log_probs: list[float], **others: Any) -> Hypothesis:
    """From JSON, which has no tuples."""
    return Hypothesis(ids=tuple(ids), token_log_probs=tuple(token_log_probs), **others)


def similar_lengths(segments: Sequence[Segment]) -> Iterator[Sequence[Segment]]:
    """Parts of a batch, which is sorted by length, that are encoded together: about 1,000 places each, few of them padding."""
    while segments:
        size = max(1, ENCODED_POSITIONS // (num_positions(segments[0].ids) + 1))
        yield segments[:size]
        segments = segments[size:]


def known_positions(settings: ModelSettings) -> int | None:
    """How many places a model of these settings can count, source and target alike, with <eos>; None: any number."""
    known = []
    if getattr(settings, "positions", None) == "learned":
        known.append(settings.max_positions)  # type: ignore[union-attr]
    if getattr(settings, "positions", None) == "one_hot":
        known.append(settings.appended or settings.width)  # type: ignore[union-attr]
    if getattr(settings, "score", None) == "location" and settings.beyond == "error":  # type: ignore[union-attr]
        known.append(settings.max_positions)  # type: ignore[union-attr]
    return min(known, default=None)


def sentences(text: str) -> list[str]:
    """Splits behind . ! ? or … and closing quotes, where a space follows and then no small Latin letter; and behind the full
    stops of Chinese and Japanese, where none follows."""
    ends = [match.end() for match in _BORDER.finditer(text)]
    pieces = (text[start:end].strip() for start, end in zip([0, *ends], [*ends, len(text)], strict=True))
    return [piece for piece in pieces if piece]
