"""What reads and writes the texts of one side: their tokens, the ids of the tokens, and the special tokens among these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Protocol, runtime_checkable

from regard.contracts import OWN, Specials
from regard.errors import UserError
from regard.links import Units


@runtime_checkable  # pydantic checks the field `auxiliary` of file codecs
class TextCodec(Protocol):
    """A vocabulary of one side, or of both sides, and how texts are split into its tokens.

    `Codec` (codec.py) runs the tokenizers library and is what regard trains by default. A subclass defines the methods that
    have no body here. The others say what holds for a vocabulary without features and without merges.

    specials: the ids of its special tokens, which all parts of regard take from here.
    normalises: whether texts become NFC.
    """

    specials: Specials = OWN
    normalises: bool = False

    def __len__(self) -> int:
        """Returns the vocabulary size."""
        ...

    def encode(self, text: str) -> list[int]:
        """Returns the ids of the tokens of a text, without <sos> and <eos>. Raises UserError if it is not valid Unicode."""
        ...

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns `encode(text)` for each text."""
        return [self.encode(text) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of these ids."""
        ...

    def tokens(self, ids: Sequence[int]) -> tuple[str, ...]:
        """Returns one readable text for each id. If a character is split across tokens, it belongs to the first of them, and
        the others are empty."""
        ...

    def pieces(self, text: str) -> tuple[str, ...]:
        """Returns the part of the (normalised) text for each id of `encode`, also for unknown tokens."""
        ...

    def unknown(self, text: str) -> tuple[str, ...]:
        """Returns the parts of the text that the vocabulary lacks."""
        ...

    def to_json(self, *, attached: bool = False) -> str:
        """Returns the content of source.tokenizer.json or target.tokenizer.json. Equal codecs have equal contents.

        attached: whether its `attachments` are stored in files of their own, not in it."""
        ...

    @property
    def attachments(self) -> Mapping[str, bytes]:
        """Further files of the codec in a model folder, by suffix: "spm" is source.spm or target.spm."""
        return {}

    @property
    def prefix_tokens(self) -> tuple[str, ...]:
        """The tokens that say which language to write, such as >>deu<<, if there are any."""
        return ()

    def at(self, folder: object) -> TextCodec:
        """Returns self: unlike a file name (see `FileCodec.at`), a text does not depend on a folder."""
        return self

    def normalised(self, text: str) -> str:
        """Returns the text as the codec reads it."""
        return text

    @property
    def unit(self) -> str:
        """The unit of a codec whose normal form no other unit has; "" for all others."""
        return ""

    @property
    def normal_form(self) -> str:
        """How it normalises texts, as data.normalise names it."""
        return "nfc" if self.normalises else "none"

    def labels(self, text: str, axes: tuple[int, ...] = ()) -> tuple[str, ...]:
        """Returns one label per position of the memory: the pieces, and <eos> if sources end with it."""
        return (*self.pieces(text), *self.tokens(self.specials.source_end))

    def units(self, text: str, tokens: Sequence[str], *, pieces: bool | None = None) -> Units:
        """Returns what the links of an alignment count in a text: its words; its tokens if the unit is characters.

        text: a text, normalised if `normalises`.  tokens: the tokens of the text, from `pieces` or `tokens`.
        pieces: whether to count tokens, whatever the unit is; False counts words.
        """
        counts_tokens = self.has_characters if pieces is None else pieces
        return Units.tokens(len(tokens)) if counts_tokens else Units.words(text, tokens)

    @property
    def has_characters(self) -> bool:
        """Whether every character is a token."""
        return False

    @property
    def has_features(self) -> bool:
        """Whether a TAB starts a feature."""
        return False

    @property
    def num_features(self) -> int:
        """The number of features whose ids are the first after the special tokens."""
        return 0

    def has_feature(self, name: str) -> bool:
        """Whether the vocabulary has this feature."""
        return False

    @property
    def has_merges(self) -> bool:
        """Whether the codec has subword merges, as `bpe_dropout` requires."""
        return False

    def bpe_dropout(self, ids: Sequence[int], p: float, rng: Random) -> list[int]:
        """Returns ids of the same text, split into other subwords. Raises UserError if the codec has no merges."""
        raise UserError("subword dropout needs merges, which only the unit bpe has; use bpe, or set it to 0")
