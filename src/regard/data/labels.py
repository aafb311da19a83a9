"""Readable labels for tokens and texts in figures, on web pages and in the terminal. Stored texts are not changed."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

NAMED = {"": "∅", "\n": "⏎", "\t": "⇥"}
"""Labels of the empty token, the line break and the tab."""
LONGEST = 40
"""Maximum length of a label. A single token of 3,000 characters would make a page or a figure too wide to draw."""
BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters without width that change the direction of the text after them."""


def label(token: str) -> str:
    r"""Returns a visible label for a token: [V] for the feature "\tV", ␣ for a space, its code for a control character.

    A label contains no character that XML forbids and no unpaired surrogate, and shows at most LONGEST characters.
    """
    if len(token) > LONGEST:
        token = token[: LONGEST - 1] + "…"
    if token in NAMED:
        return NAMED[token]
    if token[0] == "\t" and "\t" not in token[1:]:
        return f"[{_visible(token[1:])}]"
    if not any(map(_is_graphic, token)):
        return "".join("␣" if char == " " else _visible(char) if char in NAMED else _code(char) for char in token)
    return ("◌" if unicodedata.category(token[0])[0] == "M" else "") + _visible(token)


def visible(symbols: Iterable[str]) -> str:
    """Returns the labels of the symbols, separated by spaces."""
    return " ".join(map(label, symbols))


def readable(text: str) -> str:
    """Returns a text as one readable line: "walk<TAB>V<TAB>PST" becomes walk [V] [PST]."""
    first, *features = text.split("\t")
    return " ".join(filter(None, (_visible(first), *(f"[{_visible(feature)}]" for feature in features))))


def _visible(text: str) -> str:
    return "".join(NAMED.get(char) or (_code(char) if _is_hidden(char) else char) for char in text)


def _is_hidden(char: str) -> bool:
    """Whether a character cannot be printed, or changes how the characters around it are displayed."""
    return char in BIDI or unicodedata.category(char) in ("Cc", "Cn", "Co", "Cs", "Zl", "Zp")


def _is_graphic(char: str) -> bool:
    return unicodedata.category(char)[0] not in "ZC"


def _code(char: str) -> str:
    number = ord(char)
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
