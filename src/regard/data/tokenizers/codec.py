"""From text to numbers and back, through the `tokenizers` library: one JSON file per side, which other tools can read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from tokenizers import Regex, Tokenizer, decoders
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split

from regard.errors import UserError

Unit = Literal["characters", "symbols"]
"""What a token is: every character, or whatever stands between spaces."""

PAD, UNK, SOS, EOS = 0, 1, 2, 3
SPECIALS = ("<pad>", "<unk>", "<sos>", "<eos>")

_SPLIT = {"characters": (Regex(r"[\s\S]"), "isolated"), "symbols": (Regex(" +"), "removed")}


class Codec:
    """One side's vocabulary. Ids 0-3 are <pad>, <unk>, <sos>, <eos>; the rest is sorted, so equal data gives equal ids."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    @classmethod
    def learn(cls, texts: Iterable[str], unit: Unit) -> Codec:
        """The vocabulary of these texts."""
        symbols = set().union(*(text.split(" ") if unit == "symbols" else text for text in texts)) - {""}
        reserved = sorted(symbols.intersection(SPECIALS))
        if reserved:
            raise UserError(
                f"the data contains the symbol {reserved[0]!r}, which has a meaning of its own; write it another way"
            )
        vocabulary = {symbol: number for number, symbol in enumerate((*SPECIALS, *sorted(symbols)))}
        tokenizer = Tokenizer(WordLevel(vocabulary, unk_token=SPECIALS[UNK]))
        tokenizer.pre_tokenizer = Split(*_SPLIT[unit])
        if unit == "characters":
            tokenizer.decoder = decoders.Fuse()
        return cls(tokenizer)

    @classmethod
    def from_json(cls, text: str) -> Codec:
        return cls(Tokenizer.from_str(text))

    def to_json(self) -> str:
        return str(self.tokenizer.to_str(pretty=True))

    def __len__(self) -> int:
        return int(self.tokenizer.get_vocab_size())

    def encode(self, text: str) -> list[int]:
        """Ids of the tokens, without <sos> and <eos>. What the vocabulary lacks is <unk>; so is text that spells a special."""
        return [number if number >= len(SPECIALS) else UNK for number in self.tokenizer.encode(text).ids]

    def pieces(self, text: str) -> tuple[str, ...]:
        """The tokens as they stand in the text, one for each id of `encode`, those that the vocabulary lacks too."""
        return tuple(text[start:end] for start, end in self.tokenizer.encode(text).offsets)

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))

    def tokens(self, ids: Sequence[int]) -> tuple[str, ...]:
        return tuple(str(self.tokenizer.id_to_token(number)) for number in ids)
