"""Tokens and texts as people can read them: in pictures, on pages and in the terminal. What is stored stays as it is."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

NAMED = {"": "∅", "\n": "⏎", "\t": "⇥"}
LONGEST = 40
"""Characters of a label. One token of 3,000 would make a page, or a picture, too wide to be drawn at all."""
BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""They have no width and turn what follows around."""


def label(token: str) -> str:
    r"""One visible label: a feature "\tV" is [V], a space ␣, a control character its code.

    No label holds a character that XML forbids, or half of one that UTF-8 cannot write, and none is longer than LONGEST.
    """
    if len(token) > LONGEST:
        token = token[: LONGEST - 1] + "…"
    if token in NAMED:
        return NAMED[token]
    if token[0] == "\t" and "\t" not in token[1:]:
        return f"[{_visible(token[1:])}]"
    if not any(map(_has_ink, token)):
        return "".join("␣" if char == " " else _visible(char) if char in NAMED else _code(char) for char in token)
    return ("◌" if unicodedata.category(token[0])[0] == "M" else "") + _visible(token)


def visible(symbols: Iterable[str]) -> str:
    """A list of symbols for people."""
    return " ".join(map(label, symbols))


def readable(text: str) -> str:
    """A whole text in one line: "walk<TAB>V<TAB>PST" is walk [V] [PST]."""
    first, *features = text.split("\t")
    return " ".join(filter(None, (_visible(first), *(f"[{_visible(one)}]" for one in features))))


def _visible(text: str) -> str:
    return "".join(NAMED.get(char) or (_code(char) if _is_hidden(char) else char) for char in text)


def _is_hidden(char: str) -> bool:
    """Whether a character is no part of a text that can be written down, or would disturb what stands around it."""
    return char in BIDI or unicodedata.category(char) in ("Cc", "Cn", "Co", "Cs", "Zl", "Zp")


def _has_ink(char: str) -> bool:
    return unicodedata.category(char)[0] not in "ZC"


def _code(char: str) -> str:
    number = ord(char)
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
