import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

settings.register_profile("steady", deadline=None, derandomize=True)  # the same examples every time, on slow machines too
settings.load_profile("steady")
torch.set_num_threads(1)  # `make test` runs two processes side by side


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(7)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real data that is not part of the project."""
    folder = Path(os.environ.get("REGARD_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no data in {folder}; set REGARD_DATA")
    return folder
