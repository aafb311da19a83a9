"""The lengths of all examples, which are read block by block: any number of them takes little memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

Block = tuple[Tensor, Tensor]
"""The number of positions of the sources, and of the targets, of some examples in succession; int64."""

BLOCK = 1 << 17
"""The number of examples in a block."""


class Lengths:
    """The number of positions of each source and of each target.

    number: that of the examples. blocks: returns a new iterator over all of them. folder: has room for temporary files.
    """

    def __init__(self, number: int, blocks: Callable[[], Iterator[Block]], folder: Path | None = None) -> None:
        self.number, self.folder, self._blocks = number, folder, blocks

    @classmethod
    def of(cls, sources: Sequence[int] | Tensor, targets: Sequence[int] | Tensor) -> Lengths:
        """Returns lengths that are in memory."""
        block = torch.as_tensor(sources, dtype=torch.int64), torch.as_tensor(targets, dtype=torch.int64)
        return cls(len(block[0]), lambda: iter((block,)))

    def __len__(self) -> int:
        return self.number

    def __iter__(self) -> Iterator[Block]:
        return self._blocks()

    @property
    def tensors(self) -> Block:
        """All lengths, in memory."""
        sources, targets = zip(*self, strict=True)
        return torch.cat(sources), torch.cat(targets)

    @cached_property
    def longest(self) -> tuple[int, int]:
        """The length of the longest source, and of the longest target; 0 if there are no examples."""
        source, target = zip(*([int(side.max()) if len(side) else 0 for side in block] for block in self), strict=True)
        return max(source), max(target)

    @property
    def mean_target(self) -> float:
        """The mean length of the targets."""
        return sum(int(target_N.sum()) for _, target_N in self) / self.number
