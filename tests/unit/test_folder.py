import hashlib
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from safetensors.torch import save as save_tensors

import regard
from regard.checkpoint import folder
from regard.checkpoint.folder import Saved
from regard.data.tokenizers.codec import Codec
from regard.errors import UserError
from regard.models.build import ModelSettings, build
from regard.models.rnn_lm import RnnLmSettings
from regard.models.rnn_seq2seq import RnnSettings
from regard.models.transformer import TransformerSettings


def make_saved(settings: ModelSettings) -> Saved:
    source, target = Codec.learn(["abc"], "characters"), Codec.learn(["X Y Z"], "symbols")
    model = build(settings, len(source), len(target)).eval()
    return Saved(model, settings, source, target, {"signature": "data:made up"}, "# A card\n")


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Saved, Path]:
    one = make_saved(RnnSettings(width=8, embedding=3))
    folder.save(one, tmp_path / "deep" / "model")
    return one, tmp_path / "deep" / "model"


@pytest.mark.parametrize(
    "settings",
    [
        RnnSettings(width=8, embedding=3),
        RnnSettings(width=7, embedding=3, cell="lstm", bidirectional=False, decoder="fixed"),
        RnnLmSettings(width=8, embedding=3),
        TransformerSettings(width=8, heads=2),
    ],
)
def test_what_is_saved_is_loaded(tmp_path: Path, settings: ModelSettings) -> None:
    before = make_saved(settings)
    (tmp_path / "model").mkdir()  # an empty folder is free
    folder.save(before, tmp_path / "model")
    after = folder.load(tmp_path / "model")
    assert after.settings == settings
    assert after.training == before.training
    assert after.card == before.card
    assert not after.model.training
    expected = before.model.state_dict()
    for name, tensor in after.model.state_dict().items():
        assert torch.equal(tensor, expected[name])
    theirs = load_file(tmp_path / "model" / "model.safetensors")  # others can read the weights
    assert all(torch.equal(theirs[name], tensor) for name, tensor in expected.items())
    assert theirs.keys() == expected.keys()
    one, two = (
        regard.Translator(s.model, s.source, s.target, torch.device("cpu"))("cab", max_length=5) for s in (before, after)
    )
    assert (one.text, one.log_prob) == (two.text, two.log_prob)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]  # nothing temporary is left


def test_an_existing_folder_is_left_alone(saved: tuple[Saved, Path]) -> None:
    _, path = saved
    mark = path / "config.json"
    before = mark.read_text()
    with pytest.raises(
        UserError, match=r"model exists already and is left alone; choose another name with --out, or say --overwrite"
    ):
        folder.save(make_saved(TransformerSettings(width=8, heads=2)), path)
    assert mark.read_text() == before
    folder.save(make_saved(TransformerSettings(width=8, heads=2)), path, replace=True)
    assert folder.load(path).settings.kind == "transformer"
    assert [entry.name for entry in path.parent.iterdir()] == ["model"]


def test_a_failed_save_leaves_the_old_folder(saved: tuple[Saved, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    _, path = saved

    def full_disk(file: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folder, "write", full_disk)
    with pytest.raises(UserError, match="model cannot be written: No space left on device; make room there, or choose another"):
        folder.save(make_saved(TransformerSettings(width=8, heads=2)), path, replace=True)
    assert folder.load(path).settings.kind == "rnn"
    assert [entry.name for entry in path.parent.iterdir()] == ["model"]


def test_an_interrupted_replacement_brings_the_old_folder_back(
    saved: tuple[Saved, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, path = saved
    rename = Path.rename

    def interrupted(self: Path, target: Path) -> Path:
        if "-new-" in self.name:
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        folder.save(make_saved(TransformerSettings(width=8, heads=2)), path, replace=True)
    assert folder.load(path).settings.kind == "rnn"
    assert [entry.name for entry in path.parent.iterdir()] == ["model"]


def test_only_model_folders_are_replaced(saved: tuple[Saved, Path]) -> None:
    one, path = saved
    (path / "thesis.txt").write_text("three years of work")
    with pytest.raises(UserError, match=r"holds more than a model \(thesis.txt\) and is not overwritten"):
        folder.save(one, path, replace=True)
    (path.parent / "file").write_text("a file")
    with pytest.raises(UserError, match=r"file holds more than a model"):
        folder.save(one, path.parent / "file", replace=True)
    assert (path / "thesis.txt").read_text() == "three years of work"


def test_a_link_stays_a_link(saved: tuple[Saved, Path]) -> None:
    _, path = saved
    link = path.parent / "link"
    link.symlink_to(path)
    folder.save(make_saved(TransformerSettings(width=8, heads=2)), link, replace=True)
    assert link.is_symlink()
    assert folder.load(path).settings.kind == "transformer"


def edit_config(path: Path, **changes: object) -> None:
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, **changes}))


def rewrite(path: Path, name: str, content: bytes) -> None:
    """As if it had been saved so: the sha256 fits."""
    (path / name).write_bytes(content)
    digests = json.loads((path / "config.json").read_text())["sha256"]
    edit_config(path, sha256={**digests, name: hashlib.sha256(content).hexdigest()})


def flip_a_byte(path: Path) -> None:
    content = bytearray((path / "model.safetensors").read_bytes())
    content[-5] ^= 1
    (path / "model.safetensors").write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (flip_a_byte, r"model.safetensors is damaged: its sha256 is not the one in config.json"),
        (lambda path: (path / "target.tokenizer.json").unlink(), r"target.tokenizer.json: cannot be read: No such file"),
        (lambda path: (path / "config.json").unlink(), r"is not a model folder: it has no config.json"),
        (lambda path: (path / "config.json").write_text("{"), r"config.json is damaged"),
        (lambda path: (path / "config.json").write_text("{}"), r"config.json is damaged: its format is None, expected 1"),
        (lambda path: edit_config(path, format=9), r"format 9, expected 1; this folder needs another version of regard"),
        (lambda path: edit_config(path, model={"kind": "lstm"}), r"the model settings cannot be read"),
        (lambda path: edit_config(path, model={"kind": "rnn", "width": "8"}), r"the model settings cannot be read"),
        (
            lambda path: edit_config(path, model={"kind": "rnn", "depth": 3}),
            r"the model settings cannot be read: rnn: unknown depth",
        ),
        (lambda path: edit_config(path, model=[]), r"the model settings cannot be read: model is \[\], expected a mapping"),
        (lambda path: edit_config(path, model={"kind": "rnn", "width": 16}), r"does not fit config.json"),
        (lambda path: edit_config(path, sha256={}), r"lacks the sha256 of model.safetensors, source.tokenizer.json, target"),
        (lambda path: edit_config(path, vocabulary={"source": 9, "target": 7}), r"speaks of vocabularies .*'source': 9"),
        (lambda path: rewrite(path, "target.tokenizer.json", b"{}"), r"target.tokenizer.json is not a tokenizer"),
        (lambda path: rewrite(path, "model.safetensors", b"x"), r"model.safetensors is damaged or not a safetensors file"),
        (shutil.rmtree, r"is not a model folder"),
    ],
)
def test_a_damaged_folder_is_refused(saved: tuple[Saved, Path], damage, words: str) -> None:  # type: ignore[no-untyped-def]
    _, path = saved
    damage(path)
    with pytest.raises(UserError, match=words):
        regard.load(path)


def test_weights_that_are_not_finite_are_neither_saved_nor_loaded(saved: tuple[Saved, Path]) -> None:
    one, path = saved
    with torch.no_grad():
        one.model.output.bias[2] = torch.nan
    with pytest.raises(UserError, match=r"output.bias holds numbers that are not finite"):
        folder.save(one, path, replace=True)
    assert regard.load(path)("abc", max_length=3)  # the old one is still there
    rewrite(path, "model.safetensors", save_tensors(one.model.state_dict()))
    with pytest.raises(UserError, match=r"output.bias holds numbers that are not finite"):
        regard.load(path)
