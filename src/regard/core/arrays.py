"""Tensors as numpy arrays, for everything outside the models."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.contracts import Array


def as_array(numbers: Tensor) -> Array:
    """Returns a tensor as a numpy array. numpy has no bfloat16; such numbers become float32."""
    numbers = numbers.detach().cpu()
    return (numbers.float() if numbers.dtype == torch.bfloat16 else numbers).numpy()
