"""The bundled CMU Pronouncing Dictionary: letters -> phonemes, a real task that a small model learns in two minutes."""

from __future__ import annotations

import gzip
import hashlib
import re
from importlib.resources import files
from typing import Literal

from regard.data.corpus import Pair

Split = Literal["train", "dev", "test"]

_ENTRY = re.compile(r"([a-z]+)(?:\(\d+\))? ([^#]+)")
"""A plain word, the number of an alternative pronunciation, the phonemes, possibly a comment. Does not match entries such as
`it's`."""


def pronunciations(split: Split) -> list[Pair]:
    """Returns pairs of spelling and pronunciation, without stress marks; all pronunciations of a word are in the same split."""
    text = gzip.decompress((files("regard") / "assets" / "cmudict.txt.gz").read_bytes()).decode()
    entries = (match.groups() for line in text.splitlines() if (match := _ENTRY.match(line)))
    pairs = (Pair(word, re.sub(r"\d", "", phonemes).strip()) for word, phonemes in entries if split_of(word) == split)
    return list(dict.fromkeys(pairs))


def split_of(word: str) -> Split:
    """Returns the split of a word, by a hash of its spelling: 10% of the words are in test and 1% in dev."""
    bucket = int(hashlib.sha1(word.encode()).hexdigest(), 16) % 100
    return "test" if bucket < 10 else "dev" if bucket == 10 else "train"
