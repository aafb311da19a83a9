"""Models that read pictures, from the command line: train, translate, evaluate, inspect."""

import re
from pathlib import Path

import pytest
from conftest import Run
from PIL import Image
from test_sources import draw_squares, write_rows

pytestmark = pytest.mark.slow


def test_every_command_reads_pictures(tmp_path: Path, regard_command: Run) -> None:
    # SPEC A8.1 A8.3
    rows = draw_squares(tmp_path / "data" / "p", 160)
    (tmp_path / "data" / "p" / "3.png").write_text("no picture")
    write_rows(tmp_path / "data" / "squares.jsonl", rows)
    write_rows(tmp_path / "data" / "test.jsonl", rows[20:40])
    small = ("train.steps=60", "train.validate_every=0", "model.width=32", "model.channels=16", "train.batch_tokens=300")
    changes = [part for setting in small for part in ("--set", setting)]
    done = regard_command("train", "data/squares.jsonl", "--threads", "1", *changes, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"data.source_unit=picture +sources are names of pictures, such as p/0.png", done.stdout)
    assert re.search(r"model.frontend=picture", done.stdout)
    assert re.search(r"because their file cannot be read \(.*\): 1\n  line 4: data/p/3.png is not a picture", done.stdout)
    assert "colour pictures of at most 128 pixels" in done.stdout

    names = "data/p/0.png\ndata/p/none.png\n\ndata/p/1.png\n"
    done = regard_command("translate", "model", input=names, cwd=tmp_path)
    lines = done.stdout.split("\n")
    assert len(lines) == 5
    assert all(" on the " in lines[index] for index in (0, 3))
    assert lines[1] == lines[2] == ""
    assert "line 2 is left empty: data/p/none.png: no such file" in done.stderr
    assert "lines that could not be translated and were left empty: 1" in done.stderr
    assert done.returncode == 1

    done = regard_command("evaluate", "../model", "test.jsonl", "--beam", "2", cwd=tmp_path / "data")
    assert done.returncode == 0, done.stderr
    assert "test.jsonl: 20 sources, 20 references" in done.stdout
    assert "by reference length (tokens)" in done.stdout

    done = regard_command("inspect", "model", "data/p/0.png", "--out", "page.html", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "a grid of 2 rows and 4 columns; the cell with the largest weight, counted from 0:" in done.stdout
    assert "data:image/png;base64," in (tmp_path / "page.html").read_text()
    done = regard_command("inspect", "model", "data/p/0.png", "--out", "maps.png", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with Image.open(tmp_path / "maps.png") as drawn:
        assert drawn.width > 1000
    done = regard_command("explain", "model", "data/p/0.png", cwd=tmp_path)
    assert done.returncode == 1
    assert "explain follows tokens, but this model reads pictures" in done.stderr
