"""Sources as users give them: a text, the name of a file, or a row of several columns. See `contracts.SourceText`."""

from __future__ import annotations

import re

from regard.contracts import SourceText

_BETWEEN_FEATURES = re.compile(r"[;|\s]+")
_BETWEEN_PARTS = re.compile(r"(?<=.)(?=\+.)")


def flat(source: SourceText, *, parts: bool = True) -> str:
    """Returns a source as one string: what a tokenizer reads, and by which sources are compared.

    The further columns of a text hold features, separated by ; | or white space; each is marked by a TAB, as in the data that a
    tokenizer is trained on: ("walk", "V;PST") becomes "walk<TAB>V<TAB>PST".

    parts: whether a feature is also split before each further +, so that "IN+ESS" and "IN+ALL" share a part.
    """
    if isinstance(source, str):
        return source
    first, *others = source
    features = [feature for cell in others for feature in _BETWEEN_FEATURES.split(cell) if feature]
    if parts:
        features = [part for feature in features for part in _BETWEEN_PARTS.split(feature)]
    return "\t".join((first.strip(), *features))


def as_line(source: SourceText) -> str:
    """Returns a source as it stands in a line of a table: columns are separated by TABs."""
    return source if isinstance(source, str) else "\t".join(source)


def file_and_text(source: SourceText) -> tuple[str, str]:
    """Returns (name of the file, auxiliary text), either of which may be empty."""
    if isinstance(source, str):
        return source, ""
    name, *others = source
    return name, " ".join(" ".join(others).split())
