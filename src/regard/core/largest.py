"""Top-k for long rows."""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 64


def largest(numbers: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Returns the values and indices of `numbers.topk(k)`, but faster for long rows.

    The k largest are in the k blocks with the highest maxima, or in the remainder after the last full block.
    """
    length = numbers.shape[-1]
    num_blocks = length // BLOCK
    if num_blocks < 4 * k:
        top, index = numbers.topk(k)
        return top, index
    full_blocks, rest = numbers.split((num_blocks * BLOCK, length % BLOCK), dim=-1)
    blocks = full_blocks.unflatten(-1, (num_blocks, BLOCK))
    best = blocks.amax(-1).topk(k, sorted=False).indices
    chosen = blocks.gather(-2, best.unsqueeze(-1).expand(*best.shape, BLOCK)).flatten(-2)
    top, index = torch.cat((chosen, rest), dim=-1).topk(k)
    block, in_rest = best.gather(-1, (index // BLOCK).clamp(max=k - 1)), index - k * BLOCK
    return top, torch.where(in_rest < 0, block * BLOCK + index % BLOCK, num_blocks * BLOCK + in_rest)
