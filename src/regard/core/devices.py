"""Where to compute."""

import torch

from regard.errors import UserError


def choose_device(name: str) -> torch.device:
    """ "auto" takes what is there: cuda, mps, else cpu."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(one for one, there in available.items() if there))
    if name not in available:
        raise UserError(f"unknown device {name!r}; expected auto, cpu, cuda or mps")
    if not available[name]:
        raise UserError(f"device {name!r} is not available on this machine; use --device auto")
    return torch.device(name)
