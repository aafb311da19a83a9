"""Dropout (Srivastava et al. 2014) that is fast on a CPU."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.core.transforms import is_transformed

_STEPS = 2**16
"""The number of different values of one 16-bit random number."""


class Dropout(nn.Module):
    """Zeroes each element with probability p during training and multiplies the others by 1/(1 − p), so the mean is unchanged.

    On a CPU, torch draws a 32-bit number per element, which takes an eighth of a Transformer's training time. Here one 64-bit
    draw serves four elements, so p is rounded to a multiple of 1/65,536. Other devices, compiled graphs and torch.func use
    torch's own dropout.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"dropout is {p}; expected a probability of at least 0 and less than 1")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        if x.device.type != "cpu" or torch.compiler.is_compiling() or is_transformed():
            return F.dropout(x, self.p)
        dropped: Tensor = _Drop.apply(x, _keep(x, self.p), 1 / (1 - self.p))  # type: ignore[no-untyped-call]
        return dropped

    def extra_repr(self) -> str:
        return f"p={self.p}"


def _keep(x: Tensor, p: float) -> Tensor:
    """Returns a mask of the shape of x, True where an element is kept."""
    draws_N = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None).view(torch.int16)
    return (draws_N[: x.numel()] >= round(p * _STEPS) - _STEPS // 2).view(x.shape)


class _Drop(torch.autograd.Function):
    """Computes x · keep · scale and saves only the mask for the backward pass, one byte per element."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, keep: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(keep)
        ctx.scale = scale
        return (x * keep).mul_(scale)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (keep,) = ctx.saved_tensors
        return gradient * keep * ctx.scale, None, None
