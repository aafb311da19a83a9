"""Texts with missing tokens: how they are made for training, and how a user writes them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from random import Random

from regard.contracts import Specials
from regard.data.batch import Example
from regard.data.tokenizers.codec import Codec

BLANK = "<mask>"
"""How a missing token is written in a text."""


def masked(example: Example, fraction: float, rng: Random, specials: Specials) -> Example:
    """Returns a text as an example of filling in: the source lacks some tokens, at least one, and these are the targets. Tokens
    that the vocabulary lacks are missing, too, but are no targets.

    fraction: how many of the tokens are missing. The result depends only on (example, fraction, the state of `rng`).
    """
    ids, unk = example.target, specials.unk
    known = [position for position, token in enumerate(ids) if token != unk]
    missing = set(rng.sample(known, min(len(known), max(1, round(fraction * len(ids))))))
    return Example(
        [unk if position in missing else token for position, token in enumerate(ids)],
        [token if position in missing else specials.pad for position, token in enumerate(ids)],
    )


class BlankCodec(Codec):
    """A codec that reads <mask> in a text as one missing token, which has the id of <unk>.

    Of subwords, a space before <mask> belongs to the missing token, as it does in training.
    """

    @classmethod
    def of(cls, codec: Codec) -> BlankCodec:
        return cls(codec.tokenizer, codec.alphabet)

    def encode(self, text: str) -> list[int]:
        first, *others = self._parts(text)
        return [
            *super().encode(first),
            *(token for part in others for token in (self.specials.unk, *super(BlankCodec, self).encode(part))),
        ]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts] if any(BLANK in text for text in texts) else super().encode_batch(texts)

    def pieces(self, text: str) -> tuple[str, ...]:
        first, *others = self._parts(text)
        return (*super().pieces(first), *(piece for part in others for piece in (BLANK, *super(BlankCodec, self).pieces(part))))

    def unknown(self, text: str) -> tuple[str, ...]:
        return tuple(symbol for part in self._parts(text) for symbol in super(BlankCodec, self).unknown(part))

    def _parts(self, text: str) -> Iterable[str]:
        """Splits a text at its blanks."""
        return re.split(f" ?{BLANK}" if self._is_bytes else BLANK, text)
