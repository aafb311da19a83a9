"""Selects the device, and gives access to its memory settings and random numbers."""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from regard.errors import UserError, shown


def available_devices() -> dict[str, bool]:
    """Returns the supported types of device, the fastest first, and whether this machine has them."""
    return {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}


def choose_device(given: str | torch.device) -> torch.device:
    """Returns a device by its name, such as "cuda" or "cuda:1"; "auto" is cuda if available, else mps if available, else cpu.
    A torch.device is returned as it is.

    Raises UserError if the device is unknown or not available.
    """
    available = available_devices()
    if isinstance(given, str) and given == "auto":
        return torch.device(next(device for device, present in available.items() if present))
    name = str(given)
    kind, _, index = name.partition(":")
    if kind not in available or (index and not index.isdecimal()) or name.endswith(":"):
        raise UserError(f"unknown device {shown(name)}; expected auto, cpu, cuda or mps, or a number such as cuda:1")
    number = torch.cuda.device_count() if kind == "cuda" else 1
    if not available[kind] or (index and int(index) >= number):
        raise UserError(f"device {shown(name)} is not available on this machine; use --device auto")
    return torch.device(name)


def num_cores() -> int:
    """Returns the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def has_bfloat16(device: torch.device) -> bool:
    """Returns whether a device multiplies matrices of bfloat16 by itself, without emulation."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return device.type == "cpu" and torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


@contextmanager
def settings_restored(threads: int | None = None) -> Iterator[None]:
    """Restores the random number generators and the number of threads of torch afterwards. threads: the number inside."""
    generators = [torch.default_generator, *torch.cuda.default_generators]
    if torch.backends.mps.is_available():
        generators.append(default_generator(torch.device("mps")))
    states, before = [generator.get_state() for generator in generators], torch.get_num_threads()
    try:
        if threads is not None:
            torch.set_num_threads(threads)
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
        if threads is not None:
            torch.set_num_threads(before)


def default_generator(device: torch.device) -> torch.Generator:
    """Returns the generator that `torch.manual_seed` seeds on this device."""
    if device.type == "cuda":
        return torch.cuda.default_generators[device.index or 0]
    return torch.mps._get_default_mps_generator() if device.type == "mps" else torch.default_generator


def keep_freed_memory() -> None:
    """Makes glibc reuse freed memory instead of returning it to the system. Does nothing on systems without glibc's mallopt.

    By default the memory of large tensors is returned and requested again each time, and every page then costs a page fault:
    about a tenth of the time of a search (docs/LOG.md). The setting holds for the whole process, so only Regard's commands make
    it; a server or a notebook may call this function itself.
    """
    if sys.platform != "linux" or not hasattr(library := ctypes.CDLL(None), "mallopt"):
        return
    library.mallopt(_M_MMAP_THRESHOLD, 32 << 20)  # the largest value it accepts
    library.mallopt(_M_TRIM_THRESHOLD, 512 << 20)


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""The constants of glibc's malloc.h."""
