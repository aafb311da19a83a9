"""Encodes and decodes text with the `tokenizers` library: one tokenizer.json per side, which other tools can read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, cached_property
from itertools import takewhile
from random import Random
from typing import Any, Literal, get_args

from tokenizers import Encoding, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from regard.contracts import OWN
from regard.data.documents import parse
from regard.data.tokenizers.byte_level import LETTERS, readable, spell, to_bytes
from regard.data.tokenizers.contract import TextCodec
from regard.data.tokenizers.merges import Merges
from regard.data.tokenizers.normal import NFC, nfc
from regard.data.tokenizers.schema import VARIES, Form, alphabet, bare, trusted
from regard.errors import UserError, did_you_mean, one_line

TokenUnit = Literal["bpe", "characters", "words", "symbols", "unigram", "labels"]
"""What a token is.

bpe: byte-level subwords from byte-pair merges (Sennrich et al. 2016); every text is decoded exactly, and nothing is unknown.
unigram: the same, but the subwords are chosen by their probability. Training it twice gives two different vocabularies.
characters: every character, including white space.
words: split at white space and punctuation; each punctuation mark is a token, unless it is inside a word (don't, e-mail, 3.14).
    Decoding joins words by a space, except before .,;:!?%)]}…’” and after ([{¿¡„.
symbols: split at spaces; decoding joins them by a space.
labels: the whole text is one token.
"""

SPECIALS = ("<pad>", "<unk>", "<sos>", "<eos>")
"""The names of the special tokens of this codec, by id; see `contracts.OWN`."""

REMARKS: dict[TokenUnit, str] = {
    "unigram": "a unigram vocabulary is not reproducible: training it again on the same data gives a slightly different one; "
    "keep its file, or use bpe"
}
"""Notes to print before a vocabulary of the unit is trained."""

_FEATURE = r"\t[^\t]*"
_IN_WORD = r"[\p{L}\p{M}\p{N}_]+"
_PATTERNS: dict[TokenUnit, str] = {
    # Whether two neighbouring characters may share a token depends on these two alone; merges.py relies on that.
    "bpe": r" ?[\p{L}\p{M}]+| ?\p{N}+| ?[^\s\p{L}\p{M}\p{N}]+|\s",
    "unigram": r" ?[\p{L}\p{M}]+| ?\p{N}+| ?[^\s\p{L}\p{M}\p{N}]+|\s",
    "characters": r"[\s\S]",
    "words": rf"{_IN_WORD}(?:(?:['’-]|(?<=\p{{N}})[.,](?=\p{{N}})){_IN_WORD})*|[^\s\p{{L}}\p{{M}}\p{{N}}_]",
    "symbols": r"[^ ]+",
    "labels": r"[^\n]+",
}
_NO_SPACE = r" (?=[.,;:!?%)\]}…’”。，、；：！？）])|(?<=[(\[{¿¡„（]) "
_KEEP_ALL = 2**31
_NEVER = -1e6
"""Log-probability of the special tokens in a unigram vocabulary, so low that no text is split into them."""


class Codec(TextCodec):
    """A tokenizer with the vocabulary of one side, or of both sides. Ids 0-3 are <pad>, <unk>, <sos>, <eos>.

    A TAB starts a feature, which extends to the next TAB or to the end: "walk\\tV\\tPST". If the training texts have features,
    "\\tV" is one token, whatever the unit. An unknown feature is <unk>; with bpe and unigram it is split into subwords like
    other text, and with unigram the first subword may be a known feature. If the training texts have no features, TABs are
    ordinary characters.

    normalises: whether texts are normalised to NFC, as the normalizer of the tokenizer.json says.
    """

    def __init__(self, tokenizer: Tokenizer, alphabet: str = "") -> None:
        """alphabet: the characters of the texts that a bpe or unigram vocabulary was trained on."""
        self.tokenizer, self.alphabet = tokenizer, alphabet
        self._is_bytes = not isinstance(tokenizer.model, models.WordLevel)
        self.normalises = tokenizer.normalizer is not None

    @classmethod
    def train(cls, texts: Iterable[str], unit: TokenUnit, vocabulary: int = 8000, *, normalise: bool = False) -> Codec:
        """Trains a tokenizer on these texts and returns it. Equal texts give equal files (except unigram: see REMARKS).

        texts: read once, in a thread of the library; wrap the iterable to show progress. vocabulary: maximum size for
        bpe, unigram and words, including special tokens but not features. The vocabulary may be smaller: bpe only merges pairs
        that occur at least twice. Of words the most frequent are kept, of characters and symbols all. normalise: whether texts
        are normalised to NFC, in training and whenever the codec encodes.

        Raises UserError for an unknown unit, a vocabulary that is too small, too many features, or a reserved symbol.
        """
        if unit not in get_args(TokenUnit):
            units = list(get_args(TokenUnit))
            raise UserError(f"unknown unit {unit!r}; expected one of {', '.join(units)}{did_you_mean(unit, units)}")
        reader = _Reader(map(nfc, texts) if normalise else texts, vocabulary)
        is_bytes = unit in ("bpe", "unigram")
        least = len(SPECIALS) + (len(LETTERS) if is_bytes else 1)
        if vocabulary < least:
            content = "the special tokens and all 256 bytes" if is_bytes else "the special tokens and one other"
            raise UserError(f"got a vocabulary of {vocabulary} ids for {unit}, expected at least {least}: {content}")
        codec = (_train_pieces if is_bytes else _train_symbols)(reader, unit, vocabulary)
        if not normalise:
            return codec
        codec.tokenizer.normalizer = NFC
        return cls(codec.tokenizer, codec.alphabet)

    @classmethod
    def from_json(cls, content: str | bytes) -> Codec:
        """Returns the codec of a tokenizer.json. Raises UserError if it has parts that regard does not write."""
        return cls.from_content(parse(content))

    @classmethod
    def from_content(cls, content: Any) -> Codec:
        """Returns the codec of a parsed tokenizer.json. Raises UserError if it has parts that regard does not write."""
        checked = trusted(content, _forms(), SPECIALS)
        try:
            tokenizer = Tokenizer.from_str(json.dumps(checked))
        except Exception as error:  # the library raises nothing more precise
            raise UserError(f"the tokenizers library cannot read it: {one_line(error)}") from None
        return cls(tokenizer, alphabet(content))

    def to_json(self, *, attached: bool = False) -> str:
        """Returns a tokenizer.json. For bpe and unigram it also contains the alphabet, which other tools ignore."""
        if not self._is_bytes:
            return str(self.tokenizer.to_str(pretty=True))
        content = json.loads(self.tokenizer.to_str())
        content["model"]["alphabet"] = self.alphabet
        return json.dumps(content, ensure_ascii=False, indent=2)

    def __len__(self) -> int:
        """Returns the vocabulary size."""
        return int(self.tokenizer.get_vocab_size())

    def normalised(self, text: str) -> str:
        """Returns the text in NFC if `normalises`, otherwise unchanged."""
        return nfc(text) if self.normalises else text

    def encode(self, text: str) -> list[int]:
        """Returns the ids of the tokens, without <sos> and <eos>. Unknown tokens, and texts such as "<eos>", become <unk>.

        With bpe and unigram there is no <unk>, and "<eos>" is encoded like other text. Raises UserError if the text is not
        valid Unicode.
        """
        return self._plain(self._encoding(text).ids)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns `encode(text)` for each text, computed on all cores."""
        try:
            encodings = self.tokenizer.encode_batch_fast(list(map(self._with_whole_features, texts)))
            return [self._plain(encoding.ids) for encoding in encodings]
        except TypeError:
            return [self.encode(text) for text in texts]  # `encode` raises for the text that is not valid Unicode

    def _encoding(self, text: str) -> Encoding:
        try:
            return self.tokenizer.encode(self._with_whole_features(text))
        except TypeError:  # a lone surrogate, from bytes that are not UTF-8 or from "\\ud800" in JSON
            raise UserError(
                f"the text {text!a:.60} is not valid Unicode: it contains a lone surrogate; pass it as UTF-8"
            ) from None

    def _with_whole_features(self, text: str) -> str:
        """Returns the text as older versions of `source_text.flat` gave it, which did not split IN+ESS; for their tokens."""
        return text.replace("\t+", "+") if self._has_whole_features else text

    @cached_property
    def _has_whole_features(self) -> bool:
        tab = spell("\t") if self._is_bytes else "\t"
        return self.has_features and any("+" in token[2:-1] for token in self.tokenizer.get_vocab() if token.startswith(tab))

    def _plain(self, ids: list[int]) -> list[int]:
        """Replaces special tokens that the text spells out by <unk>."""
        return ids if self._is_bytes else [number if number >= len(SPECIALS) else OWN.unk for number in ids]

    def pieces(self, text: str) -> tuple[str, ...]:
        """Returns the part of the (normalised) text for each id of `encode`, also for unknown tokens.

        With characters, bpe and unigram, the pieces join to the text. If a character is split across tokens, it belongs to the
        first of them, and the others are empty.
        """
        text = self._with_whole_features(self.normalised(text))  # first, because offsets refer to what the tokenizer is given
        encoding = self._encoding(text)
        if self._is_bytes:
            return self.tokens(encoding.ids)
        return tuple(text[start:end] for start, end in encoding.offsets)

    def unknown(self, text: str) -> tuple[str, ...]:
        """Returns the parts of the text that were not in the training texts: pieces that became <unk>; with bpe and unigram,
        which have no <unk>, characters and features.
        """
        if not self._is_bytes:
            return tuple(piece for piece, number in zip(self.pieces(text), self.encode(text), strict=True) if number == OWN.unk)
        text = self.normalised(text)
        rest, *features = self._with_whole_features(text).split("\t") if self.has_features else [text]
        missing = [f"\t{name}" for name in features if self.tokenizer.token_to_id(spell(f"\t{name}")) is None]
        return (*(char for char in rest if char not in self._known), *missing)

    @cached_property
    def has_characters(self) -> bool:
        """Whether every character is a token."""
        return len(self.tokenizer.pre_tokenizer.pre_tokenize_str("ab")) == 2

    @property
    def has_merges(self) -> bool:
        """Whether the tokenizer has subword merges, as `bpe_dropout` requires."""
        return isinstance(self.tokenizer.model, models.BPE)

    def bpe_dropout(self, ids: Sequence[int], p: float, rng: Random) -> list[int]:
        """Applies BPE-dropout (Provilkov et al. 2020): returns ids of the same text, split into other subwords; at p = 0 as by
        `encode`, at p = 1 into bytes.

        The result depends only on (ids, p, the state of `rng`). Special tokens and features stay whole. Raises UserError if the
        unit is not bpe or p is not a probability. See merges.py.
        """
        if not 0 <= p <= 1:
            raise UserError(f"subword dropout is {p}, expected a probability from 0 to 1")
        return self._merges.bpe_dropout(ids, p, rng)

    @cached_property
    def _merges(self) -> Merges:
        if not self.has_merges:
            raise UserError("subword dropout needs merges, which only the unit bpe has; use bpe, or set it to 0")
        return Merges(self.tokenizer, len(SPECIALS), self.has_features)

    @cached_property
    def _known(self) -> frozenset[str]:
        return frozenset(self.alphabet)

    @cached_property
    def has_features(self) -> bool:
        """Whether a TAB starts a feature."""
        return len(self.tokenizer.pre_tokenizer.pre_tokenize_str("\ta.")) == 1

    @cached_property
    def num_features(self) -> int:
        """The number of features whose ids are the first after the special tokens, as in vocabularies of characters, words and
        symbols."""
        ids = range(len(SPECIALS), len(self))
        return sum(1 for _ in takewhile(lambda number: str(self.tokenizer.id_to_token(number)).startswith("\t"), ids))

    def has_feature(self, name: str) -> bool:
        """Whether "\\t" + name is a token of a vocabulary of characters, words or symbols."""
        return self.tokenizer.token_to_id(f"\t{name}") is not None

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of these ids; special tokens are not removed."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))

    def tokens(self, ids: Sequence[int]) -> tuple[str, ...]:
        """Returns one readable text for each id; characters that are split across tokens are treated as in `pieces`."""
        names = (str(self.tokenizer.id_to_token(number)) for number in ids)
        return tuple(readable(map(to_bytes, names)) if self._is_bytes else names)


class _Reader:
    """Iterates over texts without their features. Once all are read, `features` and `alphabet` are complete."""

    def __init__(self, texts: Iterable[str], most_features: int) -> None:
        self.texts, self.most_features = texts, most_features
        self.features: set[str] = set()
        self.alphabet: set[str] = set()

    def __iter__(self) -> Iterator[str]:
        for text in self.texts:
            rest, *features = text.split("\t")
            self.features.update(f"\t{name}" for name in features)
            self.alphabet.update(rest)
            if len(self.features) > self.most_features:
                raise UserError(
                    f"the texts have more than {self.most_features} different features, such as {features[-1]!r:.40}: the text "
                    "after a TAB is one token; if TABs are white space, replace them by spaces, or set a larger vocabulary"
                )
            yield rest


def _train_symbols(reader: _Reader, unit: TokenUnit, vocabulary: int) -> Codec:
    counter = Tokenizer(models.WordLevel(unk_token=SPECIALS[OWN.unk]))
    counter.pre_tokenizer = _pre_tokenizer(unit, features=False)  # the reader removes them
    room = vocabulary - len(SPECIALS) if unit == "words" else _KEEP_ALL
    counter.train_from_iterator(reader, trainers.WordLevelTrainer(vocab_size=room, special_tokens=[], show_progress=False))
    symbols = counter.get_vocab().keys()
    reserved = sorted((symbols | reader.features).intersection(SPECIALS))
    if reserved:
        raise UserError(f"the data contains the symbol {reserved[0]!r}, which is reserved; replace it with another symbol")
    numbers = {symbol: number for number, symbol in enumerate((*SPECIALS, *sorted(reader.features), *sorted(symbols)))}
    return Codec(_assembled(models.WordLevel(numbers, unk_token=SPECIALS[OWN.unk]), unit, features=bool(reader.features)))


def _train_pieces(reader: _Reader, unit: TokenUnit, vocabulary: int) -> Codec:
    options: dict[str, Any] = {
        "vocab_size": vocabulary,
        "special_tokens": list(SPECIALS),
        "initial_alphabet": list(LETTERS.values()),
        "show_progress": False,
    }
    tokenizer = _assembled(models.BPE() if unit == "bpe" else models.Unigram(), unit, features=False)
    if unit == "bpe":
        trainer: Any = trainers.BpeTrainer(min_frequency=2, **options)
    else:
        trainer = trainers.UnigramTrainer(unk_token=SPECIALS[OWN.unk], **options)
    tokenizer.train_from_iterator(reader, trainer)
    tokenizer.pre_tokenizer = _pre_tokenizer(unit, features=bool(reader.features))  # complete only now

    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = []  # otherwise the text "<eos>" would become the special token
    model = content["model"]
    features = [token for token in map(spell, sorted(reader.features)) if tokenizer.token_to_id(token) is None]
    if unit == "bpe":
        model["vocab"] |= {token: number for number, token in enumerate(features, start=len(model["vocab"]))}
        model["ignore_merges"] = bool(features)  # features are whole tokens, without merges
    else:
        specials = [[special, _NEVER] for special in SPECIALS]
        model["vocab"] = [*specials, *model["vocab"][len(specials) :], *([token, 0.0] for token in features)]
    return Codec(Tokenizer.from_str(json.dumps(content)), "".join(sorted(reader.alphabet)))


# --- the parts of a tokenizer.json -------------------------------------------------------------------------------------------


def _assembled(model: models.Model, unit: TokenUnit, *, features: bool) -> Tokenizer:
    """Returns a tokenizer of this unit. features: whether a TAB starts a feature."""
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = _pre_tokenizer(unit, features=features)
    tokenizer.decoder = _decoder(unit, features=features)
    return tokenizer


def _pre_tokenizer(unit: TokenUnit, *, features: bool) -> pre_tokenizers.PreTokenizer:
    plain = _PATTERNS[unit]
    pattern = Regex(_FEATURE + "|" + plain.replace("[^ ]", r"[^ \t]").replace(r"[^\n]", r"[^\n\t]") if features else plain)
    if unit not in ("bpe", "unigram"):
        return pre_tokenizers.Split(pattern, "removed", invert=True)
    parts = [pre_tokenizers.Split(pattern, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    return pre_tokenizers.Sequence(parts)


def _decoder(unit: TokenUnit, *, features: bool) -> decoders.Decoder:
    if unit in ("bpe", "unigram"):
        return decoders.ByteLevel()
    steps: list[Any] = [decoders.Fuse()]
    if unit != "characters":
        steps.insert(0, decoders.WordPiece(prefix=" ", cleanup=False))  # a space before each but the first
    if unit == "words":
        steps.append(decoders.Replace(Regex(_NO_SPACE), ""))
    if unit != "characters" and features:
        steps.append(decoders.Replace(" \t", "\t"))
    return decoders.Sequence(steps)


@cache
def _forms() -> tuple[tuple[Form, Form], ...]:
    """Returns (bare form, whole form) of every tokenizer.json that this and earlier versions write, without vocabularies."""
    kinds: dict[str, Any] = {"bpe": models.BPE, "unigram": models.Unigram}
    made = [
        _assembled(kinds.get(unit, models.WordLevel)(), unit, features=features)
        for unit in get_args(TokenUnit)
        for features in (False, True)
    ]
    return tuple((bare(form), form) for form in map(_form, [*made, *_early()]))


def _early() -> Iterator[Tokenizer]:
    """Yields the tokenizers of characters and symbols that the first versions wrote."""
    for pattern, behaviour, decoder in (
        (r"\s+", "removed", None),
        (" +", "removed", None),
        (_PATTERNS["characters"], "isolated", decoders.Fuse()),
    ):
        tokenizer = Tokenizer(models.WordLevel())
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), behaviour)
        tokenizer.decoder = decoder
        yield tokenizer


def _form(tokenizer: Tokenizer) -> Form:
    """Returns the tokenizer.json of a tokenizer without its vocabulary."""
    form: Form = json.loads(tokenizer.to_str())
    form["model"] = {name: value for name, value in form["model"].items() if name not in VARIES}
    if form["model"]["type"] == "WordLevel":
        form["model"]["unk_token"] = SPECIALS[OWN.unk]
    if form["model"]["type"] == "Unigram":
        form["model"]["unk_id"] = OWN.unk
    return form
