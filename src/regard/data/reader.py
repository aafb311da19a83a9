"""Turns what a user gives into requests, once: checked, normalised, encoded and, if it is too long, split into sentences."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any, Literal, overload

from regard.contracts import Request, SourceRow, SourceText, Traits
from regard.data.seeds import derived_seed
from regard.data.source_text import file_and_text, flat
from regard.data.sources import FileCodec, SourceCodec, num_positions
from regard.data.tokenizers.contract import TextCodec
from regard.errors import UserError, did_you_mean, shown
from regard.links import Units
from regard.look import Edit, Look
from regard.options import SearchOptions, invalid, token_ids, whole_number

MAX_SOURCE = 1024
"""Default of `Reader.max_source`."""

MAX_POSITIONS = 100_000
"""Maximum number of positions of a file: more than an hour of sound."""

TOKEN_CHARACTERS = 1000
"""An upper bound on the characters of a token. A sentence with more characters per allowed token is refused before it is
encoded, since encoding it would take much time and memory."""

PART_BIT = 40
"""The id of a request is the number of the line and, from this bit on, that of the part of the line."""

_BORDER = re.compile(r"""[.!?…]["'»”’)\]]*(\s++)(?![a-zß-öø-ÿ])|[。！？]["'」』）]*()""")

Given = str | PurePath | tuple[str | PurePath, ...]
"""What a user gives as a source: a text; a path, if the model reads files; or a tuple with one of them for each column."""


@dataclass(frozen=True)
class RequestOptions:
    """What a user chooses for all requests of a call: how to search, the tokens that outputs start with, a random seed, and the
    attention to capture or to change."""

    search: SearchOptions = SearchOptions()
    prefix: tuple[int, ...] = ()
    seed: int = 0
    look: Look | None = None


DEFAULT = RequestOptions()


@dataclass(frozen=True)
class Segment:
    """What is translated in one go: a whole source, or one sentence of a text that is too long.

    source: what was encoded, normalised.
    """

    source: SourceText
    request: Request


@dataclass(frozen=True)
class Plan:
    """The segments of a source (none if it is empty), or the reason why it cannot be translated.

    line: the number of the source.
    """

    line: int
    source: SourceText
    segments: tuple[Segment, ...]
    refused: str = ""


@dataclass(frozen=True)
class GivenOutput:
    """A source and an output that was given for it.

    texts: the output; that of a language model in two parts, its prompt and what follows.  written: its tokens, with <eos>.
    """

    segment: Segment
    texts: tuple[str, ...]
    written: tuple[int, ...]

    @property
    def request(self) -> Request:
        return self.segment.request


@dataclass(frozen=True)
class Reader:
    """Reads sources for one model. Training, translation, scoring, inspection and alignment all read here.

    source, target: encode the sources and the outputs.  traits: what the model is.
    max_source: the maximum number of tokens translated in one go; longer texts are split.
    """

    source: SourceCodec
    target: TextCodec
    traits: Traits = field(default_factory=Traits)
    max_source: int = MAX_SOURCE

    @property
    def codec(self) -> SourceCodec:
        """The codec of what the user gives: a language model continues it, so it is encoded like an output."""
        return self.target if self.traits.continues_text else self.source

    @property
    def max_tokens(self) -> int:
        """The maximum number of tokens of a text that is translated in one go."""
        limit = self.traits.max_positions
        return self.max_source if limit is None else min(self.max_source, limit - 1)

    @property
    def max_output(self) -> int | None:
        """The maximum number of tokens of an output, or None if it is unlimited."""
        return None if self.traits.max_positions is None else max(1, self.traits.max_positions - 1)

    def at(self, folder: Path) -> Reader:
        """Returns a Reader whose file names are relative to `folder`."""
        return replace(self, source=self.source.at(folder))

    # --- what a user gives ---

    def accept(self, given: object, call: str) -> SourceText:
        """Returns a source from an argument of a function. Raises TypeError unless it is a `Given`. call: for the message."""
        paths = isinstance(self.source, FileCodec)
        cells = given if isinstance(given, tuple) and given else (given,)
        if all(isinstance(cell, str) or (isinstance(cell, PurePath) and paths) for cell in cells):
            if isinstance(given, PurePath):
                return str(given)  # a TAB in a path separates no columns
            return self.columns(tuple(map(str, cells)) if isinstance(given, tuple) else str(given))
        if isinstance(given, PurePath):
            what = f"got the path {str(given)!r}, but this model reads no files; read the text from the file first"
        else:
            what = f"got {shown(given, 60)}; for a list of texts call batch"
        raise TypeError(f"{call} takes one text, {what}")

    @overload
    def accept_all(self, given: Iterable[Given], call: str) -> Iterator[SourceText]: ...
    @overload
    def accept_all(self, given: Iterable[Given | None], call: Literal["translate"]) -> Iterator[SourceText | None]: ...
    def accept_all(self, given: Iterable[Given | None], call: str) -> Iterator[SourceText | None]:
        """Returns the sources of a list or any other iterable, one after the other. `translate` takes None for a pause, too.
        Raises TypeError for anything else."""
        if isinstance(given, str | PurePath) or not isinstance(given, Iterable):
            raise self._not_a_list(given, call)
        try:
            iter(given)
        except TypeError:  # a tensor without axes
            raise self._not_a_list(given, call) from None
        return (None if item is None and call == "translate" else self._accept_one(item, given, call) for item in given)

    def _accept_one(self, item: object, given: object, call: str) -> SourceText:
        try:
            return self.accept(item, call)
        except TypeError:
            raise self._not_a_list(given, call) from None

    def _not_a_list(self, given: object, call: str) -> TypeError:
        alone = "put a single text into a list too" if call == "score" else "for one text call the model itself"
        return TypeError(f"{call} takes {'lists' if call == 'score' else 'a list'} of texts, got {shown(given, 60)}; {alone}")

    def line(self, line: str) -> SourceText:
        """Returns the source in a line of a file or of standard input: columns are separated by TABs and stripped, as in the
        table that the model was trained on. If there is a file and an auxiliary text, either may be missing."""
        if not line.strip():
            return ""
        source = self.columns(line)
        return source.strip() if isinstance(source, str) else tuple(cell.strip() for cell in source)

    def columns(self, source: SourceText) -> SourceText:
        """Splits a text into its columns if the model reads several: "walk<TAB>V;PST" becomes ("walk", "V;PST")."""
        if isinstance(source, str) and "\t" in source and self.has_columns:
            return tuple(source.split("\t"))
        return source[0] if isinstance(source, tuple) and len(source) == 1 else source

    @property
    def has_columns(self) -> bool:
        """Whether the model reads several columns: a text and its features, or a file and its auxiliary text."""
        return isinstance(self.source, FileCodec) or (self.source.has_features and not self.traits.continues_text)

    def options(
        self, given: Mapping[str, object], look: Look | None = None, edits: Edit | Sequence[Edit] = ()
    ) -> RequestOptions:
        """Returns search options, prefix and seed from keyword arguments: checked, with words as token ids.

        look, edits: what to capture and to change in the attention.
        Raises UserError if a value is invalid, and TypeError if a name is unknown, or look or edits are something else.
        """
        known = [*SearchOptions.__dataclass_fields__, "prefix", "seed", "look", "edits"]
        for name in given:
            if name not in known[:-2]:
                raise TypeError(
                    f"unknown search option {name!r}; expected one of {', '.join(known)}{did_you_mean(name, known)}"
                )
        others: dict[str, Any] = dict(given)
        prefix = self._prefix(others.pop("prefix", ()))
        seed = whole_number("seed", others.pop("seed", 0), 0, 2**63 - 1)
        if isinstance(others.get("banned"), Iterable) and not hasattr(others["banned"], "dtype"):
            others["banned"] = tuple(self._banned(others["banned"]))
        options = SearchOptions(**others)
        for ids in (prefix, *options.banned):
            if max(ids, default=0) >= len(self.target):
                raise UserError(
                    f"prefix or banned contains the token id {max(ids)}, but the vocabulary has ids 0 to "
                    f"{len(self.target) - 1}; give words, or ids of this vocabulary"
                )
        if not self.traits.continues_text:
            self._check_lengths(options, (*self.target.specials.prefix, *prefix))
        return RequestOptions(options, prefix, seed, Look.of(look, edits))

    def _prefix(self, given: Any) -> tuple[int, ...]:
        if not isinstance(given, str):
            if (ids := token_ids(given)) is None:
                raise invalid("prefix", given, "a list of token ids")
            return ids
        ids = tuple(self.target.encode(given))
        if self.target.specials.unk in ids:
            raise UserError(f"the prefix {given!r:.60} contains symbols that the model cannot write; remove them")
        return ids

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
            yield from dict.fromkeys(tuple(form) for form in forms if form and self.target.specials.unk not in form)

    def _check_lengths(self, options: SearchOptions, prefix: tuple[int, ...]) -> None:
        """Raises UserError unless an output has room for the prefix and one more token."""
        if len(prefix) >= options.max_length:
            raise UserError(f"the prefix has {len(prefix)} tokens, but max_length is {options.max_length}; raise max_length")
        if self.max_output is not None and len(prefix) >= self.max_output:
            raise UserError(
                f"the prefix has {len(prefix):,} tokens, but this model supports outputs of up to {self.max_output:,} "
                "tokens and must write at least one; give a shorter prefix"
            )
        if self.max_output is not None and options.min_length > self.max_output:
            raise UserError(
                f"min_length is {options.min_length:,}, but this model supports outputs of up to {self.max_output:,} tokens; "
                "lower min_length"
            )

    # --- from a source to requests ---

    def plans(
        self, sources: Iterable[SourceText | None], options: RequestOptions = DEFAULT, first: int = 0
    ) -> Iterator[Plan | None]:
        """Reads sources, numbered from `first`, and yields how each is translated; None, a pause, is passed on."""
        line = first
        for source in sources:
            if source is None:
                yield None
                continue
            yield self.plan(source, options, line)
            line += 1

    def plan(self, source: SourceText, options: RequestOptions = DEFAULT, line: int = 0) -> Plan:
        """Reads a source and returns how it is translated."""
        try:
            return Plan(line, source, tuple(self.segments(source, options, line)))
        except UserError as error:
            return Plan(line, source, (), str(error))

    def segments(self, source: SourceText, options: RequestOptions = DEFAULT, line: int = 0) -> list[Segment]:
        """Returns a source as one segment, or its sentences if it has too many tokens; none if it is empty.

        Raises UserError if it cannot be read or translated.
        """
        if isinstance(self.source, FileCodec):
            return [self.segment(source, options, line)] if flat(source) else []
        self._check_characters(flat(source))
        segment = self.segment(source, options, line)
        size = segment.request.num_positions
        if size <= self.max_tokens:
            return [segment] if size or self.traits.continues_text else []
        if self.traits.continues_text:
            raise UserError(
                f"it has {size:,} tokens, but this model continues texts of up to {self.max_tokens:,} tokens; shorten it"
            )
        if self.traits.learns_from == "labels":
            raise UserError(
                f"it has {size:,} tokens, but this model reads texts of up to {self.max_tokens:,} tokens, each of which gets "
                "one label; shorten it, or raise max_source"
            )
        texts: list[SourceText] = [*sentences(segment.source)] if isinstance(segment.source, str) else [segment.source]
        parts = [self.segment(text, options, line, part) for part, text in enumerate(texts)]
        longest = max((part.request.num_positions for part in parts), default=0)
        if longest > self.max_tokens:
            raise UserError(
                f"a sentence has {longest:,} tokens, but this model translates at most {self.max_tokens:,} at a time; "
                "split it with line breaks or full stops"
            )
        return [part for part in parts if part.request.num_positions]

    def segment(
        self,
        source: SourceText,
        options: RequestOptions = DEFAULT,
        line: int = 0,
        part: int = 0,
        row: SourceRow | None = None,
    ) -> Segment:
        """Returns a source as one segment, however long it is. Raises UserError if it cannot be read.

        line, part: the number of the source, and of the sentence in it; samples depend on them.
        row: the encoded source, if it was encoded before.
        """
        source = self.normalised(source)
        if row is None:
            (row,) = self.rows([source])
            if (
                isinstance(self.source, FileCodec)
                and (name := file_and_text(source)[0])
                and (note := self.source.left_out(name))
            ):
                warnings.warn(note, stacklevel=2)
        positions = num_positions(row)
        if isinstance(self.source, FileCodec) and positions > MAX_POSITIONS:
            raise UserError(f"it has {positions:,} positions, the maximum is {MAX_POSITIONS:,}; split it into shorter files")
        prompt = tuple(row) if self.traits.continues_text and isinstance(row, list) else ()
        request = Request(
            id=line | part << PART_BIT,
            source=[] if self.traits.continues_text else row,
            options=options.search,
            num_positions=positions,
            prefix=prompt + self.target.specials.prefix + options.prefix,
            limit=max(1, positions) if self._is_aligned else self._limit(options, len(prompt)),
            seed=derived_seed(options.seed, "sample", line, part),
            look=options.look,
        )
        return Segment(source, request)

    def rows(self, sources: Sequence[SourceText]) -> list[SourceRow]:
        """Encodes sources. Raises UserError if one of them cannot be read, or has columns that the model does not read."""
        for source in sources:
            self.check_columns(source)
        if isinstance(self.codec, FileCodec):
            return [self._file(source, self.codec) for source in sources]
        if len(sources) == 1:
            return [self.codec.encode(flat(sources[0]))]
        return [*self.codec.encode_batch([flat(source) for source in sources])]

    def check_columns(self, source: SourceText) -> None:
        """Raises UserError if a source has columns that the model does not read."""
        if isinstance(source, str) or not any(source[1:]):
            return
        if not self.has_columns:
            raise UserError(f"this model reads one column, but got {len(source)}: {shown(source, 60)}; give a text only")
        if not isinstance(self.codec, FileCodec) and any("\t" in cell for cell in source):
            raise UserError(f"a column of {shown(source, 60)} contains a TAB, which separates columns; remove it")
        name, text = file_and_text(source)
        if isinstance(self.source, FileCodec) and self.source.auxiliary is None and text:
            raise UserError(
                f"this model reads no auxiliary text with its {self.source.nouns}, got {text!r} with {name or 'no file'}; "
                "give file names only"
            )

    def given_output(self, source: SourceText, target: str, line: int = 0) -> GivenOutput:
        """Reads a source and a given output, for `Engine.force`.

        Raises UserError if one of them cannot be read, is too long, or if the output of a language model does not start with
        its source.
        """
        segment = self.segment(source, DEFAULT, line)
        texts = self._output_texts(segment, target)
        ids = [*segment.request.prefix, *self.target.encode(texts[-1])]
        size = 0 if isinstance(self.codec, FileCodec) else segment.request.num_positions
        if max(size, len(ids)) > self.max_tokens:
            raise UserError(
                f"it has {size:,} source and {len(ids):,} target tokens, the maximum is {self.max_tokens:,} each; shorten it"
            )
        self._check_labels(segment.request.source, ids)
        return GivenOutput(segment, texts, (*ids, self.target.specials.eos))

    def _check_labels(self, row: SourceRow, ids: Sequence[int]) -> None:
        """Raises UserError if a given output is impossible: other than a tag for each token, or than the text with its blanks
        filled in."""
        if not isinstance(row, list) or not self._is_aligned:
            return
        if len(ids) != len(row):
            raise UserError(f"it has {len(row):,} tokens in the source, but {len(ids):,} in the output; expected equal numbers")
        if self.traits.mask and any(token not in (self.target.specials.unk, own) for token, own in zip(row, ids, strict=True)):
            raise UserError(
                "the output differs from the source in other tokens than those that are missing; give the same text"
            )

    @property
    def _is_aligned(self) -> bool:
        """Whether an output has exactly one token for each token of the source."""
        return self.traits.learns_from == "tags" or self.traits.mask > 0

    def _output_texts(self, segment: Segment, target: str) -> tuple[str, ...]:
        """Returns the output; that of a language model in two parts, its prompt and what follows. The output must start with
        the prompt, as it was given or as the model spells it (with <unk>)."""
        if not self.traits.continues_text:
            return (target,)
        text, prompt = self.target.normalised(target), flat(segment.source)
        for start in (prompt, self.target.decode(segment.request.prefix)):
            if text.startswith(start):
                return prompt, text[len(start) :]
        raise UserError(
            f"this is a language model, which continues its source, but the output {text!r:.60} does not start with "
            f"{prompt!r:.60}; give the whole text as the output, or leave the source empty"
        )

    def normalised(self, source: SourceText) -> SourceText:
        """Returns a source as the model reads it: in Unicode NFC, if the model was trained so. File names are not changed."""
        if isinstance(self.codec, FileCodec):
            return self.codec.normalised(source)
        codec = self.codec
        return codec.normalised(source) if isinstance(source, str) else tuple(map(codec.normalised, source))

    def pieces(self, source: SourceText) -> tuple[str, ...]:
        """Returns the tokens of a source that have a position, also the unknown ones; a file has none."""
        return () if isinstance(self.codec, FileCodec) else self.codec.pieces(self._with_positions(source))

    def _with_positions(self, source: SourceText) -> str:
        """Returns the part of a text that has positions: without its features, if the model reads them as a set."""
        text = flat(source)
        if not self.traits.features_as_set or isinstance(self.source, FileCodec):
            return text
        first, *features = text.split("\t")
        return first if any(map(self.source.has_feature, features)) else text

    def units(self, source: SourceText, tokens: Sequence[str], *, pieces: bool | None = None) -> Units | None:
        """Returns what the links of an alignment count in a normalised source, see `Codec.units`; None for a file, whose
        positions are counted."""
        return (
            None if isinstance(self.codec, FileCodec) else self.codec.units(self._with_positions(source), tokens, pieces=pieces)
        )

    def unknown(self, source: SourceText) -> tuple[str, ...]:
        """Returns the symbols of a source that are not in the vocabulary."""
        return self.codec.unknown(source) if isinstance(self.codec, FileCodec) else self.codec.unknown(flat(source))

    def labels(self, source: SourceText, axes: tuple[int, ...]) -> tuple[str, ...]:
        """Returns a label for each position of the memory. axes: those of the memory, `Forced.axes`."""
        codec = self.codec
        return codec.labels(source, axes) if isinstance(codec, FileCodec) else codec.labels(self._with_positions(source), axes)

    def title(self, source: SourceText) -> str:
        """Returns a source as one readable string; `data.labels.readable` shows the features in it."""
        return self.source.title(source) if isinstance(self.source, FileCodec) else flat(source)

    def _limit(self, options: RequestOptions, prompt: int) -> int:
        """Returns the maximum number of tokens of an output. A prompt counts as written, but not towards max_length.

        Raises UserError if the model supports no output that continues the prompt.
        """
        if not self.traits.continues_text:
            return min(options.search.max_length, self.max_output or options.search.max_length)
        prompt += len(options.prefix)
        if self.max_output is not None and prompt >= self.max_output:
            raise UserError(
                f"text and prefix have {prompt:,} tokens, but this model supports {self.max_output:,} "
                "tokens in total, of which it must write at least one; shorten them"
            )
        limit = options.search.max_length + prompt
        return limit if self.max_output is None else min(limit, self.max_output)

    def _file(self, source: SourceText, codec: FileCodec) -> SourceRow:
        """Reads a file and its auxiliary text, if the model has one."""
        try:
            return codec.encode(source)
        except UserError as error:
            if codec.auxiliary is None or isinstance(source, tuple) or os.path.exists(codec.root / source):
                raise
            ending = min(codec.suffixes, key=lambda suffix: (len(suffix), suffix))
            raise UserError(
                f"{error}; this model reads a file and an auxiliary text: expected a line such as a{ending}<TAB>every second, "
                "which starts with a TAB if there is no file"
            ) from None

    def _check_characters(self, text: str) -> None:
        """Raises UserError if a text is certainly too long, before it is encoded."""
        room = max(self.max_source, MAX_SOURCE) * TOKEN_CHARACTERS
        if len(text) <= room:
            return
        longest = max(map(len, [text] if self.traits.continues_text else sentences(text)), default=0)
        if longest > room:
            raise UserError(
                f"a sentence has {longest:,} characters, but this model translates at most {self.max_source:,} tokens at a "
                "time; split it with line breaks or full stops"
            )


def line_of(request_id: int) -> int:
    """Returns the number of the line that a request was made of."""
    return request_id & ((1 << PART_BIT) - 1)


def sentences(text: str) -> list[str]:
    """Splits a text into sentences, without the white space between them; see `sentence_spans`."""
    return [text[start:end] for start, end in sentence_spans(text)]


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """Returns (start, end) of each sentence, without white space around it. A sentence ends after . ! ? or … and closing
    quotes, if a space follows and then no lower-case Latin letter; and after the full stops of Chinese and Japanese, which no
    space follows."""
    ends = [match.end() for match in _BORDER.finditer(text)]
    spans = []
    for start, end in zip([0, *ends], [*ends, len(text)], strict=True):
        piece = text[start:end]
        if piece.strip():
            spans.append((start + len(piece) - len(piece.lstrip()), start + len(piece.rstrip())))
    return spans
