"""Subwords of SentencePiece (Kudo & Richardson 2018), as OPUS-MT, Argos and others use them: trained, and read from .spm files.

The library itself runs them: the tokenizers library splits some texts otherwise (docs/LOG.md). It is sole here.
"""

from __future__ import annotations

import io
import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from typing import Any, Literal, get_args

from regard.contracts import OWN, Specials
from regard.data.documents import mapping, validated
from regard.data.tokenizers.byte_level import readable
from regard.data.tokenizers.contract import TextCodec
from regard.data.tokenizers.spm import BYTE, BYTES, CONTROL, UNKNOWN, read_spm
from regard.errors import UserError, one_line, shown
from regard.languages import PREFIX_TOKEN
from regard.links import Units, word_spans

NormalRule = Literal["none", "nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf"]
"""Normalisation of texts: none; nfkc replaces characters by compatible ones (ﬁ by fi, ² by 2); nmt_nfkc, which OPUS-MT has,
also removes invisible characters; _cf folds upper and lower case, too. All but none join white space."""

RULES: tuple[NormalRule, ...] = get_args(NormalRule)
SPACE = "▁"
SPECIAL_PIECES = ("<pad>", "<unk>", "<s>", "</s>")
ATTACHED = "spm"
"""The suffix of its file in a model folder."""


class SentencePieces(TextCodec):
    """A SentencePiece model, and the ids of its pieces.

    spm: the content of the .spm.  rule: the name of its normalisation.
    vocabulary: the tokens by id, where they differ from the pieces of the .spm: Marian has one vocabulary for two models.
    Its tokens >>deu<< at the start of a text say which language to write; they are no pieces.
    """

    def __init__(self, spm: bytes, vocabulary: Sequence[str] = (), specials: Specials = OWN) -> None:
        """Raises UserError if the .spm or the vocabulary is invalid, or if SentencePiece is not installed."""
        contents = read_spm(spm)
        self.spm, self.specials, self.algorithm = spm, specials, contents.algorithm
        self.rule = contents.rule if contents.rule in RULES else "none"
        self.vocabulary = tuple(vocabulary) or contents.pieces
        self._ids = {token: number for number, token in enumerate(self.vocabulary)}
        self._is_own = self.vocabulary == contents.pieces
        self._processor = _processor(spm)
        kinds = dict(zip(contents.pieces, contents.types, strict=True))
        self._bytes = BYTES if BYTE in contents.types else {}
        self._silent = specials.ids - {specials.unk} | {
            self._ids[piece] for piece, kind in kinds.items() if kind == CONTROL and piece in self._ids
        }
        self._unknown = next(piece for piece, kind in kinds.items() if kind == UNKNOWN)
        self._prefix_tokens = tuple(token for token in self.vocabulary if PREFIX_TOKEN.fullmatch(token))
        self._check(contents.pieces)

    def _check(self, pieces: Sequence[str]) -> None:
        """Raises UserError if tokens repeat, special ones are missing, or no piece has an id."""
        size = len(self.vocabulary)
        if len(self._ids) < size:
            raise UserError(f"its vocabulary contains duplicate tokens: {size - len(self._ids):,}")
        if outside := sorted(number for number in (*self.specials.ids, *self.specials.never) if not 0 <= number < size):
            raise UserError(f"a special token has the id {outside[0]}, but its vocabulary has ids 0 to {size - 1:,}")
        if not self._ids.keys() & set(pieces):
            raise UserError("its vocabulary contains no piece of the SentencePiece model; do they belong together?")

    @classmethod
    def train(
        cls, texts: Iterable[str], algorithm: Literal["unigram", "bpe"], vocabulary: int, rule: NormalRule
    ) -> SentencePieces:
        """Trains a model on these texts. Equal texts give equal files: it has one thread and draws nothing.

        A character that the vocabulary has no piece for is spelled in bytes, so nothing is unknown. Tokens such as >>deu<< at
        the start of texts are added to the vocabulary. Raises UserError.
        """
        reader, content = _Reader(texts), io.BytesIO()
        library = _library()
        options: dict[str, Any] = {f"{name}_id": number for number, name in enumerate(("pad", "unk", "bos", "eos"))}
        try:
            library.SentencePieceTrainer.train(
                sentence_iterator=iter(reader),
                model_writer=content,
                model_type=algorithm,
                vocab_size=vocabulary,
                hard_vocab_limit=False,
                byte_fallback=True,
                normalization_rule_name="identity" if rule == "none" else rule,
                remove_extra_whitespaces=rule != "none",
                max_sentence_length=2**30,
                num_threads=1,
                minloglevel=3,
                pad_piece=SPECIAL_PIECES[0],
                **options,
            )
        except (RuntimeError, OSError) as error:
            if reader.error:
                raise reader.error from None
            raise UserError(
                f"SentencePiece could not train {vocabulary:,} pieces: {one_line(error, 200)}; set data.vocabulary to another "
                "size"
            ) from None
        codec = cls(content.getvalue())
        return cls(codec.spm, (*codec.vocabulary, *sorted(reader.prefix_tokens))) if reader.prefix_tokens else codec

    @classmethod
    def from_content(cls, content: Any, spm: bytes | None = None) -> SentencePieces:
        """Returns the codec of a parsed tokenizer.json. spm: the .spm that is stored next to it; None if it is inside.

        Raises UserError if it is invalid."""
        given = mapping(content, "it")
        if unknown := given.keys() - {"type", "sha256", "specials", "vocabulary", ATTACHED}:
            raise UserError(f"its {one_line(sorted(unknown)[0], 40)} is unknown; is it from a newer version of regard?")
        if spm is None:
            spm = _decoded(given.get(ATTACHED))
        if given.get("sha256") != sha256(spm).hexdigest():
            raise UserError("it belongs to another .spm: the sha256 differs")
        vocabulary = given.get("vocabulary") or []
        if not (isinstance(vocabulary, list) and all(isinstance(token, str) and token for token in vocabulary)):
            raise UserError(f"its vocabulary is {shown(vocabulary)}, expected a list of tokens")
        try:
            specials: Specials = validated(Specials, given.get("specials"), "its special tokens")
        except ValueError as error:
            raise UserError(str(error)) from None
        return cls(spm, vocabulary, specials)

    def to_json(self, *, attached: bool = False) -> str:
        content = {
            "type": "sentencepiece",
            "sha256": sha256(self.spm).hexdigest(),
            "specials": asdict(self.specials),
            "vocabulary": None if self._is_own else list(self.vocabulary),
            **({} if attached else {ATTACHED: b64encode(self.spm).decode()}),
        }
        return json.dumps(content, ensure_ascii=False, indent=2)

    @property
    def attachments(self) -> Mapping[str, bytes]:
        return {ATTACHED: self.spm}

    @property
    def unit(self) -> str:
        return "sentencepiece" if self.algorithm == "unigram" else "sentencepiece_bpe"

    @property
    def normal_form(self) -> str:
        return self.rule

    @property
    def prefix_tokens(self) -> tuple[str, ...]:
        return self._prefix_tokens

    def __len__(self) -> int:
        return len(self.vocabulary)

    def encode(self, text: str) -> list[int]:
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        split = [self._split(text) for text in texts]
        rest = [text for _, text in split]
        try:
            if self._is_own:
                rows: list[list[int]] = self._processor.encode(rest, out_type=int)
            else:
                unk = self.specials.unk
                rows = [[self._ids.get(piece, unk) for piece in row] for row in self._processor.encode(rest, out_type=str)]
        except (UnicodeEncodeError, TypeError):
            wrong = next(text for text in texts if not _is_valid(text))
            raise UserError(
                f"the text {wrong!a:.60} is not valid Unicode: it contains a lone surrogate; pass it as UTF-8"
            ) from None
        return [[self._ids[prefix], *row] if prefix else row for (prefix, _), row in zip(split, rows, strict=True)]

    def normalised(self, text: str) -> str:
        if not _is_valid(text):
            return text
        prefix, rest = self._split(text)
        plain = str(self._processor.normalize(rest)).replace(SPACE, " ").removeprefix(" ")
        return f"{prefix} {plain}" if prefix else plain

    def pieces(self, text: str) -> tuple[str, ...]:
        """Returns the part of the normalised text for each token; they join to it."""
        self.encode(text)  # raises for what is not valid Unicode
        prefix, rest = self._split(text)
        parts = readable(map(self._as_bytes, self._processor.encode(rest, out_type=str)))
        if prefix:
            return prefix, *parts
        return (parts[0].removeprefix(" "), *parts[1:]) if parts else ()

    def units(self, text: str, tokens: Sequence[str], *, pieces: bool | None = None) -> Units:
        """Returns what the links of an alignment count in a text. A word begins with a token that begins with a space."""
        if pieces:
            return Units.tokens(len(tokens))
        words, number, is_fresh = list[int | None](), -1, True
        for token in tokens:
            if not token:  # the second byte of a character
                words.append(words[-1] if words else None)
            elif not token.strip():
                words.append(None)
                is_fresh = True
            else:
                number += is_fresh or token[0] == " "
                words.append(number)
                is_fresh = False
        return Units(max(len(word_spans(text)), number + 1), tuple(words))

    def unknown(self, text: str) -> tuple[str, ...]:
        pairs = zip(self.pieces(text), self.encode(text), strict=True)
        return tuple(piece.strip() for piece, number in pairs if number == self.specials.unk)

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of these ids. Special tokens are left out, but for <unk>, which is ⁇."""
        pieces = [self._unknown if number == self.specials.unk else self.vocabulary[number] for number in ids]
        return str(
            self._processor.decode([piece for piece, number in zip(pieces, ids, strict=True) if number not in self._silent])
        )

    def tokens(self, ids: Sequence[int]) -> tuple[str, ...]:
        return tuple(readable(self._as_bytes(self.vocabulary[number]) for number in ids))

    def _as_bytes(self, piece: str) -> bytes:
        return self._bytes.get(piece) or piece.replace(SPACE, " ").encode()

    def _split(self, text: str) -> tuple[str, str]:
        """Splits a text into its prefix token, if it starts with one of the vocabulary, and the rest."""
        if self._prefix_tokens and (match := PREFIX_TOKEN.match(text.lstrip())) and match[0] in self._ids:
            return match[0], text.lstrip()[match.end() :].lstrip()
        return "", text


class _Reader:
    """Iterates over texts without their prefix tokens; `prefix_tokens` is complete once all are read. The library hides what
    an iterator raises, so it is kept in `error`."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts, self.prefix_tokens = texts, set[str]()
        self.error: UserError | None = None

    def __iter__(self) -> Iterator[str]:
        for text in self.texts:
            if "\t" in text:
                self.error = UserError(
                    f"a text contains a TAB, which separates columns: {shown(text, 60)}; the unit sentencepiece reads one "
                    "column, so choose it with --from, or use the unit bpe"
                )
                raise self.error
            if match := PREFIX_TOKEN.match(text.lstrip()):
                self.prefix_tokens.add(match[0])
                text = text.lstrip()[match.end() :]
            yield text


def _is_valid(text: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in text)


def _decoded(given: Any) -> bytes:
    try:
        return b64decode(given, validate=True)
    except (TypeError, ValueError):
        raise UserError(f"its {ATTACHED} is {shown(given, 40)}, expected the content of a .spm in base 64") from None


def _processor(spm: bytes) -> Any:
    try:
        return _library().SentencePieceProcessor(model_proto=spm)
    except RuntimeError as error:
        raise UserError(f"SentencePiece cannot read it: {one_line(error, 200)}") from None


def _library() -> Any:
    try:
        import sentencepiece
    except ImportError:
        raise UserError('the unit sentencepiece needs SentencePiece; type: pip install "regard[interop]"') from None
    return sentencepiece
