"""How the next command handles a run that was interrupted, damaged, edited or given other settings."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from moments import Tree, differences, outcome, plant, typed
from test_moments import command

from regard.checkpoint.files import sha256
from regard.checkpoint.lock import locked
from regard.errors import UserError
from regard.training.run_folder import RunFolder

pytestmark = pytest.mark.slow

SHORT = ["train.steps=4", "train.checkpoint_every=2", "train.validate_every=2", "train.schedule=constant", "train.warmup=0"]
PAIRS = "".join(f"{a}{b}\t{b}{a}\n" for a in "abcde" for b in "fghij")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with pairs.tsv."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "pairs.tsv").write_text(PAIRS)
    return tmp_path / "run"


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder after a complete run of four updates."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    (folder / "pairs.tsv").write_text(PAIRS)
    typed(command(*SHORT), folder)
    return folder


@pytest.fixture
def trained(uninterrupted: Path) -> Tree:
    """The files of a complete run of four updates."""
    return outcome(uninterrupted)


@pytest.fixture
def finished(uninterrupted: Path, tmp_path: Path) -> Path:
    """A copy of the folder of a complete run."""
    shutil.copytree(uninterrupted, tmp_path / "finished")
    return tmp_path / "finished"


@pytest.fixture
def interrupted(finished: Path) -> Path:
    """A copy of the folder, as if the run had been killed after update 2."""
    shutil.rmtree(finished / "m")
    shutil.rmtree(finished / "m.run" / "checkpoints" / "update-00000004")
    return finished


def edit_state(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes a state.json and updates its digest, as if regard had written it."""
    state = json.loads(path.read_bytes())
    del state["self"]
    change(state)
    state["self"] = sha256(json.dumps(state, sort_keys=True).encode())
    path.write_text(json.dumps(state))


# --- interrupted, or two at once ---------------------------------------------------------------------------------------------


def test_an_interruption_waits_for_a_validation_that_is_due(
    folder: Path, trained: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = RunFolder.log

    def log(self: RunFolder, facts: Mapping[str, Any]) -> None:
        original(self, facts)
        if facts["update"] == 2 and "norm" in facts:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(RunFolder, "log", log)
    with pytest.raises(
        UserError, match=r"training stopped after update 2 of 4 and was saved in .*run the same command to continue"
    ):
        typed(command(*SHORT), folder)
    monkeypatch.undo()
    assert "resuming after update 2 of 4" in typed(command(*SHORT), folder)
    assert differences(outcome(folder), trained) == []


def hold(folder: Path) -> int:
    """Starts a process that holds the lock and has a child that outlives it; returns its id."""
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        with locked(folder):
            if os.fork() == 0:
                signal.alarm(20)
                signal.pause()
            os.write(sender, b"!")
            signal.alarm(20)
            signal.pause()
    os.read(receiver, 1)
    os.close(receiver)
    os.close(sender)
    return child


def test_a_lock_admits_one_writer_and_ends_with_its_process(folder: Path) -> None:
    holder = hold(folder / "m")
    try:
        words = (
            rf"m is being written by process {holder} on .+ since \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d; wait until it finishes, or"
        )
        for arguments in (command(*SHORT), [*command(*SHORT), "--overwrite"]):
            with pytest.raises(UserError, match=words):
                typed(arguments, folder)
        (folder / "model").symlink_to("m")
        with pytest.raises(UserError, match="is being written by process"):
            typed(["demo", "--out", "."], folder)
        assert sorted(path.name for path in folder.iterdir()) == [".m.lock", "model", "pairs.tsv"]
    finally:
        os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)
    (folder / "model").unlink()
    assert (folder / ".m.lock").exists()
    typed(command(*SHORT), folder)
    assert sorted(path.name for path in folder.iterdir()) == ["m", "m.run", "pairs.tsv"]


# --- damaged data ------------------------------------------------------------------------------------------------------------


def swap_ids(folder: Path) -> str:
    path = folder / "m.run" / "target.tokenizer.json"
    content = json.loads(path.read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary["f"], vocabulary["g"] = vocabulary["g"], vocabulary["f"]
    path.write_text(json.dumps(content))
    return "target.tokenizer.json is damaged: its sha256 is not the one in tokens.safetensors"


def flip_a_bit(folder: Path) -> str:
    path = folder / "m.run" / "tokens.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    return "tokens.safetensors is damaged: its sha256 is not the one in its header"


def remove(folder: Path) -> str:
    (folder / "m.run" / "source.tokenizer.json").unlink()
    return "source.tokenizer.json cannot be read: No such file or directory"


@pytest.mark.parametrize("damage", [swap_ids, flip_a_bit, remove])
def test_damaged_tokens_are_written_again(interrupted: Path, trained: Tree, damage: Callable[[Path], str]) -> None:
    words = damage(interrupted)
    assert f"{words}; tokenising the data again" in typed(command(*SHORT), interrupted)
    assert differences(outcome(interrupted), trained) == []


def test_a_vocabulary_that_cannot_be_reproduced_is_not_replaced(folder: Path) -> None:
    """The data gives another tokenizer than the run was trained with; unigram, for example, is not reproducible."""
    typed(command(*SHORT), folder)

    def other(state: dict[str, Any]) -> None:
        state["origin"]["codecs"]["target.tokenizer.json"] = "0" * 64

    for path in (folder / "m.run" / "checkpoints").glob("*/state.json"):
        edit_state(path, other)
    before = outcome(folder)
    words = r"m.run: source.tokenizer.json and target.tokenizer.json differ from those that this run was trained with"
    with pytest.raises(UserError, match=words):
        typed(command(*SHORT), folder)
    assert differences(outcome(folder), before) == []
    flip_a_bit(folder)
    damaged = outcome(folder)
    with pytest.raises(UserError, match=words):
        typed(command(*SHORT), folder)
    assert differences(outcome(folder), damaged) == [], "the damaged file was changed, but it may still be restored from a copy"


def test_changed_data_is_refused_even_if_the_tokens_are_missing(interrupted: Path) -> None:
    (interrupted / "m.run" / "tokens.safetensors").unlink()
    (interrupted / "pairs.tsv").write_text(PAIRS + "aa\tbb\n")
    before = outcome(interrupted)
    with pytest.raises(UserError, match="the training data changed since this run started"):
        typed(command(*SHORT), interrupted)
    assert differences(outcome(interrupted), before) == []


def test_a_run_of_an_earlier_version_resumes(interrupted: Path, trained: Tree) -> None:
    """It has no checksums of its tokens, and its checkpoints do not record the data and settings they were trained with."""
    for path in (interrupted / "m.run").glob("*/*/state.json"):
        edit_state(path, lambda state: state.pop("origin", None))
    store = interrupted / "m.run" / "tokens.safetensors"
    content = store.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    del header["__metadata__"]["regard.sha256"], header["__metadata__"]["codecs"]
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    store.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + size :])
    output = typed(command(*SHORT), interrupted)
    assert "resuming after update 2 of 4" in output
    assert "tokenising the data again" not in output
    assert {name.rpartition("/")[2] for name in differences(outcome(interrupted), trained)} == {
        "tokens.safetensors",
        "state.json",
    }


# --- other settings ----------------------------------------------------------------------------------------------------------


def longer(steps: int, *changes: str) -> list[str]:
    return command(*(change for change in SHORT if not change.startswith("train.steps")), f"train.steps={steps}", *changes)


def test_a_run_is_extended_if_its_learning_rate_allows_it(finished: Path, folder: Path) -> None:
    """The result is that of a run with 7 updates from the start. A run cannot become shorter than it is."""
    assert "resuming after update 4 of 7" in typed(longer(7), finished)
    typed(longer(7), folder)
    assert differences(outcome(finished), outcome(folder)) == ["m.run/checkpoints/update-00000004/state.json"], (
        "apart from the number of updates in state.json"
    )
    assert "steps: 7" in (finished / "m.run" / "run.yaml").read_text()
    with pytest.raises(UserError, match=r"train.steps was 7 and is now 6. To continue that run, repeat its command"):
        typed(longer(6), finished)


def test_a_run_that_cannot_be_extended_suggests_a_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def changes(steps: int, *more: str) -> list[str]:
        return command(f"train.steps={steps}", "train.checkpoint_every=2", "train.warmup=0.5", *more)

    typed(changes(4), folder)
    with pytest.raises(UserError) as refused:
        typed(changes(6), folder)
    output = str(refused.value)
    assert "train.steps was 4 and is now 6. Its learning rate (linear) depends on train.steps" in output
    line = output.partition("type: regard ")[2].partition(". To continue")[0]
    assert line == "train pairs.tsv --start-from m --out m-longer --set train.steps=2"
    typed(line.split(), folder)
    assert (folder / "m-longer" / "config.json").exists()

    shutil.rmtree(folder / "m.run")
    shutil.rmtree(folder / "m")
    typed(changes(4, "train.schedule=inverse_sqrt"), folder)
    with pytest.raises(
        UserError, match=r"Its learning rate warms up for 2 updates; to train longer .*add --set train.warmup=0.25"
    ):
        typed(changes(8, "train.schedule=inverse_sqrt"), folder)
    assert "resuming after update 4 of 8" in typed(changes(8, "train.schedule=inverse_sqrt", "train.warmup=0.25"), folder)


def test_an_edited_run_file_does_not_change_a_run_silently(interrupted: Path, trained: Tree) -> None:
    config = interrupted / "m.run" / "run.yaml"
    before = config.read_text()
    config.write_text(before.replace("learning_rate: 0.004", "learning_rate: 0.5"))
    with pytest.raises(UserError, match=r"train.learning_rate was 0.004 and is now 0.5"):
        typed(["train", "m.run/run.yaml", "--out", "m"], interrupted)
    assert "learning_rate: 0.5" in config.read_text()
    assert "run.yaml was rewritten" in typed(command(*SHORT), interrupted)
    assert differences(outcome(interrupted), trained) == []


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_text("{"), lambda path: path.write_bytes(b"\xff")])
def test_a_missing_or_damaged_run_file_is_written_again(
    interrupted: Path, trained: Tree, damage: Callable[[Path], object]
) -> None:
    damage(interrupted / "m.run" / "run.yaml")
    typed(command(*SHORT), interrupted)
    assert differences(outcome(interrupted), trained) == []


def test_checkpoints_of_unknown_settings_are_not_modified(interrupted: Path) -> None:
    for path in (interrupted / "m.run").glob("checkpoints/*/state.json"):
        edit_state(path, lambda state: state.pop("origin"))
    (interrupted / "m.run" / "run.yaml").unlink()
    before = outcome(interrupted)
    with pytest.raises(UserError, match=r"m.run holds checkpoints, but no run.yaml with their settings; restore that file"):
        typed(command(*SHORT), interrupted)
    assert differences(outcome(interrupted), before) == []


# --- other damage ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (b"no JSON\n", "has 1 line that cannot be read"),
        (b"\xff\xfe\n[1]\n", "has 2 lines that cannot be read"),
        (b"[" * 100_000 + b"\n" + b'{"update": "two"}\n{"loss": 1}\n', "has 3 lines that cannot be read"),
        (None, "is a folder"),
    ],
)
def test_a_damaged_log_is_set_aside_and_the_run_resumes(
    interrupted: Path, trained: Tree, damage: bytes | None, words: str
) -> None:
    log = interrupted / "m.run" / "log.jsonl"
    if damage is None:
        log.unlink()
        log.mkdir()
    else:
        log.write_bytes(damage + log.read_bytes())
    output = typed(command(*SHORT), interrupted)
    assert f"log.jsonl {words}; it is kept as " in output
    files = outcome(interrupted)
    set_aside = {name for name in files if name.startswith("m.run/.log.jsonl-damaged-")}
    assert len(set_aside) == 1
    lost = {"m.run/log.jsonl", "m.run/curves.svg", "m/curves.svg"} if damage is None else set()
    assert set(differences(files, trained)) == set_aside | lost


@pytest.mark.parametrize("lost", [1, 7])
def test_a_truncated_last_log_line_is_written_again(interrupted: Path, trained: Tree, lost: int) -> None:
    log = interrupted / "m.run" / "log.jsonl"
    log.write_bytes(log.read_bytes()[:-lost])
    assert "kept as" not in typed(command(*SHORT), interrupted)
    assert differences(outcome(interrupted), trained) == []


def test_damaged_counters_of_a_checkpoint_do_not_stop_a_run(finished: Path, trained: Tree) -> None:
    def other(state: dict[str, Any]) -> None:
        state["numbers"]["stale"] = "many"

    edit_state(finished / "m.run" / "checkpoints" / "update-00000004" / "state.json", other)
    output = typed(command(*SHORT), finished)
    assert "the checkpoint of update 4 is damaged: its counters cannot be read: stale is 'many'" in output
    assert "using that of update 2" in output
    assert all("-damaged-" in name for name in differences(outcome(finished), trained))


def test_a_missing_checkpoint_of_the_average_is_reported(folder: Path) -> None:
    arguments = longer(7, "train.average=3")
    typed(arguments, folder)
    shutil.rmtree(folder / "m.run" / "checkpoints" / "update-00000002")
    words = r"averages the checkpoints of the updates 2, 4, 6, but that of update 2 is damaged: .*--set train.average=2, which"
    with pytest.raises(UserError, match=words):
        typed(arguments, folder)
    assert "2 checkpoints, averaged" in typed([*arguments, "--set", "train.average=2"], folder)


class FullDisk:
    """Lets `number` calls that write pass and fails the next one, as a full disk does. Records the callers."""

    def __init__(self, number: int) -> None:
        self.left, self.callers = number, list[str]()

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if function.__name__ != "open" or set("wxa+") & set(str((*arguments, "r")[1])):
                frame: Any = sys._getframe(1)
                while "/regard/" not in frame.f_code.co_filename and frame.f_back:
                    frame = frame.f_back
                self.callers.append(f"{function.__name__} {frame.f_code.co_qualname}:{frame.f_lineno}")
                self.left -= 1
                if self.left == -1:
                    raise OSError(28, "No space left on device")
            return function(*arguments, **options)

        return call


def test_a_full_disk_is_reported_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = longer(3, "train.average=2")
    torch.optim.AdamW([torch.zeros(1, requires_grad=True)])  # the first optimiser of a process makes a folder

    def attempt(disk: FullDisk, folder: Path) -> None:
        with monkeypatch.context() as patch:
            patch.setattr("builtins.open", disk.wrap(open))
            for name in ("fsync", "rename", "replace", "mkdir"):
                patch.setattr(os, name, disk.wrap(getattr(os, name)))
            typed(arguments, folder)

    plant({"pairs.tsv": PAIRS.encode()}, tmp_path / "whole")
    every = FullDisk(10**9)
    attempt(every, tmp_path / "whole")
    expected = outcome(tmp_path / "whole")
    once = {caller: number for number, caller in enumerate(every.callers)}  # the last call from each source line
    errors: dict[str, str] = {}
    assert len(once) > 15
    for caller, number in once.items():
        plant({"pairs.tsv": PAIRS.encode()}, tmp_path / "full")
        try:
            attempt(FullDisk(number), tmp_path / "full")
        except UserError as error:
            errors[caller] = str(error)
        typed(arguments, tmp_path / "full")
        assert differences(outcome(tmp_path / "full"), expected) == [], caller
        shutil.rmtree(tmp_path / "full")
    assert {caller.split()[0] for caller in once.keys() - errors.keys()} <= {"mkdir"}, (
        "only creating a folder that exists may fail without an error"
    )
    words = r"cannot be written( to .*)?: No space left on device; .*([Ff]ree some disk space|choose another)"
    assert {error for error in errors.values() if not re.search(words, error)} == set()


def test_a_log_on_a_full_disk(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    run_folder = RunFolder(tmp_path / "m.run")
    run_folder.log_file = Path("/dev/full")
    words = r"/dev/full cannot be written: No space left on device; free some disk space and run the same command again"
    with pytest.raises(UserError, match=words):
        run_folder.log({"update": 1})
    with pytest.raises(UserError, match=words):
        run_folder.close()


def test_an_unreadable_run_starts_again_only_with_overwrite(finished: Path, trained: Tree) -> None:
    shutil.rmtree(finished / "m.run" / "checkpoints")
    (finished / "m.run" / "checkpoints").write_text("a file")
    (finished / "m.run" / "run.yaml").unlink()
    with pytest.raises(UserError, match=r"checkpoints cannot be read: Not a directory; .*start over with --overwrite"):
        typed(command(*SHORT), finished)
    typed([*command(*SHORT), "--overwrite"], finished)
    assert differences(outcome(finished), trained) == []
