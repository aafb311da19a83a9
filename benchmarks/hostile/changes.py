"""Ways to damage valid input: replace values of documents, flip bytes, put strange characters into texts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import Any


def _nested(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


HOSTILE: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3, 7, 255, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, 10**7, 10**12, 10**30, 10**400),
    *(-0.0, 0.5, -0.5, 1.0, 1e-320, 1e-12, 1e308, -1e308, float("nan"), float("inf"), float("-inf")),
    *("", " ", "0", "1", "x", "é", "\x00", "\x1b[31mred", "\n\n", "\ud800", "a" * 5000, "../../etc/passwd", "<unk>", "rnn"),
    *("additive", "tokens", "mine", [], {}, [[]], [None], {"": 0}, [0] * 500, ["a", "b"], [1, 2, 3], {"type": "NFKD"}),
    *(_nested(10), _nested(40), _nested(400)),
)


def hostile(rng: Random) -> Any:
    return json.loads(json.dumps(rng.choice(HOSTILE)))  # a copy, so that it can be changed further


def paths_in(value: Any, path: tuple[Any, ...] = (), most: int = 12) -> Iterator[tuple[Any, ...]]:
    """Yields the paths to the values of a document, to a limited depth, skipping values in the middle of long lists."""
    yield path
    if isinstance(value, dict | list) and len(path) < most:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        for key in keys if len(keys) <= most else [*keys[: most - 1], keys[-1]]:
            yield from paths_in(value[key], (*path, key), most)


def change_document(document: Any, rng: Random) -> tuple[Any, str]:
    """Replaces, removes, adds or copies one or a few values of a JSON document; returns it with a description of the change."""
    changes = []
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        document, change = _change_value(document, rng)
        changes.append(change)
    return document, "; ".join(changes)


def _change_value(document: Any, rng: Random) -> tuple[Any, str]:
    paths = list(paths_in(document))
    path = rng.choice(paths[1:] or paths)
    way = rng.choice(("replace", "replace", "replace", "remove", "add", "copy", "nudge"))
    if not path:
        return (value := hostile(rng)), f"all = {value!r:.40}"
    *above, last = path
    parent = document
    for key in above:
        parent = parent[key]
    where = ".".join(map(str, path))
    if way == "remove":
        del parent[last]
        return document, f"{where} removed"
    if way == "add":
        value = hostile(rng)
        if isinstance(parent, dict):
            parent[rng.choice(("extra", "", "type", "unit", "\x1b"))] = value
        else:
            parent.insert(rng.randrange(len(parent) + 1), value)
        return document, f"{value!r:.40} added next to {where}"
    if way == "copy":
        other = document
        for key in rng.choice(paths[1:]):
            other = other[key]
        parent[last] = json.loads(json.dumps(other))
    elif way == "nudge" and isinstance(parent[last], int | float) and not isinstance(parent[last], bool):
        parent[last] = rng.choice((parent[last] + 1, parent[last] - 1, -parent[last], parent[last] * 2, parent[last] * 1000))
    else:
        parent[last] = hostile(rng)
    return document, f"{where} = {parent[last]!r:.40}"


def change_bytes(content: bytes, rng: Random) -> tuple[bytes, str]:
    """Flips bits, or removes, inserts or repeats bytes; returns the content with a description of the change."""
    held = bytearray(content)
    way = rng.choice(("flip", "flip", "cut", "insert", "truncate", "zero", "repeat", "empty", "head"))
    at = rng.randrange(len(held) + 1) if way != "head" else rng.randrange(min(64, len(held)) + 1)
    size = rng.choice((1, 2, 8, 100))
    if way in ("flip", "head"):
        for index in [at, *(rng.randrange(len(held) + 1) for _ in range(rng.choice((0, 0, 3, 20))))]:
            if index < len(held):
                held[index] ^= 1 << rng.randrange(8) if way == "flip" else rng.randrange(1, 256)
    elif way == "cut":
        del held[at : at + size]
    elif way == "insert":
        held[at:at] = rng.randbytes(size)
    elif way == "truncate":
        del held[at:]
    elif way == "zero":
        held[at : at + size] = rng.choice((b"\x00", b"\xff")) * len(held[at : at + size])
    elif way == "repeat":
        held += held[at : at + 1000]
    else:
        held.clear()
    return bytes(held), f"{way} at {at}"


def dumped(document: Any) -> bytes:
    """Encodes a document as JSON the way Python does, which allows NaN and lone surrogates."""
    return json.dumps(document).encode()


STRANGE = (
    *("\x00", "\x01", "\x1b[31m", "\x1c", "\x85", "\u2028", "\u2029", "\x0b", "\x0c", "\x7f", "\ufeff", "\ufffe", "\uffff"),
    *("\u200b", "\u200d", "\u202e", "\u2067", "\u061c", "\u0301", "e\u0301", "\u0345" * 30, "\u1100\u1161", "ﬁ", "İ", "ß"),
    *("שלום", "مرحبا", "漢字", "👩‍👩‍👧‍👦", "🏳️‍🌈", "𝔘", "\U0010ffff", "\ue000", "\xa0", "\u3000", "\xad"),
    *('"', '""', "'", ",", ";", "|", "|||", "->", "IN:", "OUT:", "\\", "\\n", "<b>", "</script>", "&amp;", "]]>", "<!--"),
    *("[red]", "[/]", "{x}", "%s", "=1+1", "@", "#", "-", "--", "-1", "+1", "0", "1e999", "nan", "true", "null", "3.140"),
    *("<unk>", "<s>", "</s>", "<pad>", "▁", "Ġ", "source", "target", "word", "Falsch", "id", "audio", "a.wav", "x.png"),
)
"""Pieces of text that often break programs."""
BREAKS = ("\t", "\n", "\r", "\r\n", "\t\t")
WORDS = ("walk", "twice", "and", "jump", "left", "look", "run", "ab", "b", "Haus", "größer", "слово", "10", "A")


def strange_text(rng: Random, *, breaks: bool = True, halves: bool = False) -> str:
    """Returns usual words mixed with strange pieces. breaks: also tabs and line breaks. halves: also lone surrogates."""
    way = rng.random()
    if way < 0.03:
        return rng.choice(("", " ", "  \u3000 "))
    if way < 0.04:
        return rng.choice(("a", "ab ", " ", "é", "\u0301", "((")) * rng.choice((100, 3000, 30_000))
    pieces = [*STRANGE, *(BREAKS if breaks else ()), *(("\ud800", "\udfff", "a\udc80") if halves else ())]
    share = rng.choice((0.0, 0.0, 0.3, 0.8))
    size = rng.choice((1, 1, 2, 3, 8))
    return rng.choice((" ", " ", "")).join(
        rng.choice(pieces) if rng.random() < share else rng.choice(WORDS) for _ in range(size)
    )
