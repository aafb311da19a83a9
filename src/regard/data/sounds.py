"""Sounds as sources: log-mel frames, one hundred per second."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median
from typing import ClassVar, Self

import torch
from torch import Tensor

from regard.core.spectrum import BANDS, HOP, STRIDE, log_mel, normalise_bands
from regard.data.sound import LOUDEST, SUFFIXES, add_noise, change_speed, mask_frames, read_sound, to_row
from regard.data.sources import MAX_FRAMES, FileCodec, read_sample
from regard.errors import WrongNumbers

SAMPLE = 100
"""How many files are read to choose the sample rate."""
COARSE, FINE = 8_000, 16_000
RATES = range(COARSE, 48_001)
"""Sample rates that a model may use."""
LONGEST = 60
"""Maximum duration of a sound, in seconds."""
SPEEDS = 5
"""Number of faster speeds, and of slower ones, in training; few, because each needs a separate filter, which is cached."""


@dataclass(frozen=True)
class Sounds(FileCodec):
    """Reads WAV and FLAC files. rate: the sample rate that all files are resampled to.

    A sound is stored as samples of 16 bits, 10 ms per row, scaled to the same peak. The samples become frames when a batch is
    made, because training plays them at varying speeds.
    """

    rate: int

    def __post_init__(self) -> None:
        if self.rate not in RATES:
            raise WrongNumbers({"rate": (self.rate, f"{RATES[0]:,} to {RATES[-1]:,} samples per second")})

    unit: ClassVar[str] = "sound"
    nouns: ClassVar[str] = "sounds"
    suffixes: ClassVar[frozenset[str]] = frozenset(SUFFIXES)
    seconds: ClassVar[float] = STRIDE * HOP

    @classmethod
    def fit(cls, names: Iterable[str], root: Path, *, picture_size: int, max_frames: int = MAX_FRAMES) -> Self:
        rates = read_sample(names, SAMPLE, lambda name: read_sound(root / name, LONGEST).rate, cls.nouns)
        return cls(FINE if median(rates) >= FINE else COARSE, root=root)

    def read(self, path: Path) -> Tensor:
        """Returns the samples as int16 (S, samples in 10 ms)."""
        return to_row(read_sound(path, LONGEST), self.rate)

    def missing(self) -> Tensor:
        return torch.zeros(0, round(HOP * self.rate), dtype=torch.int16)

    def varied(self, row: Tensor, amount: float, rng: Random) -> Tensor:
        """Changes the speed by up to the fraction `amount` (Ko et al. 2015), adds noise, and masks spans of time and bands."""
        samples_N = change_speed(row.flatten() / LOUDEST, 1 + amount * rng.randint(-SPEEDS, SPEEDS) / SPEEDS)
        return mask_frames(normalise_bands(add_noise(log_mel(samples_N, self.rate), rng)), rng)

    def __len__(self) -> int:
        return BANDS

    def about(self) -> str:
        return f"sounds at {self.rate:,} samples per second, {BANDS} mel bands"
