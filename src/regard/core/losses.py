"""What training minimises."""

import torch.nn.functional as F
from torch import Tensor


def sequence_loss(logits_BTV: Tensor, targets_BT: Tensor, *, pad: int, smoothing: float = 0.0) -> Tensor:
    """Cross-entropy summed over the real targets; padding counts neither in the sum nor in the smoothing."""
    return F.cross_entropy(
        logits_BTV.flatten(0, 1), targets_BT.flatten(), ignore_index=pad, label_smoothing=smoothing, reduction="sum"
    )
