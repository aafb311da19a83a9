"""Everything that works on a model of ours works on one that regard.load opened from another format."""

import random
import shutil
from pathlib import Path

import foreign
import pytest
import torch

import regard
from regard.cli.main import app
from regard.errors import UserError
from regard.interop import marian
from regard.interop.convert import write_model
from regard.interop.opened import naming
from regard.look import Edit
from regard.pipeline import Translator


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of MarianMT without our record, as others publish it."""
    pytest.importorskip("transformers")
    torch.manual_seed(5)
    out = tmp_path_factory.mktemp("marian") / "opus"
    write_model(foreign.saved(), out, "marian")
    for name in ("regard.json", "source.tokenizer.json", "target.tokenizer.json"):
        (out / name).unlink()
    return out


@pytest.fixture
def model(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Translator:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    return regard.load(folder)


def test_translate_score_align_inspect_explain_and_edit(model: Translator) -> None:
    text = "a cat sat on the mat"
    result = model(text, max_length=7)
    (scored,) = model.score([text], ["the dog"])
    assert scored.log_prob < 0
    assert result.attention(kind="cross", layer=1).weights_HTS.shape[0] == 3
    assert len(regard.inspect(model, text).layers) == 2 + 2 * 3
    assert regard.explain(model, text).lines
    edited = model(text, max_length=7, edits=Edit.off("cross", layer=0, head=1))
    assert edited.log_prob != result.log_prob


def test_fine_tuning_starts_from_the_folder(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    pairs = [(text, text) for text in foreign.TEXTS] * 9
    model = regard.train(pairs, tmp_path / "model", start_from=folder, steps=2)
    assert model.model.state_dict().keys() == regard.load(folder).model.state_dict().keys()
    assert regard.load(tmp_path / "model").target.to_json() == regard.load(folder).target.to_json()


def test_the_command_converts_and_says_how_it_was_proven(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    app(["convert", str(folder), str(tmp_path / "ours")], standalone_mode=False)
    assert "greedy outputs are the same" in capsys.readouterr().err
    assert regard.load(tmp_path / "ours").languages.target[0].prefix == ">>deu<<"


def test_damaged_files_of_a_folder_are_refused_by_its_name(folder: Path, tmp_path: Path) -> None:
    """Characters of the configuration and of the header of the weights are changed at random."""
    rng, messages = random.Random(4), []
    shutil.copytree(folder, tmp_path / "opus")
    for number in range(400):
        path = tmp_path / "opus" / ("config.json" if number % 2 else "model.safetensors")
        content = path.read_bytes()
        damaged = bytearray(content)
        for _ in range(rng.randint(1, 3)):
            damaged[rng.randrange(min(len(content), 9000))] = rng.choice(b'0159"[{}],:atz')
        path.write_bytes(damaged)
        try:
            with naming(tmp_path / "opus"):
                marian.open_folder(tmp_path / "opus").model()
        except UserError as error:
            messages.append(str(error))
        path.write_bytes(content)
    assert len(messages) > 200
    assert [message for message in messages if str(tmp_path / "opus") not in message] == []
