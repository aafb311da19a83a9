"""The vocabulary of a model of another format: SentencePiece files, merges of subword-nmt, or a plain list of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from regard.checkpoint.folder import SOURCE, TARGET, Saved, read_codec
from regard.contracts import Specials
from regard.data.sources import SourceCodec
from regard.data.tokenizers.codec import Codec
from regard.data.tokenizers.contract import TextCodec
from regard.data.tokenizers.listed import ListedCodec, Split
from regard.data.tokenizers.sentencepieces import SentencePieces
from regard.errors import UserError

Side = Literal["source", "target"]

START = "<pad>"
"""The token that a decoder starts with, if its embedding is zero."""
SENTENCEPIECE = {
    "source": ("source.spm", "sentencepiece.model", "sentencepiece.bpe.model", "bpe.model"),
    "target": ("target.spm", "sentencepiece.model", "sentencepiece.bpe.model", "bpe.model"),
}
"""Names of SentencePiece files, the first that exists counts."""
MERGES = ("bpe.code", "bpe.codes", "bpecodes", "code", "bpe.model")
"""Names of files with merges of subword-nmt."""
VOCABULARY_FILES = {name for names in (*SENTENCEPIECE.values(), MERGES) for name in names}


def text_codec(folder: Path, side: Side, tokens: Sequence[str], specials: Specials) -> TextCodec:
    """Returns the codec of one side of a model in a folder. tokens: its vocabulary, by id. Raises UserError."""
    merges = next((folder / name for name in MERGES if _is_merges(folder / name)), None)
    if merges is not None:
        return ListedCodec(tokens, specials, "subwords", merges=read_merges(merges))
    spm = next((folder / name for name in SENTENCEPIECE[side] if (folder / name).is_file()), None)
    if spm is None:
        return ListedCodec(tokens, specials, _split(tokens, specials))
    try:
        return SentencePieces(_content(spm), tokens, specials)
    except UserError as error:
        raise UserError(f"{spm}: {error}", error.details) from None


def names_of(codec: SourceCodec) -> tuple[str, ...]:
    """Returns the names of all tokens of a vocabulary by id, as its file holds them."""
    if isinstance(codec, Codec):
        return tuple(str(codec.tokenizer.id_to_token(number)) for number in range(len(codec)))
    if isinstance(codec, SentencePieces):
        return codec.vocabulary
    assert isinstance(codec, ListedCodec)
    return codec.names


def refused_without_pieces(saved: Saved) -> list[str]:
    """Returns the reasons why a format that reads SentencePiece cannot hold the vocabularies of a model."""
    sides = {"source": saved.source, "target": saved.target}
    wrong = [side for side, codec in sides.items() if not isinstance(codec, SentencePieces)]
    return [f"the tokens of its {' and '.join(wrong)} are not those of SentencePiece (unit sentencepiece)"] if wrong else []


def own_codecs(folder: Path) -> tuple[TextCodec, TextCodec]:
    """Returns the codecs that an export of ours keeps next to its files."""

    def read(side: Side, name: str) -> TextCodec:
        return read_codec(folder / name, _content(folder / name), lambda suffix: _content(folder / f"{side}.{suffix}"))

    return read("source", SOURCE), read("target", TARGET)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None


def _split(tokens: Sequence[str], specials: Specials) -> Split:
    """Returns how texts are split by a plain vocabulary: into characters if each of its tokens is one."""
    plain = [token for number, token in enumerate(tokens) if number not in specials.ids]
    return "characters" if plain and all(len(token) == 1 for token in plain) else "spaces"


def _is_merges(path: Path) -> bool:
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        return file.read(9) == b"#version:"


def read_merges(path: Path) -> list[tuple[str, str]]:
    """Returns the merges of subword-nmt. Raises UserError for a line that is none."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")[1:]
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8: {error.reason} at byte {error.start:,}") from None
    pairs = [tuple(line.split(" ")) for line in lines if line.strip()]
    for number, pair in enumerate(pairs, start=2):
        if len(pair) != 2:
            raise UserError(f"{path}, line {number}: expected two symbols that merge, separated by a space")
    return [(pair[0], pair[1]) for pair in pairs]
