"""What a tokenizer.json may hold: parts that we write, and a vocabulary that is whole. Nothing else reaches the library, which
runs whatever a file asks for: padding to a billion, a normaliser that multiplies texts, a regular expression that never ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

from regard.data.documents import mapping
from regard.data.tokenizers.byte_level import LETTERS
from regard.errors import UserError, one_line, shown

Form = dict[str, Any]
"""A tokenizer.json without what differs from one vocabulary to the next."""

VARIES = ("vocab", "merges", "ignore_merges", "alphabet")
"""Of a model: what differs."""
NORMALIZERS: tuple[Form | None, ...] = (None, {"type": "NFC"})
MOST_SCORE = 1e6
"""Log-probabilities of pieces; sums of larger ones would overflow."""


def trusted(content: Any, forms: Sequence[tuple[Form, Form]], specials: Sequence[str]) -> Form:
    """What the library may read instead of this tokenizer.json: the form of ours that it has, filled with its vocabulary.

    forms: (bare, whole) each. specials: the tokens that have the first ids.
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
    """The characters that bpe or unigram learnt from."""
    found = content["model"].get("alphabet", "")
    if not isinstance(found, str):
        raise UserError(f"its alphabet is {shown(found)}, expected a string")
    return found


def _matching(given: Form, forms: Sequence[tuple[Form, Form]]) -> Form:
    found = bare(given)
    for ours, whole in forms:
        if ours == found:
            return whole
    for name in found:
        if all(found[name] != ours.get(name) for ours, _ in forms):
            raise UserError(f"its {one_line(name, 40)} is {shown(found[name])}, which regard does not write")
    raise UserError("its parts do not belong to one tokenizer that regard writes")


def bare(part: Any) -> Any:
    """Without what is off: a later version of the library may write further options, and leaves them off."""
    if isinstance(part, dict):
        return {name: bare(value) for name, value in part.items() if value is not None and value is not False}
    return [bare(value) for value in part] if isinstance(part, list) else part


def _numbered(vocabulary: Any) -> list[str]:
    """The tokens of {token: id} in the order of their ids, which are 0, 1, 2 … once each."""
    ids = mapping(vocabulary, "its vocabulary")
    for token, number in ids.items():
        if type(number) is not int or not 0 <= number < len(ids) or not token:
            raise UserError(f"the id of {shown(token)} is {shown(number)}, expected tokens with ids from 0 to {len(ids) - 1:,}")
    tokens = {number: token for token, number in ids.items()}
    if len(tokens) < len(ids):
        raise UserError(f"{len(ids) - len(tokens):,} of its tokens have the id of another one")
    return [tokens[number] for number in range(len(ids))]


def _scored(vocabulary: Any) -> list[str]:
    """The tokens of [[token, log-probability], …]."""
    if not isinstance(vocabulary, list):
        raise UserError(f"its vocabulary is {shown(vocabulary)}, expected a list")
    tokens = dict[str, None]()
    for one in vocabulary:
        match one:
            case [str(token), float(score) | int(score)] if token and isfinite(score) and abs(score) <= MOST_SCORE:
                tokens[token] = None
            case _:
                raise UserError(f"its vocabulary contains {shown(one)}, expected pairs of a token and its log-probability")
    if len(tokens) < len(vocabulary):
        raise UserError(f"tokens of its vocabulary that occur twice: {len(vocabulary) - len(tokens):,}")
    return list(tokens)


def _check_bytes(tokens: Sequence[str]) -> None:
    """Every byte has a token, and tokens are made of bytes: then any text can be cut and joined."""
    letters = set(LETTERS.values())
    if missing := letters.difference(tokens):
        raise UserError(f"its vocabulary lacks {len(missing)} of the 256 bytes")
    if strange := sorted(set().union(*tokens) - letters):
        raise UserError(f"its vocabulary contains {shown(strange[0])}, which does not spell a byte")


def _merges(merges: Any, tokens: set[str]) -> list[Any]:
    """Pairs of tokens, each of which joins to a token."""
    if not isinstance(merges, list):
        raise UserError(f"its merges are {shown(merges)}, expected a list")
    for one in merges:
        if not (isinstance(one, list) and len(one) == 2 and all(isinstance(part, str) for part in one)):
            raise UserError(f"its merges contain {shown(one)}, expected pairs of tokens")
        if not tokens.issuperset((*one, one[0] + one[1])):
            raise UserError(f"its merges contain {shown(one)}, expected two tokens that make a third")
    return merges
