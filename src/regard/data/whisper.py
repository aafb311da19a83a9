"""Sounds as Whisper reads them: padded with silence to 30 seconds, as log-mel frames, one hundred per second."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.core.spectrum import HOP, WHISPER_HOP, WHISPER_RATE, whisper_log_mel
from regard.data.sound import SUFFIXES, mask_frames, read_sound
from regard.data.sources import MAX_FRAMES, FileCodec
from regard.errors import WrongNumbers

BANDS, LONGEST = range(1, 513), range(1, 601)
"""Numbers of mel bands that a model may read, and of seconds that its sounds may last."""


@dataclass(frozen=True)
class WhisperSounds(FileCodec):
    """Reads WAV and FLAC files. bands: the number of mel bands, 80 or, from large-v3 on, 128.  longest: the seconds to which
    every sound is padded; longer sounds are refused."""

    bands: int = 80
    longest: int = 30

    def __post_init__(self) -> None:
        if self.bands not in BANDS:
            raise WrongNumbers({"bands": (self.bands, f"{BANDS[0]} to {BANDS[-1]} mel bands")})
        if self.longest not in LONGEST:
            raise WrongNumbers({"longest": (self.longest, f"{LONGEST[0]} to {LONGEST[-1]} seconds")})

    unit: ClassVar[str] = "whisper"
    nouns: ClassVar[str] = "sounds"
    suffixes: ClassVar[frozenset[str]] = frozenset(SUFFIXES)
    seconds: ClassVar[float] = 2 * HOP

    @classmethod
    def fit(cls, names: Iterable[str], root: Path, *, picture_size: int, max_frames: int = MAX_FRAMES) -> Self:
        return cls(root=root)

    def read(self, path: Path) -> Tensor:
        """Returns the frames, two in each row (S, 2 · bands). Raises UserError if the file is longer than `longest` seconds, or
        unreadable."""
        return self.frames(read_sound(path, self.longest).at(WHISPER_RATE).samples_N)

    def frames(self, samples_N: Tensor) -> Tensor:
        """Returns the frames of a sound at 16,000 samples per second, padded with silence; two in each row (S, 2 · bands), as
        two frames become one position."""
        size = self.longest * WHISPER_RATE
        padded_N = F.pad(samples_N[:size].float(), (0, max(0, size - len(samples_N))))
        return whisper_log_mel(padded_N, self.bands).view(-1, len(self))

    @property
    def num_positions(self) -> int:
        """The number of positions of every sound."""
        return self.longest * WHISPER_RATE // WHISPER_HOP // 2

    def missing(self) -> Tensor:
        return torch.zeros(0, len(self))

    def varied(self, row: Tensor, amount: float, rng: Random) -> Tensor:
        """Masks spans of time and of bands."""
        return mask_frames(row.view(-1, self.bands), rng).view(row.shape)

    def __len__(self) -> int:
        return 2 * self.bands

    def about(self) -> str:
        return f"sounds of up to {self.longest} seconds, {self.bands} mel bands, as Whisper reads them"
