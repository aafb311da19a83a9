"""`regard compare`, run as a user runs it, killed and continued."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import Run

import regard

pytestmark = pytest.mark.slow
CELLS = ["--only", "luong-dot,monotone,unnormalised", "--set", "model.width=16", "--set", "train.checkpoint_every=2"]
DIVERGES = ["--set", "train.learning_rate=0.01", "--set", "train.batch_tokens=200"]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with 60 pairs."""
    path = tmp_path_factory.mktemp("pairs") / "pairs.tsv"
    words = [f"{a}{b}{c}" for a in "abcd" for b in "efg" for c in "hijkl"]
    path.write_text("".join(f"{word}\t{word[::-1]}\n" for word in words))
    return path


def results(folder: Path) -> dict[str, object]:
    """Returns what compare.json holds, timings apart."""
    facts = json.loads((folder / "compare.json").read_text())
    for row in facts["rows"]:
        for cell in row["cells"]:
            cell["timings"] = None
    return facts  # type: ignore[no-any-return]


def test_a_killed_comparison_goes_on_to_the_same_table(regard_command: Run, pairs: Path, tmp_path: Path) -> None:
    command = [*("compare", pairs, "--updates", "60", "--side-by-side", "1", "--out"), "whole", *CELLS, *DIVERGES]
    done = regard_command(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "saved in whole; open whole/compare.html" in done.stdout
    assert [line.split("|")[1].strip() for line in done.stdout.splitlines() if line.startswith("| ")][1:] == [
        *("luong-dot", "monotone", "unnormalised")
    ]
    command[command.index("whole")] = "killed"
    child = subprocess.Popen(
        [sys.executable, "-m", "regard", *map(str, command)], cwd=tmp_path, stdout=subprocess.DEVNULL, env={**os.environ}
    )
    middle = tmp_path / "killed" / "monotone-1.run" / "checkpoints"
    try:
        while not list(middle.glob("*")):
            assert child.poll() is None
            time.sleep(0.01)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert [path.name for path in (tmp_path / "killed").glob("*-1.json")] == ["luong-dot-1.json"]
    first = (tmp_path / "killed" / "luong-dot-1.json").read_bytes()
    time.sleep(1.0)  # the process of the cell ends with its parent
    again = regard_command(*command, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert results(tmp_path / "killed") == results(tmp_path / "whole")
    assert (tmp_path / "killed" / "luong-dot-1.json").read_bytes() == first, "a finished cell is not trained again"
    assert not list((tmp_path / "killed").glob("*.run"))
    assert len(regard.load(tmp_path / "killed" / "monotone-1")("aeh").text) > 0
    other = regard_command(*command, "--set", "model.embedding=8", cwd=tmp_path)
    assert (other.returncode, other.stderr) == (
        1,
        "regard: killed holds a comparison with other changes; choose another folder, or start over with --overwrite\n",
    )


def test_operations_and_several_seeds_from_python(pairs: Path, tmp_path: Path) -> None:
    """Equal operations are fewer updates for the larger model; the second seed makes as many as the first."""
    given = {"only": ("luong-dot", "luong-concat"), "operations": 4e8, "seeds": 2, "settings": {"model.width": 16}}
    found = regard.compare(str(pairs), tmp_path / "ops", **given, quiet=True)  # type: ignore[arg-type]
    small, large = found.rows
    assert [cell.seed for cell in small.cells] == [1, 2]
    assert 2 < large.updates < small.updates
    assert {cell.updates for cell in small.cells} == {small.updates}
    assert small.cells[0].curve != small.cells[1].curve
    assert small.timing("memory") > 2**20
    assert len(found.table().splitlines()) == 4
    log = json.loads((tmp_path / "ops" / "plan.json").read_text())
    assert log["budget"] == {"kind": "operations", "amount": 4e8}
