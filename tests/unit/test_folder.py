import ast
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

import regard
from regard.checkpoint import folder
from regard.checkpoint.folder import Saved
from regard.checkpoint.weights import is_finite
from regard.data.tokenizers.codec import Codec
from regard.errors import UserError
from regard.models.build import build
from regard.models.contract import Model, ModelSettings
from regard.models.rnn_lm import RnnLmSettings
from regard.models.rnn_seq2seq import RnnSettings
from regard.models.transformer import TransformerSettings


def make_saved(settings: ModelSettings) -> Saved:
    source, target = Codec.train(["abc"], "characters"), Codec.train(["X Y Z"], "symbols")
    model = build(settings, len(source), len(target)).eval()
    return Saved(model, settings, source, target, {"signature": "data:made up"}, "# A card\n")


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Saved, Path]:
    rnn = make_saved(RnnSettings(width=8, embedding=3))
    folder.save(rnn, tmp_path / "deep" / "model")
    return rnn, tmp_path / "deep" / "model"


@pytest.mark.parametrize(
    "settings",
    [
        RnnSettings(width=8, embedding=3),
        RnnSettings(width=7, embedding=3, cell="lstm", bidirectional=False, decoder="fixed"),
        RnnLmSettings(width=8, embedding=3),
        TransformerSettings(width=8, heads=2),
    ],
)
def test_a_saved_model_is_loaded(tmp_path: Path, settings: ModelSettings) -> None:
    before = make_saved(settings)
    (tmp_path / "model").mkdir()  # an empty folder may be used
    folder.save(before, tmp_path / "model")
    after = folder.load(tmp_path / "model")
    assert after.settings == settings
    assert after.training == before.training
    assert after.card == before.card
    assert not after.model.training
    expected = before.model.state_dict()
    for name, tensor in after.model.state_dict().items():
        assert torch.equal(tensor, expected[name])
    theirs = load_file(tmp_path / "model" / "model.safetensors")  # other software can read the weights
    assert all(torch.equal(theirs[name], tensor) for name, tensor in expected.items())
    assert theirs.keys() == expected.keys()
    first, second = (regard.Translator.of_model(s.model, s.source, s.target)("cab", max_length=5) for s in (before, after))
    assert (first.text, first.log_prob) == (second.text, second.log_prob)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]  # nothing temporary is left


def test_an_existing_folder_is_not_overwritten(saved: tuple[Saved, Path]) -> None:
    _, path = saved
    config = path / "config.json"
    before = config.read_text()
    with pytest.raises(
        UserError, match=r"model already exists; choose another name with --out, or replace it with --overwrite"
    ):
        folder.save(make_saved(TransformerSettings(width=8, heads=2)), path)
    assert config.read_text() == before
    folder.save(make_saved(TransformerSettings(width=8, heads=2)), path, replace=True)
    assert folder.load(path).settings.kind == "transformer"
    assert [entry.name for entry in path.parent.iterdir()] == ["model"]


def test_a_failed_save_leaves_the_old_folder(saved: tuple[Saved, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    _, path = saved

    def full_disk(file: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folder, "write", full_disk)
    with pytest.raises(
        UserError, match="model cannot be written: No space left on device; free some disk space, or choose another"
    ):
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
    rnn, path = saved
    (path / "thesis.txt").write_text("three years of work")
    with pytest.raises(
        UserError, match=r"is not overwritten, since it contains files that are not part of a model \(thesis.txt\)"
    ):
        folder.save(rnn, path, replace=True)
    (path.parent / "file").write_text("a file")
    with pytest.raises(UserError, match=r"file is not overwritten, since it contains files that are not part of a model"):
        folder.save(rnn, path.parent / "file", replace=True)
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


def edit_model(path: Path, **changes: object) -> None:
    edit_config(path, model={**json.loads((path / "config.json").read_text())["model"], **changes})


def replace_by(path: Path, make: Callable[[Path], None]) -> None:
    path.unlink()
    make(path)


def rewrite(path: Path, name: str, content: bytes) -> None:
    """Replaces a file of the model and its sha256 in config.json."""
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
        (flip_a_byte, r"model.safetensors is damaged: its sha256 differs from the one in config.json"),
        (lambda path: (path / "target.tokenizer.json").unlink(), r"target.tokenizer.json cannot be read: No such file"),
        (lambda path: (path / "config.json").unlink(), r"is not a model folder: it has no config.json"),
        (lambda path: (path / "config.json").write_text("{"), r"config.json is damaged"),
        (lambda path: (path / "config.json").write_text("{}"), r"config.json is damaged: its format is None, expected 2"),
        (lambda path: edit_config(path, format=9), r"format 9, expected 2 or 1; it was written by another version of regard"),
        (lambda path: edit_config(path, model={"kind": "lstm"}), r"the model settings cannot be read"),
        (lambda path: edit_config(path, model={"kind": "rnn", "width": "8"}), r"the model settings cannot be read"),
        (
            lambda path: edit_config(path, model={"kind": "rnn", "depth": 3}),
            r"the model settings cannot be read: rnn: unknown field depth",
        ),
        (lambda path: edit_config(path, model=[]), r"the model settings cannot be read: model is \[\], expected a mapping"),
        (lambda path: edit_config(path, model={"kind": "rnn", "width": 16}), r"does not match config.json"),
        (lambda path: edit_config(path, sha256={}), r"it has no sha256 of model.safetensors, source.tokenizer.json, target"),
        (lambda path: edit_config(path, vocabulary={"source": 9, "target": 7}), r"gives the vocabulary sizes as .*'source': 9"),
        (lambda path: rewrite(path, "target.tokenizer.json", b"{}"), r"target.tokenizer.json is not a tokenizer"),
        (lambda path: rewrite(path, "model.safetensors", b"x"), r"model.safetensors is damaged or not a safetensors file"),
        (shutil.rmtree, r"is not a model folder: it does not exist"),
        (lambda path: (shutil.rmtree(path), path.write_text("")), r"is not a model folder: it is a file"),
        (
            lambda path: (path / "config.json").write_text("[" * 100_000),
            r"config.json is damaged: .* nested more than 32 levels deep",
        ),
        (
            lambda path: (path / "config.json").write_text("[]"),
            r"config.json is damaged: its content is \[\], expected a mapping",
        ),
        (lambda path: edit_config(path, format=True), r"its format is True, expected 2"),
        (
            lambda path: edit_config(path, format=10**400),
            r"has format 1000.*expected 2 or 1; it was written by another version",
        ),
        (lambda path: edit_config(path, sha256=[]), r"sha256 is \[\], expected a mapping"),
        (lambda path: edit_config(path, training=7), r"training is 7, expected a mapping"),
        (lambda path: edit_config(path, vocabulary="\n" * 9999), r"vocabulary is .*, expected a mapping"),
        (lambda path: edit_config(path, model={"kind": []}), r"its kind is \[\], expected one of rnn, rnn_lm, transformer"),
        (lambda path: edit_config(path, model={"kind": {"a": 1}}), r"its kind is \{'a': 1\}, expected one of rnn"),
        (lambda path: edit_model(path, width="\n" * 9999), r"rnn: width: Input should be a valid integer"),
        (lambda path: edit_model(path, width=10**30), r"width is 1000.*, expected 2,147,483,647 or less"),
        (lambda path: edit_model(path, score="x" * 9999), r"uses the custom score 'xxx"),
        (lambda path: edit_model(path, score="\x1b[31m"), r"uses the custom score '\\x1b"),
        (
            lambda path: edit_config(path, alignment={"layer": 0, "head": True, "shifted": False}),
            r"alignment: head: .* got True",
        ),
        (
            lambda path: edit_config(path, alignment={"layer": 0, "head": 1, "shifted": False}),
            r"head is 1, but a layer has 1 head",
        ),
        (
            lambda path: edit_config(path, alignment={"layer": 7, "head": 0, "shifted": False}),
            r"layer is 7, but the model has 1 l",
        ),
        (lambda path: edit_config(path, alignment={"layer": 0, "head": 0, "shifted": 1}), r"alignment: shifted: .* got 1"),
        (lambda path: edit_config(path, alignment=[0, 0]), r"alignment is \[0, 0\], expected a mapping"),
        (lambda path: (path / "card.md").write_bytes(b"caf\xe9"), r"card.md is not UTF-8: .* at byte 3; save it as UTF-8"),
        (lambda path: replace_by(path / "model.safetensors", os.mkfifo), r"model.safetensors is not a regular file"),
        (lambda path: replace_by(path / "target.tokenizer.json", Path.mkdir), r"target.tokenizer.json is not a regular file"),
        (
            lambda path: replace_by(path / "card.md", lambda card: card.symlink_to("/dev/zero")),
            r"card.md is not a regular file",
        ),
        (
            lambda path: rewrite(path, "source.tokenizer.json", b"[" * 100_000),
            r"source.tokenizer.json is not a .* 32 levels deep",
        ),
        (lambda path: rewrite(path, "source.tokenizer.json", b"\xff"), r"source.tokenizer.json is not a .* not valid JSON"),
    ],
)
def test_a_damaged_folder_is_refused(saved: tuple[Saved, Path], damage, words: str) -> None:  # type: ignore[no-untyped-def]
    _, path = saved
    damage(path)
    with pytest.raises(UserError, match=words) as caught:
        regard.load(path)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) - len(str(path)) < 300


# --- weights are compared before memory is allocated -------------------------------------------------------------------------


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Records the devices that models are built on."""
    devices: list[str] = []

    def recording(*arguments: Any, **options: Any) -> Model:
        model = build(*arguments, **options)
        devices.append(next(model.parameters()).device.type)
        return model

    monkeypatch.setattr(folder, "build", recording)
    return devices


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"embedding": 10**7}, r"has shape \(7, 3\), expected \(7, 10000000\)"),
        ({"width": 2**20}, r"has shape .*, expected \(.*1048576"),
        ({"width": 2**31 - 2}, "does not match config.json: "),  # products of sizes overflow
        ({"encoder_width": 2**31 - 2, "score_width": 2**31 - 1}, "does not match config.json: "),
        ({"score": "location", "max_positions": 2**31 - 1}, r"score.weight is missing"),
        ({"encoder_layers": 10**6}, r"encoder_layers is 1,000,000, but the file has only 23 tensors"),
        ({"decoder_layers": 24}, r"decoder_layers is 24, but the file has only 23 tensors"),
    ],
)
def test_sizes_are_compared_before_memory_is_allocated(
    saved: tuple[Saved, Path], built: list[str], sizes: dict[str, int], words: str
) -> None:
    _, path = saved
    folder.load(path)
    assert built == ["meta", "cpu"]
    built.clear()
    edit_model(path, **sizes)
    with pytest.raises(UserError, match=words) as caught:
        folder.load(path)
    assert built in (["meta"], [])
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) - len(str(path)) < 320


def test_a_model_of_another_kind_is_refused_in_one_line_with_details(saved: tuple[Saved, Path]) -> None:
    _, path = saved
    other = build(TransformerSettings(width=8, heads=2), 7, 7)
    rewrite(path, "model.safetensors", save_tensors(other.state_dict()))
    with pytest.raises(UserError, match=r"source_embedding.weight is missing; .* is missing; and \d+ more") as caught:
        folder.load(path)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) - len(str(path)) < 320
    assert "'encoder.embedding.tokens.weight' is unknown" in caught.value.details.splitlines()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_floating_point_weights_are_converted_to_32_bits(saved: tuple[Saved, Path], dtype: torch.dtype) -> None:
    rnn, path = saved
    tensors = {name: tensor.to(dtype) for name, tensor in rnn.model.state_dict().items()}
    rewrite(path, "model.safetensors", save_tensors(tensors))
    for name, tensor in folder.load(path).model.state_dict().items():
        assert torch.equal(tensor, tensors[name].float())
    tensors["output.bias"] = torch.full((7,), 1e300, dtype=torch.float64)
    rewrite(path, "model.safetensors", save_tensors(tensors))
    with pytest.raises(UserError, match=r"output.bias contains numbers that are not finite"):
        folder.load(path)


@pytest.mark.parametrize(
    ("kind", "bits"),
    [("I32", 32), ("I8", 8), ("U64", 64), ("BOOL", 8), ("C64", 64), ("F8_E8M0", 8), ("F8_E4M3", 8), ("F6_E2M3", 6), ("F4", 4)],
)
def test_weights_of_other_types_are_refused(saved: tuple[Saved, Path], kind: str, bits: int) -> None:
    rnn, path = saved
    header, at = {}, 0
    for name, tensor in rnn.model.state_dict().items():
        size = tensor.numel() * bits // 8
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    rewrite(path, "model.safetensors", len(text).to_bytes(8, "little") + text + bytes(at))
    with pytest.raises(UserError, match=rf"has type {kind}; .* and 21 more; expected BF16, F16, F32, F64|damaged"):
        folder.load(path)


@pytest.mark.parametrize(
    "settings",
    [
        TransformerSettings(width=8, heads=2, positions="alibi", tie="all"),
        TransformerSettings(width=8, heads=4, positions="learned", tie="output", norm_order="post", norm="rms"),
        RnnSettings(width=8, embedding=3, cell="rnn_sigmoid", decoder="fixed"),
        RnnSettings(width=8, embedding=3, score="location", max_positions=5),
    ],
)
def test_loading_sets_every_tensor_and_draws_no_random_numbers(tmp_path: Path, settings: ModelSettings) -> None:
    codec = Codec.train(["abc"], "characters")
    model = build(settings, len(codec), len(codec)).eval()
    folder.save(Saved(model, settings, codec, codec, {}, ""), tmp_path / "model")
    before = torch.get_rng_state()
    loaded = folder.load(tmp_path / "model").model
    assert torch.equal(torch.get_rng_state(), before)  # loading draws no random numbers
    for (name, expected), (loaded_name, tensor) in zip(all_tensors(model), all_tensors(loaded), strict=True):
        assert name == loaded_name
        assert torch.equal(expected, tensor)
        assert expected.requires_grad == tensor.requires_grad
        assert tensor.dtype == torch.float32


def all_tensors(model: Model) -> list[tuple[str, Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]  # also those that are not saved


class UnsavedNumbers(regard.Score, nn.Module):
    """A score whose constructor reads the values of a tensor, and which has numbers that are not saved."""

    name = "curious"

    def __init__(self, key_width: int) -> None:
        super().__init__()
        self.scale = float(torch.arange(key_width).sum())
        self.drawn = torch.empty(3).uniform_(1, 2)
        self.weight = nn.Parameter(torch.ones(key_width))

    def scores(self, query: Tensor, prepared: Tensor) -> Tensor:
        return (query * self.weight) @ prepared.transpose(-1, -2)


def test_a_custom_score_is_built_on_the_cpu(tmp_path: Path) -> None:
    settings = RnnSettings(width=8, embedding=3, score="curious")
    source, target = Codec.train(["abc"], "characters"), Codec.train(["X Y Z"], "symbols")
    model = build(settings, len(source), len(target), {"curious": UnsavedNumbers})
    folder.save(Saved(model, settings, source, target, {}, ""), tmp_path / "model")
    score = cast("UnsavedNumbers", cast("Any", folder.load(tmp_path / "model", {"curious": UnsavedNumbers}).model).score)
    assert score.scale == 28.0
    assert ((score.drawn >= 1) & (score.drawn <= 2)).all()
    assert score.weight.device.type == "cpu"


def test_weights_that_are_not_finite_are_neither_saved_nor_loaded(saved: tuple[Saved, Path]) -> None:
    rnn, path = saved
    with torch.no_grad():
        rnn.model.output.bias[2] = torch.nan
    with pytest.raises(UserError, match=r"output.bias contains numbers that are not finite"):
        folder.save(rnn, path, replace=True)
    assert regard.load(path)("abc", max_length=3)  # the old model is still there
    rewrite(path, "model.safetensors", save_tensors(rnn.model.state_dict()))
    with pytest.raises(UserError, match=r"output.bias contains numbers that are not finite"):
        regard.load(path)


QUIET = """
import pathlib, sys
import regard
seen = []
sys.addaudithook(lambda event, _: seen.append(event) if event.startswith(("socket.", "pickle.")) else None)
model = regard.load(sys.argv[1], device="cpu")
model("abc", max_length=4)
regard.write_page(regard.inspect(model, "abc", max_length=4), sys.argv[2])
print(seen)
import pickle, socket
pickle.loads(pickle.dumps(pathlib.Path()))
socket.socket().close()
print("pickle.find_class" in seen, "socket.__new__" in seen)
"""


@pytest.mark.slow
def test_loading_and_using_a_model_opens_no_connection_and_unpickles_nothing(tmp_path: Path) -> None:
    """The last line shows that the audit hook sees both."""
    model = Path(__file__).parents[1] / "frozen" / "models" / "rnn-luong"
    command = [sys.executable, "-c", QUIET, str(model), str(tmp_path / "page.html")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "True True"]


def test_only_checkpoint_touches_the_files_of_a_model_folder() -> None:
    """No other module contains the name of one of these files as a string, except in messages and docstrings; but interop
    reads and writes folders of other formats, whose files have the same names."""
    package = Path(regard.__file__).parent
    named = {
        (path.relative_to(package).parts[0], node.value)
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in folder.FILES
    }
    own = {(part, name) for part, name in named if part != "interop"}
    assert own == {("checkpoint", name) for name in folder.FILES}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_number_that_is_not_finite_is_found(value: float, dtype: torch.dtype) -> None:
    tensor = torch.randn(3, 5).to(dtype)
    assert is_finite(tensor)
    assert is_finite(torch.zeros(0))
    tensor[1, 2] = value
    assert not is_finite(tensor)
