"""Checkpoints are written completely or not at all, and damaged ones are set aside."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from regard.checkpoint import files
from regard.checkpoint.runs import Checkpoint, Checkpoints, Damaged
from regard.errors import UserError


def make(update: int) -> Checkpoint:
    tensor = torch.full((2, 3), float(update))
    return Checkpoint(update, {"update": update, "best": 0.1}, {"w": tensor}, {"exp_avg.w": -tensor})


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def not_finite(path: Path) -> None:
    """Writes a complete file with the right sha256, whose numbers are not finite."""
    tensors = {"w": torch.tensor([1.0, float("nan")])}
    path.write_bytes(files.tensor_bytes(tensors))
    state = json.loads((path.parent / "state.json").read_bytes())
    state["sha256"][path.name] = files.sha256(path.read_bytes())
    del state["self"]
    state["self"] = files.sha256(json.dumps(state, sort_keys=True).encode())
    (path.parent / "state.json").write_text(json.dumps(state))


def other_number(path: Path) -> None:
    path.write_text(path.read_text().replace('"best": 0.1', '"best": 0.2'))


def test_checkpoints_are_read_back_and_only_the_last_ones_are_kept(tmp_path: Path) -> None:
    saved = Checkpoints(tmp_path / "new", keep=2)
    assert saved.newest(print) is None
    for update in (5, 10, 100_000_000):
        saved.write(make(update))
    assert saved.updates() == [10, 100_000_000]
    found = saved.newest(print)
    assert found is not None
    assert (found.update, found.numbers) == (100_000_000, {"update": 100_000_000, "best": 0.1})
    torch.testing.assert_close(dict(found.model), dict(make(100_000_000).model))
    torch.testing.assert_close(dict(found.training), dict(make(100_000_000).training))
    torch.testing.assert_close(saved.average([10, 100_000_000])["w"], torch.full((2, 3), 50_000_005.0))
    saved.forget_after(10)
    assert saved.updates() == [10]


@pytest.mark.parametrize(
    ("file", "damage", "words"),
    [
        ("model.safetensors", flip, "model.safetensors does not match its sha256"),
        ("training.safetensors", truncate, "training.safetensors does not match its sha256"),
        ("training.safetensors", os.remove, "training.safetensors: No such file"),
        ("model.safetensors", not_finite, "model.safetensors: w contains numbers that are not finite"),
        ("state.json", other_number, "state.json does not match its sha256"),
        ("state.json", truncate, "state.json cannot be read"),
        ("state.json", os.remove, "state.json cannot be read"),
    ],
)
def test_a_damaged_checkpoint_is_set_aside_and_the_previous_one_is_used(
    tmp_path: Path, file: str, damage: Callable[[Path], None], words: str
) -> None:
    saved, warnings = Checkpoints(tmp_path, keep=3), []
    for update in (1, 2, 3):
        saved.write(make(update))
    damage(tmp_path / "update-00000003" / file)
    with pytest.raises(Damaged, match=words):
        saved.read(3)
    found = saved.newest(warnings.append)
    assert found is not None
    assert found.update == 2
    assert len(warnings) == 1
    assert "the checkpoint of update 3 is damaged" in warnings[0]
    assert words in warnings[0]
    assert saved.updates() == [1, 2]
    assert len(list(tmp_path.glob(".update-00000003-damaged-*"))) == 1, "nothing is deleted"


def test_a_newer_format_is_not_treated_as_damage(tmp_path: Path) -> None:
    saved = Checkpoints(tmp_path, keep=3)
    saved.write(make(1))
    state = json.loads((tmp_path / "update-00000001/state.json").read_bytes())
    del state["self"]
    state["format"] = 9
    state["self"] = files.sha256(json.dumps(state, sort_keys=True).encode())
    (tmp_path / "update-00000001/state.json").write_text(json.dumps(state))
    with pytest.raises(UserError, match="has format 9, expected 2 or 1; it was written by another version of regard"):
        saved.newest(print)


def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = Checkpoints(tmp_path, keep=3)
    saved.write(make(1))

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(UserError, match=r"update 2 cannot be written .*No space left on device; the last one is of update 1"):
        saved.write(make(2))
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["update-00000001"]
    saved.write(make(2))
    assert saved.updates() == [1, 2]


def test_needed_checkpoints_are_kept_and_the_rest_is_removed_at_once(tmp_path: Path) -> None:
    saved = Checkpoints(tmp_path, keep=1)
    for update in (1, 2, 3):
        saved.write(make(update), needed=(1, 3))
    assert saved.updates() == [1, 3]
    left = tmp_path / ".update-00000002-gone-0123abcd"
    left.mkdir()
    (left / "state.json").write_text("{}")
    saved.prune((3,))
    assert [path.name for path in tmp_path.iterdir()] == ["update-00000003"]


def test_a_removal_is_complete_or_did_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The remains of an interrupted removal are not taken for a checkpoint."""
    saved = Checkpoints(tmp_path, keep=1)
    saved.write(make(1))

    def killed(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(files.shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        saved.write(make(2))
    assert saved.updates() == [2]


def test_the_origin_of_a_checkpoint_is_read_without_its_weights(tmp_path: Path) -> None:
    saved = Checkpoints(tmp_path, keep=3)
    assert saved.last_origin() == (0, {})
    saved.write(make(1))
    assert saved.last_origin() == (1, {})
    saved.write(replace(make(2), origin={"settings": {"seed": 1}}))
    (tmp_path / "update-00000002/model.safetensors").unlink()
    assert saved.last_origin() == (2, {"settings": {"seed": 1}})
    (tmp_path / "update-00000002/state.json").write_text("[]")
    assert saved.last_origin() == (1, {})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"update": 4}, "state.json is of update 4"),
        ({"numbers": [1]}, r"numbers in state.json is \[1\], expected a mapping"),
        ({"sha256": "abc"}, "sha256 in state.json is 'abc'"),
        ({"origin": None}, "origin in state.json is None"),
        ({"sha256": {}}, "model.safetensors does not match its sha256"),
    ],
)
def test_a_state_with_invalid_types_is_damaged(tmp_path: Path, changes: dict[str, object], words: str) -> None:
    saved = Checkpoints(tmp_path, keep=3)
    saved.write(make(1))
    path = tmp_path / "update-00000001/state.json"
    state = {**json.loads(path.read_bytes()), **changes}
    del state["self"]
    path.write_text(json.dumps({**state, "self": files.sha256(json.dumps(state, sort_keys=True).encode())}))
    with pytest.raises(Damaged, match=words):
        saved.read(1)
    warnings: list[str] = []
    assert saved.newest(warnings.append) is None
    assert warnings[0].endswith("; the run starts over")


def test_an_unreadable_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file")
    with pytest.raises(UserError, match="checkpoints cannot be read: Not a directory; make it readable, or start over"):
        Checkpoints(tmp_path / "checkpoints", keep=1).updates()


def test_the_error_for_an_unwritable_file_names_it_and_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match="nowhere/a cannot be written: No such file or directory; free some disk space, or choose"
    ):
        files.replace_file(tmp_path / "nowhere" / "a", b"")
