"""Calls of the native library with tensors, on the threads of torch."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

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


def call(name: str, problem: ctypes.Structure, tensors: Mapping[str, Tensor | None]) -> None:
    """Calls a kernel with the addresses of contiguous tensors as these fields. The caller keeps the tensors alive."""
    functions = library_on_torch_threads()
    assert functions is not None
    for field, tensor in tensors.items():
        if tensor is not None:
            assert tensor.is_contiguous(), field
            setattr(problem, field, tensor.data_ptr())
    functions.regard_set_threads(torch.get_num_threads())
    getattr(functions, name)(ctypes.byref(problem))


def differentiated(
    compute: Callable[..., Any], inputs: Sequence[Tensor], upstream: Sequence[Tensor], *others: Any
) -> list[Tensor | None]:
    """Returns the gradients of the inputs by torch's own operators, so that they can be differentiated again.

    compute: a function of the inputs and the other arguments.
    """
    own = [x.view_as(x) for x in inputs]  # one input may have been computed from another, whose gradient is none of ours
    wanted = [x for x in own if x.requires_grad]
    found = iter(torch.autograd.grad(compute(*own, *others), wanted, upstream, create_graph=True))
    return [next(found) if x.requires_grad else None for x in own]


def on_cpu_in_float32(*tensors: Tensor) -> bool:
    """Whether the kernels can read these tensors, none of which is empty."""
    return all(x.dtype == torch.float32 and x.device.type == "cpu" and x.numel() > 0 for x in tensors)
