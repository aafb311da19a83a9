"""Sound as numbers: another sample rate, and log-mel frames. Every function looks at one sound alone (law 3)."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

# N samples  S frames  F bands

CROSSINGS, BETA, PASSED = 32, 10.0, 0.94
"""Of the resampling filter: zero crossings of the sinc to either side, form of its Kaiser window, the share of the band that
passes."""
FINEST = 500
"""Sample rates are taken as a ratio of whole numbers up to about this; 160/441 and the like are exact."""

HOP, WINDOW = 0.01, 0.025
"""Seconds from one frame to the next, and of what one frame hears."""
BANDS = 40
STRIDE = 4
"""How many frames become one place of the memory."""

LOUDNESS = 8 * math.log(10)
"""What is 80 dB below the loudest place of a sound counts as silence."""
SILENCE = 1e-10
"""Power of a band below which a sound is silent, whatever the rest of it is like."""


def resample(samples_N: Tensor, rate: int, to: int) -> Tensor:
    """The same sound at another sample rate, ⌈N · to / rate⌉ samples, by windowed sinc interpolation (Smith 1984):

    y_m = Σ_n x_n c sinc(c (t_m − n)) w(t_m − n),  t_m = m · rate / to,  c = 0.94 · min(1, to / rate)

    Outputs come in blocks of `up`, each block `down` inputs further: one matrix product for all of them.
    """
    ratio = Fraction(to, rate).limit_denominator(FINEST)
    up, down = ratio.numerator, ratio.denominator
    if up == down or not len(samples_N):
        return samples_N
    filter_WU, reach = _filter(up, down)
    filter_WU = filter_WU.to(samples_N)
    number = -(-len(samples_N) * up // down)
    blocks = -(-number // up)
    padded = samples_N.new_zeros((blocks - 1) * down + len(filter_WU))
    padded[reach : reach + len(samples_N)] = samples_N[: len(padded) - reach]
    return (padded.unfold(0, len(filter_WU), down) @ filter_WU).flatten()[:number]


@lru_cache(maxsize=32)
def _filter(up: int, down: int) -> tuple[Tensor, int]:
    """(what each of `up` outputs takes of the inputs around one block, how many of these come before its first)."""
    cut = PASSED * min(1.0, up / down)
    reach = math.ceil(CROSSINGS / cut)
    inputs_W = torch.arange(-reach, down + reach, dtype=torch.float64)
    times_U = torch.arange(up, dtype=torch.float64) * down / up
    apart_WU = times_U - inputs_W[:, None]
    inside = (1 - (apart_WU * cut / CROSSINGS) ** 2).clamp(min=0)
    window = torch.special.i0(BETA * inside.sqrt()) / torch.special.i0(torch.tensor(BETA, dtype=torch.float64))
    return cut * torch.sinc(cut * apart_WU) * window * (inside > 0), reach


def log_mel(samples_N: Tensor, rate: int, bands: int = BANDS, *, lowest: float = 20.0) -> Tensor:
    """(S, F): the logarithm of the power in mel bands, a frame for every 10 ms that begin, each of the 25 ms from there on.

    What is missing at the end is zeros. A periodic Hann window, an FFT of the next power of two, triangles of height 1 on HTK's
    mel scale from `lowest` to half the rate. The logarithm has a floor: 80 dB below the loudest band of this sound, so that
    digital silence is as quiet as a quiet room.
    """
    width, step = round(WINDOW * rate), round(HOP * rate)
    number = -(-len(samples_N) // step)
    if not number:
        return samples_N.new_zeros(0, bands)
    missing = (number - 1) * step + width - len(samples_N)
    frames_SN = F.pad(samples_N, (0, missing)).unfold(0, width, step)
    shape_N = torch.hann_window(width, dtype=samples_N.dtype, device=samples_N.device)
    size = 1 << (width - 1).bit_length()
    power = torch.fft.rfft(frames_SN * shape_N, size).abs().square()
    logs_SF = (power @ mel_filters(bands, size, rate, lowest).to(power)).clamp(min=SILENCE).log()
    return torch.maximum(logs_SF, logs_SF.max() - LOUDNESS)


@lru_cache(maxsize=32)
def mel_filters(bands: int, size: int, rate: int, lowest: float = 20.0) -> Tensor:
    """(size / 2 + 1, bands): triangles between points evenly spaced in mel(f) = 2595 log₁₀(1 + f / 700), HTK's scale."""
    bins = torch.arange(size // 2 + 1, dtype=torch.float64) * rate / size
    low, high = (2595 * math.log10(1 + hertz / 700) for hertz in (lowest, rate / 2))
    points = 700 * (10 ** (torch.linspace(low, high, bands + 2, dtype=torch.float64) / 2595) - 1)
    left, peak, right = points[:-2], points[1:-1], points[2:]
    rising, falling = (bins[:, None] - left) / (peak - left), (right - bins[:, None]) / (right - peak)
    return torch.minimum(rising, falling).clamp(min=0)


def extremes(samples_N: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """The lowest and the highest sample of each of at most this many stretches: a waveform, as finely as it can be drawn."""
    stretches = samples_N.tensor_split(min(most, len(samples_N)))
    return torch.stack([one.min() for one in stretches]), torch.stack([one.max() for one in stretches])


def normalise_bands(frames_SF: Tensor) -> Tensor:
    """Every band of this one sound has mean 0, and all of them together variance 1: neither how loud it is matters, nor what a
    microphone or a room adds to a band throughout. Silence becomes 0.

    Not one variance for each band, as in cepstral mean and variance normalisation: bands in which nothing happens would become
    as loud as those in which somebody speaks, and tones could not be told apart (docs/LOG.md).
    """
    if not len(frames_SF):
        return frames_SF
    frames_SF = frames_SF - frames_SF.mean(0)
    return frames_SF / (frames_SF.square().mean().sqrt() + 1e-2)
