"""Linear maps whose products oneDNN computes in training, where that is faster than torch's own choice.

torch multiplies matrices in float32 with MKL. On processors that are not Intel's, MKL does without AVX-512 and takes about
twice as long as oneDNN, which torch contains, too. Results differ by rounding.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.core.transforms import is_transformed

SMALLEST = 1 << 20
"""The fewest multiplications of a product for which a call of oneDNN pays off."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Returns x Wᵀ + b."""
    if not torch.is_grad_enabled() or not _pays(x, weight):
        return F.linear(x, weight, bias)
    rows: Tensor = _Linear.apply(x.reshape(-1, x.shape[-1]), weight, bias)  # type: ignore[no-untyped-call]
    return rows.view(*x.shape[:-1], len(weight))


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Returns x Wᵀ + b for a training step that computes its gradients itself: autograd does not see it. x has two axes."""
    if not _pays(x, weight):
        return F.linear(x, weight, bias)
    found: Tensor = torch.ops.mkldnn._linear_pointwise(_dense(x), _dense(weight), bias, "none", [], "")
    return found


def _dense(x: Tensor) -> Tensor:
    """Returns x without gaps between its rows or columns: with them, oneDNN takes a hundred times as long."""
    return x if x.is_contiguous() or x.t().is_contiguous() else x.contiguous()


@functools.cache
def has_faster_products() -> bool:
    """Whether oneDNN is there and faster than MKL: the processor has AVX-512 and is not Intel's."""
    backends, processor = torch.backends, Path("/proc/cpuinfo")
    if os.environ.get("REGARD_NATIVE") == "0" or not (backends.mkldnn.is_available() and backends.mkl.is_available()):
        return False
    if not processor.exists() or "AuthenticAMD" not in processor.read_text():
        return False
    return backends.cpu.get_cpu_capability() == "AVX512" and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _pays(x: Tensor, weight: Tensor) -> bool:
    """Whether this is a large product in float32, which nothing traces, transforms or counts."""
    if torch.compiler.is_compiling() or not has_faster_products():
        return False
    if {x.dtype, weight.dtype} != {torch.float32} or x.device.type != "cpu" or x.numel() * len(weight) < SMALLEST:
        return False
    special = is_transformed() or torch._C._len_torch_dispatch_stack() or torch._C._is_tracing()
    return not (special or torch.is_autocast_enabled("cpu"))


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        multiply = F.linear if torch.is_grad_enabled() else product  # create_graph=True needs torch's own operators
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad
        return (
            multiply(gradient, weight.t()) if wants_x else None,
            multiply(gradient.t(), x.t()) if wants_weight else None,
            gradient.sum(0) if wants_bias else None,
        )
