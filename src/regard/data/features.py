"""Features of the user's own as a source: .npy or .safetensors, (frames, features), or (rows, columns, features) for a grid."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import torch
from torch import Tensor

from regard.data.arrays import read_array
from regard.data.sources import FileCodec, read_sample
from regard.errors import UserError, WrongNumbers

SAMPLE = 200
"""From how many files mean and deviation are taken."""
SMALLEST = 1e-6
"""A feature that deviates less counts as constant."""


@dataclass(frozen=True)
class Features(FileCodec):
    """Every feature has the mean 0 and the deviation 1 in the data that was learnt from."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    suffixes: ClassVar[frozenset[str]] = frozenset({".npy", ".safetensors"})
    num_axes: ClassVar[int]
    axes: ClassVar[str]

    def __post_init__(self) -> None:
        if not self.mean or len(self.mean) != len(self.deviation):
            raise ValueError(
                f"there are {len(self.mean):,} means and {len(self.deviation):,} deviations, expected one of each per feature"
            )
        largest = torch.finfo(torch.float32).max
        for mean, deviation in zip(self.mean, self.deviation, strict=True):
            if not -largest <= mean <= largest:
                raise WrongNumbers({"mean": (mean, "a finite number of 32 bits")})
            if not SMALLEST <= deviation <= largest:
                raise WrongNumbers({"deviation": (deviation, f"a finite number of 32 bits from {SMALLEST} on")})

    @classmethod
    def learn(cls, names: Iterable[str], root: Path, *, picture_size: int) -> Self:
        moments = read_sample(names, SAMPLE, lambda name: cls._moments(root / name), cls.nouns)
        similar = [one for one in moments if one.shape == moments[0].shape]  # the others cannot be read: `read` says so
        count, total, squares = torch.stack(similar).sum(0)
        mean = total / count
        deviation = (squares / count - mean.square()).clamp(min=0).sqrt()
        return cls(tuple(mean.tolist()), tuple(one if one > SMALLEST else 1.0 for one in deviation.tolist()), root=root)

    def read(self, path: Path) -> Tensor:
        numbers = self._numbers(path)
        if numbers.shape[-1] != len(self):
            raise UserError(f"{path} has {numbers.shape[-1]} features, but this model reads {len(self)}")
        normal = (numbers - torch.tensor(self.mean)) / torch.tensor(self.deviation)
        return normal.movedim(-1, 0).contiguous() if self.num_axes == 3 else normal

    def missing(self) -> Tensor:
        return torch.zeros(len(self), 0, 0) if self.num_axes == 3 else torch.zeros(0, len(self))

    def __len__(self) -> int:
        return len(self.mean)

    def about(self) -> str:
        return f"{self.nouns} of {len(self)} features"

    @classmethod
    def _moments(cls, path: Path) -> Tensor:
        """(3, features): how many there are, their sums, those of their squares."""
        numbers = cls._numbers(path).flatten(0, -2).double()
        return torch.stack((torch.full_like(numbers[0], len(numbers)), numbers.sum(0), numbers.square().sum(0)))

    @classmethod
    def _numbers(cls, path: Path) -> Tensor:
        numbers = read_array(path)
        if numbers.dim() != cls.num_axes or not numbers.numel():
            raise UserError(f"{path} has shape {tuple(numbers.shape)}, expected {cls.axes}, with at least one of each")
        numbers = numbers.float()
        if not numbers.isfinite().all():
            raise UserError(f"{path} holds numbers that are not finite")
        return numbers


@dataclass(frozen=True)
class Frames(Features):
    unit: ClassVar[str] = "frames"
    nouns: ClassVar[str] = "sequences of frames"
    num_axes: ClassVar[int] = 2
    axes: ClassVar[str] = "(frames, features)"


@dataclass(frozen=True)
class Grids(Features):
    unit: ClassVar[str] = "grid"
    nouns: ClassVar[str] = "grids"
    num_axes: ClassVar[int] = 3
    axes: ClassVar[str] = "(rows, columns, features)"


def kind_of(path: Path) -> type[Features]:
    """By its axes."""
    return Grids if read_array(path).dim() == 3 else Frames
