"""Sounds as a source: what is kept, what a batch holds, what training makes of it, and which settings are chosen."""

import math
import random
import struct
import tracemalloc
from pathlib import Path

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
from regard.training.settings import suggest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_words(tmp_path, ["abc", "h"])  # 0-1.wav, 1-1.wav
    return tmp_path


def test_what_is_kept_and_what_a_batch_holds(folder: Path) -> None:  # SPEC A8.4
    """Samples, 10 ms in a row; the batch has their log-mel frames, each as it would be alone."""
    sounds = Sounds(RATE, root=folder)
    rows = sounds.encode_batch(["0-1.wav", "1-1.wav"])
    samples = read_sound(folder / "0-1.wav").samples_N
    assert rows[0].dtype == torch.int16
    assert rows[0].shape == (-(-len(samples) // 80), 80)
    assert rows[0].abs().max() == LOUDEST
    kept = rows[0].flatten()[: len(samples)] / LOUDEST
    torch.testing.assert_close(kept, samples / samples.abs().max(), atol=1 / LOUDEST, rtol=0)
    assert num_positions(rows[0]) == -(-len(rows[0]) // 4)
    source = source_batch(rows)
    assert source.values.shape == (2, len(rows[0]), 40)
    assert source.allow.sum(1).tolist() == [len(rows[0]), len(rows[1])]
    for number, row in enumerate(rows):
        expected = normalise_bands(log_mel(row.flatten() / LOUDEST, RATE))
        torch.testing.assert_close(source.values[number, : len(row)], expected)
        assert (source.values[number, len(row) :] == 0).all()


def test_the_rate_of_most_files_is_kept(folder: Path) -> None:
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
    """The frames of a 44,100 Hz stereo file, brought to 8,000, are those of the same sound written at 8,000."""
    fine = tones("adg", random.Random(5), 44_100)
    soundfile.write(folder / "fine.wav", torch.stack((fine, fine), 1).numpy(), 44_100)
    write_wav(folder / "coarse.wav", tones("adg", random.Random(5), 8000))
    sounds = Sounds(8000, root=folder)
    one, other = (to_frames(sounds.encode(name)) for name in ("fine.wav", "coarse.wav"))
    assert abs(len(one) - len(other)) <= 1
    loud = other > 0.5  # the noise between the tones is another
    assert (one[: len(other)] - other)[loud[: len(one)]].abs().mean() < 0.1


def test_too_long(tmp_path: Path) -> None:
    """Its header is enough to know: an hour at 44,100 samples is not read."""
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


def test_training_hears_other_speeds_and_less_than_everything(folder: Path) -> None:
    sounds = Sounds(RATE, root=folder)
    row = sounds.encode("0-1.wav")
    heard = [sounds.varied(row, 0.1, random.Random(seed)) for seed in range(60)]
    speeds = [random.Random(seed).randint(-5, 5) for seed in range(60)]  # of 2 % each
    expected = [math.ceil(math.ceil(row.numel() * 50 / (50 + speed)) / 80) for speed in speeds]
    assert [len(one) for one in heard] == expected
    assert set(speeds) == set(range(-5, 6))
    torch.testing.assert_close(sounds.varied(row, 0.1, random.Random(4)), heard[4])
    for seed, one in enumerate(heard):
        chance = random.Random(seed)
        if chance.randint(-5, 5) == 0:  # as fast as it was
            noisy = normalise_bands(add_noise(log_mel(row.flatten() / LOUDEST, RATE), chance))
            assert ((one == 0) | (one - noisy).abs().lt(1e-5)).all()
    assert any((one == 0).any() for one in heard)
    assert sounds.varied(sounds.missing(), 0.1, random.Random(1)).shape == (0, 40)
    batch = source_batch([*heard[:3], to_frames(row)])
    assert batch.values.shape[2] == 40


def test_sounds_in_the_store(folder: Path) -> None:
    sounds = Sounds(RATE, root=folder)
    rows = sounds.encode_batch(["0-1.wav", "1-1.wav"])
    examples = [Example(row, [4, 5]) for row in rows]
    write_store(folder / "store", examples, len(sounds), 9)
    store = Store.open(folder / "store")
    for example, row in zip(store, rows, strict=True):
        assert isinstance(example.source, torch.Tensor)
        assert example.source.equal(row)
        assert example.source.dtype == torch.int16
    assert store.sizes()[0].tolist() == list(map(num_positions, rows))


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
