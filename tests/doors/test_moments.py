"""Law 6, exhaustively for a tiny run: killed after any call that changes a file, the same command ends with the same files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from moments import Tree, differences, outcome, plant, recorded, typed

from regard.checkpoint import folder

pytestmark = pytest.mark.slow

TINY = ["model.width=4", "model.embedding=3", "model.score_width=3", "model.encoder_layers=1", "train.batch_tokens=40"]
STATEFUL = ["model.dropout=0.2", "train.accumulate=2", "train.ema=0.9", "train.average=3", "train.keep=1", "train.metric=loss"]
STATEFUL += ["train.steps=7", "train.checkpoint_every=2", "train.validate_every=3", "train.patience=3"]


def command(*changes: str) -> list[str]:
    return ["train", "pairs.tsv", "--out", "m", *(part for change in (*TINY, *changes) for part in ("--set", change))]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "pairs.tsv").write_text("".join(f"{a}{b}\t{b}{a}\n" for a in "abcde" for b in "fghij"))
    return tmp_path / "run"


def after_a_kill(state: Tree, arguments: list[str], elsewhere: Path) -> Tree:
    plant(state, elsewhere)
    try:
        typed(arguments, elsewhere)
        return outcome(elsewhere)
    finally:
        shutil.rmtree(elsewhere)


def test_a_kill_at_any_moment_changes_nothing(place: Path, tmp_path: Path) -> None:
    """Weights, log, settings, tokens and checkpoints, with every option on that keeps state. The last checkpoint, of update 7,
    is not one of the regular ones, which are averaged."""
    arguments = command(*STATEFUL)
    with recorded(place) as states:
        said = typed(arguments, place)
    expected = outcome(place)
    assert "validation of 3 checkpoints, averaged" in said
    assert len(states) > 80
    assert [name for name in expected if "/." in f"/{name}"] == [], "nothing temporary is left"
    for number, state in enumerate(states):
        assert differences(after_a_kill(state, arguments, tmp_path / "again"), expected) == [], number


def test_a_kill_while_a_run_is_overwritten_loses_no_model(place: Path, tmp_path: Path) -> None:
    """At every moment there is a model that can be loaded: the old one or, at last, the new one."""
    typed(command("train.steps=1"), place)
    old = (place / "m" / "model.safetensors").read_bytes()
    arguments = [*command("train.steps=2", "train.checkpoint_every=1"), "--overwrite"]
    with recorded(place) as states:
        typed(arguments, place)
    expected = outcome(place)
    found = [weights_in(state, tmp_path / "killed") for state in states]
    new = expected["m/model.safetensors"]
    assert {digest(old), digest(new)} == set(found)
    assert found == sorted(found, key=[digest(old), digest(new)].index), "never the old one again"
    for number, state in enumerate(states):
        assert differences(after_a_kill(state, arguments, tmp_path / "again"), expected) == [], number


def weights_in(state: Tree, elsewhere: Path) -> str:
    plant(state, elsewhere)
    try:
        return folder.weights_digest(folder.load(elsewhere / "m").model)
    finally:
        shutil.rmtree(elsewhere)


def digest(content: bytes | None) -> str:
    return folder.sha256(content or b"")
