"""Arranges examples by length, those of equal length at random, anew in each epoch: in memory, or on disk if they are many."""

from __future__ import annotations

import os
import tempfile
import weakref
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from regard.contracts import Array
from regard.data.files import temporary_files
from regard.data.lengths import Lengths
from regard.data.seeds import derived_seed

LARGE = 1 << 20
"""More examples than this are arranged on disk."""
ROUNDS = 4
"""The number of rounds of a Feistel network: with four, and functions that are random, its permutation looks random."""
_ENTRY = np.dtype([("index", "<i8"), ("source", "<i4"), ("target", "<i4")])
"""The number of an example, and its lengths."""


class Arrangement(Protocol):
    """The examples, arranged by size. sizes_by_end: the end of each range of slots of equal size -> that size, in order."""

    sizes_by_end: dict[int, int]

    def shuffled(self, epoch: int, number: int) -> list[int]:
        """Returns the numbers below `number` in the random order of an epoch."""
        ...

    def at(self, epoch: int, start: int, end: int) -> tuple[list[int], Tensor, Tensor]:
        """Returns the examples at the slots from `start` to `end`: their numbers, and the lengths of both sides."""
        ...


def arranged(lengths: Lengths, seed: int) -> Arrangement:
    """Arranges examples by size, which is the longer of their sides with <eos>."""
    return OnDisk(lengths, seed) if len(lengths) > LARGE else InMemory(lengths, seed)


class InMemory:
    """An arrangement in memory."""

    def __init__(self, lengths: Lengths, seed: int) -> None:
        self.lengths, self.seed = lengths.tensors, seed
        self.sizes_N = torch.maximum(*self.lengths) + 1
        self.sizes_by_end = _by_end(Counter(self.sizes_N.tolist()))

    def shuffled(self, epoch: int, number: int) -> list[int]:
        generator = torch.Generator()
        generator.set_state(self._order(epoch)[1])
        return torch.randperm(number, generator=generator).tolist()

    def at(self, epoch: int, start: int, end: int) -> tuple[list[int], Tensor, Tensor]:
        chosen = self._order(epoch)[0][start:end]
        return chosen.tolist(), self.lengths[0][chosen], self.lengths[1][chosen]

    @lru_cache(maxsize=1)  # noqa: B019 an arrangement lives as long as its run
    def _order(self, epoch: int) -> tuple[Tensor, Tensor]:
        """Returns the numbers of all examples, arranged, and the state of the generator that arranged them."""
        generator = torch.Generator().manual_seed(derived_seed(self.seed, "epoch", epoch))
        order_N = torch.randperm(len(self.sizes_N), generator=generator)
        return order_N[self.sizes_N[order_N].argsort(stable=True)], generator.get_state()


class OnDisk:
    """An arrangement in a temporary file, which has an entry for each example. The entries are sorted by size once; an epoch
    permutes those of equal size by a function that computes each slot by itself."""

    def __init__(self, lengths: Lengths, seed: int) -> None:
        self.seed = seed
        counts = Counter[int]()
        for block in lengths:
            sizes, numbers = np.unique(_sizes(*block), return_counts=True)
            counts.update(dict(zip(sizes.tolist(), numbers.tolist(), strict=True)))
        self.sizes_by_end = _by_end(counts)
        self._ends = [0, *self.sizes_by_end]
        free = dict(zip(self.sizes_by_end.values(), self._ends, strict=False))
        first = 0
        with temporary_files(lengths.folder):
            self._file = tempfile.TemporaryFile(dir=lengths.folder)  # noqa: SIM115 closed with this object
            weakref.finalize(self, self._file.close)
            for sources_N, targets_N in lengths:
                self._write(first, sources_N, targets_N, free)
                first += len(sources_N)
            self._file.flush()

    def _write(self, first: int, sources_N: Tensor, targets_N: Tensor, free: dict[int, int]) -> None:
        """Writes a block. first: the number of its first example. free: size -> the first slot that is free; it is updated."""
        sizes_N = _sizes(sources_N, targets_N)
        order_N = sizes_N.argsort(kind="stable")
        entries = np.empty(len(order_N), _ENTRY)
        entries["index"] = order_N + first
        entries["source"], entries["target"] = sources_N.numpy()[order_N], targets_N.numpy()[order_N]
        sizes, starts = np.unique(sizes_N[order_N], return_index=True)
        for size, part in zip(sizes.tolist(), np.split(entries, starts[1:]), strict=True):
            self._file.seek(free[size] * _ENTRY.itemsize)
            self._file.write(part.tobytes())
            free[size] += len(part)

    def shuffled(self, epoch: int, number: int) -> list[int]:
        generator = torch.Generator().manual_seed(derived_seed(self.seed, "epoch", epoch))
        return torch.randperm(number, generator=generator).tolist()

    def at(self, epoch: int, start: int, end: int) -> tuple[list[int], Tensor, Tensor]:
        file, width = self._file.fileno(), _ENTRY.itemsize
        entries = np.frombuffer(
            b"".join(os.pread(file, width, slot * width) for slot in self._slots(epoch, start, end)), _ENTRY
        )
        sides = (torch.from_numpy(entries[side].astype(np.int64)) for side in ("source", "target"))
        return entries["index"].tolist(), *sides

    def _slots(self, epoch: int, start: int, end: int) -> Iterator[int]:
        """Yields the slots of the entries that an epoch moves to the slots from `start` to `end`."""
        while start < end:
            at = bisect_right(self._ends, start)
            low, high = self._ends[at - 1], self._ends[at]
            until = min(end, high)
            slots = np.arange(start - low, until - low, dtype=np.uint64)
            yield from (low + permuted(slots, high - low, derived_seed(self.seed, "epoch", epoch, low))).tolist()
            start = until


def _sizes(sources_N: Tensor, targets_N: Tensor) -> Array:
    """Returns sizes as integers that sort fast."""
    sizes_N: Array = (torch.maximum(sources_N, targets_N) + 1).numpy()
    return sizes_N.astype(np.int16) if sizes_N.max(initial=0) < 1 << 15 else sizes_N


def permuted(numbers: Array, size: int, seed: int) -> Any:
    """Returns where a pseudo-random permutation of range(size) moves these numbers (uint64).

    It is a Feistel network over the next power of 4; what falls outside is moved again until it is inside.
    """
    half = np.uint64(max(1, -(-(size - 1).bit_length() // 2)))
    mask = (np.uint64(1) << half) - np.uint64(1)
    keys = [np.uint64(derived_seed(seed, number)) for number in range(ROUNDS)]

    def moved(numbers: Array) -> Array:
        left, right = numbers >> half, numbers & mask
        for key in keys:
            left, right = right, left ^ (_mixed(right ^ key) & mask)
        return left << half | right

    numbers = moved(numbers)
    while (outside := numbers >= size).any():
        numbers[outside] = moved(numbers[outside])
    return numbers.astype(np.int64)


def _mixed(numbers: Array) -> Any:
    """Returns a hash of each number (the finaliser of SplitMix64)."""
    numbers = (numbers ^ numbers >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ numbers >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return numbers ^ numbers >> np.uint64(31)


def _by_end(counts: Counter[int]) -> dict[int, int]:
    """Returns the end of the range of each size -> the size, in order. counts: the number of examples of each size."""
    sizes = sorted(counts)
    return dict(zip(accumulate(counts[size] for size in sizes), sizes, strict=True))
