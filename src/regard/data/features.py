"""Precomputed features as sources, from .npy or .safetensors: (frames, features), or (rows, columns, features) for a grid."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import torch
from torch import Tensor

from regard.data.arrays import read_array
from regard.data.sources import MAX_FRAMES, FileCodec, read_sample
from regard.errors import UserError, WrongNumbers

SAMPLE = 200
"""How many files are read to estimate the mean and standard deviation of each feature."""
SMALLEST = 1e-6
"""A feature with a smaller standard deviation counts as constant."""


@dataclass(frozen=True)
class Features(FileCodec):
    """Reads files of features and standardises them: each feature has mean 0 and standard deviation 1 in the training data.

    mean, deviation: of each feature, before it is standardised. A constant feature has deviation 1.
    """

    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    suffixes: ClassVar[frozenset[str]] = frozenset({".npy", ".safetensors"})
    num_axes: ClassVar[int]
    axes: ClassVar[str]
    """Names of the axes, for messages."""

    def __post_init__(self) -> None:
        if not self.mean or len(self.mean) != len(self.deviation):
            raise ValueError(
                f"got {len(self.mean):,} means and {len(self.deviation):,} deviations, expected one of each per feature"
            )
        largest = torch.finfo(torch.float32).max
        for mean, deviation in zip(self.mean, self.deviation, strict=True):
            if not -largest <= mean <= largest:
                raise WrongNumbers({"mean": (mean, "a finite 32-bit number")})
            if not SMALLEST <= deviation <= largest:
                raise WrongNumbers({"deviation": (deviation, f"a finite 32-bit number, at least {SMALLEST}")})

    @classmethod
    def fit(cls, names: Iterable[str], root: Path, *, picture_size: int, max_frames: int = MAX_FRAMES) -> Self:
        moments = read_sample(names, SAMPLE, lambda name: cls._moments(root / name), cls.nouns)
        same_width = [item for item in moments if item.shape == moments[0].shape]  # `read` raises for files of another width
        count, total, squares = torch.stack(same_width).sum(0)
        mean = total / count
        deviation = (squares / count - mean.square()).clamp(min=0).sqrt()
        return cls(tuple(mean.tolist()), tuple(value if value > SMALLEST else 1.0 for value in deviation.tolist()), root=root)

    def read(self, path: Path) -> Tensor:
        """Returns the standardised features as float32 (frames, features), or (features, rows, columns) for a grid."""
        return self._standardised(path, self._numbers(path))

    def _standardised(self, path: Path, numbers: Tensor) -> Tensor:
        if numbers.shape[-1] != len(self):
            raise UserError(f"{path} has {numbers.shape[-1]} features, but this model reads {len(self)}")
        standardised = (numbers - torch.tensor(self.mean)) / torch.tensor(self.deviation)
        return standardised.movedim(-1, 0).contiguous() if self.num_axes > 2 else standardised

    def missing(self) -> Tensor:
        return torch.zeros(0, len(self)) if self.num_axes == 2 else torch.zeros(len(self), *[0] * (self.num_axes - 1))

    def __len__(self) -> int:
        return len(self.mean)

    def about(self) -> str:
        return f"{self.nouns} of {len(self)} features"

    @classmethod
    def _moments(cls, path: Path) -> Tensor:
        """Returns the count, the sum and the sum of squares of each feature, (3, features)."""
        numbers = cls._numbers(path).flatten(0, -2).double()
        return torch.stack((torch.full_like(numbers[0], len(numbers)), numbers.sum(0), numbers.square().sum(0)))

    @classmethod
    def _numbers(cls, path: Path) -> Tensor:
        """Returns the features in the file as float32. Raises UserError if the shape is wrong or a number is not finite."""
        return cls._checked(path, read_array(path))

    @classmethod
    def _checked(cls, path: Path, numbers: Tensor) -> Tensor:
        cls._check_shape(path, tuple(numbers.shape))
        numbers = numbers.float()
        if not numbers.isfinite().all():
            raise UserError(f"{path} contains NaN or infinite numbers")
        return numbers

    @classmethod
    def _check_shape(cls, path: Path, shape: tuple[int, ...]) -> None:
        if len(shape) != cls.num_axes or 0 in shape:
            raise UserError(f"{path} has shape {shape}, expected {cls.axes}, none of them 0")


@dataclass(frozen=True)
class Frames(Features):
    """Sequences of frames, (frames, features)."""

    unit: ClassVar[str] = "frames"
    nouns: ClassVar[str] = "sequences of frames"
    num_axes: ClassVar[int] = 2
    axes: ClassVar[str] = "(frames, features)"


@dataclass(frozen=True)
class Grids(Features):
    """Grids, (rows, columns, features)."""

    unit: ClassVar[str] = "grid"
    nouns: ClassVar[str] = "grids"
    num_axes: ClassVar[int] = 3
    axes: ClassVar[str] = "(rows, columns, features)"
