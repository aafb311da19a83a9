"""Compares SentencePiece with the tokenizers library on the same .spm: how many lines get other pieces, and how long both take.

    OMP_NUM_THREADS=1 python benchmarks/sentencepieces.py LINES...      LINES: text files, perhaps .gz; of at most 100,000 lines

The unigram model is converted as Hugging Face converts it: its pieces with their scores, its table of normalisation, Metaspace.
"""

from __future__ import annotations

import gzip
import struct
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from regard.data.tokenizers.sentencepieces import SentencePieces
from regard.data.tokenizers.spm import UNKNOWN, _fields, read_spm

NUMBER = 100_000


def lines(paths: list[str]) -> Iterator[str]:
    for path in map(Path, paths):
        text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        for line in text.decode().split("\n"):
            yield from filter(str.strip, line.split("\t"))


def converted(spm: bytes) -> Tokenizer:
    """Returns the tokenizer of Hugging Face for a unigram model."""
    scores, table = [], b""
    for field, value in _fields(spm, "it"):
        assert isinstance(value, bytes)
        if field == 1:
            parts = dict(_fields(value, "a piece"))
            scores.append(struct.unpack("<f", parts[2])[0] if 2 in parts else 0.0)
        elif field == 3:
            table = dict(_fields(value, "its normalisation")).get(2, b"")
    contents = read_spm(spm)
    pieces = list(zip(contents.pieces, scores, strict=True))
    tokenizer = Tokenizer(models.Unigram(pieces, contents.types.index(UNKNOWN), byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Precompiled(table), normalizers.Strip(left=False, right=True), normalizers.Replace(Regex(" {2,}"), "▁")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def main() -> None:
    texts = list(islice(lines(sys.argv[1:]), NUMBER))
    codec = SentencePieces.train(texts[::5], "unigram", 8000, "nmt_nfkc")
    other = converted(codec.spm)
    took = []
    for encode in (lambda: codec.encode_batch(texts), lambda: [row.ids for row in other.encode_batch_fast(texts)]):
        started = time.perf_counter()
        rows = encode()
        took.append((time.perf_counter() - started, rows))
    (ours, own), (theirs, others) = took
    different = [number for number, (one, two) in enumerate(zip(own, others, strict=True)) if one != two]
    print(f"{len(texts):,} lines; other pieces in {len(different):,}; SentencePiece {ours:.2f} s, tokenizers {theirs:.2f} s")
    for number in different[:5]:
        print(repr(texts[number][:100]), codec.tokens(own[number])[:12], codec.tokens(others[number])[:12], sep="\n  ")


if __name__ == "__main__":
    main()
