"""Batches of examples of similar length, in an order that depends only on (seed, update)."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.contracts import OWN, FileAndText, SourceRow, Specials
from regard.core import masks
from regard.core.source import Source
from regard.data.arrangement import arranged
from regard.data.corpus import Pair
from regard.data.lengths import Lengths
from regard.data.reader import Reader
from regard.data.seeds import derived_seed
from regard.data.sources import FileCodec, file_batch, num_positions
from regard.errors import UserError


class Example(NamedTuple):
    """An encoded pair: the source, and the ids of the target without <sos> and <eos>; <pad> is a target that is not learned."""

    source: SourceRow
    target: list[int]


@dataclass(frozen=True)
class Batch:
    """Examples padded to one size.

    target_in starts with <sos>, target_out ends with <eos>: the model reads token t of target_in and predicts token t of
    target_out. num_targets: number of target tokens without padding. pad: the id of padding in the targets.

    >>> pairs = [("cab", "C A B"), ("ad", "A D")]
    >>> (batch,) = regard.batches(regard.build("rnn", pairs, width=16), pairs)
    >>> batch.to("cpu").target_in_BT.shape, batch.num_targets
    (torch.Size([2, 4]), 7)
    """

    source: Source
    target_in_BT: Tensor
    target_out_BT: Tensor
    num_targets: int
    pad: int = OWN.pad

    def to(self, device: torch.device | str) -> Batch:
        """Returns a copy on this device."""
        tensors = self.source.to(device), self.target_in_BT.to(device), self.target_out_BT.to(device)
        return Batch(*tensors, self.num_targets, self.pad)


def encode_pairs(
    pairs: Sequence[Pair], reader: Reader, unreadable: Callable[[Pair, UserError], None] | None = None
) -> list[Example]:
    """Encodes pairs. unreadable: called for each pair whose source file cannot be read, and which is skipped; if None, such a
    file raises UserError."""
    prefix, outputs = reader.target.specials.prefix, reader.target.encode_batch([pair.target for pair in pairs])
    if prefix:
        outputs = [[*prefix, *output] for output in outputs]
    if unreadable is None or not isinstance(reader.source, FileCodec):
        return [Example(*encoded) for encoded in zip(reader.rows([pair.source for pair in pairs]), outputs, strict=True)]
    examples = []
    for pair, output in zip(pairs, outputs, strict=True):
        try:
            examples.append(Example(reader.rows([pair.source])[0], output))
        except UserError as error:
            unreadable(pair, error)
    return examples


def source_batch(rows: Sequence[SourceRow], specials: Specials = OWN) -> Source:
    """Returns a batch of sources of any length, padded at the end. Texts end with <eos>, unless the `specials` of their codec
    say otherwise."""
    if with_text := [row for row in rows if isinstance(row, FileAndText)]:
        files = file_batch([row.file for row in with_text])
        return Source(files.values, files.allow, source_batch([row.text for row in with_text], specials))
    texts = [[*row, *specials.source_end] for row in rows if isinstance(row, list)]
    if not texts:
        return file_batch([row for row in rows if isinstance(row, np.ndarray)])
    ids_BS = _padded(texts, specials.pad)
    return Source(ids_BS, masks.first(torch.tensor([len(text) for text in texts]), ids_BS.shape[1]))


def collate(examples: Sequence[Example], source: Specials = OWN, target: Specials = OWN) -> Batch:
    """Returns a padded batch of these examples. source, target: the special tokens of both codecs."""
    pad = target.pad
    return Batch(
        source_batch([example.source for example in examples], source),
        _padded([[target.start, *example.target] for example in examples], pad),
        _padded([[*example.target, target.eos] for example in examples], pad),
        sum(len(example.target) + 1 - example.target.count(pad) for example in examples),
        pad,
    )


def _padded(rows: list[list[int]], pad: int) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([row + [pad] * (longest - len(row)) for row in rows])


class BatchOrder:
    """Assigns examples to updates as a function of (seed, number of the update), so that a run can resume at any update.

    Examples of similar length share a batch. Each epoch shuffles the examples of equal length and the order of the batches. A
    batch has at most `batch_tokens` positions per side, padding included; an example that is longer forms a batch alone. An
    update is a tuple of `accumulate` batches, or fewer at the end of an epoch. The very first batch is the largest one, so that
    a batch that does not fit into memory fails at once. shortest_first: sorts the rest of the first epoch from short to long.
    """

    def __init__(
        self,
        lengths: Lengths,
        *,
        batch_tokens: int,
        accumulate: int = 1,
        seed: int,
        shortest_first: bool = False,
    ) -> None:
        self.accumulate, self.seed, self.shortest_first = accumulate, seed, shortest_first
        self.arranged = arranged(lengths, seed)
        ends, widths = list(self.arranged.sizes_by_end), list(self.arranged.sizes_by_end.values())

        def positions(number: int, first: int) -> int:
            """Returns the positions of a batch of this many examples; sizes only grow, so the last one sets its width."""
            return number * widths[bisect_right(ends, first + number - 1)]

        self.borders = [0]
        while (first := self.borders[-1]) < len(lengths):
            most = min(len(lengths) - first, batch_tokens)
            room = bisect_right(range(1, most + 1), batch_tokens, key=partial(positions, first=first))
            self.borders.append(first + max(1, room))
        sizes = [positions(end - start, start) for start, end in pairwise(self.borders)]
        self.largest = max(range(len(sizes)), key=sizes.__getitem__)
        self.epoch_length = -(-len(sizes) // accumulate)
        """Number of updates per epoch."""

    def update(self, number: int) -> tuple[list[int], ...]:
        """Returns the indices of the examples in each batch of this update."""
        epoch, within = divmod(number, self.epoch_length)
        first = within * self.accumulate
        chosen = self._epoch(epoch)[first : first + self.accumulate]
        return tuple(self.arranged.at(epoch, self.borders[batch], self.borders[batch + 1])[0] for batch in chosen)

    def padding(self) -> float:
        """Returns the share of padding in the batches of the first epoch, over both sides; of many batches, in a sample that is
        spread evenly over their sizes."""
        padded = real = 0
        for batch in range(0, len(self.borders) - 1, -(-(len(self.borders) - 1) // MOST_SAMPLED)):
            _, *sides = self.arranged.at(0, self.borders[batch], self.borders[batch + 1])
            padded += sum(len(lengths_N) * (int(lengths_N.max()) + 1) for lengths_N in sides)
            real += sum(int((lengths_N + 1).sum()) for lengths_N in sides)
        return 1 - real / padded

    @lru_cache(maxsize=1)  # noqa: B019 a BatchOrder lives as long as its run
    def _epoch(self, epoch: int) -> list[int]:
        """Returns the order of the batches."""
        batches = self.arranged.shuffled(epoch, len(self.borders) - 1)
        if epoch == 0:
            batches = sorted(batches) if self.shortest_first else batches
            batches.remove(self.largest)
            batches.insert(0, self.largest)
        return batches


MOST_SAMPLED = 2_000
"""The maximum number of batches whose padding is counted."""


def lengths(examples: Sequence[Example]) -> Lengths:
    """Returns the number of positions of each source and of each target."""
    return Lengths.of(*([num_positions(example[side]) for example in examples] for side in (0, 1)))


@dataclass(frozen=True)
class Batches:
    """The batches of a run. Calling it with the number of an update returns the batches of that update."""

    examples: Sequence[Example]
    order: BatchOrder
    vary: Callable[[Example, random.Random], Example] | None = None
    """Returns a random variant of an example: other subwords, or an augmented picture or sound."""
    source: Specials = OWN
    target: Specials = OWN
    """The special tokens of both codecs."""

    def __call__(self, update: int, first: int = 0, step: int = 1) -> tuple[Batch, ...]:
        """first, step: return only every step-th micro-batch, from the first-th on."""
        chosen = self.order.update(update)[first::step]
        return tuple(collate([self._example(index, update) for index in batch], self.source, self.target) for batch in chosen)

    def _example(self, index: int, update: int) -> Example:
        example = self.examples[index]
        if self.vary is None:
            return example
        return self.vary(example, random.Random(derived_seed(self.order.seed, "subwords", update, index)))
