"""A language of tones, for tests that need sound and no data: every letter is a tone with an overtone, and lasts a while."""

import json
import random
import struct
import wave
from collections.abc import Sequence
from pathlib import Path

import torch

LETTERS = "abcdefgh"
RATE = 8000


def tones(word: str, chance: random.Random, rate: int = RATE) -> torch.Tensor:
    """60 to 140 ms of tone for each letter, 20 to 80 ms of near silence between; pitch, loudness and overtone vary a little."""
    parts = [silence(chance, rate)]
    for letter in word:
        number = int(chance.uniform(0.06, 0.14) * rate)
        hertz = 300 * 1.25 ** LETTERS.index(letter) * chance.uniform(0.98, 1.02)
        times = torch.arange(number) / rate
        wave = torch.sin(2 * torch.pi * hertz * times) + chance.uniform(0, 0.3) * torch.sin(4 * torch.pi * hertz * times)
        parts += [chance.uniform(0.2, 0.7) * torch.hann_window(number) ** 0.25 * wave, silence(chance, rate)]
    return torch.cat(parts)


def silence(chance: random.Random, rate: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(chance.getrandbits(32))
    return 1e-3 * torch.randn(int(chance.uniform(0.02, 0.08) * rate), generator=generator)


def write_wav(path: Path, samples: torch.Tensor, rate: int = RATE) -> None:
    numbers = (samples.clamp(-1, 1) * 32767).round().int().tolist()
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(struct.pack(f"<{len(numbers)}h", *numbers))


def write_words(folder: Path, words: Sequence[str], seed: int = 1) -> list[tuple[str, str]]:
    """A file for every word; gives (name of the file, the letters with spaces between)."""
    chance = random.Random(seed)
    pairs = []
    for number, word in enumerate(words):
        name = f"{number}-{seed}.wav"
        write_wav(folder / name, tones(word, chance))
        pairs.append((name, " ".join(word)))
    return pairs


def make_words(number: int, longest: int, seed: int = 1) -> list[str]:
    chance = random.Random(seed)
    return ["".join(chance.choices(LETTERS, k=chance.randint(1, longest))) for _ in range(number)]


def write_jsonl(path: Path, pairs: Sequence[tuple[str, str]]) -> Path:
    path.write_text("".join(json.dumps({"audio": name, "text": text}) + "\n" for name, text in pairs))
    return path
