"""Byte-level tokens: the 256 letters that represent bytes in a tokenizer.json, and texts whose characters are split."""

from __future__ import annotations

from collections.abc import Iterable

_PRINTABLE = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
_OTHERS = sorted(set(range(256)).difference(_PRINTABLE))
LETTERS = {byte: chr(byte) for byte in _PRINTABLE} | {byte: chr(256 + index) for index, byte in enumerate(_OTHERS)}
"""GPT-2's table, which the tokenizers library uses: printable bytes represent themselves, the others start at U+0100."""

_BYTES = {letter: byte for byte, letter in LETTERS.items()}
_CONTINUATION = bytes(range(0x80, 0xC0))


def spell(text: str) -> str:
    """Returns a text as the vocabulary spells it: " é" becomes "ĠÃ©"."""
    return "".join(map(LETTERS.__getitem__, text.encode()))


def to_bytes(token: str) -> bytes:
    """Returns the bytes that a token of the vocabulary represents."""
    return bytes(map(_BYTES.__getitem__, token))


def readable(parts: Iterable[bytes]) -> list[str]:
    """Returns one text for each part. A character that is split across parts goes to the part with its first byte, so that the
    texts join to the whole text; the other parts may be empty. Invalid bytes become U+FFFD.
    """
    moved: list[bytes] = []
    for part in parts:
        rest = part.lstrip(_CONTINUATION) if moved else part
        if len(rest) < len(part):
            home = next((index for index in range(len(moved) - 1, 0, -1) if moved[index]), 0)
            moved[home] += part[: len(part) - len(rest)]
        moved.append(rest)
    return [part.decode(errors="replace") for part in moved]
