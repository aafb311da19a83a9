"""The memory that tensors live in."""

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
    ctypes.CDLL(None).mallopt(-3, 1 << 16)  # every tensor gets pages of its own: glibc would decide by what came before
def turn():
    [torch.ones(1 << 21) for _ in range(10)]  # 8 MB each
turn(), turn()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    turn()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc is told")
def test_freed_memory_is_used_again() -> None:
    """8 MB are 2,048 pages: thirty tensors whose memory comes anew cost 60,000 faults."""
    kept, plain = (
        int(subprocess.run([sys.executable, "-c", FAULTS.format(keep=keep)], capture_output=True, text=True, check=True).stdout)
        for keep in (True, False)
    )
    assert kept < 3_000
    assert plain > 30_000
