import pytest
import torch
from hypothesis import settings

settings.register_profile(
    "reproducible", deadline=None, derandomize=True
)  # the same examples in every run, and no time limit on slow machines
settings.load_profile("reproducible")
torch.set_num_threads(1)  # `make test` runs two processes in parallel


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Seeds torch before every test."""
    torch.manual_seed(7)
