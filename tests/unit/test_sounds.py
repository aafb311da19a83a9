"""Sounds as a source: stored samples, frames of a batch, augmentation in training, and the settings that are chosen."""

import math
import random
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from tones import RATE, make_words, tones, write_wav, write_words

from regard.core.spectrum import log_mel, normalise_bands
from regard.data.batch import Example, source_batch
from regard.data.codecs import read_source, recognise
from regard.data.corpus import Pair
from regard.data.sound import LOUDEST, add_noise, read_sound, to_frames
from regard.data.sounds import Sounds
from regard.data.sources import num_positions
from regard.data.store import Store, write_store
from regard.errors import UserError
from regard.training.suggest import suggest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_words(tmp_path, ["abc", "h"])  # 0-1.wav, 1-1.wav
    return tmp_path


def test_rows_hold_samples_and_batches_hold_frames(folder: Path) -> None:  # SPEC A8.4
    """A row has the samples of 10 ms; a batch has their log-mel frames, the same as for each sound alone."""
    sounds = Sounds(RATE, root=folder)
    rows = [sounds.encode(name) for name in ("0-1.wav", "1-1.wav")]
    samples = read_sound(folder / "0-1.wav").samples_N
    assert rows[0].dtype == np.int16
    assert rows[0].shape == (-(-len(samples) // 80), 80)
    assert abs(rows[0]).max() == LOUDEST
    kept = torch.from_numpy(rows[0]).flatten()[: len(samples)] / LOUDEST
    torch.testing.assert_close(kept, samples / samples.abs().max(), atol=1 / LOUDEST, rtol=0)
    assert num_positions(rows[0]) == -(-len(rows[0]) // 4)
    source = source_batch(rows)
    assert source.values.shape == (2, len(rows[0]), 40)
    assert source.allow.sum(1).tolist() == [len(rows[0]), len(rows[1])]
    for number, row in enumerate(rows):
        expected = normalise_bands(log_mel(torch.from_numpy(row).flatten() / LOUDEST, RATE))
        torch.testing.assert_close(source.values[number, : len(row)], expected)
        assert (source.values[number, len(row) :] == 0).all()


def test_the_rate_is_chosen_from_the_files(folder: Path) -> None:
    names = ["0-1.wav", "1-1.wav"]
    assert Sounds.fit(names, folder, picture_size=8).rate == 8000
    for name, rate in (("c.wav", 44_100), ("d.wav", 16_000), ("e.wav", 22_050)):
        soundfile.write(folder / name, tones("ab", random.Random(1), rate).numpy(), rate)
        names.append(name)
    sounds = Sounds.fit(["missing.wav", *names], folder, picture_size=8)
    assert sounds.rate == 16_000
    assert sounds.encode("0-1.wav").shape[1] == 160
    assert read_source(sounds.to_json()) == sounds
    assert sounds.labels("0-1.wav", (3,)) == ("0.00 s", "0.04 s", "0.08 s")
    with pytest.raises(UserError, match=r"missing\.wav: no such file"):
        Sounds.fit(["missing.wav"], folder, picture_size=8)


def test_a_sound_at_two_rates_is_nearly_the_same(folder: Path) -> None:
    """The frames of a 44,100 Hz stereo file, resampled to 8,000, are those of the same sound written at 8,000."""
    fine = tones("adg", random.Random(5), 44_100)
    soundfile.write(folder / "fine.wav", torch.stack((fine, fine), 1).numpy(), 44_100)
    write_wav(folder / "coarse.wav", tones("adg", random.Random(5), 8000))
    sounds = Sounds(8000, root=folder)
    fine_frames, coarse_frames = (to_frames(sounds.read(folder / name)) for name in ("fine.wav", "coarse.wav"))
    assert abs(len(fine_frames) - len(coarse_frames)) <= 1
    loud = coarse_frames > 0.5  # the noise between the tones differs
    assert (fine_frames[: len(coarse_frames)] - coarse_frames)[loud[: len(fine_frames)]].abs().mean() < 0.1


def test_sounds_that_are_too_long_are_refused(tmp_path: Path) -> None:
    """The header is enough: an hour at 44,100 samples per second is not read."""
    write_wav(tmp_path / "long.wav", torch.zeros(10), 44100)
    with (tmp_path / "long.wav").open("r+b") as file:
        file.seek(40)
        file.write(struct.pack("<I", 2 * 44100 * 3600))
        file.truncate(44 + 2 * 44100 * 3600)
    tracemalloc.start()
    with pytest.raises(UserError, match=r"long\.wav lasts 3600 seconds, the limit is 60; split it"):
        Sounds(8000, root=tmp_path).encode("long.wav")
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    soundfile.write(tmp_path / "long.flac", torch.zeros(61 * 8000).numpy(), 8000)
    with pytest.raises(UserError, match=r"long\.flac lasts 61 seconds, the limit is 60; split it"):
        Sounds(8000, root=tmp_path).encode("long.flac")


def test_augmentation_changes_the_speed_and_masks_frames(folder: Path) -> None:
    sounds = Sounds(RATE, root=folder)
    row = sounds.read(folder / "0-1.wav")
    variants = [sounds.varied(row, 0.1, random.Random(seed)) for seed in range(60)]
    speeds = [random.Random(seed).randint(-5, 5) for seed in range(60)]  # in steps of 2 %
    expected = [math.ceil(math.ceil(row.numel() * 50 / (50 + speed)) / 80) for speed in speeds]
    assert [len(variant) for variant in variants] == expected
    assert set(speeds) == set(range(-5, 6))
    torch.testing.assert_close(sounds.varied(row, 0.1, random.Random(4)), variants[4])
    for seed, variant in enumerate(variants):
        chance = random.Random(seed)
        if chance.randint(-5, 5) == 0:  # the original speed
            noisy = normalise_bands(add_noise(log_mel(row.flatten() / LOUDEST, RATE), chance))
            assert ((variant == 0) | (variant - noisy).abs().lt(1e-5)).all()
    assert any((variant == 0).any() for variant in variants)
    assert sounds.varied(sounds.missing(), 0.1, random.Random(1)).shape == (0, 40)
    batch = source_batch([frames.numpy() for frames in (*variants[:3], to_frames(row))])
    assert batch.values.shape[2] == 40


def test_sounds_in_the_store(folder: Path) -> None:
    sounds = Sounds(RATE, root=folder)
    rows = [sounds.encode(name) for name in ("0-1.wav", "1-1.wav")]
    examples = [Example(row, [4, 5]) for row in rows]
    write_store(folder / "store", examples, len(sounds), 9)
    store = Store.open(folder / "store")
    for example, row in zip(store, rows, strict=True):
        assert row.dtype == np.int16
        np.testing.assert_array_equal(example.source, row, strict=True)
    assert store.lengths().tensors[0].tolist() == list(map(num_positions, rows))


def test_settings_for_sounds(folder: Path) -> None:
    words = make_words(200, 3)
    pairs = [Pair(f"{number}.wav", " ".join(word)) for number, word in enumerate(words)]
    assert recognise([pair.source for pair in pairs], folder) is Sounds
    found = suggest(pairs, root=folder)
    assert (found.settings.data.source_unit, found.settings.data.target_unit) == ("sound", "symbols")
    assert found.settings.data.augment == 0.2
    assert found.settings.model.frontend == "sound"  # type: ignore[union-attr]
    assert found.reasons["data.target_unit"] == "8 different words in 200 texts"
    many = [Pair(f"{number}.FLAC", f"word{number} and{number}") for number in range(200)]
    assert suggest(many, root=folder).settings.data.target_unit == "characters"
