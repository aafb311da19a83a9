"""A vocabulary that is a plain list of tokens, as CTranslate2 and fairseq keep it, perhaps with merges of subword-nmt."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, Literal, get_args

from regard.contracts import Specials
from regard.data.documents import mapping, validated
from regard.data.tokenizers.contract import TextCodec
from regard.errors import UserError, shown

Split = Literal["characters", "spaces", "subwords"]
"""How a text becomes tokens: each character is one; they are separated by spaces; or words are split by merges of subword-nmt
(Sennrich et al. 2016), where "@@" ends a token that its word continues."""

TYPE = "listed"
"""What `type` says in the JSON file."""
CONTINUED, END = "@@", "</w>"


class ListedCodec(TextCodec):
    """Tokens with the ids that their order gives.

    split: how a text becomes tokens.  merges: pairs of symbols in the order in which they merge, if split is "subwords".
    """

    def __init__(
        self,
        names: Sequence[str],
        specials: Specials,
        split: Split,
        *,
        merges: Sequence[tuple[str, str]] = (),
    ) -> None:
        self.names, self.specials, self.split, self.merges = tuple(names), specials, split, tuple(merges)
        self.ids = {name: number for number, name in enumerate(self.names)}
        if len(self.ids) < len(self.names):
            twice = next(name for number, name in enumerate(self.names) if self.ids[name] != number)
            raise UserError(f"the token {shown(twice)} occurs twice in the vocabulary, expected different tokens")
        if outside := [number for number in (*specials.ids, *specials.prefix, *specials.never) if number >= len(self.names)]:
            raise UserError(f"a special token has the id {outside[0]}, but there are only {len(self.names)} tokens")

    def __len__(self) -> int:
        return len(self.names)

    @property
    def has_characters(self) -> bool:
        return self.split == "characters"

    def encode(self, text: str) -> list[int]:
        special = self.specials.ids
        ids = [self.ids.get(piece, self.specials.unk) for piece in self._split(text)]
        return [self.specials.unk if number in special else number for number in ids]  # the text spells a special token

    def pieces(self, text: str) -> tuple[str, ...]:
        return tuple(self._split(text))

    def unknown(self, text: str) -> tuple[str, ...]:
        return tuple(
            piece for piece, number in zip(self.pieces(text), self.encode(text), strict=True) if number == self.specials.unk
        )

    def tokens(self, ids: Sequence[int]) -> tuple[str, ...]:
        return tuple(self.names[number] for number in ids)

    def decode(self, ids: Sequence[int]) -> str:
        text = ("" if self.split == "characters" else " ").join(self.tokens(ids))
        return f"{text} ".replace(f"{CONTINUED} ", "").removesuffix(" ") if self.split == "subwords" else text

    def _split(self, text: str) -> list[str]:
        if self.split == "characters":
            return list(text)
        words = text.split()
        return [piece for word in words for piece in self._subwords(word)] if self.split == "subwords" else words

    @cached_property
    def _subwords(self) -> Any:
        """Splits a word: the pair of neighbours that comes first in `merges` is merged everywhere, until there is none left."""
        ranks = {pair: rank for rank, pair in reversed(list(enumerate(self.merges)))}

        @lru_cache(maxsize=10_000)
        def split(word: str) -> tuple[str, ...]:
            symbols = [*word[:-1], word[-1] + END]
            while len(symbols) > 1:
                first = min(pairwise(symbols), key=lambda pair: ranks.get(pair, len(ranks)))
                if first not in ranks:
                    break
                merged: list[str] = []
                for symbol in symbols:
                    joins = merged and (merged[-1], symbol) == first
                    merged[-1:] = [merged[-1] + symbol] if joins else [*merged[-1:], symbol]
                symbols = merged
            return (*(symbol + CONTINUED for symbol in symbols[:-1]), symbols[-1].removesuffix(END))

        return split

    def to_json(self, *, attached: bool = False) -> str:
        content = {
            "type": TYPE,
            "split": self.split,
            "specials": asdict(self.specials),
            "merges": [list(pair) for pair in self.merges],
            "tokens": list(self.names),
        }
        return json.dumps(content, ensure_ascii=False, indent=1)

    @classmethod
    def from_content(cls, content: Any) -> ListedCodec:
        """Returns the codec of a parsed JSON file. Raises UserError if it is invalid."""
        given = mapping(content, "a vocabulary")
        names, merges = given.get("tokens"), given.get("merges")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise UserError(f"its tokens are {shown(names)}, expected a list of strings")
        if not isinstance(merges, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in merges):
            raise UserError(f"its merges are {shown(merges)}, expected a list of pairs")
        if given.get("split") not in get_args(Split):
            raise UserError(f"its split is {shown(given.get('split'))}, expected one of {', '.join(get_args(Split))}")
        specials = mapping(given.get("specials"), "specials")
        if missing := {field.name for field in fields(Specials)} - {*specials, "never_first"}:
            raise UserError(f"its specials lack {', '.join(sorted(missing))}")
        pairs = [(str(left), str(right)) for left, right in merges]
        return cls(names, validated(Specials, specials, "specials"), given["split"], merges=pairs)
