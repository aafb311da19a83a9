"""The README's commands and code, executed in the order in which they stand."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import regard
from regard.models.build import PRESETS
from regard.training.config import parse_config

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def in_shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        command,
        shell=True,
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"},
    )


def test_the_commands_run(workplace: Path) -> None:
    commands = [line.removeprefix("$ ") for block in blocks("console") for line in block.splitlines()]
    assert {"make demo", "make test"} <= set(commands)
    for command in commands:
        if command.startswith("make "):  # would install and train anew: see what they would run
            dry = subprocess.run([*command.split(), "--dry-run"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
            assert {"make demo": "regard demo", "make test": "-m pytest"}[command] in dry
            continue
        done = in_shell(command, workplace)
        assert done.returncode == 0, (command, done.stderr)
        assert done.stdout.strip(), command
    assert (workplace / "abc.png").exists()


def test_the_code_runs(workplace: Path) -> None:
    first, *rest = blocks("python")
    assert len(rest) == 2
    for code in (first, "\n".join(rest)):  # the page on attention goes on from block to block
        done = subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=workplace, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert (workplace / "serendipity.png").exists()


def test_the_run_file_is_one() -> None:
    (text,) = blocks("yaml")
    settings = parse_config(text, "README.md")
    assert (settings.seed, settings.data.files, settings.model, settings.train.steps) == (
        7,
        ("pairs.tsv",),
        PRESETS["small"],
        2000,
    )


def test_the_pictures_and_links_are_there() -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if "://" not in link]
    assert links
    assert [link for link in links if not (ROOT / link).is_file()] == []


def test_ci_runs_what_the_readme_says() -> None:
    assert (ROOT / ".ci" / "run").read_text().splitlines()[-1] == "make test"


def test_public_names() -> None:
    """What is listed is there, and nothing else is promised."""
    names = [*regard.__all__, "reference"]  # which needs numpy, and is therefore no part of `import *`
    assert sorted(names) == sorted([*regard._HOMES, *regard._MODULES, "load"])
    for name in names:
        assert getattr(regard, name) is not None
    assert dir(regard) == sorted(names)
    assert not hasattr(regard, "atend")
