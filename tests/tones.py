"""Synthetic speech for tests of sound that need no data: every letter is a tone with an overtone."""

import json
import random
import struct
import wave
from collections.abc import Sequence
from pathlib import Path

import torch

LETTERS = "abcdefgh"
RATE = 8000


def tones(word: str, rng: random.Random, rate: int = RATE) -> torch.Tensor:
    """Returns 60 to 140 ms of tone per letter, and 20 to 80 ms of near silence before, between and after them.

    Pitch, loudness and overtone vary a little.
    """
    parts = [silence(rng, rate)]
    for letter in word:
        number = int(rng.uniform(0.06, 0.14) * rate)
        hertz = 300 * 1.25 ** LETTERS.index(letter) * rng.uniform(0.98, 1.02)
        times = torch.arange(number) / rate
        wave = torch.sin(2 * torch.pi * hertz * times) + rng.uniform(0, 0.3) * torch.sin(4 * torch.pi * hertz * times)
        parts += [rng.uniform(0.2, 0.7) * torch.hann_window(number) ** 0.25 * wave, silence(rng, rate)]
    return torch.cat(parts)


def silence(rng: random.Random, rate: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rng.getrandbits(32))
    return 1e-3 * torch.randn(int(rng.uniform(0.02, 0.08) * rate), generator=generator)


def write_wav(path: Path, samples: torch.Tensor, rate: int = RATE) -> None:
    """Writes samples between -1 and 1 as 16-bit mono."""
    numbers = (samples.clamp(-1, 1) * 32767).round().int().tolist()
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(struct.pack(f"<{len(numbers)}h", *numbers))


def write_words(folder: Path, words: Sequence[str], seed: int = 1) -> list[tuple[str, str]]:
    """Writes one file per word; returns pairs (file name, letters separated by spaces)."""
    rng = random.Random(seed)
    pairs = []
    for number, word in enumerate(words):
        name = f"{number}-{seed}.wav"
        write_wav(folder / name, tones(word, rng))
        pairs.append((name, " ".join(word)))
    return pairs


def make_words(number: int, longest: int, seed: int = 1) -> list[str]:
    rng = random.Random(seed)
    return ["".join(rng.choices(LETTERS, k=rng.randint(1, longest))) for _ in range(number)]


def write_jsonl(path: Path, pairs: Sequence[tuple[str, str]]) -> Path:
    path.write_text("".join(json.dumps({"audio": name, "text": text}) + "\n" for name, text in pairs))
    return path
