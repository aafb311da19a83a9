"""What is not rounded where torch computes in half precision (autocast)."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def is_rounding(device: torch.device) -> bool:
    """Returns whether autocast is on; there are devices, such as "meta", that it does not know."""
    return torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)


def exact(device: torch.device) -> AbstractContextManager[object]:
    """Returns a context without autocast."""
    return torch.autocast(device.type, enabled=False) if is_rounding(device) else nullcontext()


def log_softmax(logits: Tensor) -> Tensor:
    """Returns log-probabilities. Under autocast they are not rounded; torch does so on GPUs only."""
    dtype = torch.promote_types(logits.dtype, torch.float32) if is_rounding(logits.device) else None
    return logits.log_softmax(-1, dtype=dtype)
