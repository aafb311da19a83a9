import pytest
import torch
from hypothesis import settings

settings.register_profile(
    "reproducible", deadline=None, derandomize=True
)  # the same examples in every run, and no time limit on slow machines
settings.load_profile("reproducible")
torch.set_num_threads(1)  # `make test` runs two processes in parallel


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Does not measure the coverage of long trainings and searches, and of compilations: it takes a third of their time, and
    other tests reach the same lines."""
    for item in items:
        untraced = item.path.parent.name in ("learn", "laws") or item.path.name == "test_compile.py"
        if untraced and item.get_closest_marker("slow"):
            item.add_marker("no_cover")


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Seeds torch before every test."""
    torch.manual_seed(7)
