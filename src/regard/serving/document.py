"""Splits a text into sentences, which are translated, and the rest, which stays as it is: line breaks, indents, spaces."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from regard.data.reader import Reader, sentence_spans
from regard.data.sources import FileCodec

_LINE = re.compile(r"[^\n\r\v\f\x1c-\x1e\x85\u2028\u2029]+")
_WRITTEN = re.compile(r"\w")

Span = tuple[int, int]


@dataclass(frozen=True)
class Document:
    """A text, and the parts of it that are translated.

    spans: (start, end) of each part, in order; what is between them stays as it is.
    """

    text: str
    spans: tuple[Span, ...]

    @property
    def parts(self) -> list[str]:
        """The texts that are translated."""
        return [self.text[start:end] for start, end in self.spans]

    def filled(self, outputs: Sequence[str]) -> tuple[str, tuple[Span, ...]]:
        """Returns the text with an output in place of each part, and where the outputs are in it."""
        pieces: list[str] = []
        spans: list[Span] = []
        position = length = 0
        for (start, end), output in zip(self.spans, outputs, strict=True):
            gap = self.text[position:start]
            length += len(gap)
            spans.append((length, length + len(output)))
            length += len(output)
            position = end
            pieces += (gap, output)
        return "".join((*pieces, self.text[position:])), tuple(spans)


def split(text: str, reader: Reader, *, is_running: bool = False) -> Document:
    """Splits a text as its model reads it: into sentences, or into lines if the model reads whole lines (a word and its
    features, a text that gets one label). A language model continues the whole text. Parts without a letter or digit are not
    translated.

    is_running: whether line breaks are spaces like others, as in HTML.
    """
    if reader.traits.continues_text:
        return Document(text, ((0, len(text)),))
    is_whole = reader.has_columns or isinstance(reader.source, FileCodec) or reader.traits.learns_from == "labels"
    lines = [(0, len(text))] if is_running else [match.span() for match in _LINE.finditer(text)]
    spans = []
    for first, end in lines:
        line = text[first:end]
        for start, stop in [_stripped(line)] if is_whole else sentence_spans(line):
            if _WRITTEN.search(line, start, stop):
                spans.append((first + start, first + stop))
    return Document(text, tuple(spans))


def is_written(text: str) -> bool:
    """Whether a text has a letter or a digit. If not (white space, emoji, punctuation), there is nothing to translate."""
    return _WRITTEN.search(text) is not None


def _stripped(line: str) -> Span:
    start = len(line) - len(line.lstrip(" "))
    return start, max(start, len(line.rstrip(" ")))
