"""Validates a tokenizer.json: only parts that regard writes, and a complete vocabulary, reach the tokenizers library, which
runs whatever a file asks for: padding to a billion tokens, a normalizer that multiplies texts, a regular expression that never
ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

from regard.data.documents import mapping
from regard.data.tokenizers.byte_level import LETTERS
from regard.errors import UserError, one_line, shown

Form = dict[str, Any]
"""A tokenizer.json without the parts that differ between vocabularies."""

VARIES = ("vocab", "merges", "ignore_merges", "alphabet")
"""Fields of a tokenizer's model that differ between vocabularies."""
NORMALIZERS: tuple[Form | None, ...] = (None, {"type": "NFC"})
MOST_SCORE = 1e6
"""Limit of the log-probabilities of a unigram vocabulary; sums of larger ones would overflow."""


def trusted(content: Any, forms: Sequence[tuple[Form, Form]], specials: Sequence[str]) -> Form:
    """Returns a tokenizer.json that is safe to load: the form that matches `content`, filled with the vocabulary of `content`.
    Raises UserError if no form matches or if the vocabulary is invalid.

    forms: (bare form, whole form) of every tokenizer that regard writes. specials: the tokens with the first ids.
    """
    given = mapping(content, "it")
    model = mapping(given.get("model"), "its model")
    if given.get("normalizer") not in NORMALIZERS:
        raise UserError(f"its normalizer is {shown(given['normalizer'])}, which regard does not write")
    form = _matching({**given, "normalizer": None, "model": {name: model[name] for name in model if name not in VARIES}}, forms)
    kind, vocabulary = form["model"]["type"], model.get("vocab")
    filled: Form = {"vocab": vocabulary}
    tokens = _scored(vocabulary) if kind == "Unigram" else _numbered(vocabulary)
    if tuple(tokens[: len(specials)]) != tuple(specials):
        raise UserError(f"its first tokens are {shown(tokens[: len(specials)])}, expected {', '.join(specials)}")
    if kind != "WordLevel":
        _check_bytes(tokens)
    if kind == "BPE":
        filled |= {"merges": _merges(model.get("merges"), set(tokens)), "ignore_merges": bool(model.get("ignore_merges"))}
    return {**form, "normalizer": given.get("normalizer"), "model": {**form["model"], **filled}}


def alphabet(content: Form) -> str:
    """Returns the characters of the texts that a bpe or unigram vocabulary was trained on."""
    characters = content["model"].get("alphabet", "")
    if not isinstance(characters, str):
        raise UserError(f"its alphabet is {shown(characters)}, expected a string")
    return characters


def _matching(given: Form, forms: Sequence[tuple[Form, Form]]) -> Form:
    """Returns the whole form whose bare form equals that of `given`. Raises UserError if there is none."""
    found = bare(given)
    for ours, whole in forms:
        if ours == found:
            return whole
    for name in found:
        if all(found[name] != ours.get(name) for ours, _ in forms):
            raise UserError(f"its {one_line(name, 40)} is {shown(found[name])}, which regard does not write")
    raise UserError("its parts do not belong together: regard does not write a tokenizer with all of them")


def bare(part: Any) -> Any:
    """Returns the part without options that are off: a later version of the library may write more options, turned off."""
    if isinstance(part, dict):
        return {name: bare(value) for name, value in part.items() if value is not None and value is not False}
    return [bare(value) for value in part] if isinstance(part, list) else part


def _numbered(vocabulary: Any) -> list[str]:
    """Returns the tokens of {token: id} in the order of their ids. Raises UserError unless the ids are 0, 1, 2 …, once each."""
    ids = mapping(vocabulary, "its vocabulary")
    for token, number in ids.items():
        if type(number) is not int or not 0 <= number < len(ids) or not token:
            raise UserError(f"the id of {shown(token)} is {shown(number)}, expected tokens with ids from 0 to {len(ids) - 1:,}")
    tokens = {number: token for token, number in ids.items()}
    if len(tokens) < len(ids):
        raise UserError(f"{len(ids) - len(tokens):,} of its tokens have the same id as another token")
    return [tokens[number] for number in range(len(ids))]


def _scored(vocabulary: Any) -> list[str]:
    """Returns the tokens of [[token, log-probability], …]. Raises UserError if an entry is invalid or a token occurs twice."""
    if not isinstance(vocabulary, list):
        raise UserError(f"its vocabulary is {shown(vocabulary)}, expected a list")
    tokens = dict[str, None]()
    for entry in vocabulary:
        match entry:
            case [str(token), float(score) | int(score)] if token and isfinite(score) and abs(score) <= MOST_SCORE:
                tokens[token] = None
            case _:
                raise UserError(f"its vocabulary contains {shown(entry)}, expected pairs of a token and its log-probability")
    if len(tokens) < len(vocabulary):
        raise UserError(f"its vocabulary contains duplicate tokens: {len(vocabulary) - len(tokens):,}")
    return list(tokens)


def _check_bytes(tokens: Sequence[str]) -> None:
    """Raises UserError unless every byte has a token and tokens consist of bytes; any text can then be encoded and decoded."""
    letters = set(LETTERS.values())
    if missing := letters.difference(tokens):
        raise UserError(f"its vocabulary lacks {len(missing)} of the 256 bytes")
    if strange := sorted(set().union(*tokens) - letters):
        raise UserError(f"its vocabulary contains {shown(strange[0])}, which does not represent a byte")


def _merges(merges: Any, tokens: set[str]) -> list[Any]:
    """Returns the merges. Raises UserError unless each is a pair of tokens that join to another token."""
    if not isinstance(merges, list):
        raise UserError(f"its merges are {shown(merges)}, expected a list")
    for pair in merges:
        if not (isinstance(pair, list) and len(pair) == 2 and all(isinstance(part, str) for part in pair)):
            raise UserError(f"its merges contain {shown(pair)}, expected pairs of tokens")
        if not tokens.issuperset((*pair, pair[0] + pair[1])):
            raise UserError(f"its merges contain {shown(pair)}, expected two tokens that join to a third")
    return merges
