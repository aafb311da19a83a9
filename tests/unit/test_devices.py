"""The memory of tensors."""

from __future__ import annotations

import subprocess
import sys

import pytest

FAULTS = """
import ctypes, resource, torch
from regard.core.devices import keep_freed_memory
if {keep}:
    keep_freed_memory()
else:
    ctypes.CDLL(None).mallopt(-3, 1 << 16)  # every tensor gets new pages; by default, glibc decides by earlier allocations
def allocate():
    [torch.ones(1 << 21) for _ in range(10)]  # 8 MB each
allocate(), allocate()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    allocate()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc has this setting")
def test_freed_memory_is_used_again() -> None:
    """8 MB are 2,048 pages: thirty tensors in new memory cause 60,000 page faults."""
    kept, plain = (
        int(subprocess.run([sys.executable, "-c", FAULTS.format(keep=keep)], capture_output=True, text=True, check=True).stdout)
        for keep in (True, False)
    )
    assert kept < 3_000
    assert plain > 30_000
