"""Layers that mix the positions of a sequence with weights that depend on position only, never on content.

Both are special cases of attention with fixed weights (tests/unit/test_mixing.py builds them from `attend`):

    Convolution   y_i = Σ_o W_o x_{i+o}     one head per offset o; its weights are 1 where j − i = o
    Dense         y_i = Σ_j W_ij x_j        one head per pair (i, j); its weights are 1 at that pair

Convolution is the one-dimensional case of Cordonnier et al. 2020 (Theorem 1). The lecture notes write both with numbers instead
of matrices, y_i = Σ_o w_o x_{i+o} + b: a single head, whose weights are w_{j−i} or w_ij.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from regard.errors import check_sizes, check_whole, shown

# B batch  L length  D width  V width of the values

Weights = Literal["matrix", "channel", "scalar"]
"""What an offset or a pair of positions has: a matrix, one number per channel, or one number for all channels."""


class Convolution(nn.Module):
    """Mixes each position with its neighbours up to `reach` positions away, with zeros beyond the ends. Accepts any length.

    width: width of the input. value_width: width of the output.
    weights: "matrix", a matrix per offset; "channel", one number per offset and channel (depthwise convolution); "scalar", one
    number per offset, and one as bias. The last two do not mix channels, so both widths are equal.

    >>> layer = regard.Convolution(width=8, value_width=4, reach=1)
    >>> layer(torch.randn(2, 5, 8)).shape
    torch.Size([2, 5, 4])
    """

    __call__: Callable[..., Tensor]

    def __init__(self, width: int, value_width: int, reach: int, *, bias: bool = True, weights: Weights = "matrix") -> None:
        super().__init__()
        check_sizes(width=width, value_width=value_width)
        check_whole("reach", reach, 0)
        _check_weights(weights, get_args(Weights), width, value_width)
        self.width, self.value_width, self.is_shared = width, value_width, weights == "scalar"
        sizes = {"matrix": (width, value_width, 1), "channel": (width, width, width), "scalar": (1, 1, 1)}
        channels, outputs, groups = sizes[weights]
        self.convolution = nn.Conv1d(channels, outputs, 2 * reach + 1, padding=reach, groups=groups, bias=bias)

    def forward(self, x_BLD: Tensor, allow_BL: Tensor | None = None) -> Tensor:
        """Returns (B, L, V). Padding counts as zeros, as positions beyond the ends do; ignore the output at padding."""
        x_BLD = real_positions(x_BLD, allow_BL, self.width)
        if not x_BLD.shape[1]:
            return x_BLD.new_zeros(x_BLD.shape[0], 0, self.value_width)
        x_BDL = x_BLD.transpose(1, 2)
        if self.is_shared:
            y_NL: Tensor = self.convolution(x_BDL.flatten(0, 1).unsqueeze(1)).squeeze(1)
            return y_NL.view(x_BDL.shape).transpose(1, 2)
        y_BVL: Tensor = self.convolution(x_BDL)
        return y_BVL.transpose(1, 2)


class Dense(nn.Module):
    """Computes each output position as its own linear function of all input positions. Accepts inputs of one length only.

    width: width of the input. value_width: width of the output.
    weights: "matrix", a matrix per pair of positions; "scalar", one number per pair, and one bias per position. The latter does
    not mix channels, so both widths are equal.

    >>> layer = regard.Dense(length=5, width=8, value_width=4)
    >>> layer(torch.randn(2, 5, 8)).shape
    torch.Size([2, 5, 4])
    """

    __call__: Callable[..., Tensor]

    def __init__(
        self,
        length: int,
        width: int,
        value_width: int,
        *,
        bias: bool = True,
        weights: Literal["matrix", "scalar"] = "matrix",
    ) -> None:
        super().__init__()
        check_sizes(length=length, width=width, value_width=value_width)
        _check_weights(weights, ("matrix", "scalar"), width, value_width)
        self.length, self.width, self.is_shared = length, width, weights == "scalar"
        sizes = (length, length) if self.is_shared else (length * width, length * value_width)
        self.linear = nn.Linear(*sizes, bias=bias)

    def forward(self, x_BLD: Tensor, allow_BL: Tensor | None = None) -> Tensor:
        """Returns (B, L, V). Padding counts as zeros; ignore the output at padding. Raises ValueError for another length."""
        x_BLD = real_positions(x_BLD, allow_BL, self.width)
        if x_BLD.shape[1] != self.length:
            raise ValueError(
                f"x has {x_BLD.shape[1]} positions, but this layer has weights for exactly {self.length}; "
                "pad shorter inputs and pass allow_BL, or use Convolution, which accepts any length"
            )
        if self.is_shared:
            y_BVL: Tensor = self.linear(x_BLD.transpose(1, 2))
            return y_BVL.transpose(1, 2)
        y_BLV: Tensor = self.linear(x_BLD.flatten(1)).unflatten(1, (self.length, -1))
        return y_BLV


def _check_weights(weights: str, known: tuple[str, ...], width: int, value_width: int) -> None:
    """Raises ValueError for unknown weights, and for widths that they cannot have."""
    if weights not in known:
        raise ValueError(f"weights is {shown(weights)}, expected one of {', '.join(known)}")
    if weights != "matrix" and width != value_width:
        raise ValueError(
            f"weights={weights} keeps the channels apart, but width is {width} and value_width is {value_width}; "
            "make them equal, or use weights=matrix"
        )


def real_positions(x_BLD: Tensor, allow_BL: Tensor | None, width: int) -> Tensor:
    """Returns x with zeros at padding. Raises ValueError if a shape or dtype is wrong."""
    if x_BLD.dim() != 3 or x_BLD.shape[2] != width:
        raise ValueError(f"x has shape {tuple(x_BLD.shape)}, expected (batch, length, {width}); pass one sequence as x[None]")
    if allow_BL is None:
        return x_BLD
    if allow_BL.dtype != torch.bool or allow_BL.shape != x_BLD.shape[:2]:
        raise ValueError(
            f"allow_BL is {allow_BL.dtype} of shape {tuple(allow_BL.shape)}, expected torch.bool of shape "
            f"{tuple(x_BLD.shape[:2])} with True at real positions; masks.first(lengths, {x_BLD.shape[1]}) makes one"
        )
    return x_BLD.masked_fill(~allow_BL.unsqueeze(-1), 0.0)
