"""Where a token stands, as numbers."""

import torch
from torch import Tensor


def sinusoidal(positions: Tensor, width: int, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """sin(ω_k i), cos(ω_k i) side by side, ω_k = 10000^(−2k/width) (Vaswani et al. 2017, 3.5): (...,) -> (..., width).

    Computed in float64, so that far positions keep their phase.
    """
    if width % 2:
        raise ValueError(f"sinusoidal positions come in pairs of sine and cosine, but the width is {width}; make it even")
    k = torch.arange(width // 2, dtype=torch.float64, device=positions.device)
    angle = positions.to(torch.float64).unsqueeze(-1) * 10000.0 ** (-2 * k / width)
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2).to(dtype)
