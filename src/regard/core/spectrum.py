"""Audio features: resampling and log-mel frames. Every function processes one sound, independently of the batch (law 3)."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

# N samples  S frames  F bands

CROSSINGS, BETA, PASSBAND = 32, 10.0, 0.94
"""The resampling filter: zero crossings of the sinc on each side, β of its Kaiser window, and the fraction of the band that it
passes."""
MAX_DENOMINATOR = 500
"""The ratio of two sample rates is rounded to a fraction with at most this denominator; ratios such as 160/441 are exact."""

HOP, WINDOW = 0.01, 0.025
"""Seconds from the start of one frame to the next, and the length of a frame in seconds."""
BANDS = 40
STRIDE = 4
"""The number of frames that become one position of the memory."""

DYNAMIC_RANGE = 8 * math.log(10)
"""Dynamic range, as a difference of log power: 80 dB below the loudest band of a sound counts as silence."""
SILENCE = 1e-10
"""The power of a band below which it is silent, whatever the rest of the sound."""


def resample(samples_N: Tensor, rate: int, to: int) -> Tensor:
    """Converts a sound to another sample rate, ⌈N · to / rate⌉ samples, by windowed sinc interpolation (Smith 1984):

    y_m = Σ_n x_n c sinc(c (t_m − n)) w(t_m − n),  t_m = m · rate / to,  c = 0.94 · min(1, to / rate)

    Each block of `up` outputs starts `down` inputs after the previous block, so one matrix product computes all blocks.
    """
    ratio = Fraction(to, rate).limit_denominator(MAX_DENOMINATOR)
    up, down = ratio.numerator, ratio.denominator
    if up == down or not len(samples_N):
        return samples_N
    filter_WU, reach = _filter(up, down)
    filter_WU = filter_WU.to(samples_N)
    num_samples = -(-len(samples_N) * up // down)
    blocks = -(-num_samples // up)
    padded = samples_N.new_zeros((blocks - 1) * down + len(filter_WU))
    padded[reach : reach + len(samples_N)] = samples_N[: len(padded) - reach]
    return (padded.unfold(0, len(filter_WU), down) @ filter_WU).flatten()[:num_samples]


@lru_cache(maxsize=32)
def _filter(up: int, down: int) -> tuple[Tensor, int]:
    """Returns the filter, (inputs around one block, `up` outputs), and the number of these inputs before the block's first."""
    cutoff = PASSBAND * min(1.0, up / down)
    reach = math.ceil(CROSSINGS / cutoff)
    inputs_W = torch.arange(-reach, down + reach, dtype=torch.float64)
    times_U = torch.arange(up, dtype=torch.float64) * down / up
    offset_WU = times_U - inputs_W[:, None]
    inside = (1 - (offset_WU * cutoff / CROSSINGS) ** 2).clamp(min=0)
    window = torch.special.i0(BETA * inside.sqrt()) / torch.special.i0(torch.tensor(BETA, dtype=torch.float64))
    return cutoff * torch.sinc(cutoff * offset_WU) * window * (inside > 0), reach


def log_mel(samples_N: Tensor, rate: int, bands: int = BANDS, *, lowest: float = 20.0) -> Tensor:
    """Computes the log power in mel bands (S, F): a frame of 25 ms starts every 10 ms.

    The last frames are padded with zeros. A periodic Hann window, an FFT of the next power of two, triangular filters of height
    1 on HTK's mel scale from `lowest` Hz to half the rate. Values are clipped at 80 dB below the loudest band of this sound, so
    that digital silence is not quieter than a quiet room.
    """
    width, step = round(WINDOW * rate), round(HOP * rate)
    num_frames = -(-len(samples_N) // step)
    if not num_frames:
        return samples_N.new_zeros(0, bands)
    missing = (num_frames - 1) * step + width - len(samples_N)
    frames_SN = F.pad(samples_N, (0, missing)).unfold(0, width, step)
    window_N = torch.hann_window(width, dtype=samples_N.dtype, device=samples_N.device)
    size = 1 << (width - 1).bit_length()
    power = torch.fft.rfft(frames_SN * window_N, size).abs().square()
    logs_SF = (power @ mel_filters(bands, size, rate, lowest).to(power)).clamp(min=SILENCE).log()
    return torch.maximum(logs_SF, logs_SF.max() - DYNAMIC_RANGE)


@lru_cache(maxsize=32)
def mel_filters(bands: int, size: int, rate: int, lowest: float = 20.0) -> Tensor:
    """Returns triangular filters (size / 2 + 1, bands) with corners evenly spaced in mel(f) = 2595 log₁₀(1 + f / 700), HTK's
    scale."""
    bins = torch.arange(size // 2 + 1, dtype=torch.float64) * rate / size
    low, high = (2595 * math.log10(1 + hertz / 700) for hertz in (lowest, rate / 2))
    points = 700 * (10 ** (torch.linspace(low, high, bands + 2, dtype=torch.float64) / 2595) - 1)
    return _triangles(bins, points)


def _triangles(bins: Tensor, points: Tensor) -> Tensor:
    """Returns triangles of height 1 (bins, filters), each from one point to the next but one."""
    left, peak, right = points[:-2], points[1:-1], points[2:]
    rising, falling = (bins[:, None] - left) / (peak - left), (right - bins[:, None]) / (right - peak)
    return torch.minimum(rising, falling).clamp(min=0)


WHISPER_RATE, WHISPER_WINDOW, WHISPER_HOP = 16_000, 400, 160
"""The samples per second of the frames of Whisper, those of a window, and those from one frame to the next."""


def whisper_log_mel(samples_N: Tensor, bands: int) -> Tensor:
    """Computes the frames of Whisper (S, F), one for each 10 ms of a sound at 16,000 samples per second (Radford et al. 2022).

    A periodic Hann window of 25 ms around each frame, the ends of the sound reflected; log₁₀ of the power in mel bands, clipped
    at 80 dB below the loudest band of the sound, then x / 4 + 1.
    """
    window_N = torch.hann_window(WHISPER_WINDOW, dtype=samples_N.dtype)
    waves = torch.stft(samples_N, WHISPER_WINDOW, WHISPER_HOP, window=window_N, return_complex=True)
    power_SN = waves[:, :-1].abs().square().T
    logs_SF = (power_SN @ slaney_filters(bands, WHISPER_WINDOW, WHISPER_RATE).to(power_SN)).clamp(min=1e-10).log10()
    return (torch.maximum(logs_SF, logs_SF.max() - 8) + 4) / 4


@lru_cache(maxsize=4)
def slaney_filters(bands: int, size: int, rate: int) -> Tensor:
    """Returns triangular filters (size / 2 + 1, bands) of area 1 on Slaney's mel scale, which is linear up to 1,000 Hz and
    logarithmic above (Auditory Toolbox, 1998)."""
    bins = torch.arange(size // 2 + 1, dtype=torch.float64) * rate / size
    step = math.log(6.4) / 27
    highest = 15 + math.log(rate / 2 / 1000) / step if rate > 2000 else rate / 2 * 3 / 200
    mel = torch.linspace(0, highest, bands + 2, dtype=torch.float64)
    points = torch.where(mel < 15, mel * 200 / 3, 1000 * (step * (mel - 15)).exp())
    return _triangles(bins, points) * 2 / (points[2:] - points[:-2])


def extremes(samples_N: Tensor, max_sections: int) -> tuple[Tensor, Tensor]:
    """Returns the minimum and the maximum of each of at most `max_sections` equal sections of a sound, to draw its waveform."""
    sections = samples_N.tensor_split(min(max_sections, len(samples_N)))
    return torch.stack([section.min() for section in sections]), torch.stack([section.max() for section in sections])


def normalise_bands(frames_SF: Tensor) -> Tensor:
    """Shifts each band of one sound to mean 0 and scales all bands together to variance 1. Silence becomes 0.

    This removes the loudness, and what a microphone or a room adds constantly to a band. The variance is not normalised per
    band, as in cepstral mean and variance normalisation: bands without any sound would become as loud as bands with speech, and
    tones could no longer be distinguished (docs/LOG.md).
    """
    if not len(frames_SF):
        return frames_SF
    frames_SF = frames_SF - frames_SF.mean(0)
    return frames_SF / (frames_SF.square().mean().sqrt() + 1e-2)
