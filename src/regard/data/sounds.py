"""Sounds as a source: log-mel frames, a hundred in a second."""

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
from regard.data.sources import FileCodec, read_sample
from regard.errors import WrongNumbers

SAMPLE = 100
"""How many files are looked at to see how finely they are sampled."""
COARSE, FINE = 8_000, 16_000
RATES = range(COARSE, 48_001)
"""What a model may listen at."""
LONGEST = 60
"""Seconds."""
SPEEDS = 5
"""To either side; each needs a filter of its own, and these are kept."""


@dataclass(frozen=True)
class Sounds(FileCodec):
    """rate: samples in a second that all files are brought to.

    A sound is kept as samples of 16 bits, 10 ms in a row, scaled to the same greatest loudness; they become frames when a
    batch is made, because training hears them at other speeds.
    """

    rate: int

    def __post_init__(self) -> None:
        if self.rate not in RATES:
            raise WrongNumbers({"rate": (self.rate, f"{RATES[0]:,} to {RATES[-1]:,} samples in a second")})

    unit: ClassVar[str] = "sound"
    nouns: ClassVar[str] = "sounds"
    suffixes: ClassVar[frozenset[str]] = frozenset(SUFFIXES)
    seconds: ClassVar[float] = STRIDE * HOP

    @classmethod
    def learn(cls, names: Iterable[str], root: Path, *, picture_size: int) -> Self:
        rates = read_sample(names, SAMPLE, lambda name: read_sound(root / name, LONGEST).rate, cls.nouns)
        return cls(FINE if median(rates) >= FINE else COARSE, root=root)

    def read(self, path: Path) -> Tensor:
        """(S, samples in 10 ms), int16."""
        return to_row(read_sound(path, LONGEST), self.rate)

    def missing(self) -> Tensor:
        return torch.zeros(0, round(HOP * self.rate), dtype=torch.int16)

    def varied(self, row: Tensor, amount: float, chance: Random) -> Tensor:
        """Slower or faster by up to this share (Ko et al. 2015), in another room, without stretches of time and of bands."""
        fast = change_speed(row.flatten() / LOUDEST, 1 + amount * chance.randint(-SPEEDS, SPEEDS) / SPEEDS)
        return mask_frames(normalise_bands(add_noise(log_mel(fast, self.rate), chance)), chance)

    def __len__(self) -> int:
        return BANDS

    def about(self) -> str:
        return f"sounds at {self.rate:,} samples in a second, {BANDS} mel bands"
