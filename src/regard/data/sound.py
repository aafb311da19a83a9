"""Reads sound files (WAV without a library, FLAC with soundfile), turns them into frames, and augments them for training."""

from __future__ import annotations

import os
import random
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.core.spectrum import DYNAMIC_RANGE, HOP, log_mel, normalise_bands, resample
from regard.data.files import format_of, reading
from regard.errors import UserError, one_line

# N samples  C channels  S frames  F bands

SUFFIXES = (".wav", ".wave", ".flac")
RATES = range(1_000, 768_001)
"""Sample rates that a file header may declare; others count as damage."""

PCM, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE
_FORMAT_NAMES = {2: "Microsoft ADPCM", 6: "A-law", 7: "µ-law", 0x11: "IMA ADPCM", 0x50: "MPEG", 0x55: "MP3"}
LOUDEST = 32767
"""The largest sample of 16 bits."""
MOST_CHUNKS = 1000
FLAC_FRAMES = 1 << 16
"""Samples per channel that are decoded at a time."""
_TO_THE_END = 0xFFFFFFFF
"""Chunk size that programs write when they stream into a pipe: the chunk extends to the end of the file."""
_CONVERT = "convert it first, e.g. ffmpeg -i in.wav -c:a pcm_s16le out.wav"


@dataclass(frozen=True)
class Sound:
    """A sound with one channel, the mean of all channels of its file. Samples range from −1 to 1; those of floating-point files
    may exceed this range."""

    samples_N: Tensor
    rate: int

    @property
    def seconds(self) -> float:
        """Duration in seconds."""
        return len(self.samples_N) / self.rate

    def at(self, rate: int) -> Sound:
        """Returns the sound resampled to `rate` samples per second."""
        return Sound(resample(self.samples_N, self.rate, rate), rate)


def read_sound(path: Path, longest: float | None = None) -> Sound:
    """Reads a WAV file (8, 16, 24 or 32 bits, float of 32 or 64 bits) or a FLAC file with any number of channels, at any rate.

    Raises UserError with the file's name if it is damaged, empty, of another format, or longer than `longest` seconds. The
    length is checked in the header, before the samples are read.
    """
    with reading(path), open(path, "rb") as file:
        samples_NC, rate = _read(path, file, longest)
    if not len(samples_NC):
        raise UserError(f"{path}: the sound is empty (it has no samples); remove it from the data")
    samples_N = samples_NC.mean(1)
    if not torch.isfinite(samples_N).all():
        raise UserError(f"{path}: some samples are NaN or infinite; export the file again from the original recording")
    return Sound(samples_N, rate)


def _read(path: Path, file: BinaryIO, longest: float | None) -> tuple[Tensor, int]:
    start = file.read(12)
    if not start:
        raise UserError(f"{path}: the file is empty, expected a sound (WAV or FLAC)")
    if start[:4] == b"RIFF" and start[8:] == b"WAVE":
        return _wav(path, file, longest)
    if start[:4] == b"fLaC":
        return _flac(path, file, longest)
    other = format_of(start)
    description = f"it is {other[0]}" if other else f"it starts with {start!r}"
    raise UserError(f"{path}: expected a sound (WAV or FLAC), but {description}; if it is a sound, {_CONVERT}")


def _check_header(path: Path, number: int, rate: int, longest: float | None) -> None:
    if rate not in RATES:
        raise UserError(f"{path}: {rate:,} samples per second, expected {RATES[0]:,} to {RATES[-1]:,}; is its header damaged?")
    if longest is not None and number > longest * rate:
        raise UserError(f"{path} lasts {number / rate:.0f} seconds, the limit is {longest:g}; split it at pauses")


def _wav(path: Path, file: BinaryIO, longest: float | None) -> tuple[Tensor, int]:
    """Reads a RIFF file: a sequence of chunks (name, size, content padded to an even size). The chunk "fmt " describes the
    samples, the chunk "data" contains them."""
    chunks: dict[bytes, tuple[int, int]] = {}
    offset, end = 12, os.fstat(file.fileno()).st_size
    for _ in range(MOST_CHUNKS):
        if offset + 8 > end or b"data" in chunks:
            break
        file.seek(offset)
        name, size = struct.unpack("<4sI", file.read(8))
        start = offset + 8
        if size == _TO_THE_END and name == b"data":
            size = end - start
        if start + size > end:
            raise UserError(
                f"{path}: truncated, or its header is damaged: its chunk {name.decode('latin-1')!r} should have {size:,} "
                f"bytes, but only {end - start:,} follow"
            )
        chunks.setdefault(name, (start, size))
        offset = start + size + size % 2
    for name, what in ((b"fmt ", "describes the samples"), (b"data", "contains the samples")):
        if name not in chunks:
            raise UserError(f"{path}: truncated: the chunk {name.decode()!r}, which {what}, is missing")
    (at, size), (start, length) = chunks[b"fmt "], chunks[b"data"]
    if size < 16:
        raise UserError(f"{path}: its header is damaged: its chunk 'fmt ' has {size} bytes, expected 16 or more")
    file.seek(at)
    header = file.read(min(size, 40))
    kind, channels, rate, _, block, bits = struct.unpack_from("<HHIIHH", header)
    if kind == EXTENSIBLE and size >= 26:
        (kind,) = struct.unpack_from("<H", header, 24)  # the first bytes of the sub-format
    width = bits // 8
    if (kind, bits) not in ((PCM, 8), (PCM, 16), (PCM, 24), (PCM, 32), (FLOAT, 32), (FLOAT, 64)):
        raise UserError(
            f"{path}: samples of {bits} bits in the format {_FORMAT_NAMES.get(kind, f'number {kind}')}, expected uncompressed "
            f"samples of 8, 16, 24 or 32 bits, or floating point; {_CONVERT}"
        )
    if not channels or block != channels * width:
        raise UserError(
            f"{path}: its header is damaged: {channels} channels of {width} bytes make {channels * width}, not {block}"
        )
    if length % block:
        raise UserError(f"{path}: truncated: {length:,} bytes are not a whole number of samples of {block} bytes")
    _check_header(path, length // block, rate, longest)
    file.seek(start)
    return _numbers(bytearray(file.read(length)), kind, width).view(-1, channels), rate


def _numbers(raw: bytearray, kind: int, width: int) -> Tensor:
    """Converts little-endian samples to numbers from −1 to 1."""
    if not raw:
        return torch.zeros(0)
    if kind == FLOAT:
        return torch.frombuffer(raw, dtype=torch.float32 if width == 4 else torch.float64).float()
    if width == 1:
        return torch.frombuffer(raw, dtype=torch.uint8).float() / 128 - 1
    if width == 3:
        low, middle, high = torch.frombuffer(raw, dtype=torch.uint8).int().view(-1, 3).unbind(1)
        return (low + (middle << 8) + (high << 16) - ((high >> 7) << 24)).float() / (1 << 23)
    return torch.frombuffer(raw, dtype=torch.int16 if width == 2 else torch.int32).float() / (1 << 8 * width - 1)


def _flac(path: Path, file: BinaryIO, longest: float | None) -> tuple[Tensor, int]:
    try:
        import soundfile
    except (ImportError, OSError):  # OSError: the C library libsndfile is missing
        raise UserError(f'{path}: reading FLAC needs soundfile; type: pip install "regard[audio]"') from None
    file.seek(0)
    try:
        with soundfile.SoundFile(file) as flac:
            rate, channels, expected = flac.samplerate, flac.channels, flac.frames
            _check_header(path, expected, rate, longest)
            raw = bytearray()
            # In blocks, so that a wrong length in the header does not allocate memory.
            while block := bytes(flac.buffer_read(FLAC_FRAMES, dtype="float32")):
                raw += block
    except (soundfile.SoundFileError, RuntimeError, AssertionError) as error:  # soundfile asserts, and damaged files break it
        raise UserError(f"{path}: truncated or damaged: {one_line(error) or 'it cannot be decoded'}") from None
    samples_NC = torch.frombuffer(raw, dtype=torch.float32).view(-1, channels) if raw else torch.zeros(0, channels)
    if len(samples_NC) != expected:
        raise UserError(f"{path}: truncated: its header declares {expected:,} samples, but it has {len(samples_NC):,}")
    return samples_NC, rate


# --- frames ------------------------------------------------------------------------------------------------------------------


def to_row(sound: Sound, rate: int) -> Tensor:
    """Returns the samples as int16 (S, samples in 10 ms), scaled so that the loudest sample is 32767 and padded with zeros."""
    samples_N = sound.at(rate).samples_N
    samples_N = samples_N / samples_N.abs().max().clamp(min=1e-6)
    step = round(HOP * rate)
    return (F.pad(samples_N, (0, -len(samples_N) % step)) * LOUDEST).round().to(torch.int16).view(-1, step)


def to_frames(row: Tensor) -> Tensor:
    """Returns the normalised log-mel frames (S, F) of a result of `to_row`."""
    return normalise_bands(log_mel(row.flatten() / LOUDEST, round(row.shape[1] / HOP)))


# --- augmentation ------------------------------------------------------------------------------------------------------------


def change_speed(samples_N: Tensor, factor: float) -> Tensor:
    """Plays the sound faster (factor above 1) or slower, which also raises or lowers the pitch (Ko et al. 2015)."""
    return resample(samples_N, round(1000 * factor), 1000)


def add_noise(logs_SF: Tensor, rng: random.Random, *, loudest: float = 20.0) -> Tensor:
    """Adds steady noise to all bands of log-mel frames, as in another room. The level is drawn from 80 dB to `loudest` dB below
    the loudest band."""
    if not len(logs_SF):
        return logs_SF
    decibel = DYNAMIC_RANGE / 80
    level = logs_SF.max() - rng.uniform(loudest, 80.0) * decibel
    generator = torch.Generator().manual_seed(rng.getrandbits(32))
    return torch.logaddexp(logs_SF, level + 2 * decibel * torch.randn(logs_SF.shape, generator=generator))


def mask_frames(
    frames_SF: Tensor,
    rng: random.Random,
    *,
    times: int = 2,
    bands: int = 2,
    most_frames: int = 12,
    band_share: float = 0.2,
) -> Tensor:
    """Applies SpecAugment (Park et al. 2019, section 2, without time warping). Masked values become 0, the mean of normalised
    frames.

    times: how many spans of time are masked, each of at most `most_frames` frames and a tenth of the sound. bands: how many
    spans of bands are masked, each of at most `band_share` of the bands. A masked span of time is shorter than a word, because
    a model cannot learn to write a word that it cannot hear.
    """
    frames_SF = frames_SF.clone()
    num_frames, num_bands = frames_SF.shape
    for axis, number, size, most in (
        (0, times, num_frames, min(most_frames, num_frames // 10)),
        (1, bands, num_bands, int(band_share * num_bands)),
    ):
        for _ in range(number):
            width = rng.randint(0, most)
            frames_SF.narrow(axis, rng.randint(0, size - width), width).zero_()
    return frames_SF
