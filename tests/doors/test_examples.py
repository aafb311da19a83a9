"""The examples run as they are, from any folder, and a user's type checker accepts them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from user_types import type_errors

pytestmark = pytest.mark.slow

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_an_example_runs(example: Path, tmp_path: Path) -> None:
    """It prints something, and leaves nothing behind."""
    command = [sys.executable, "-W", "error", str(example)]
    done = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert list(tmp_path.iterdir()) == []


def test_the_examples_are_typed(tmp_path: Path) -> None:
    assert type_errors(EXAMPLES, tmp_path) == []


def test_examples_use_public_names_only() -> None:
    for example in EXAMPLES:
        assert "from regard." not in example.read_text(), example
        assert "import regard." not in example.read_text(), example
