"""The native library, on the threads of torch."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

import torch

from regard.native.library import library


@functools.cache
def library_on_torch_threads() -> ctypes.CDLL | None:
    """Returns the library, whose kernels run on torch's own OpenMP threads: these spin after each call, and a second pool would
    wait for a processor.

    Without such a library (torch was built otherwise) the kernels keep their own threads.
    """
    functions, folder = library(), Path(torch.__file__).parent
    for path in (*folder.glob("lib/libgomp*.so*"), *folder.parent.glob("torch.libs/libgomp*.so*")):
        team = ctypes.cast(ctypes.CDLL(str(path)).GOMP_parallel, ctypes.c_void_p)
        if functions is not None:
            functions.regard_use_team(team)
        break
    return functions
