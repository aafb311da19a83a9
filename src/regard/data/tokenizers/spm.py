"""Reads a SentencePiece model (.spm) before the library does: a bounded parser of its pieces, and checks of what the library
trusts. A file is a protobuf message: a list of pieces, the options of its training, and the table of its normalisation.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from regard.errors import UserError, shown

MOST_BYTES = 64 * 1024**2
MOST_PIECES = 2_000_000
LONGEST_PIECE = 1024
"""Limits of a file, and of the bytes of a piece. The model of 250,000 pieces of XLM-R has 5 MB."""

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""Types of pieces."""
ALGORITHMS = {1: "unigram", 2: "bpe"}
_PIECE, _TRAINING, _NORMALISATION = 1, 2, 3
_LEAF = 1 << 31


@dataclass(frozen=True)
class SpmContents:
    """What a .spm holds: its pieces by id, their types and scores, its algorithm (unigram or bpe), and the name and the table
    of its normalisation."""

    pieces: tuple[str, ...]
    types: tuple[int, ...]
    algorithm: str
    rule: str
    scores: tuple[float, ...] = ()
    table: bytes = b""


def read_spm(content: bytes) -> SpmContents:
    """Returns the contents of a .spm. Raises UserError if it is not one, or if the library must not read it."""
    if len(content) > MOST_BYTES:
        raise UserError(f"it has {len(content):,} bytes, expected a SentencePiece model of at most {MOST_BYTES:,}")
    pieces, types, scores = list[str](), list[int](), list[float]()
    algorithm, rule, table = 1, "", b""
    for field, value in _fields(content, "it"):
        if field == _PIECE and isinstance(value, bytes):
            piece, kind, score = _piece(value, len(pieces))
            pieces.append(piece)
            types.append(kind)
            scores.append(score)
            if len(pieces) > MOST_PIECES:
                raise UserError(f"it has more than {MOST_PIECES:,} pieces")
        elif field == _TRAINING and isinstance(value, bytes):
            for key, number in _fields(value, "its training"):
                algorithm = number if key == 3 and isinstance(number, int) else algorithm
        elif field == _NORMALISATION and isinstance(value, bytes):
            for key, part in _fields(value, "its normalisation"):
                if key == 1 and isinstance(part, bytes):
                    rule = _text(part, "the name of its normalisation")
                elif key == 2 and isinstance(part, bytes):
                    table = part
    _check_pieces(pieces, types)
    if algorithm not in ALGORITHMS:
        raise UserError(f"its algorithm has the number {shown(algorithm)}, expected a model of the type unigram or bpe")
    _check_table(table)
    return SpmContents(tuple(pieces), tuple(types), ALGORITHMS[algorithm], rule, tuple(scores), table)


def _piece(content: bytes, number: int) -> tuple[str, int, float]:
    """Returns a piece, its type and its score."""
    piece, kind, score = "", NORMAL, 0.0
    for field, value in _fields(content, f"piece {number:,}"):
        if field == 1 and isinstance(value, bytes):
            piece = _text(value, f"piece {number:,}")
        elif field == 2 and isinstance(value, bytes):
            (score,) = struct.unpack("<f", value)
            if not np.isfinite(score):
                raise UserError(f"the score of piece {number:,} is not finite")
        elif field == 3 and isinstance(value, int):
            kind = value
    if not piece or len(piece) > LONGEST_PIECE or not NORMAL <= kind <= BYTE:
        raise UserError(f"piece {number:,} is {shown(piece)} of type {kind}, expected a text and a type from 1 to {BYTE}")
    return piece, kind, score


def _check_pieces(pieces: Sequence[str], types: Sequence[int]) -> None:
    if types.count(UNKNOWN) != 1:
        raise UserError(f"it has {types.count(UNKNOWN)} pieces for what is unknown, expected one: is it a SentencePiece model?")
    if len(set(pieces)) < len(pieces):
        raise UserError(f"its vocabulary contains duplicate pieces: {len(pieces) - len(set(pieces)):,}")
    given = {piece for piece, kind in zip(pieces, types, strict=True) if kind == BYTE}
    if given and given != set(BYTES):
        raise UserError(f"it has {len(given)} pieces for single bytes, expected all 256, as <0x00>, or none")


BYTES = {f"<0x{byte:02X}>": bytes([byte]) for byte in range(256)}
"""The pieces that stand for single bytes."""


def _check_table(table: bytes) -> None:
    """Raises UserError if a text could lead the library outside of the table of the normalisation: a double-array trie, whose
    leaves point to texts that end with 0."""
    if not table:
        return
    size = struct.unpack("<I", table[:4])[0] if len(table) >= 4 else 0
    trie, texts = table[4 : 4 + size], table[4 + size :]
    if size % 1024 or not size or len(trie) < size or not texts.endswith(b"\0"):
        raise UserError(f"the table of its normalisation is damaged: it has {len(table):,} bytes, and a trie of {size:,}")
    units = np.frombuffer(trie, "<u4").astype(np.int64)
    is_leaf = units & _LEAF != 0
    offsets = (units >> 10) << ((units & 512) >> 6)
    reached = (np.arange(len(units)) ^ offsets)[~is_leaf] | 255
    if reached.max(initial=0) >= len(units) or (units[is_leaf] & (_LEAF - 1)).max(initial=0) >= len(texts):
        raise UserError("the table of its normalisation is damaged: it points outside of itself")


def _text(content: bytes, what: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise UserError(f"{what} is not valid UTF-8") from None


def _fields(content: bytes, what: str) -> Iterator[tuple[int, int | bytes]]:
    """Yields (number, value) of each field of a protobuf message: a number, or the bytes of anything else."""
    position = 0
    while position < len(content):
        key, position = _number(content, position, what)
        wire = key & 7
        if wire == 0:
            number, position = _number(content, position, what)
            yield key >> 3, number
            continue
        if wire == 2:
            size, position = _number(content, position, what)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise _damaged(what)
        if size > len(content) - position:
            raise _damaged(what)
        yield key >> 3, content[position : position + size]
        position += size


def _number(content: bytes, position: int, what: str) -> tuple[int, int]:
    """Returns a varint and the position after it."""
    number = 0
    for shift in range(0, 70, 7):
        if position >= len(content):
            break
        byte = content[position]
        position += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, position
    raise _damaged(what)


def _damaged(what: str) -> UserError:
    return UserError(f"{what} is damaged, or is not a SentencePiece model")
