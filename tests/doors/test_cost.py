"""`regard cost`, run as a user runs it."""

import json
import re
from pathlib import Path

import pytest
from conftest import Run

pytestmark = pytest.mark.slow


def test_the_table_is_that_of_the_notes(regard_command: Run) -> None:  # SPEC A10.3
    done = regard_command("cost")
    assert (done.returncode, done.stderr) == (0, "")
    for layer, notes in {
        "self-attention": "160,000",
        "recurrent": "13,107,200",
        "convolution": "65,536,000",
        "dense": "655,360,000",
    }.items():
        assert re.search(rf"^{layer} +{notes} ", done.stdout, re.MULTILINE)
    assert "(notes): dense and recurrent at L = 1;" in done.stdout
    assert "self-attention and recurrent at L = 4,096;" in done.stdout


def test_measurements_are_printed_plotted_and_written_as_json(regard_command: Run, tmp_path: Path) -> None:  # SPEC A10.3
    sizes = ["--width", "16", "--value-width", "16", "--key-width", "8", "--kernel", "3", "--lengths", "8,4,2048"]
    options = ["--measure", "--threads", "1", "--seconds", "60", "--memory", "0.1", "--plot", tmp_path / "cost.png"]
    done = regard_command("cost", *sizes, *options)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^recurrent +L = 2,048 +threads = 1 +[\d.]+ ms +[\d.]+ Gop/s +[\d.]+ MB$", done.stdout, re.MULTILINE)
    assert "dense: L = 2,048 needs 4.0 GB; --memory raises the limit" in done.stdout
    assert (tmp_path / "cost.png").read_bytes().startswith(b"\x89PNG")
    report = json.loads(regard_command("cost", *sizes, *options, "--json").stdout)
    assert report["layers"]["recurrent"]["exact"] == {"operations": 25_600, "parameters": 512, "sequential_steps": 50}
    assert {one["layers"][0] for one in report["meetings"]["exact"]} <= set(report["layers"])
    assert len(report["measured"]) == 12
    assert [one["layer"] for one in report["measured"] if one["skipped"]] == ["dense"]


def test_wrong_options_give_one_line(regard_command: Run) -> None:
    done = regard_command("cost", "--lengths", "16,x")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "--lengths '16,x': expected whole numbers from 1 to 1,048,576, separated by commas" in done.stderr
    assert regard_command("cost", "--plot", "cost.txt").stderr.startswith("regard: cost.txt: the file extension selects")
