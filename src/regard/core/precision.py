"""What is not rounded where torch computes in half precision (autocast)."""

import torch
from torch import Tensor


def log_softmax(logits: Tensor) -> Tensor:
    """Returns log-probabilities. Under autocast they are not rounded; torch does so on GPUs only."""
    rounded = torch.is_autocast_enabled(logits.device.type)
    return logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32) if rounded else None)
