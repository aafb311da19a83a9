"""Vocabularies of other people's models that the tokenizers library runs: byte-level merges, as Whisper has them, and the
WordPiece of BERT (Schuster & Nakajima 2012). The library gets the vocabulary and these two forms alone, never a tokenizer.json
of someone else."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal, get_args

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from regard.contracts import Specials
from regard.data.documents import mapping, validated
from regard.data.tokenizers.byte_level import LETTERS, readable, to_bytes
from regard.data.tokenizers.contract import TextCodec
from regard.errors import UserError, one_line, shown

Form = Literal["bytes", "wordpiece"]
TYPE = "pretrained"
"""What `type` says in the JSON file."""
CONTINUED = "##"
"""How a piece of WordPiece starts that continues a word."""


@dataclass(frozen=True)
class WordRules:
    """How BERT normalises texts. first: the id of the token that precedes every text, [CLS]."""

    lowercase: bool = True
    strip_accents: bool | None = None
    chinese: bool = True
    first: int = 0


class PretrainedCodec(TextCodec):
    """The tokens of another model, by id.

    form: bytes or wordpiece.  merges: pairs of tokens in the order in which they merge, for bytes.  rules: for wordpiece.
    control: the ids of tokens that are no text, such as <|en|>; decoding leaves them out.

    With bytes, a text has a space before its first word, as in the texts that Whisper learned from, and decoding removes it.
    """

    def __init__(
        self,
        form: Form,
        names: Sequence[str],
        specials: Specials,
        *,
        merges: Sequence[tuple[str, str]] = (),
        control: Sequence[int] = (),
        rules: WordRules | None = None,
    ) -> None:
        """Raises UserError if the parts contradict each other."""
        self.form, self.names, self.specials = form, tuple(names), specials
        self.merges, self.control, self.rules = tuple(merges), frozenset(control), rules or WordRules()
        ids = {name: number for number, name in enumerate(self.names)}
        if len(ids) < len(self.names):
            raise UserError(f"its vocabulary contains duplicate tokens: {len(self.names) - len(ids):,}")
        numbers = {*specials.ids, *specials.prefix, *specials.never, *specials.never_first, *self.control, self.rules.first}
        if outside := [number for number in numbers if not 0 <= number < len(self.names)]:
            raise UserError(f"a special token has the id {outside[0]}, but there are only {len(self.names)} tokens")
        texts = {name: number for name, number in ids.items() if number not in self.control}
        try:
            self._tokenizer = _bytes(texts, self.merges) if form == "bytes" else _wordpiece(ids, self)
        except Exception as error:  # the library raises nothing more precise
            raise UserError(f"the tokenizers library cannot read its vocabulary: {one_line(error)}") from None
        if form == "bytes" and (odd := next((name for name in texts if not set(name) <= _LETTERS), None)) is not None:
            raise UserError(f"its token {shown(odd)} is not spelled in bytes")

    def __len__(self) -> int:
        return len(self.names)

    def encode(self, text: str) -> list[int]:
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        first = [self.rules.first] if self.form == "wordpiece" else []
        return [[*first, *encoding.ids] for encoding in self._encodings(texts)]

    def _encodings(self, texts: Sequence[str]) -> list[Any]:
        given = [f" {text}" if text and self.form == "bytes" else text for text in map(self.normalised, texts)]
        try:
            encodings: list[Any] = self._tokenizer.encode_batch(given, add_special_tokens=False)
        except TypeError:
            wrong = next(text for text in texts if any("\ud800" <= char <= "\udfff" for char in text))
            raise UserError(
                f"the text {wrong!a:.60} is not valid Unicode: it contains a lone surrogate; pass it as UTF-8"
            ) from None
        return encodings

    def normalised(self, text: str) -> str:
        return text.strip() if self.form == "bytes" else text

    def pieces(self, text: str) -> tuple[str, ...]:
        (encoding,) = self._encodings([text])
        if self.form == "bytes":
            parts = readable(map(to_bytes, encoding.tokens))
            return (parts[0].removeprefix(" "), *parts[1:]) if parts else ()
        return "", *(text[start:end] for start, end in encoding.offsets)

    def labels(self, text: str, axes: tuple[int, ...] = ()) -> tuple[str, ...]:
        first = self.tokens([self.rules.first]) if self.form == "wordpiece" else ()
        return (*first, *self.pieces(text)[len(first) :], *self.tokens(self.specials.source_end))

    def unknown(self, text: str) -> tuple[str, ...]:
        if self.form == "bytes":
            return ()
        pairs = zip(self.pieces(text), self.encode(text), strict=True)
        return tuple(piece for piece, number in pairs if number == self.specials.unk)

    def tokens(self, ids: Sequence[int]) -> tuple[str, ...]:
        names = [self.names[number] for number in ids]
        if self.form == "wordpiece":
            return tuple(names)
        return tuple(
            readable(
                name.encode() if number in self.control else to_bytes(name) for name, number in zip(names, ids, strict=True)
            )
        )

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of these ids, without control tokens."""
        text = [number for number in ids if number not in self.control]
        decoded = str(self._tokenizer.decode(text, skip_special_tokens=False))
        return decoded.strip() if self.form == "bytes" else decoded

    @cached_property
    def _facts(self) -> dict[str, Any]:
        return {
            "type": TYPE,
            "form": self.form,
            "specials": asdict(self.specials),
            "control": sorted(self.control),
            "rules": asdict(self.rules),
            "merges": [list(pair) for pair in self.merges],
            "tokens": list(self.names),
        }

    def to_json(self, *, attached: bool = False) -> str:
        return json.dumps(self._facts, ensure_ascii=False)

    @classmethod
    def from_content(cls, content: Any) -> PretrainedCodec:
        """Returns the codec of a parsed JSON file. Raises UserError if it is invalid."""
        given = mapping(content, "a vocabulary")
        names, merges, control = given.get("tokens"), given.get("merges"), given.get("control")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise UserError(f"its tokens are {shown(names)}, expected a list of strings")
        if not isinstance(merges, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in merges):
            raise UserError(f"its merges are {shown(merges)}, expected a list of pairs")
        if not isinstance(control, list) or not all(type(number) is int for number in control):
            raise UserError(f"its control tokens are {shown(control)}, expected a list of ids")
        if given.get("form") not in get_args(Form):
            raise UserError(f"its form is {shown(given.get('form'))}, expected one of {', '.join(get_args(Form))}")
        specials: Specials = validated(Specials, mapping(given.get("specials"), "specials"), "specials")
        rules: WordRules = validated(WordRules, mapping(given.get("rules"), "rules"), "rules")
        pairs = [(str(left), str(right)) for left, right in merges]
        return cls(given["form"], names, specials, merges=pairs, control=control, rules=rules)


_LETTERS = frozenset(LETTERS.values())


def _bytes(ids: Mapping[str, int], merges: Sequence[tuple[str, str]]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(dict(ids), list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _wordpiece(ids: Mapping[str, int], codec: PretrainedCodec) -> Tokenizer:
    rules, unknown = codec.rules, codec.names[codec.specials.unk]
    tokenizer = Tokenizer(models.WordPiece(dict(ids), unk_token=unknown, continuing_subword_prefix=CONTINUED))
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=rules.chinese,
        strip_accents=rules.strip_accents,
        lowercase=rules.lowercase,
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix=CONTINUED)
    return tokenizer
