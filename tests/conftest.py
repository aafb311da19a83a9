import pytest
import torch
from hypothesis import settings

settings.register_profile("steady", deadline=None, derandomize=True)  # the same examples every time, on slow machines too
settings.load_profile("steady")
torch.set_num_threads(1)  # `make test` runs two processes side by side


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(7)
