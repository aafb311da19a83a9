"""The operations of the native kernels, for torch's FlopCounterMode: those of the same products of matrices in torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from regard.native import recurrent  # noqa: F401, which registers the operators


def _forward(_: int, x: Sequence[int], weight: Sequence[int], own: Sequence[int], *others: Any, **named: Any) -> int:
    """Of the products with W and U."""
    return 2 * weight[0] * x[0] * x[1] * weight[1] * (x[2] + own[2])


def _backward(
    mode: int, states: Any, last: Any, x: Sequence[int], weight: Sequence[int], own: Sequence[int], *others: Any, **named: Any
) -> int:
    return 2 * _forward(mode, x, weight, own)


COUNTED_KERNELS: dict[Any, Callable[..., int]] = {
    torch.ops.regard.recurrent: _forward,
    torch.ops.regard.recurrent_backward: _backward,
}
"""To be given as `custom_mapping`."""
