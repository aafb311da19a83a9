"""From text to numbers and back, through the `tokenizers` library: one JSON file per side, which other tools can read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, cached_property
from itertools import chain
from random import Random
from typing import Any, Literal, get_args

from tokenizers import Encoding, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from regard.data.documents import parse
from regard.data.tokenizers.byte_level import LETTERS, readable, spell, to_bytes
from regard.data.tokenizers.merges import Merges
from regard.data.tokenizers.normal import NFC, nfc
from regard.data.tokenizers.schema import VARIES, Form, alphabet, bare, trusted
from regard.errors import UserError, did_you_mean, one_line

TokenUnit = Literal["bpe", "characters", "words", "symbols", "unigram"]
"""What a token is.

bpe: pieces of words, made of bytes, so that every text comes back exactly and nothing is unknown.
unigram: the same, but the pieces are chosen by their probability. Learning it twice gives two vocabularies.
characters: every character, white space too.
words: what stands between white space and punctuation; each punctuation mark is a word, but one inside a word (don't, e-mail,
    3.14) belongs to it. Joined again by a space, except before .,;:!?%)]}…’” and after ([{¿¡„.
symbols: whatever stands between spaces; joined again by a space.
"""

PAD, UNK, SOS, EOS = 0, 1, 2, 3
SPECIALS = ("<pad>", "<unk>", "<sos>", "<eos>")

REMARKS: dict[TokenUnit, str] = {
    "unigram": "a unigram vocabulary is not reproducible: learnt again from the same data it comes out a little different; "
    "keep its file, or take bpe"
}
"""What a user should be told about a unit before its vocabulary is learnt."""

_FEATURE = r"\t[^\t]*"
_IN_WORD = r"[\p{L}\p{M}\p{N}_]+"
_PATTERNS: dict[TokenUnit, str] = {
    # Whether two characters may share a piece depends on these two alone; merges.py rests on that.
    "bpe": r" ?[\p{L}\p{M}]+| ?\p{N}+| ?[^\s\p{L}\p{M}\p{N}]+|\s",
    "unigram": r" ?[\p{L}\p{M}]+| ?\p{N}+| ?[^\s\p{L}\p{M}\p{N}]+|\s",
    "characters": r"[\s\S]",
    "words": rf"{_IN_WORD}(?:(?:['’-]|(?<=\p{{N}})[.,](?=\p{{N}})){_IN_WORD})*|[^\s\p{{L}}\p{{M}}\p{{N}}_]",
    "symbols": r"[^ ]+",
}
_NO_SPACE = r" (?=[.,;:!?%)\]}…’”。，、；：！？）])|(?<=[(\[{¿¡„（]) "
_KEEP_ALL = 2**31
_NEVER = -1e6
"""Log-probability of the specials in a unigram vocabulary: no text is cut into these."""


class Codec:
    """One side's vocabulary, or that of both sides. Ids 0-3 are <pad>, <unk>, <sos>, <eos>.

    A TAB starts a feature, which runs to the next TAB or to the end: "walk\\tV\\tPST". If the texts that were learnt from have
    any, "\\tV" is one token, whatever the unit. A feature that was not among them is <unk>; with bpe it falls apart into pieces
    like other text, with unigram too, where a known feature may be the first piece. Texts without features leave TABs alone.

    normalises: whether texts are read in Unicode's composed spelling (NFC), as the normalizer of the tokenizer.json says.
    """

    def __init__(self, tokenizer: Tokenizer, alphabet: str = "") -> None:
        """`alphabet`: the characters that bpe or unigram learnt from."""
        self.tokenizer, self.alphabet = tokenizer, alphabet
        self._is_bytes = not isinstance(tokenizer.model, models.WordLevel)
        self.normalises = tokenizer.normalizer is not None

    @classmethod
    def learn(cls, texts: Iterable[str], unit: TokenUnit, vocabulary: int = 8000, *, normalise: bool = False) -> Codec:
        """The vocabulary of these texts, which are read once. Equal texts give equal files (except unigram: see REMARKS).

        `vocabulary`: how many ids bpe, unigram and words may have, specials among them; features come on top. There may be
        fewer: bpe merges nothing that occurs once. Of the words the most frequent are kept; characters and symbols all.
        Whoever wants to see progress wraps the texts; the library reads them in a thread of its own.
        normalise: whether different Unicode spellings of a text are one text, here and wherever the codec reads.
        """
        if unit not in get_args(TokenUnit):
            units = list(get_args(TokenUnit))
            raise UserError(f"unknown unit {unit!r}; expected one of {', '.join(units)}{did_you_mean(unit, units)}")
        reader = _Reader(map(nfc, texts) if normalise else texts, vocabulary)
        is_bytes = unit in ("bpe", "unigram")
        least = len(SPECIALS) + (len(LETTERS) if is_bytes else 1)
        if vocabulary < least:
            content = "the special tokens and all 256 bytes" if is_bytes else "the special tokens and something else"
            raise UserError(f"the vocabulary of {unit} is to have {vocabulary} ids, expected at least {least}: {content}")
        codec = (_learn_pieces if is_bytes else _learn_symbols)(reader, unit, vocabulary)
        if not normalise:
            return codec
        codec.tokenizer.normalizer = NFC
        return cls(codec.tokenizer, codec.alphabet)

    @classmethod
    def from_json(cls, content: str | bytes) -> Codec:
        return cls.from_content(parse(content))

    @classmethod
    def from_content(cls, content: Any) -> Codec:
        """From a tokenizer.json that is parsed. UserError where it has other parts than those that we write."""
        checked = trusted(content, _forms(), SPECIALS)
        try:
            tokenizer = Tokenizer.from_str(json.dumps(checked))
        except Exception as error:  # the library raises nothing more precise
            raise UserError(f"the tokenizers library cannot read it: {one_line(error)}") from None
        return cls(tokenizer, alphabet(content))

    def to_json(self) -> str:
        """A tokenizer.json. With bpe and unigram it also holds the alphabet, which other tools pass over."""
        if not self._is_bytes:
            return str(self.tokenizer.to_str(pretty=True))
        content = json.loads(self.tokenizer.to_str())
        content["model"]["alphabet"] = self.alphabet
        return json.dumps(content, ensure_ascii=False, indent=2)

    def at(self, folder: object) -> Codec:
        """A text means the same wherever it is read; names of files do not."""
        return self

    def __len__(self) -> int:
        return int(self.tokenizer.get_vocab_size())

    def normalised(self, text: str) -> str:
        """The spelling that is read."""
        return nfc(text) if self.normalises else text

    def encode(self, text: str) -> list[int]:
        """Ids of the tokens, without <sos> and <eos>. What the vocabulary lacks is <unk>; so is a symbol that spells a special.

        With bpe and unigram there is no <unk>, and "<eos>" is text like other text.
        """
        return self._plain(self._encoding(text).ids)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The same for many texts at once, on all cores."""
        try:
            return [self._plain(one.ids) for one in self.tokenizer.encode_batch_fast(list(texts))]
        except TypeError:
            return [self.encode(text) for text in texts]  # the one that is not Unicode raises

    def _encoding(self, text: str) -> Encoding:
        try:
            return self.tokenizer.encode(text)
        except TypeError:  # a lone surrogate: of bytes that are not UTF-8, or of "\\ud800" in JSON
            raise UserError(f"the text {text!a:.60} is not Unicode: it holds half a character; give it as UTF-8") from None

    def _plain(self, ids: list[int]) -> list[int]:
        return ids if self._is_bytes else [number if number >= len(SPECIALS) else UNK for number in ids]

    def pieces(self, text: str) -> tuple[str, ...]:
        """The tokens as they stand in the (normalised) text, one for each id of `encode`, those that the vocabulary lacks too.

        Those of characters, bpe and unigram joined are the text. A character that is split over several tokens belongs to the
        first, and the others are empty.
        """
        text = self.normalised(text)  # offsets are those of the text that is given
        encoding = self._encoding(text)
        if self._is_bytes:
            return self.tokens(encoding.ids)
        return tuple(text[start:end] for start, end in encoding.offsets)

    def labels(self, text: str, axes: tuple[int, ...] = ()) -> tuple[str, ...]:
        """One for every place of the memory: the pieces and <eos>."""
        return (*self.pieces(text), SPECIALS[EOS])

    def unknown(self, text: str) -> tuple[str, ...]:
        """What was never seen when the vocabulary was learnt: pieces that became <unk>; with bpe and unigram, which have no
        <unk>, characters and features.
        """
        if not self._is_bytes:
            return tuple(piece for piece, number in zip(self.pieces(text), self.encode(text), strict=True) if number == UNK)
        text = self.normalised(text)
        rest, *features = text.split("\t") if self.has_features else [text]
        missing = [f"\t{one}" for one in features if self.tokenizer.token_to_id(spell(f"\t{one}")) is None]
        return (*(char for char in rest if char not in self._known), *missing)

    @property
    def has_pieces(self) -> bool:
        """Whether tokens are pieces of words, as those of bpe and unigram are."""
        return self._is_bytes

    @property
    def has_merges(self) -> bool:
        """Whether `redrop` works."""
        return isinstance(self.tokenizer.model, models.BPE)

    def redrop(self, ids: Sequence[int], p: float, chance: Random) -> list[int]:
        """Subword dropout for bpe: the text of these ids, cut in another way; at p = 0 as `encode` cuts it, at 1 into bytes.

        A function of (ids, p, the state of `chance`) alone. Specials and features stay whole. See merges.py.
        """
        if not 0 <= p <= 1:
            raise UserError(f"subword dropout is {p}, expected a probability from 0 to 1")
        return self._merges.redrop(ids, p, chance)

    @cached_property
    def _merges(self) -> Merges:
        if not self.has_merges:
            raise UserError("subword dropout needs merges, which only the unit bpe has; take bpe, or leave it at 0")
        return Merges(self.tokenizer, len(SPECIALS), self.has_features)

    @cached_property
    def _known(self) -> frozenset[str]:
        return frozenset(self.alphabet)

    @cached_property
    def has_features(self) -> bool:
        """Whether a TAB starts a feature."""
        return len(self.tokenizer.pre_tokenizer.pre_tokenize_str("\ta.")) == 1

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))

    def tokens(self, ids: Sequence[int]) -> tuple[str, ...]:
        """One readable text for each id; characters that are split over several tokens as in `pieces`."""
        names = (str(self.tokenizer.id_to_token(number)) for number in ids)
        return tuple(readable(map(to_bytes, names)) if self._is_bytes else names)


def learn_shared(
    source: Iterable[str], target: Iterable[str], unit: TokenUnit, vocabulary: int = 8000, *, normalise: bool = False
) -> Codec:
    """One vocabulary for both sides; each side is read once, the source first."""
    return Codec.learn(chain(source, target), unit, vocabulary, normalise=normalise)


class _Reader:
    """Texts without their features. Which features and characters there are is known when all have been read."""

    def __init__(self, texts: Iterable[str], most_features: int) -> None:
        self.texts, self.most_features = texts, most_features
        self.features: set[str] = set()
        self.alphabet: set[str] = set()

    def __iter__(self) -> Iterator[str]:
        for text in self.texts:
            rest, *features = text.split("\t")
            self.features.update(f"\t{one}" for one in features)
            self.alphabet.update(rest)
            if len(self.features) > self.most_features:
                raise UserError(
                    f"the texts have more than {self.most_features} different features, such as {features[-1]!r:.40}: what "
                    "follows a TAB is one token; replace TABs by spaces if they are white space, or ask for a larger vocabulary"
                )
            yield rest


def _learn_symbols(reader: _Reader, unit: TokenUnit, vocabulary: int) -> Codec:
    counter = Tokenizer(models.WordLevel(unk_token=SPECIALS[UNK]))
    counter.pre_tokenizer = _pre_tokenizer(unit, features=False)  # the reader takes them out
    room = vocabulary - len(SPECIALS) if unit == "words" else _KEEP_ALL
    counter.train_from_iterator(reader, trainers.WordLevelTrainer(vocab_size=room, special_tokens=[], show_progress=False))
    symbols = counter.get_vocab().keys() | reader.features
    reserved = sorted(symbols.intersection(SPECIALS))
    if reserved:
        raise UserError(f"the data contains the symbol {reserved[0]!r}, which has a meaning of its own; write it another way")
    numbers = {symbol: number for number, symbol in enumerate((*SPECIALS, *sorted(symbols)))}
    return Codec(_assembled(models.WordLevel(numbers, unk_token=SPECIALS[UNK]), unit, features=bool(reader.features)))


def _learn_pieces(reader: _Reader, unit: TokenUnit, vocabulary: int) -> Codec:
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
        trainer = trainers.UnigramTrainer(unk_token=SPECIALS[UNK], **options)
    tokenizer.train_from_iterator(reader, trainer)
    tokenizer.pre_tokenizer = _pre_tokenizer(unit, features=bool(reader.features))  # they are known only now

    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = []  # else text that spells a special would become one
    model = content["model"]
    features = [spelt for spelt in map(spell, sorted(reader.features)) if tokenizer.token_to_id(spelt) is None]
    if unit == "bpe":
        model["vocab"] |= {spelt: number for number, spelt in enumerate(features, start=len(model["vocab"]))}
        model["ignore_merges"] = bool(features)  # what is in the vocabulary as a whole needs no merges
    else:
        specials = [[special, _NEVER] for special in SPECIALS]
        model["vocab"] = [*specials, *model["vocab"][len(specials) :], *([spelt, 0.0] for spelt in features)]
    return Codec(Tokenizer.from_str(json.dumps(content)), "".join(sorted(reader.alphabet)))


# --- the parts of a tokenizer.json -------------------------------------------------------------------------------------------


def _assembled(model: models.Model, unit: TokenUnit, *, features: bool) -> Tokenizer:
    """A tokenizer of this unit; features: whether a TAB starts one."""
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = _pre_tokenizer(unit, features=features)
    tokenizer.decoder = _decoder(unit, features=features)
    return tokenizer


def _pre_tokenizer(unit: TokenUnit, *, features: bool) -> pre_tokenizers.PreTokenizer:
    plain = _PATTERNS[unit]
    pattern = Regex(_FEATURE + "|" + plain.replace("[^ ]", r"[^ \t]") if features else plain)
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
    """Every tokenizer.json that we write or have written, without its vocabulary: (without what is off, whole)."""
    kinds: dict[str, Any] = {"bpe": models.BPE, "unigram": models.Unigram}
    made = [
        _assembled(kinds.get(unit, models.WordLevel)(), unit, features=features)
        for unit in get_args(TokenUnit)
        for features in (False, True)
    ]
    return tuple((bare(form), form) for form in map(_form, [*made, *_early()]))


def _early() -> Iterator[Tokenizer]:
    """Characters and symbols before the other units came."""
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
    form: Form = json.loads(tokenizer.to_str())
    form["model"] = {name: value for name, value in form["model"].items() if name not in VARIES}
    if form["model"]["type"] == "WordLevel":
        form["model"]["unk_token"] = SPECIALS[UNK]
    if form["model"]["type"] == "Unigram":
        form["model"]["unk_id"] = UNK
    return form
