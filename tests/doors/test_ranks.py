"""Several processes that train one model end with the weights of one process, and survive the death of one of them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from killed_runs import begin, finish, num_lines
from ranks_child import trained
from safetensors.torch import load_file

from regard.data.dictionary import pronunciations
from regard.errors import UserError
from regard.models.rnn_seq2seq import RnnSettings
from regard.training.ranks import Ranks, shared_out
from regard.training.settings import RunSettings, TrainSettings

SETTINGS = ["train.steps=30", "train.accumulate=3", "train.batch_tokens=200", "train.checkpoint_every=4", "train.ema=0.9"]
SETTINGS += ["train.validate_every=10", "model.width=16", "model.embedding=8", "model.dropout=0.2", "data.subword_dropout=0.2"]
SETTINGS += ["data.source_unit=bpe", "data.vocabulary=400"]


def arguments(out: str) -> list[str]:
    return ["words.tsv", "--out", out, *(part for change in SETTINGS for part in ("--set", change))]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with words.tsv, and the model that two processes train without trouble."""
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "words.tsv").write_text("".join(f"{pair.source}\t{pair.target}\n" for pair in pronunciations("dev")[:600]))
    finish(begin([*arguments("two"), "--processes", "2"], folder))
    return folder


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the processes of this test are forks")
def test_several_processes_give_what_one_gives(tmp_path: Path) -> None:
    """In float64, with dropout, and with updates that have fewer micro-batches than there are processes."""
    subprocess.run([sys.executable, Path(__file__).with_name("ranks_child.py"), "2", "3", tmp_path], check=True)
    weights, losses = trained(Ranks())
    for size in "23":
        theirs = load_file(tmp_path / size / "weights.safetensors")
        assert theirs.keys() == weights.keys()
        for name, expected in weights.items():
            torch.testing.assert_close(theirs[name], expected, rtol=0, atol=1e-10)
        assert json.loads((tmp_path / size / "losses.json").read_text()) == pytest.approx(losses, abs=1e-10)


def logged(folder: Path, out: str) -> list[tuple[int, float]]:
    lines = [json.loads(line) for line in (folder / f"{out}.run" / "log.jsonl").read_text().splitlines()]
    return [(line["update"], line["loss"]) for line in lines if "loss" in line]


@pytest.mark.slow
def test_the_command_trains_with_any_number_of_processes_and_changes_it_on_the_way(workspace: Path) -> None:
    finish(begin(arguments("one"), workspace))
    one, two = logged(workspace, "one"), logged(workspace, "two")
    assert [update for update, _ in two] == list(range(1, 31))
    assert [loss for _, loss in two] == pytest.approx([loss for _, loss in one], rel=2e-3)

    shutil.copytree(workspace / "two.run", workspace / "changed.run")
    checkpoints = workspace / "changed.run" / "checkpoints"
    shutil.rmtree(max(checkpoints.iterdir()))
    assert "resuming after update 28" in finish(begin(arguments("changed"), workspace))
    changed, two = (load_file(workspace / name / "model.safetensors") for name in ("changed", "two"))
    for name, expected in two.items():
        torch.testing.assert_close(changed[name], expected, rtol=0, atol=1e-3)


def children_of(process: int) -> list[int]:
    """Returns the processes that this one has started."""
    return [int(child) for path in Path(f"/proc/{process}/task").glob("*/children") for child in path.read_text().split()]


def kill_one(parent: subprocess.Popen[bytes], log: Path, lines: int) -> None:
    """Kills a child of `parent` as soon as the log has so many lines."""
    while parent.poll() is None and num_lines(log) < lines:
        time.sleep(0.01)
    os.kill(max(children_of(parent.pid)), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="the processes to kill are found in /proc")
def test_a_run_whose_process_is_killed_continues_to_the_same_weights(workspace: Path) -> None:
    """torchrun starts all processes again, which go on from the last checkpoint."""
    log = workspace / "killed.run" / "log.jsonl"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    agent = subprocess.Popen(
        [*torchrun, "-m", "regard", "train", *arguments("killed"), "--threads", "1"],
        cwd=workspace,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    kill_one(agent, log, 12)
    output = agent.communicate()[0].decode()
    assert agent.returncode == 0, output
    assert output.count("resuming after update") == 1
    killed, two = (load_file(workspace / name / "model.safetensors") for name in ("killed", "two"))
    assert all(torch.equal(killed[name], two[name]) for name in two)
    assert logged(workspace, "killed") == logged(workspace, "two")


def test_the_end_of_a_process_is_reported() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.exit(7)"])
    lost = r"one of the 2 processes of this run ended with the exit code 7.*Run the same command to continue from the last"
    child.wait()
    with pytest.raises(UserError, match=lost), Ranks(0, 2, None, [child]).others_alive():
        raise RuntimeError("Connection closed by peer")
    with pytest.raises(UserError, match="one of the 2 processes of this run ended, so"), Ranks(1, 2).others_alive():
        raise RuntimeError("Connection closed by peer")


def test_processes_need_micro_batches_of_their_own() -> None:
    several = Ranks(0, 3)
    with pytest.raises(UserError, match=r"an update has 2 micro-batches for 3 processes; set train.accumulate=3 or more"):
        several.check(RunSettings(train=TrainSettings(accumulate=2)))
    several.check(RunSettings(train=TrainSettings(accumulate=3)))
    hard = RunSettings(model=RnnSettings(attention="hard"), train=TrainSettings(accumulate=3))
    with pytest.raises(UserError, match=r"set train.samples=4 and train.baseline=leave_one_out"):
        several.check(hard)
    Ranks().check(hard)


def test_updates_stay_as_large_when_they_are_shared_out() -> None:
    shared = shared_out(TrainSettings(batch_tokens=700, accumulate=1, learning_rate=7e-3), 3)
    assert shared == TrainSettings(batch_tokens=233, accumulate=3, learning_rate=7e-3)
    assert shared_out(TrainSettings(batch_tokens=700, accumulate=2), 4) == TrainSettings(batch_tokens=350, accumulate=4)


def test_sums_over_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loss, stop and gradients of the other process are added by hand; it uses a parameter that this one does not use."""
    both, other, none = (torch.nn.Parameter(torch.zeros(size)) for size in (2, 1, 3))
    both.grad = torch.tensor([1.0, 2.0])
    theirs = torch.tensor([2.5, 1.0, 1.0, 1.0, 0.0, 10.0, 20.0, 3.0, 0.0, 0.0, 0.0])
    monkeypatch.setattr("torch.distributed.all_reduce", lambda sums: sums.add_(theirs))
    assert Ranks(0, 2).add_up([both, other, none], 1.5, False) == (4.0, True)
    assert both.grad.tolist() == [11.0, 22.0]
    assert other.grad is not None
    assert other.grad.tolist() == [3.0]
    assert none.grad is None


def test_processes_of_one_machine_share_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.training.ranks.num_cores", lambda: 8)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert Ranks(0, 4).share("cpu", None) == ("cpu", 2)
    assert Ranks(0, 4).share("cpu", 3) == ("cpu", 3)
    assert Ranks().share("cpu", None) == ("cpu", None)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")  # the other two run on another machine
    assert Ranks(0, 4).share("cpu", None) == ("cpu", 4)
