"""What a token may be, whichever library makes the tokens: how a codec of each unit is trained and read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, cast

from regard.data.documents import parse
from regard.data.tokenizers.codec import Codec, TokenUnit
from regard.data.tokenizers.contract import TextCodec
from regard.data.tokenizers.listed import TYPE as LISTED
from regard.data.tokenizers.listed import ListedCodec
from regard.data.tokenizers.pretrained import TYPE as PRETRAINED
from regard.data.tokenizers.pretrained import PretrainedCodec
from regard.data.tokenizers.sentencepieces import NormalRule, SentencePieces
from regard.errors import UserError

TextUnit = Literal[TokenUnit, "sentencepiece", "sentencepiece_bpe"]
"""What a token of a text is: see `TokenUnit`.

sentencepiece: subwords of SentencePiece, which other toolkits read (unigram). sentencepiece_bpe: the same, from byte-pair
merges.
"""
NormalForm = Literal["nfc", NormalRule]
SENTENCEPIECE: dict[str, Literal["unigram", "bpe"]] = {"sentencepiece": "unigram", "sentencepiece_bpe": "bpe"}
"""Units of SentencePiece, and their algorithms."""


def train_codec(texts: Iterable[str], unit: TextUnit, vocabulary: int, normalise: NormalForm) -> TextCodec:
    """Trains the codec of a unit on these texts. vocabulary: its maximum size. Raises UserError."""
    if unit in SENTENCEPIECE:
        return SentencePieces.train(texts, SENTENCEPIECE[unit], vocabulary, cast(NormalRule, normalise))
    return Codec.train(texts, cast(TokenUnit, unit), vocabulary, normalise=normalise == "nfc")


def read_codec(content: bytes, attachment: Callable[[str], bytes] | None = None) -> TextCodec:
    """Returns the codec of a source.tokenizer.json or target.tokenizer.json. Raises UserError if it is invalid.

    attachment: returns the content of the file with this suffix that is stored next to it; None if there are none.
    """
    description: Any = parse(content)
    kind = description.get("type") if isinstance(description, dict) else None
    if kind == LISTED:
        return ListedCodec.from_content(description)
    if kind == PRETRAINED:
        return PretrainedCodec.from_content(description)
    if kind == "sentencepiece":
        inside = "spm" in description or attachment is None
        return SentencePieces.from_content(description, None if inside or attachment is None else attachment("spm"))
    return Codec.from_content(description)


def check_normal_form(units: Iterable[str], normalise: str) -> None:
    """Raises UserError if texts of these units cannot be normalised so. units: those of both sides, without files."""
    others = [unit for unit in units if unit not in SENTENCEPIECE]
    pieces = [unit for unit in units if unit in SENTENCEPIECE]
    if pieces and others:
        raise UserError(
            f"the units are {pieces[0]} and {others[0]}, but texts of SentencePiece have a normalisation of their own; set "
            f"both to {pieces[0]}"
        )
    if pieces and normalise == "nfc":
        raise UserError(f"normalise=nfc is no normalisation of the unit {pieces[0]}; set normalise=nmt_nfkc, or none")
    if others and normalise not in ("nfc", "none"):
        raise UserError(
            f"normalise={normalise} is one of the unit sentencepiece, but the unit is {others[0]}; set normalise=nfc"
        )
