"""Batches of tokens: sentences of like length side by side, in an order that depends on (seed, update) alone."""

from __future__ import annotations

import hashlib
import random
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from regard.contracts import Source
from regard.core import masks
from regard.data.corpus import Pair
from regard.data.sources import FileAndText, SourceCodec, SourceRow, num_positions, tensor_batch
from regard.data.tokenizers.codec import EOS, PAD, SOS, Codec
from regard.errors import UserError


class Example(NamedTuple):
    source: SourceRow
    target: list[int]


@dataclass(frozen=True)
class Batch:
    """target_in starts with <sos>, target_out ends with <eos>: place t of the one predicts place t of the other."""

    source: Source
    target_in_BT: Tensor
    target_out_BT: Tensor
    num_targets: int

    def to(self, device: torch.device | str) -> Batch:
        return Batch(self.source.to(device), self.target_in_BT.to(device), self.target_out_BT.to(device), self.num_targets)


def encode_pairs(
    pairs: Sequence[Pair], source: SourceCodec, target: Codec, unreadable: Callable[[Pair, UserError], None] | None = None
) -> list[Example]:
    """unreadable: told of a source that is a file which cannot be read, and left out; without it, that is an error."""
    outputs = target.encode_batch([pair.target for pair in pairs])
    if isinstance(source, Codec):
        texts = source.encode_batch([pair.source for pair in pairs])
        return [Example(*both) for both in zip(texts, outputs, strict=True)]
    examples = []
    for pair, output in zip(pairs, outputs, strict=True):
        try:
            examples.append(Example(source.encode(pair.source), output))
        except UserError as error:
            if unreadable is None:
                raise
            unreadable(pair, error)
    return examples


def source_batch(rows: Sequence[SourceRow]) -> Source:
    """Sources of any length, padded at the end; texts are closed by <eos>."""
    if both := [row for row in rows if isinstance(row, FileAndText)]:
        files = tensor_batch([row.file for row in both])
        return Source(files.values, files.allow, source_batch([row.text for row in both]))
    texts = [[*row, EOS] for row in rows if isinstance(row, list)]
    if not texts:
        return tensor_batch([row for row in rows if isinstance(row, Tensor)])
    ids_BS = _padded(texts)
    return Source(ids_BS, masks.not_padding(ids_BS, PAD))


def collate(examples: Sequence[Example]) -> Batch:
    return Batch(
        source_batch([example.source for example in examples]),
        _padded([[SOS, *example.target] for example in examples]),
        _padded([[*example.target, EOS] for example in examples]),
        sum(len(example.target) + 1 for example in examples),
    )


def _padded(rows: list[list[int]]) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])


class BatchOrder:
    """Which examples make up which update: a function of (seed, number of the update), so that any update can come next.

    Examples of like size stand side by side; which of equal size do, and which batch comes when, is drawn anew for every epoch.
    A batch fills at most `batch_tokens` places per side, padding included; a single example that is longer makes a batch of its
    own. An update is a tuple of `accumulate` batches, or fewer at the end of an epoch. The very first batch is the largest:
    what does not fit into memory shows at once. shortest_first: the rest of the first epoch goes from short to long.
    """

    def __init__(
        self,
        lengths: tuple[Tensor, Tensor],
        *,
        batch_tokens: int,
        accumulate: int = 1,
        seed: int,
        shortest_first: bool = False,
    ) -> None:
        """lengths: how many places each source and each target has."""
        self.lengths, self.accumulate, self.seed, self.shortest_first = lengths, accumulate, seed, shortest_first
        self.sizes_N = torch.maximum(*lengths) + 1  # with <eos>
        ordered = self.sizes_N.sort().values.tolist()
        self.borders = [0]
        while self.borders[-1] < len(ordered):
            first = self.borders[-1]  # sizes only grow, so the last example of a batch sets its width
            room = bisect_right(range(1, len(ordered) - first + 1), batch_tokens, key=lambda n: n * ordered[first + n - 1])
            self.borders.append(first + max(1, room))
        sizes = [(end - start) * ordered[end - 1] for start, end in pairwise(self.borders)]
        self.largest = max(range(len(sizes)), key=sizes.__getitem__)
        self.epoch_length = -(-len(sizes) // accumulate)
        """How many updates make an epoch."""

    def update(self, number: int) -> tuple[list[int], ...]:
        """The examples of each of its batches."""
        epoch, within = divmod(number, self.epoch_length)
        order_N, batches = self._epoch(epoch)
        first = within * self.accumulate
        parts = batches[first : first + self.accumulate]
        return tuple(order_N[self.borders[part] : self.borders[part + 1]].tolist() for part in parts)

    def padding(self) -> float:
        """The share of places in the batches of the first epoch, both sides counted, that hold nothing."""
        order_N, _ = self._epoch(0)
        sizes = 0
        for part in order_N.tensor_split(self.borders[1:-1]):
            sizes += len(part) * sum(int(lengths_N[part].max()) + 1 for lengths_N in self.lengths)
        return 1 - sum(int((lengths_N + 1).sum()) for lengths_N in self.lengths) / sizes

    @lru_cache(maxsize=1)  # noqa: B019 an Order lives as long as its run
    def _epoch(self, epoch: int) -> tuple[Tensor, list[int]]:
        """(all examples by size, the order of the batches)."""
        chance = torch.Generator().manual_seed(derived_seed(self.seed, "epoch", epoch))
        order_N = torch.randperm(len(self.sizes_N), generator=chance)
        order_N = order_N[self.sizes_N[order_N].argsort(stable=True)]
        batches = torch.randperm(len(self.borders) - 1, generator=chance).tolist()
        if epoch == 0:
            batches = sorted(batches) if self.shortest_first else batches
            batches.remove(self.largest)
            batches.insert(0, self.largest)
        return order_N, batches


def lengths(examples: Sequence[Example]) -> tuple[Tensor, Tensor]:
    """How many places each source and each target has."""
    source_N, target_N = (torch.tensor([num_positions(example[side]) for example in examples]) for side in (0, 1))
    return source_N, target_N


def derived_seed(*parts: object) -> int:
    """A number below 2^63 for a place in a run: whoever knows the place has its randomness."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()) >> 1


@dataclass(frozen=True)
class Batches:
    """The batches of every update of a run."""

    examples: Sequence[Example]
    order: BatchOrder
    vary: Callable[[Example, random.Random], Example] | None = None
    """Another form of an example, by chance: cut into other subwords, or a picture moved a little."""

    def __call__(self, update: int) -> tuple[Batch, ...]:
        return tuple(collate([self._example(index, update) for index in part]) for part in self.order.update(update))

    def _example(self, index: int, update: int) -> Example:
        example = self.examples[index]
        if self.vary is None:
            return example
        return self.vary(example, random.Random(derived_seed(self.order.seed, "subwords", update, index)))
