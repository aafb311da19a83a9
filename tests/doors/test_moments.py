"""Law 6, exhaustively for a tiny run: after a kill at any call that changes a file, the same command gives the same files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from moments import Tree, differences, outcome, plant, recorded, typed

from regard.checkpoint.files import sha256
from regard.checkpoint.folder import load, weights_digest

pytestmark = [pytest.mark.slow, pytest.mark.no_cover]  # the same commands run in other tests, hundreds of times less

TINY = ["model.width=4", "model.embedding=3", "model.score_width=3", "model.encoder_layers=1", "train.batch_tokens=40"]
STATEFUL = ["model.dropout=0.2", "train.accumulate=2", "train.ema=0.9", "train.average=3", "train.keep=1", "train.metric=loss"]
STATEFUL += ["train.steps=7", "train.checkpoint_every=2", "train.validate_every=3", "train.patience=3"]


def command(*changes: str) -> list[str]:
    return ["train", "pairs.tsv", "--out", "m", *(part for change in (*TINY, *changes) for part in ("--set", change))]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a small pairs.tsv."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "pairs.tsv").write_text("".join(f"{a}{b}\t{b}{a}\n" for a in "abcde" for b in "fghij"))
    return tmp_path / "run"


def after_a_kill(state: Tree, arguments: list[str], elsewhere: Path) -> Tree:
    """Returns the files that the command leaves behind when it starts from this state."""
    plant(state, elsewhere)
    try:
        typed(arguments, elsewhere)
        return outcome(elsewhere)
    finally:
        shutil.rmtree(elsewhere)


def test_a_kill_at_any_moment_does_not_change_the_result(folder: Path, tmp_path: Path) -> None:
    """Compares weights, log, settings, tokens and checkpoints, with every option that keeps state. The last checkpoint,
    that of update 7, is not one of the regular checkpoints, which are averaged."""
    arguments = command(*STATEFUL)
    with recorded(folder) as states:
        output = typed(arguments, folder)
    expected = outcome(folder)
    assert "validation of 3 checkpoints, averaged" in output
    assert len(states) > 80
    assert [name for name in expected if "/." in f"/{name}"] == [], "a temporary file is left"
    for number, state in enumerate(states):
        assert differences(after_a_kill(state, arguments, tmp_path / "again"), expected) == [], number


def test_a_kill_during_overwriting_loses_no_model(folder: Path, tmp_path: Path) -> None:
    """A model can be loaded at every moment: first the old one, later the new one."""
    typed(command("train.steps=1"), folder)
    old = (folder / "m" / "model.safetensors").read_bytes()
    arguments = [*command("train.steps=2", "train.checkpoint_every=1"), "--overwrite"]
    with recorded(folder) as states:
        typed(arguments, folder)
    expected = outcome(folder)
    digests = [weights_in(state, tmp_path / "killed") for state in states]
    new = expected["m/model.safetensors"]
    assert {digest(old), digest(new)} == set(digests)
    assert digests == sorted(digests, key=[digest(old), digest(new)].index), "the old model came back after the new one"
    for number, state in enumerate(states):
        assert differences(after_a_kill(state, arguments, tmp_path / "again"), expected) == [], number


def weights_in(state: Tree, elsewhere: Path) -> str:
    """Returns the digest of the weights of the model that is loaded from this state."""
    plant(state, elsewhere)
    try:
        return weights_digest(load(elsewhere / "m").model)
    finally:
        shutil.rmtree(elsewhere)


def digest(content: bytes | None) -> str:
    return sha256(content or b"")
