"""Reads texts without sources, for language models: one text per line, or paragraphs of a book whose lines are wrapped.

A text is a pair with an empty source, so that everything after this file treats texts as it treats pairs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice, pairwise
from pathlib import Path
from typing import Literal

from regard.data.columns import TWO_COLUMNS, Columns
from regard.data.corpus import NO_NORMALISATION, Normalisation, Pair, normalise_line, stream_pairs
from regard.data.counts import CorpusCounts
from regard.data.files import suffix_of
from regard.data.json_lines import JSON_SUFFIXES
from regard.data.lines import read_lines
from regard.data.reader import sentences
from regard.errors import UserError, shorten

Contents = Literal["pairs", "lines", "paragraphs"]
"""What files hold: pairs; or texts, one per line, or separated by blank lines."""

TABLES = (".tsv", ".csv", ".xlsx", *JSON_SUFFIXES)
SAMPLE = 2000
"""The number of lines that `recognise_texts` reads."""
WRAPPED = 0.8
"""A text is wrapped if so many of its lines are full: the first word of the next line would not have fitted."""


def recognise_texts(path: Path) -> tuple[Contents, str]:
    """Returns whether a text file holds lines or paragraphs, and the reason. Raises UserError if it holds pairs."""
    if suffix_of(path) in TABLES:
        return "lines", "a table, whose rows are texts"
    lines = list(islice(read_lines(path), SAMPLE))
    filled = [line for line in lines if line.strip()]
    if filled and 10 * sum(line.count("\t") == 1 for line in filled) >= 9 * len(filled):
        raise _not_texts(path, filled[0])
    width = sorted(map(len, filled))[int(0.98 * (len(filled) - 1))] if filled else 0
    full = [
        len(line.rstrip()) + 1 + len(following.split()[0]) > width
        for line, following in pairwise(lines)
        if line.strip() and following.strip()
    ]
    if full and sum(full) >= WRAPPED * len(full):
        return "paragraphs", f"lines are wrapped at {width} characters; blank lines separate paragraphs"
    return "lines", "each line is a text"


def stream_texts(
    files: Sequence[Path],
    contents: Contents,
    max_length: int | None = None,
    counts: CorpusCounts | None = None,
    normalisation: Normalisation = NO_NORMALISATION,
    columns: Columns = TWO_COLUMNS,
) -> Iterator[Pair]:
    """Yields the texts of a file as pairs without a source. The rows of a table are texts if their source is empty.

    White space is replaced by single spaces. Blank lines are no texts. A text of more than `max_length` characters is cut after
    sentences, or else between words, into texts that are not longer; none of it is lost. counts: receives the counts.

    Raises UserError if the file cannot be read, has no texts, or holds pairs.
    """
    if len(files) != 1:
        raise UserError(
            f"got {len(files)} files, expected one file of texts; join several first, e.g. cat a.txt b.txt > all.txt"
        )
    (path,), counts = files, CorpusCounts() if counts is None else counts
    counts.name, counts.noun, counts.max_length = path.name, "text", max_length
    for number, text in _table(path, columns) if suffix_of(path) in TABLES else _texts(path, contents, counts):
        counts.lines = max(number, counts.lines)
        *_, text = normalise_line(["", " ".join(text.split())], normalisation, counts)
        parts = cut(text, max_length or len(text))
        counts.cut += len(parts) > 1
        for part in parts:
            counts.add("", part)
            yield Pair("", part)
    if not counts.pairs:
        raise UserError(f"{path}: expected texts, found only blank lines ({counts.lines:,})")


def _texts(path: Path, contents: Contents, counts: CorpusCounts) -> Iterator[tuple[int, str]]:
    """Yields the number of the last line of each text, and the text."""
    numbered = ((number, line) for number, line in enumerate(read_lines(path, counts.notes), start=1))
    for filled, group in groupby(numbered, key=lambda item: bool(item[1].strip())):
        if not filled:
            for counts.lines, _ in group:
                pass
        elif contents == "lines":
            yield from group
        else:
            numbers, lines = zip(*group, strict=True)
            yield numbers[-1], " ".join(lines)


def _table(path: Path, columns: Columns) -> Iterator[tuple[int, str]]:
    counts = CorpusCounts()
    for pair in stream_pairs(path, columns, counts=counts, needs_source=False):
        if any(pair.texts[:1]):
            raise _not_texts(path, "\t".join(pair.texts))
        yield counts.lines, pair.target


def _not_texts(path: Path, line: str) -> UserError:
    return UserError(
        f"{path} holds pairs, such as {shorten(line, 40)!r}, but this model learns from texts, which have no source; give a "
        "file of texts, e.g. cut -f2 pairs.tsv > texts.txt, or train a model that reads a source: model.kind=transformer"
    )


def cut(text: str, most: int) -> list[str]:
    """Cuts a text into parts of at most `most` characters: after sentences, or else between words, or else anywhere. The parts
    are as long as possible, and joined by spaces they give the text, unless a word was cut."""
    if len(text) <= most:
        return [text] if text else []
    return list(_packed(_small(sentences(text), most), most))


def _small(texts: Iterable[str], most: int) -> Iterator[str]:
    """Yields sentences of at most `most` characters; of longer ones, groups of words."""
    for text in texts:
        if len(text) <= most:
            yield text
        else:
            words = (word[at : at + most] for word in text.split() for at in range(0, len(word), most))
            yield from _packed(words, most)


def _packed(parts: Iterable[str], most: int) -> Iterator[str]:
    """Joins parts by spaces as long as the result has at most `most` characters."""
    packed = ""
    for part in parts:
        if packed and len(packed) + 1 + len(part) > most:
            yield packed
            packed = ""
        packed = f"{packed} {part}" if packed else part
    if packed:
        yield packed
