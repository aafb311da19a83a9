"""Pairs of texts from a file. Nothing is dropped without being counted."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from regard.errors import UserError


class Pair(NamedTuple):
    source: str
    target: str


@dataclass(frozen=True)
class Corpus:
    """The pairs of one file, and how many of its lines could not be used because a side was empty."""

    name: str
    pairs: tuple[Pair, ...]
    num_empty: int = 0


def read_pairs(path: Path) -> Corpus:
    """Reads `source<TAB>target` lines (UTF-8, optionally .gz). A bad line is an error with its number."""
    pairs, num_empty = [], 0
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            num_empty += 1
            continue
        cells = line.split("\t")
        if len(cells) != 2:
            found = "no tab" if len(cells) == 1 else f"{len(cells) - 1} tabs"
            raise UserError(f"{path}:{number}: expected source<TAB>target, found {found} in {shorten(line)!r}")
        pair = Pair(*(cell.strip() for cell in cells))
        if all(pair):
            pairs.append(pair)
        else:
            num_empty += 1
    if not pairs:
        raise UserError(f"{path}: expected lines of source<TAB>target, found none in {num_empty} lines")
    return Corpus(path.name, tuple(pairs), num_empty)


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a text file, optionally .gz."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            yield from decode_lines(file, str(path))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (OSError, EOFError) as error:
        raise UserError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


def decode_lines(raw_lines: Iterable[bytes], name: str) -> Iterator[str]:
    """UTF-8 lines without their ends (LF or CRLF). Other bytes are an error with the number of the line."""
    for number, raw in enumerate(raw_lines, start=1):
        try:
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            place = error.start + len(raw) - len(error.object)  # a byte order mark is not part of what was decoded
            raise UserError(
                f"{name}:{number}: byte 0x{raw[place]:02x} at place {place + 1} is not UTF-8; "
                "convert the text first, e.g. iconv -f latin1 -t utf-8"
            ) from None
        yield line.removesuffix("\n").removesuffix("\r")


def hold_out(pairs: Sequence[Pair], share: float) -> tuple[list[Pair], list[Pair]]:
    """(training, held out). All pairs of one source stay on one side, and the choice depends on nothing but the sources."""
    sources = sorted({pair.source for pair in pairs}, key=lambda source: hashlib.sha1(source.encode()).digest())
    if len(sources) < 2:
        raise UserError(f"found {len(sources)} distinct source, expected at least 2: one to learn from and one to hold out")
    held = set(sources[: min(len(sources) - 1, max(1, round(share * len(sources))))])
    return [p for p in pairs if p.source not in held], [p for p in pairs if p.source in held]


def shorten(text: str, width: int = 60) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
