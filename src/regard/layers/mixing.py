"""What mixed the places of a sequence before attention: weights that depend on where a place stands, never on what it says.

Both are attention whose weights are fixed by position (tests/unit/test_mixing.py builds them from `attend`):

    Convolution   y_i = Σ_o W_o x_{i+o}     one head per offset o; its weights are 1 where j − i = o
    Dense         y_i = Σ_j W_ij x_j        one head per pair (i, j); its weights are 1 at that pair

The first is the one-dimensional case of Cordonnier et al. 2020 (Theorem 1).
"""

import torch
from torch import Tensor, nn

from regard.errors import check_sizes, check_whole

# B batch  L length  D width  V width of the values


class Convolution(nn.Module):
    """Each place mixes its neighbours up to `reach` places away; zeros beyond the ends. One set of weights for every length."""

    def __init__(self, width: int, value_width: int, reach: int, *, bias: bool = True) -> None:
        super().__init__()
        check_sizes(width=width, value_width=value_width)
        check_whole("reach", reach, 0)
        self.width = width
        self.convolution = nn.Conv1d(width, value_width, 2 * reach + 1, padding=reach, bias=bias)

    def forward(self, x_BLD: Tensor, allow_BL: Tensor | None = None) -> Tensor:
        """(B, L, V). Padding counts as zeros, as the world beyond the ends does; what comes out at padding means nothing."""
        x_BLD = real_positions(x_BLD, allow_BL, self.width)
        if not x_BLD.shape[1]:
            return x_BLD.new_zeros(x_BLD.shape[0], 0, self.convolution.out_channels)
        y_BVL: Tensor = self.convolution(x_BLD.transpose(1, 2))
        return y_BVL.transpose(1, 2)


class Dense(nn.Module):
    """Every place of the output is its own linear function of all places of the input. One length, and no other."""

    def __init__(self, length: int, width: int, value_width: int, *, bias: bool = True) -> None:
        super().__init__()
        check_sizes(length=length, width=width, value_width=value_width)
        self.length, self.width = length, width
        self.linear = nn.Linear(length * width, length * value_width, bias=bias)

    def forward(self, x_BLD: Tensor, allow_BL: Tensor | None = None) -> Tensor:
        """(B, L, V). Padding counts as zeros; what comes out at padding means nothing."""
        x_BLD = real_positions(x_BLD, allow_BL, self.width)
        if x_BLD.shape[1] != self.length:
            raise ValueError(
                f"x has {x_BLD.shape[1]} places, but this layer has weights for {self.length} places only; "
                "pad shorter inputs and pass allow_BL, or use Convolution, which takes any length"
            )
        y_BLV: Tensor = self.linear(x_BLD.flatten(1)).unflatten(1, (self.length, -1))
        return y_BLV


def real_positions(x_BLD: Tensor, allow_BL: Tensor | None, width: int) -> Tensor:
    """x with zeros at its padding, whatever stood there."""
    if x_BLD.dim() != 3 or x_BLD.shape[2] != width:
        raise ValueError(f"x has shape {tuple(x_BLD.shape)}, expected (batch, length, {width}); one sequence wants x[None]")
    if allow_BL is None:
        return x_BLD
    if allow_BL.dtype != torch.bool or allow_BL.shape != x_BLD.shape[:2]:
        raise ValueError(
            f"allow_BL is {allow_BL.dtype} of shape {tuple(allow_BL.shape)}, expected torch.bool of shape "
            f"{tuple(x_BLD.shape[:2])} with True at real places; masks.first(lengths, {x_BLD.shape[1]}) makes one"
        )
    return x_BLD.masked_fill(~allow_BL.unsqueeze(-1), 0.0)
