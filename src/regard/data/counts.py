"""Counts that are collected while pairs are read, and the sentences that report them."""

from __future__ import annotations

import math
import os
import tempfile
import weakref
from array import array
from collections import Counter
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import accumulate
from typing import IO, NamedTuple

from regard.contracts import SourceText
from regard.data.files import temporary_files
from regard.data.held_out import source_hash
from regard.data.rows import MAX_LISTED, Report, list_lines
from regard.errors import UserError, plural


class Repeats(NamedTuple):
    """The numbers of repeated pairs, of distinct sources, and of sources with several targets (ambiguous)."""

    pairs: int
    sources: int
    ambiguous: int


class Hashes:
    """Hashes of pairs, 8 bytes each: 44 bits of the source, 12 of which select the bucket, and 32 bits of the target.

    At most MOST_IN_MEMORY of them are in memory, and the others in a temporary file."""

    def __init__(self) -> None:
        self._buckets = [array("Q") for _ in range(4096)]
        self._in_memory = 0
        self._file: IO[bytes] | None = None
        self._moved: list[array[int]] = []
        """For each time that hashes were moved to the file: where each bucket begins there, and where the last one ends."""

    def add(self, source: int, target: str) -> None:
        """Adds a pair. source: the 64-bit hash of its source."""
        target_hash = int.from_bytes(blake2b(target.encode(), digest_size=4).digest())
        self._buckets[source & 4095].append((source >> 12 & 0xFFFFFFFF) << 32 | target_hash)
        self._in_memory += 1
        if self._in_memory >= MOST_IN_MEMORY:
            self._move()

    def _move(self) -> None:
        """Moves the hashes in memory to the end of the file."""
        with temporary_files():
            if self._file is None:
                self._file = tempfile.TemporaryFile()  # noqa: SIM115 closed with this object
                weakref.finalize(self, self._file.close)
            start = self._file.seek(0, os.SEEK_END)
            for bucket in self._buckets:
                self._file.write(bucket.tobytes())
            self._file.flush()
        self._moved.append(array("Q", accumulate((8 * len(bucket) for bucket in self._buckets), initial=start)))
        self._buckets = [array("Q") for _ in self._buckets]
        self._in_memory = 0

    def _bucket(self, at: int) -> array[int]:
        """Returns all hashes of a bucket."""
        bucket = self._buckets[at]
        if self._file:
            bucket = array("Q", bucket)
            for starts in self._moved:
                self._file.seek(starts[at])
                bucket.frombytes(self._file.read(starts[at + 1] - starts[at]))
        return bucket

    def repeats(self) -> Repeats:
        """Returns how often pairs and sources are repeated."""
        pairs = sources = ambiguous = 0
        for bucket in map(self._bucket, range(len(self._buckets))):
            distinct = set(bucket)
            targets = Counter(number >> 32 for number in distinct)
            pairs += len(bucket) - len(distinct)
            sources += len(targets)
            ambiguous += sum(count > 1 for count in targets.values())
        return Repeats(pairs, sources, ambiguous)

    def shared_sources(self, other: Hashes) -> int:
        """Returns the number of distinct sources that occur in both corpora."""
        return sum(
            len({number >> 32 for number in self._bucket(at)} & {number >> 32 for number in other._bucket(at)})
            for at in range(len(self._buckets))
        )


MOST_IN_MEMORY = 1 << 20
"""The number of hashes that are in memory."""


@dataclass
class CorpusCounts(Report):
    """Counts collected while pairs are read; complete at the end of the stream.

    lines: the number of lines, including blank ones and the header.   pairs: the number of pairs that were kept.
    noun: what is counted: "pair", or "text" if there are no sources.   cut: texts that were cut into several.
    empty: lines skipped because source or target is empty.
    too_long: pairs skipped because source or target exceeds max_length; too_long_at: the numbers of the first few lines.
    with_breaks: texts in which tabs or line breaks became spaces.
    normalised: lines that NFC changed.   not_normalised: lines that NFC would change, but which were kept as they are.
    invisible: the number of lines that contain an invisible character or an unusual space, by character.
    without: the number of rows that lack one of several source columns, by its name or number.
    lowest, highest: the lowest and the highest `hash_fraction` of a source.
    """

    name: str = ""
    lines: int = 0
    pairs: int = 0
    noun: str = "pair"
    cut: int = 0
    empty: int = 0
    too_long: int = 0
    too_long_at: list[int] = field(default_factory=list)
    max_length: int | None = None
    with_breaks: int = 0
    normalised: int = 0
    not_normalised: int = 0
    invisible: Counter[str] = field(default_factory=Counter)
    without: Counter[str] = field(default_factory=Counter)
    hashes: Hashes = field(default_factory=Hashes, repr=False, compare=False)
    lowest: float = 1.0
    highest: float = 0.0

    def add(self, source: SourceText, target: str) -> None:
        """Counts a pair that is kept; a text without a source counts as its own source."""
        number = source_hash(source or target)
        self.hashes.add(number, target)
        fraction = number / 2**64
        self.lowest, self.highest = min(self.lowest, fraction), max(self.highest, fraction)
        self.pairs += 1

    def add_too_long(self, number: int) -> None:
        """Counts a pair that is too long, and keeps the number of its line if it is one of the first."""
        self.too_long += 1
        if len(self.too_long_at) < MAX_LISTED:
            self.too_long_at.append(number)

    def threshold(self, share: float) -> float:
        """Returns the threshold for `is_held_out` that holds out this fraction of the sources.

        It equals `share`, unless no source would be held out, or none left to train on; then it is the nearest threshold
        that avoids this. To hold out about n pairs at most, pass min(share, n / counts.pairs). Raises UserError if there are
        fewer than two distinct sources.
        """
        if self.lowest >= self.highest:
            raise UserError("found fewer than 2 distinct sources, expected at least 2: one to train on and one to hold out")
        return min(max(share, math.nextafter(self.lowest, 1)), self.highest)

    def describe(self) -> str:
        """Returns a summary for the console, in sentences. Counts of zero are not mentioned."""
        repeats = self.hashes.repeats()
        skipped = []
        if self.empty:
            skipped.append(f"{plural(self.empty, 'line')} with an empty source or target")
        if self.too_long:
            where = list_lines(self.too_long_at, self.too_long)
            skipped.append(f"{plural(self.too_long, 'pair')} longer than {self.max_length or 0:,} characters ({where})")
        skipped += self.skipped_lines()
        kept = [
            (repeats.pairs, f"repeated {self.noun}", ""),
            (
                self.cut,
                f"text of more than {self.max_length or 0:,} characters that was cut",
                f"texts of more than {self.max_length or 0:,} characters that were cut",
            ),
            (repeats.ambiguous, "source with several targets", "sources with several targets"),
            (self.with_breaks, "text whose tabs or line breaks became spaces", "texts whose tabs or line breaks became spaces"),
        ]
        kept += [(rows, f"row without column {name!r}", f"rows without column {name!r}") for name, rows in self.without.items()]
        sentences = [f"{self.name}: {plural(self.pairs, self.noun)} in {plural(self.lines, 'line')}"]
        if skipped:
            sentences.append(f"Skipped: {', '.join(skipped)}")
        if counted := [plural(*entry) for entry in kept if entry[0]]:
            sentences.append(f"Kept: {', '.join(counted)}")
        sentences += [*self.notes, *self.describe_normalisation()]
        return ". ".join(sentences) + "."

    def describe_reading(self) -> list[str]:
        """Returns notes for commands that do not print all counts: guesses, skipped lines, normalisation; one clause each."""
        return [*self.notes, *self.describe_bad_lines(), *self.describe_normalisation()]

    def describe_normalisation(self) -> list[str]:
        """Returns notes about texts that can look the same and differ, one clause each."""
        notes = []
        if self.normalised:
            notes.append(f"Normalised {plural(self.normalised, 'line')} to Unicode NFC")
        if self.not_normalised:
            kept = plural(self.not_normalised, "line that is", "lines that are")
            notes.append(f"Kept {kept} not in Unicode NFC; texts that look the same may differ")
        if self.invisible:
            which = ", ".join(f"U+{ord(char):04X} in {plural(lines, 'line')}" for char, lines in self.invisible.most_common(5))
            notes.append(f"Kept invisible characters or unusual spaces ({which}{', …' if len(self.invisible) > 5 else ''})")
        return notes

    def describe_shared(self, held_out: CorpusCounts) -> str:
        """Returns a sentence that says how many held-out sources also occur in the training data; empty if none does."""
        shared = self.hashes.shared_sources(held_out.hashes)
        if not shared:
            return ""
        total = held_out.hashes.repeats().sources
        return (
            f"{shared:,} of the {plural(total, 'source')} in {held_out.name} also {'occurs' if shared == 1 else 'occur'} in "
            f"{self.name}; results on such sources say little about new ones."
        )
