"""The operations of the native kernels, for torch's FlopCounterMode: those of the same products of matrices in torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from regard.native import bahdanau, recurrent  # noqa: F401, which register the operators

Shape = Sequence[int]


def _forward(_: int, x: Shape, weight: Shape, own: Shape, *others: Any, **named: Any) -> int:
    """Of the products with W and U."""
    return 2 * weight[0] * x[0] * x[1] * weight[1] * (x[2] + own[2])


def _backward(mode: int, states: Any, last: Any, x: Shape, weight: Shape, own: Shape, *others: Any, **named: Any) -> int:
    return 2 * _forward(mode, x, weight, own)


def _bahdanau(x: Shape, context: Shape, own: Shape, bias: Any, query: Shape, *others: Any, **named: Any) -> int:
    """Of the products with W, U and W_q; those of scores and context vectors are not counted, as in additive attention."""
    return 2 * x[0] * x[1] * sum(rows * columns for rows, columns in (context, own, query))


def _bahdanau_backward(states: Any, contexts: Any, inputs: Sequence[Shape], *others: Any, **named: Any) -> int:
    return 2 * _bahdanau(*inputs)


COUNTED_KERNELS: dict[Any, Callable[..., int]] = {
    torch.ops.regard.recurrent: _forward,
    torch.ops.regard.recurrent_backward: _backward,
    torch.ops.regard.bahdanau: _bahdanau,
    torch.ops.regard.bahdanau_backward: _bahdanau_backward,
}
"""To be given as `custom_mapping`."""
