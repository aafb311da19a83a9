"""The examples run as they are, from any folder. Their types are checked in test_types.py."""

import runpy
import sys
import warnings
from functools import partial
from pathlib import Path

import pytest
from commands import Command

pytestmark = pytest.mark.slow

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


def run_strictly(example: Path) -> None:
    """Runs the file as `python -W error FILE` does."""
    warnings.simplefilter("error")
    sys.path.insert(0, str(example.parent))
    runpy.run_path(str(example), run_name="__main__")


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_an_example_runs(example: Path, tmp_path: Path) -> None:
    """It prints something, and leaves nothing behind."""
    command = Command([], tmp_path, program=partial(run_strictly, example), environment={"OMP_NUM_THREADS": "1"})
    code, output, errors = command.wait()
    assert code == 0, errors
    assert output.strip()
    assert list(tmp_path.iterdir()) == []


def test_examples_use_public_names_only() -> None:
    for example in EXAMPLES:
        assert "from regard." not in example.read_text(), example
        assert "import regard." not in example.read_text(), example
