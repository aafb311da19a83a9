"""Splits HTML into texts: blocks one by one, whose inline tags are carried over along the alignment."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from regard import markup
from regard.errors import UserError
from regard.serving.document import is_written

INLINE = frozenset(
    """a abbr acronym b bdi bdo big cite code data del dfn em font i img ins kbd label mark q rb rp rt ruby s samp small span
    strike strong sub sup time tt u var wbr""".split()
)
"""Elements inside a sentence. All other tags separate texts: paragraphs, cells, line breaks, …"""


@dataclass(frozen=True)
class Chunk:
    """A piece of HTML.

    marked: as it is written.  text: its text without tags; None if there is nothing to translate, and it stays as it is.
    """

    marked: str
    text: str | None = None

    @property
    def has_tags(self) -> bool:
        """whether tags are carried over."""
        return markup.MARK.search(self.marked) is not None

    def filled(self, target: str, links: Sequence[tuple[int, int]]) -> str:
        """Returns the translation with the tags of the source."""
        return markup.transfer(self.marked, target, links)


def chunks(marked: str) -> list[Chunk]:
    """Splits HTML into what is translated in one go and what stays as it is. Raises UserError if a comment or
    script never ends.

    A text whose tags are not well nested is split at each of them.
    """
    found: list[Chunk] = []
    for piece, is_mark in _pieces(marked):
        if is_mark or not is_written(piece):
            found.append(Chunk(piece))
            continue
        try:
            found.append(Chunk(piece, markup.plain(piece)))
        except UserError:
            found += apart(Chunk(piece, piece))
    return found


def apart(chunk: Chunk) -> Iterator[Chunk]:
    """Splits a piece at each of its tags, so that no alignment is needed."""
    if chunk.text is None:
        yield chunk
        return
    start = 0
    for match in markup.MARK.finditer(chunk.marked):
        yield _text(chunk.marked[start : match.start()])
        yield Chunk(match[0])
        start = match.end()
    yield _text(chunk.marked[start:])


def _text(piece: str) -> Chunk:
    return Chunk(piece, html.unescape(piece) if is_written(piece) else None)


def _pieces(marked: str) -> Iterator[tuple[str, bool]]:
    """Yields the tags of blocks, comments and scripts, and the texts between them with their inline tags."""
    start = 0
    for match in markup.MARK.finditer(marked):
        if match["endless"] is not None or match["unended"] is not None:
            markup.plain(match[0])  # raises the error that says what is missing
        if (match["name"] or match["end"] or "").lower() not in INLINE:
            yield marked[start : match.start()], False
            yield match[0], True
            start = match.end()
    yield marked[start:], False
