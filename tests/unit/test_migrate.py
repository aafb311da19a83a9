"""Names of format 1: files that have them are read, and whoever types them learns the new ones."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from regard.checkpoint import folder, migrate
from regard.checkpoint.runs import Checkpoint, Checkpoints, _digest
from regard.contracts import FileAndText
from regard.data import store
from regard.data.batch import Example
from regard.errors import UserError
from regard.models.build import FAMILIES
from regard.models.rnn_seq2seq import RnnSettings
from regard.models.transformer import TransformerSettings
from regard.training.config import parse_config
from regard.training.order import Order
from regard.training.overrides import leaves, override
from regard.training.resume import Previous
from regard.training.settings import OLDER, RunSettings
from regard.training.transfer import Start

FROZEN = Path(__file__).parents[1] / "frozen" / "models"
ORDER = Order(data=(), out=Path("m"))


def test_every_old_spelling_leads_to_a_setting_and_every_value_is_one() -> None:
    trees = [asdict(RunSettings(model=family.settings())) for family in FAMILIES.values()]
    known = {key for tree in trees for key, _ in leaves(tree)}
    assert set(migrate.SETTINGS.values()) <= known
    assert not set(migrate.SETTINGS) & known
    for key, values in migrate.VALUES.items():
        for old, new in values.items():
            kind = "rnn" if key.startswith("model.") else "transformer"
            changed = override(RunSettings(model=FAMILIES[kind].settings()), [f"{key}={new}"])
            assert dict(leaves(asdict(changed)))[key] == new
            with pytest.raises(UserError, match=rf'{key}.*got {old!r}; did you mean "{new}"\?'):
                override(RunSettings(model=FAMILIES[kind].settings()), [f"{key}={old}"])


@pytest.mark.parametrize(
    ("settings", "change", "new"),
    [
        (RnnSettings(), "model.choice=one", "model.attention=hard"),
        (RnnSettings(), "model.choice=soft", "model.attention"),
        (RnnSettings(), "model.front=sound", "model.frontend"),
        (RnnSettings(), "model.max_places=9", "model.max_positions"),
        (TransformerSettings(), "model.order=post", "model.norm_order"),
        (TransformerSettings(), "model.join=appended", "model.position_join"),
    ],
)
def test_an_old_spelling_is_answered_with_the_new_one(settings: Any, change: str, new: str) -> None:
    with pytest.raises(UserError, match=rf'there is no setting .*; did you mean "{new}"\?'):
        override(RunSettings(model=settings), [change])
    name, value = change.removeprefix("model.").split("=")
    with pytest.raises(UserError, match=rf'run.yaml:3: model.{name}: got an unknown setting.*; did you mean "{new}"\?'):
        parse_config(f"model:\n  kind: {settings.kind}\n  {name}: {value}\n", "run.yaml")


def test_an_old_spelling_that_this_model_does_not_have() -> None:
    words = '; it is now called "model.norm_order", which models of the kind rnn do not have'
    with pytest.raises(UserError, match=f"there is no setting 'model.order'{words}"):
        override(RunSettings(model=RnnSettings()), ["model.order=pre"])


def test_the_run_file_of_an_old_run_is_read() -> None:
    text = "model:\n  kind: rnn\n  choice: gates\n  max_places: 9\ntrain:\n  metric: word_error_rate\n"
    settings = parse_config(text, "run.yaml", old_names=True)
    assert isinstance(settings.model, RnnSettings)
    assert (settings.model.attention, settings.model.max_positions) == ("gated", 9)
    assert settings.train.metric == "sequence_error_rate"


def test_a_frozen_config_is_lifted_in_all_its_parts() -> None:
    config = folder.read_config(FROZEN / "rnn-gates")
    assert config["format"] == 1  # what the folder has
    for settings in (config["model"], config["training"]["settings"]["model"]):
        assert settings["attention"] == "gated"
        assert not settings.keys() & {"choice", "front", "max_places"}
    assert "sequence_error_rate" in config["training"]
    assert "word_error_rate" not in config["training"]


def test_an_old_name_with_its_new_one_is_refused(tmp_path: Path) -> None:
    config: dict[str, Any] = {"format": 1, "model": {"kind": "rnn", "choice": "one", "attention": "soft"}}
    with pytest.raises(UserError, match="choice"):
        folder.read_settings(tmp_path, migrate.config(config)["model"])
    both = {"a.front.w": 1, "a.frontend.w": 2}
    assert migrate.weights(both, 1) == both


@pytest.mark.parametrize("name", ["picture-with-text", "sound-with-text", "grid"])
def test_weights_are_lifted_by_their_format(name: str) -> None:
    """Format 1 is read with its names; the same names in a folder of format 2 are an error."""
    stored = load_file(FROZEN / name / "model.safetensors")
    loaded = folder.load(FROZEN / name).model.state_dict()
    lifted = migrate.weights(stored, 1)
    assert lifted.keys() == loaded.keys() != stored.keys()
    assert all(torch.equal(lifted[key], loaded[key]) for key in loaded)
    assert migrate.weights(stored, 2) == stored


def test_a_folder_says_format_2_and_refuses_the_weights_of_format_1(tmp_path: Path) -> None:
    saved = folder.load(FROZEN / "picture-with-text")
    folder.save(saved, tmp_path / "m")
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    assert config["format"] == migrate.FORMAT == 2
    assert config["model"]["frontend"] == "picture"
    assert "auxiliary" in json.loads((tmp_path / "m" / "source.json").read_text())
    weights = (FROZEN / "picture-with-text" / "model.safetensors").read_bytes()
    (tmp_path / "m" / "model.safetensors").write_bytes(weights)
    config["sha256"]["model.safetensors"] = json.loads((FROZEN / "picture-with-text" / "config.json").read_text())["sha256"][
        "model.safetensors"
    ]
    (tmp_path / "m" / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"does not match config\.json"):
        folder.load(tmp_path / "m")


def test_a_checkpoint_of_format_1_is_lifted(tmp_path: Path) -> None:
    origin = {"material": "abc", "codecs": {}, "settings": {"model": {"kind": "rnn", "choice": "one"}, "seed": 7}}
    tensors = {"source_embedding.front.words.weight": torch.ones(2)}
    training = {"step.source_embedding.front.words.weight": torch.ones(())}
    checkpoints = Checkpoints(tmp_path, keep=2)
    checkpoints.write(Checkpoint(3, {}, tensors, training, origin), ())
    (state_file,) = tmp_path.glob("*/state.json")
    state = json.loads(state_file.read_text())
    state.pop("self")
    state["format"] = 1
    state_file.write_text(json.dumps({**state, "self": _digest(state)}))
    found = checkpoints.read(3)
    assert found.origin["training_data"] == "abc"
    assert found.origin["settings"] == {"model": {"kind": "rnn", "attention": "hard"}, "seed": 7}
    assert list(found.model) == ["source_embedding.frontend.words.weight"]
    assert list(found.training) == ["step.source_embedding.frontend.words.weight"]


def test_a_token_store_with_the_old_names_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = Example(FileAndText(np.ones((2, 3), np.float32), [4, 5]), [6])
    with monkeypatch.context() as patch:
        patch.setattr(store, "_AUXILIARY", "beside")
        store.write_store(tmp_path / "s", [example], 3, 9)
    with pytest.raises(UserError, match="is damaged: expected source_ids"):
        store.Store.open(tmp_path / "s")
    (read,) = store.Store.open(tmp_path / "s", migrate.STORE_TENSORS)
    assert isinstance(read.source, FileAndText)
    assert (read.source.text, read.target) == ([4, 5], [6])
    np.testing.assert_array_equal(read.source.file, np.ones((2, 3), np.float32), strict=True)
    assert migrate.training_data({"material": "a", "codecs": "b"}) == {"training_data": "a", "codecs": "b"}


def test_fusion_of_older_models_and_runs_keeps_its_score() -> None:
    """It was scaled dot product, whatever model.score was; now it is model.score by default."""
    config = folder.read_config(FROZEN / "sound-with-text")
    assert (config["model"]["score"], config["model"]["fusion_score"]) == ("additive", "scaled_dot")
    for kind in ("rnn", "transformer"):
        text = f"model:\n  kind: {kind}\n"
        older, newer = parse_config(text, "run.yaml", defaults=OLDER), parse_config(text, "run.yaml")
        assert (older.model.fusion_score, newer.model.fusion_score) == ("scaled_dot", None)
        previous = asdict(older)
        del previous["model"]["fusion_score"]
        assert Previous(0, {}, previous).defaults["model.fusion_score"] == "scaled_dot"
        Previous(0, {}, previous).check(older, ORDER)
        with pytest.raises(UserError, match=r"model\.fusion_score was scaled_dot and is now None"):
            Previous(0, {}, previous).check(newer, ORDER)
        assert Previous(0, {}, asdict(newer)).defaults["model.fusion_score"] is None
    assert Start().defaults["model.fusion_score"] is None
    assert Start(parent=folder.load(FROZEN / "sound-with-text")).defaults["model.fusion_score"] == "scaled_dot"
    language_model = parse_config("model:\n  kind: rnn_lm\n", "run.yaml", defaults=OLDER)
    Previous(0, {}, asdict(language_model)).check(language_model, ORDER)


def test_another_family_keeps_the_score_of_fusion_and_its_name_is_checked() -> None:
    older = RunSettings(model=RnnSettings(fusion_score="scaled_dot"))
    assert override(older, ["model.kind=transformer"]).model.fusion_score == "scaled_dot"
    assert override(older, ["model.fusion_score=dot"]).model.fusion_score == "dot"
    with pytest.raises(UserError, match=r"--set model\.fusion_score=dott: there is no score 'dott'"):
        override(older, ["model.fusion_score=dott"])
