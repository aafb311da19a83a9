"""Where to compute, and in which memory."""

import ctypes
import sys

import torch

from regard.errors import UserError, shown


def available_devices() -> dict[str, bool]:
    """The kinds of devices that we know, the fastest first, and whether this machine has them."""
    return {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}


def choose_device(name: str) -> torch.device:
    """ "auto" takes what is there: cuda, mps, else cpu."""
    available = available_devices()
    if name == "auto":
        return torch.device(next(one for one, there in available.items() if there))
    if name not in available:
        raise UserError(f"unknown device {shown(name)}; expected auto, cpu, cuda or mps")
    if not available[name]:
        raise UserError(f"device {shown(name)} is not available on this machine; use --device auto")
    return torch.device(name)


def default_generator(device: torch.device) -> torch.Generator:
    """The random numbers that `torch.manual_seed` seeds."""
    if device.type == "cuda":
        return torch.cuda.default_generators[device.index or 0]
    return torch.mps._get_default_mps_generator() if device.type == "mps" else torch.default_generator


def keep_freed_memory() -> None:
    """Has glibc keep what is freed for what is asked for next; other systems are left alone.

    Otherwise the memory of large tensors goes back to the system at every turn and comes anew, and every page of it costs a
    fault: about a tenth of the time of a search (docs/LOG.md).
    """
    if sys.platform != "linux" or not hasattr(library := ctypes.CDLL(None), "mallopt"):
        return
    library.mallopt(_M_MMAP_THRESHOLD, 32 << 20)  # its largest value
    library.mallopt(_M_TRIM_THRESHOLD, 512 << 20)


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""As in malloc.h."""
