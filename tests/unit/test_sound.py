"""Sound: files against soundfile, resampling and spectra against SciPy and NumPy, subsampling against its formula."""

import builtins
import math
import random
import struct
from pathlib import Path

import numpy as np
import pytest
import scipy.signal
import soundfile
import torch

from regard.core import masks
from regard.core.spectrum import log_mel, normalise_bands, resample
from regard.data.sound import add_noise, change_speed, mask_frames, read_sound, to_frames, to_row
from regard.errors import UserError
from regard.layers.subsample import Subsampling


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).uniform(-0.9, 0.9, shape)


# --- files -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 2, 5])
@pytest.mark.parametrize(
    ("container", "subtype"),
    [
        (container, bits)
        for container in ("WAV", "WAVEX")
        for bits in ("PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE")
    ]
    + [("FLAC", "PCM_16"), ("FLAC", "PCM_24")],
)
def test_files_are_read_as_soundfile_reads_them(tmp_path: Path, container: str, subtype: str, channels: int) -> None:
    path = tmp_path / "sound"
    soundfile.write(path, noise(1013, channels), 11_025, format=container, subtype=subtype)
    theirs, rate = soundfile.read(path)
    sound = read_sound(path)
    assert sound.rate == rate == 11_025
    assert sound.samples_N.dtype == torch.float32
    assert sound.seconds == 1013 / 11_025
    expected = theirs.reshape(1013, channels).mean(1)
    torch.testing.assert_close(sound.samples_N.double(), torch.from_numpy(expected), rtol=0, atol=2e-7)


def wav(
    data: bytes, kind: int = 1, channels: int = 1, rate: int = 8000, block: int | None = None, bits: int = 16, size: int = -1
) -> bytes:
    block = channels * bits // 8 if block is None else block
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, kind, channels, rate, 0, block, bits)
    chunks = b"LIST" + struct.pack("<I", 3) + b"abc\0" + form + struct.pack("<4sI", b"data", size if size >= 0 else len(data))
    return b"RIFF" + struct.pack("<I", 4 + len(chunks) + len(data)) + b"WAVE" + chunks + data


def test_streamed_wav(tmp_path: Path) -> None:
    """A program that writes to a pipe does not know the size; chunks of odd length are padded with a byte."""
    path = tmp_path / "a.wav"
    path.write_bytes(wav(struct.pack("<3h", 16384, -32768, 1), size=0xFFFFFFFF))
    assert read_sound(path).samples_N.tolist() == [0.5, -1.0, 1 / 32768]


BAD_FILES = {
    "empty file": (b"", "the file is empty, expected a sound"),
    "no sound": (b"hello, I am a text", r"expected a sound \(WAV or FLAC\), but it starts with b'hello, I am "),
    "no samples": (wav(b""), "the sound is empty \\(it has no samples"),
    "truncated": (wav(b"\0" * 100)[:-30], "truncated, .* chunk 'data' should have 100 bytes, but only 70 follow"),
    "absurd size": (wav(b"\0" * 4, size=0x7FFFFFFF), "should have 2,147,483,647 bytes, but only 4 follow"),
    "no data": (wav(b"", size=0)[:-8], "truncated: the chunk 'data', which contains the samples, is missing"),
    "half a sample": (wav(b"\0" * 5), "truncated: 5 bytes are not a whole number of samples of 2 bytes"),
    "no rate": (wav(b"\0" * 4, rate=0), "0 samples per second, expected 1,000 to 768,000"),
    "absurd rate": (wav(b"\0" * 4, rate=4_000_000_000), "4,000,000,000 samples per second"),
    "no channels": (wav(b"\0" * 4, channels=0, block=2), "0 channels of 2 bytes make 0, not 2"),
    "wrong block": (wav(b"\0" * 4, block=7), "1 channels of 2 bytes make 2, not 7"),
    "µ-law": (wav(b"\0" * 4, kind=7, bits=8), "samples of 8 bits in the format µ-law.*ffmpeg"),
    "12 bits": (wav(b"\0" * 4, bits=12), "samples of 12 bits"),
    "strange format": (wav(b"\0" * 4, kind=999), "format number 999"),
    "not a number": (wav(struct.pack("<2f", 0.5, float("nan")), kind=3, bits=32), "some samples are NaN or infinite"),
    "short header": (b"RIFF\0\0\0\0WAVEfmt \2\0\0\0abdata\0\0\0\0", "its chunk 'fmt ' has 2 bytes"),
    "mp3": (b"ID3\4" + b"\0" * 100, r"expected a sound \(WAV or FLAC\), but it is MP3; if it is a sound, convert it"),
    "damaged flac": (b"fLaC" + b"\7" * 100, "truncated or damaged"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files_are_refused_by_name(tmp_path: Path, name: str) -> None:
    content, message = BAD_FILES[name]
    path = tmp_path / "bad one.wav"
    path.write_bytes(content)
    with pytest.raises(UserError, match="bad one.wav: .*" + message):
        read_sound(path)


def test_missing_file_and_truncated_flac(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nothing\.wav: no such file"):
        read_sound(tmp_path / "nothing.wav")
    with pytest.raises(UserError, match="cannot be read: Is a directory"):
        read_sound(tmp_path)
    path = tmp_path / "a.flac"
    soundfile.write(path, noise(20_000), 8000)
    path.write_bytes(path.read_bytes()[:-9000])
    with pytest.raises(UserError, match=r"a\.flac: truncated"):
        read_sound(path)


def test_many_empty_chunks_do_not_hang(tmp_path: Path) -> None:
    path = tmp_path / "sound.wav"
    path.write_bytes(b"RIFF\0\0\0\0WAVE" + b"JUNK\0\0\0\0" * 500_000)
    with pytest.raises(UserError, match="the chunk 'fmt '"):
        read_sound(path)
    good = tmp_path / "good.wav"
    soundfile.write(good, noise(800), 8000, subtype="PCM_16")
    content = good.read_bytes()
    path.write_bytes(content[:12] + b"JUNK\0\0\0\0" * 500 + content[12:])
    assert torch.equal(read_sound(path).samples_N, read_sound(good).samples_N)


def test_flac_is_read_in_blocks_whatever_its_header_declares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "sound.flac"
    soundfile.write(path, noise(70_000), 8000, subtype="PCM_16")
    requested = []
    read = soundfile.SoundFile.buffer_read
    monkeypatch.setattr(
        soundfile.SoundFile,
        "buffer_read",
        lambda flac, frames=-1, dtype=None: requested.append(frames) or read(flac, frames, dtype),
    )
    assert len(read_sound(path).samples_N) == 70_000
    assert len(requested) >= 2
    assert all(0 < frames <= 1 << 16 for frames in requested)


def test_flac_without_soundfile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.flac"
    soundfile.write(path, noise(100), 8000)
    real_import = builtins.__import__

    def missing(name: str, *others: object) -> object:
        if name == "soundfile":
            raise ImportError(name)
        return real_import(name, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(UserError, match=r'a\.flac: reading FLAC needs soundfile; type: pip install "regard\[audio\]"'):
        read_sound(path)


# --- resampling --------------------------------------------------------------------------------------------------------------

RATES = [(8000, 16_000), (44_100, 16_000), (16_000, 8000), (48_000, 44_100), (900, 1000), (1100, 1000)]


def waves(rate: int, number: int, highest: float) -> np.ndarray:
    """A sum of sines below `highest`; the same sound at every rate."""
    chance = np.random.default_rng(3)
    hertz, phase = chance.uniform(0.02, 1, 20) * highest, chance.uniform(0, 6, 20)
    times = np.arange(number)[:, None] / rate
    return np.sin(2 * np.pi * hertz * times + phase).sum(1) / 20


@pytest.mark.parametrize(("rate", "to"), RATES)
def test_resampling(rate: int, to: int) -> None:
    """Within 1e-4 of the sines sampled at the new rate, and within 2e-3 of scipy.signal.resample_poly, whose filter is shorter
    (it differs from the sines by more than 1e-3)."""
    highest = 0.4 * min(rate, to)
    given = waves(rate, 4001, highest)
    found = resample(torch.from_numpy(given), rate, to).numpy()
    assert len(found) == -(-4001 * to // rate)
    inner = slice(len(found) // 8, -len(found) // 8)  # the sound starts and stops at the edges, so it is not band-limited there
    np.testing.assert_allclose(found[inner], waves(to, len(found), highest)[inner], atol=1e-4)
    theirs = scipy.signal.resample_poly(given, to, rate)
    np.testing.assert_allclose(found[inner], theirs[inner], atol=2e-3)


def test_ratios_of_unusual_rates_are_approximated() -> None:
    """11,127 and 8,000 have no common divisor: 307 / 427 replaces their ratio, wrong by 2e-4 of a sample after a hundred."""
    given = waves(11_127, 4001, 3000)
    found = resample(torch.from_numpy(given), 11_127, 8000).numpy()
    inner = slice(300, -300)
    np.testing.assert_allclose(found[inner], waves(8000, len(found), 3000)[inner], atol=1e-2)


def test_frequencies_above_half_the_rate_are_filtered_out() -> None:
    """4,000 samples per second cannot represent 3 kHz, which must not come back as 1 kHz."""
    tone = torch.sin(2 * torch.pi * 3000 / 8000 * torch.arange(4000).double())
    assert resample(tone, 8000, 4000)[200:-200].abs().max() < 1e-4
    assert resample(tone, 8000, 8000) is tone
    assert resample(tone[:0], 8000, 4000).shape == (0,)
    assert resample(tone[:1], 8000, 16_000).shape == (2,)


def test_speed() -> None:
    tone = torch.sin(2 * torch.pi * 500 / 8000 * torch.arange(8000))
    fast = change_speed(tone, 1.1)
    assert len(fast) == -(-8000 * 1000 // 1100)
    assert torch.fft.rfft(fast, 8000).abs().argmax().item() == pytest.approx(550, abs=1)


# --- frames ------------------------------------------------------------------------------------------------------------------


def reference_log_mel(samples: np.ndarray, rate: int, bands: int) -> np.ndarray:
    """Frame by frame, filter by filter, by the definition."""
    width, hop = int(rate * 0.025), int(rate * 0.01)
    size = 2 ** int(np.ceil(np.log2(width)))
    frames = []
    start = 0
    while start < len(samples):
        part = np.zeros(width)
        available = samples[start : start + width]
        part[: len(available)] = available
        spectrum = np.fft.fft(part * scipy.signal.get_window("hann", width), size)
        frames.append(np.abs(spectrum[: size // 2 + 1]) ** 2)
        start += hop

    def mel(hertz: float) -> float:
        return 1127.0 * np.log(1 + hertz / 700)  # 2595 log10 is 1127.01 ln

    points = [700 * (np.exp(mels / 1127) - 1) for mels in np.linspace(mel(20), mel(rate / 2), bands + 2)]
    bins = np.arange(size // 2 + 1) * rate / size
    filters = [np.interp(bins, points[at : at + 3], [0, 1, 0]) for at in range(bands)]
    energy = np.array([[frame @ weights for weights in filters] for frame in frames])
    logs = np.log(np.maximum(energy, 1e-10))
    return np.maximum(logs, logs.max() - np.log(1e8))


@pytest.mark.parametrize(("rate", "number", "bands"), [(8000, 4001, 40), (16_000, 4800, 23), (22_050, 313, 20), (8000, 1, 40)])
def test_log_mel_equals_the_definition(rate: int, number: int, bands: int) -> None:
    """In float64 within 1e-4, the effect of two roundings of HTK's constant; also for a sound shorter than one window."""
    # SPEC A8.4
    samples = noise(number) * np.linspace(1e-3, 1, number)
    expected = reference_log_mel(samples, rate, bands)
    found = log_mel(torch.from_numpy(samples), rate, bands)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-4)
    single = log_mel(torch.from_numpy(samples).float(), rate, bands)
    np.testing.assert_allclose(single.numpy(), expected, atol=2e-2)


def test_normalised_frames() -> None:  # SPEC A8.4
    frames = log_mel(torch.from_numpy(noise(8000)), 8000)
    found = normalise_bands(frames)
    centred = frames.numpy() - frames.numpy().mean(0)
    np.testing.assert_allclose(found.numpy(), centred / centred.std(), rtol=0.02)
    coloured = normalise_bands(frames + torch.linspace(-3, 3, frames.shape[1]))  # another microphone
    torch.testing.assert_close(coloured, found)
    louder = normalise_bands(log_mel(torch.from_numpy(noise(8000)) * 7, 8000))
    torch.testing.assert_close(louder, found)


def test_silence_is_finite() -> None:
    silent = normalise_bands(log_mel(torch.zeros(8000), 8000))
    assert silent.shape == (100, 40)
    assert silent.abs().max() < 1e-3
    half = torch.cat((torch.zeros(4000), torch.from_numpy(noise(4000)).float()))
    frames = log_mel(half, 8000)
    assert frames.max() - frames.min() < 18.5  # 80 dB, not the floor of digital silence
    assert normalise_bands(frames).isfinite().all()


def test_noise_covers_quieter_parts_and_leaves_louder_ones() -> None:
    """A sound with a range of 100 dB: the noise is 20 to 80 dB below its loudest point, with a deviation of 2 dB."""
    decibel = math.log(10) / 10
    logs = torch.linspace(-100, 0, 40).repeat(200, 1) * decibel
    before, levels = logs.clone(), []
    for seed in range(60):
        noisy = add_noise(logs, random.Random(seed))
        levels.append(noisy[:, 0].mean().item() / decibel)
        deviation = noisy[:, 0].std().item() / decibel
        assert 1.5 < deviation < 2.5
        louder = logs > (levels[-1] + 20) * decibel
        assert (noisy - logs)[louder].abs().max() < 0.1
        assert (noisy >= logs).all()
    assert -81 < min(levels) < -70
    assert -30 < max(levels) < -19
    assert logs.equal(before)
    torch.testing.assert_close(add_noise(logs, random.Random(7)), add_noise(logs, random.Random(7)))


@pytest.mark.parametrize("num_frames", [100, 500])
def test_masks_of_time_and_bands(num_frames: int) -> None:
    frames = torch.ones(num_frames, 40)
    masked = [mask_frames(frames, random.Random(seed)) for seed in range(50)]
    assert (frames == 1).all()
    torch.testing.assert_close(mask_frames(frames, random.Random(7)), masked[7])
    for result in masked:
        times, bands = (result == 0).all(1), (result == 0).all(0)
        assert times.sum() <= 2 * (10 if len(frames) == 100 else 12)
        assert bands.sum() <= 16
        assert (result == 0).equal(times[:, None] | bands)
    assert len({tuple(result.flatten().tolist()) for result in masked}) > 45
    assert mask_frames(frames, random.Random(1), times=0, bands=0).equal(frames)


# --- subsampling -------------------------------------------------------------------------------------------------------------


def test_subsampling_ignores_padding() -> None:
    """Also in a batch with longer sounds, and whatever the padding contains."""
    # SPEC A8.4
    torch.manual_seed(1)
    layer = Subsampling(11, 7, channels=5).double()
    lengths = torch.tensor([29, 1, 6, 7, 8, 9])
    frames = torch.randn(6, 29, 11).double()
    frames[1:, 20:] = float("nan")
    found, allow = layer(frames, masks.first(lengths, 29))
    assert found.shape == (6, 8, 7)
    assert allow.sum(1).tolist() == [8, 1, 2, 2, 2, 3]
    for row, length in enumerate(lengths.tolist()):
        alone, real = layer(frames[row : row + 1, :length], masks.first(lengths[row : row + 1], length))
        assert real.all()
        torch.testing.assert_close(alone[0], found[row, : alone.shape[1]])


def test_subsampling_equals_the_formula() -> None:
    torch.manual_seed(1)
    layer = Subsampling(7, 3, channels=2).double()
    frames = torch.randn(1, 10, 7).double()
    x = np.zeros((1, 1, 10, 7))
    x[0] = frames[0].numpy()
    for convolution in (layer.first, layer.second):
        weight, bias = convolution.weight.detach().numpy(), convolution.bias.detach().numpy()
        padded = np.pad(x[0], ((0, 0), (1, 1), (1, 1)))
        high, wide = -(-x.shape[2] // 2), -(-x.shape[3] // 2)
        out = np.zeros((1, 2, high, wide))
        for i in range(high):
            for j in range(wide):
                patch = padded[:, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3]
                out[0, :, i, j] = np.maximum(0, np.einsum("cij,ocij->o", patch, weight) + bias)
        x = out
    flat = np.stack([x[0, :, i].reshape(-1) for i in range(x.shape[2])])
    positions = flat @ layer.project.weight.detach().numpy().T + layer.project.bias.detach().numpy()
    expected = (positions - positions.mean(1, keepdims=True)) / np.sqrt(positions.var(1, keepdims=True) + 1e-5)
    found, _ = layer(frames, masks.first(torch.tensor([10]), 10))
    np.testing.assert_allclose(found[0].detach().numpy(), expected, atol=1e-12)


# --- limits ------------------------------------------------------------------------------------------------------------------


def test_the_longest_sound_is_as_long_as_the_limit(tmp_path: Path) -> None:
    """Two seconds are two seconds; one sample more is too long."""
    for number in (16_000, 16_001):
        soundfile.write(tmp_path / f"{number}.wav", noise(number), 8_000)
    assert read_sound(tmp_path / "16000.wav", 2.0).seconds == 2.0
    with pytest.raises(UserError, match=r"16001\.wav lasts 2 seconds, the limit is 2; split it at pauses"):
        read_sound(tmp_path / "16001.wav", 2.0)


def test_silence_stays_silent(tmp_path: Path) -> None:
    """It has no loudest sample to be scaled by; nor is a hiss below 1e-6 made loud."""
    for name, loudest in (("silence", 0.0), ("hiss", 1e-8)):
        soundfile.write(tmp_path / f"{name}.wav", loudest * noise(1000), 8_000, subtype="FLOAT")
        row = to_row(read_sound(tmp_path / f"{name}.wav"), 8_000)
        assert row.shape == (13, 80)
        assert row.abs().max() <= 328
    assert to_frames(torch.zeros(13, 80, dtype=torch.int16)).abs().max() == 0
