"""Decides which sources are held out, by a hash of their text."""

from __future__ import annotations

from hashlib import blake2b

from regard.contracts import SourceText
from regard.data.source_text import flat


def source_hash(source: SourceText) -> int:
    """Returns a 64-bit hash, the same on every machine."""
    return int.from_bytes(blake2b(flat(source, parts=False).encode(), digest_size=8).digest())


def hash_fraction(source: SourceText) -> float:
    """Returns a number from 0 to 1 that depends only on the text of the source, and is uniformly distributed."""
    return source_hash(source) / 2**64


def is_held_out(source: SourceText, threshold: float) -> bool:
    """Whether a source is held out.

    This depends on the source alone, so it works on a stream and stays the same when pairs are added.
    threshold: from `CorpusCounts.threshold`.
    """
    return hash_fraction(source) < threshold
