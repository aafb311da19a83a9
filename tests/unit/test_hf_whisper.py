"""Whisper: its frames of sound, its tokens, its weights and its search are those of transformers and of CTranslate2."""

import json
import wave
from pathlib import Path
from typing import Any

import heard
import numpy as np
import pytest
import torch

import regard
from regard.core.source import Source
from regard.data.whisper import WhisperSounds
from regard.errors import UserError
from regard.interop import proof, whisper
from regard.interop.convert import convert
from regard.interop.formats import format_of
from regard.languages import Languages

transformers: Any = pytest.importorskip("transformers")
RATE = 16_000


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, regard.Translator]:
    """The folder, the model of transformers, and ours."""
    root = tmp_path_factory.mktemp("whisper")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(root / "cache"))
        model = heard.write(root / "theirs", transformers)
        return root / "theirs", model, regard.load(root / "theirs")


def sound(seconds: float, seed: int = 0) -> np.ndarray[Any, np.dtype[np.int16]]:
    noise = np.random.default_rng(seed).normal(size=round(seconds * RATE))
    return (noise * np.sin(np.arange(len(noise)) / 999) * 5000).astype(np.int16)


def written(path: Path, samples: np.ndarray[Any, np.dtype[np.int16]]) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", "not compressed"))
        file.writeframes(samples.tobytes())
    return path


@pytest.mark.parametrize("bands", [80, 128])
def test_frames_are_those_of_transformers(bands: int, tmp_path: Path) -> None:
    samples = sound(0.7)
    extractor = transformers.WhisperFeatureExtractor(feature_size=bands, chunk_length=2)
    expected = extractor(samples.astype(np.float32) / 32768, sampling_rate=RATE, return_tensors="pt").input_features[0].T
    found = WhisperSounds(bands, 2).read(written(tmp_path / "a.wav", samples))
    assert found.shape == (100, 2 * bands)
    torch.testing.assert_close(found.view(200, bands), expected, atol=1e-5, rtol=0)


def test_longer_sounds_are_refused_with_their_length(opened: tuple[Path, Any, regard.Translator], tmp_path: Path) -> None:
    path = written(tmp_path / "long.wav", sound(1.5))
    with pytest.raises(UserError, match=r"long\.wav lasts 2 seconds, the limit is 1; split it"):
        opened[2](path)


def test_states_attention_and_logits_are_those_of_transformers(opened: tuple[Path, Any, regard.Translator]) -> None:
    _, theirs, ours = opened
    assert isinstance(ours.source, WhisperSounds)
    frames_SF = ours.source.frames(torch.from_numpy(sound(0.6)) / 32768)
    ids = torch.tensor([[ours.target.specials.start, 40, 41, 260, 270, 5]])
    with torch.no_grad():
        theirs.set_attn_implementation("eager")
        expected = theirs(input_features=frames_SF.view(100, 7).T[None], decoder_input_ids=ids, output_attentions=True)
        memory = ours.model.encode(Source(frames_SF[None], torch.ones(1, 50, dtype=torch.bool)))
        decoded = ours.model.decode(ids, memory)
    torch.testing.assert_close(memory.values_BSE, expected.encoder_last_hidden_state, atol=1e-4, rtol=1e-4)
    assert isinstance(decoded, regard.Projected)
    torch.testing.assert_close(decoded.logits_BTV, expected.logits, atol=1e-4, rtol=1e-4)
    for kind, layers in (
        ("encoder", expected.encoder_attentions),
        ("decoder", expected.decoder_attentions),
        ("cross", expected.cross_attentions),
    ):
        look = regard.Look((regard.Tap(kind),))
        with torch.no_grad():
            memory = ours.model.encode(Source(frames_SF[None], torch.ones(1, 50, dtype=torch.bool)), look)
            seen = [*memory.seen, *ours.model.decode(ids, memory, look).seen]
        assert len(seen) == len(layers)
        for one, weights_BHTS in zip(seen, layers, strict=True):
            torch.testing.assert_close(one.weights_BHTS, weights_BHTS, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("language", ["en", "de"])
def test_outputs_are_those_of_their_generate(language: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The language, the task and the tokens that must not come first are those of generation_config.json."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    theirs = heard.write(tmp_path / "theirs", transformers, old_files=language == "de", language=language)
    ours = regard.load(tmp_path / "theirs")
    names = ours.target.tokens(ours.target.specials.prefix)
    assert names == (f"<|{language}|>", "<|transcribe|>", "<|notimestamps|>")
    assert ours.languages.target[0].code == language
    outputs = set()
    for seed in range(4):
        path = written(tmp_path / f"{seed}.wav", sound(0.3 + 0.2 * seed, seed))
        features = transformers.WhisperFeatureExtractor.from_pretrained(tmp_path / "theirs")(
            sound(0.3 + 0.2 * seed, seed).astype(np.float32) / 32768, sampling_rate=RATE, return_tensors="pt"
        ).input_features
        expected = theirs.generate(features, language=language, task="transcribe", num_beams=1, do_sample=False)[0].tolist()
        result = ours(path)
        others = {ours.target.specials.start, ours.target.specials.eos, *ours.target.specials.prefix}
        plain = [number for number in result.ids if number not in others]
        assert plain == [number for number in expected if number not in others]
        assert result.text == heard.tokenizer().decode(plain, skip_special_tokens=True).strip()
        outputs.add(result.text)
    assert len(outputs) > 1


def test_the_table_of_weights_forgets_and_invents_none(opened: tuple[Path, Any, regard.Translator]) -> None:
    """What theirs lacks is zero: the biases of keys and of the output. Ours has positions for 30 seconds."""
    _, theirs, ours = opened
    weights = dict(ours.model.state_dict())
    table_SD = theirs.state_dict()["model.encoder.embed_positions.weight"]
    assert torch.equal(weights.pop("encoder.embedding.sinusoids")[: len(table_SD)], table_SD)
    for name in [name for name in weights if name.endswith("key.bias") or name == "decoder.output.bias"]:
        assert not weights.pop(name).any()
    found, expected = whisper.NAMES.to_theirs(weights), dict(theirs.state_dict())
    del expected["model.encoder.embed_positions.weight"], expected["proj_out.weight"]
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_texts_become_the_tokens_of_transformers(opened: tuple[Path, Any, regard.Translator]) -> None:
    ours = opened[2].target
    for text in ("the cat sat", "Äpfel <|en|> 漢字!", "  a  dog "):
        expected = heard.tokenizer().encode(f" {text.strip()}", add_special_tokens=False)
        plain = [number for number in expected.ids if number < 290] == expected.ids
        assert (ours.encode(text) == expected.ids) == plain  # a text that spells a control token does not become it
        assert ours.decode(ours.encode(text)) == text.strip()
        assert "".join(ours.pieces(text)) == text.strip()


def test_the_model_folder_that_it_becomes_hears_the_same(opened: tuple[Path, Any, regard.Translator], tmp_path: Path) -> None:
    folder, _, theirs = opened
    assert format_of(folder) == "whisper"
    shown = convert(folder, tmp_path / "ours")
    assert shown is not None
    assert "random sounds" in str(shown)
    assert (shown.sentences, shown.same_outputs + shown.ties) == (proof.SOUNDS, proof.SOUNDS)
    ours, path = regard.load(tmp_path / "ours"), written(tmp_path / "a.wav", sound(0.8))
    assert ours(path).ids == theirs(path).ids
    assert len(ours.attention(path).source) == 50
    (score,) = ours.score([str(path)], ["a cat"])
    assert score.log_prob < 0


def test_the_language_that_it_hears_can_be_chosen(opened: tuple[Path, Any, regard.Translator], tmp_path: Path) -> None:
    convert(opened[0], tmp_path / "german", languages=Languages.parse(["de", "de"]))
    german = regard.load(tmp_path / "german")
    assert german.target.tokens(german.target.specials.prefix)[0] == "<|de|>"
    assert german(written(tmp_path / "a.wav", sound(0.5))).ids[:3] == german.target.specials.prefix
    with pytest.raises(UserError, match=r"does not know the language fr: it has no token <\|fr\|>"):
        convert(opened[0], tmp_path / "french", languages=Languages.parse(["fr", "fr"]))


@pytest.mark.parametrize("option", ["start_from", "encoder_from"])
def test_training_goes_on_from_it(option: str, opened: tuple[Path, Any, regard.Translator], tmp_path: Path) -> None:
    pairs = [(str(written(tmp_path / f"{seed}.wav", sound(0.4, seed))), "a cat" if seed % 2 else "a dog") for seed in range(8)]
    given: dict[str, Any] = {option: opened[0], "quiet": True, "steps": 2}
    trained = regard.train(pairs, tmp_path / "m", **given)
    assert trained.source == opened[2].source
    before, after = opened[2].model.state_dict(), trained.model.state_dict()
    name = "encoder.embedding.first.weight"
    assert 0 < (before[name] - after[name]).abs().max() < 0.1
    assert regard.load(tmp_path / "m")(pairs[0][0]).ids == trained(pairs[0][0]).ids


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("config.json", {"decoder_ffn_dim": 5, "scale_embedding": True}, "ffn_dim is 23 in .* embeddings are scaled"),
        ("config.json", {"max_source_positions": 49}, "it reads 1 seconds, but its encoder has 49 positions"),
        ("preprocessor_config.json", {"hop_length": 80}, "hop_length of its sounds is 80, expected 160"),
        ("generation_config.json", {"language": "xx"}, r"no token <\|xx\|> for the language"),
        ("config.json", {"decoder_start_token_id": 10**6}, "decoder_start_token_id is 1000000, expected the id of one of"),
        ("preprocessor_config.json", {"chunk_length": "1"}, "longest is '?1'?, expected 1 to 600 seconds"),
        ("tokenizer.json", {"model": {"vocab": {"a": 1}, "merges": [["a"]]}}, "or its merges are no pairs of tokens"),
    ],
)
def test_what_cannot_be_represented_is_refused(
    file: str, changes: dict[str, Any], message: str, opened: tuple[Path, Any, regard.Translator], tmp_path: Path
) -> None:
    for path in opened[0].iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    if "decoder_start_token_id" in changes:
        (tmp_path / "generation_config.json").unlink()
    content = json.loads((tmp_path / file).read_text())
    (tmp_path / file).write_text(json.dumps({**content, **changes}))
    with pytest.raises(UserError, match=message):
        whisper.open_folder(tmp_path)


def test_positions_in_half_precision_stay_rounded(opened: tuple[Path, Any, regard.Translator], tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    for path in opened[0].iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    weights = {name: one.half() for name, one in load_file(tmp_path / "model.safetensors").items()}
    save_file(weights, tmp_path / "model.safetensors")
    found = whisper.open_folder(tmp_path).model().state_dict()["encoder.embedding.sinusoids"]
    expected = opened[1].state_dict()["model.encoder.embed_positions.weight"]
    assert torch.equal(found[:50], expected.half().float())
    assert not torch.equal(found[:50], expected)


def test_positions_that_were_learned_are_refused(opened: tuple[Path, Any, regard.Translator], tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    for path in opened[0].iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.encoder.embed_positions.weight"][3, 4] += 0.1
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="the positions of its encoder are not the sinusoids of Whisper"):
        whisper.open_folder(tmp_path)
