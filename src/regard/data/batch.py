"""Batches of tokens: sentences of like length side by side, in an order that depends on (seed, epoch) alone."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

import torch
from torch import Tensor

from regard.contracts import Source
from regard.core import masks
from regard.data.corpus import Pair
from regard.data.tokenizers.codec import EOS, PAD, SOS, Codec


class Example(NamedTuple):
    source: list[int]
    target: list[int]

    @property
    def size(self) -> int:
        """How many places it takes, with <eos>."""
        return max(len(self.source), len(self.target)) + 1


@dataclass(frozen=True)
class Batch:
    """target_in starts with <sos>, target_out ends with <eos>: place t of the one predicts place t of the other."""

    source: Source
    target_in_BT: Tensor
    target_out_BT: Tensor
    num_targets: int

    def to(self, device: torch.device | str) -> Batch:
        return Batch(self.source.to(device), self.target_in_BT.to(device), self.target_out_BT.to(device), self.num_targets)


def encode_pairs(pairs: Sequence[Pair], source: Codec, target: Codec) -> list[Example]:
    return [Example(source.encode(pair.source), target.encode(pair.target)) for pair in pairs]


def source_batch(rows: Sequence[Sequence[int]]) -> Source:
    """Sources of any length, each closed by <eos>, padded at the end."""
    ids_BS = _padded([[*row, EOS] for row in rows])
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


def epoch_order(examples: Sequence[Example], *, batch_tokens: int, seed: int, epoch: int) -> list[list[int]]:
    """Which examples go together, batch by batch. A batch fills at most `batch_tokens` places per side, padding included; a
    single example that is longer makes a batch of its own."""
    chance = random.Random(f"{seed}/{epoch}")
    order = sorted(range(len(examples)), key=lambda index: (examples[index].size, chance.random()))
    batches: list[list[int]] = [[]]
    for index in order:  # sizes only grow, so the newest example sets the width of its batch
        if batches[-1] and (len(batches[-1]) + 1) * examples[index].size > batch_tokens:
            batches.append([])
        batches[-1].append(index)
    chance.shuffle(batches)
    return batches


def endless_batches(examples: Sequence[Example], *, batch_tokens: int, seed: int) -> Iterator[Batch]:
    """Epoch after epoch, without end."""
    for epoch in count():
        for indices in epoch_order(examples, batch_tokens=batch_tokens, seed=seed, epoch=epoch):
            yield collate([examples[index] for index in indices])
