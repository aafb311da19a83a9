"""Self-attention whose weights are fixed by position: convolution and dense mixing instead of attention.

    convolution   y_i = Σ_h W_O^h Σ_o w^h_o W_V^h x_{i+o}     one number per head and offset o
    dense         y_i = Σ_h W_O^h Σ_j w^h_ij W_V^h x_j        one number per head and pair of positions

These are the lightweight convolution of Wu et al. 2019 and the random synthesizer of Tay et al. 2021, without their softmax.
The heads, W_V and W_O are those of attention, so that a model with these layers differs from a Transformer in nothing but the
weights. They are scores by position that no softmax follows; a query is (its position, the number of its head).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from regard.core.checks import check_dtype, check_tensor
from regard.core.mechanism import Mechanism
from regard.core.positions import num_positions
from regard.core.score import Score
from regard.errors import UserError, check_sizes
from regard.layers.attention import MultiHeadAttention

# B batch  H heads  L length  D width

Mixing = Literal["attention", "convolution", "dense"]
"""What mixes the positions of a sequence: weights by content, by the distance of two positions, or by both positions."""


class _ByPosition(nn.Module, Score):
    """Weights that depend on the positions of query and key only."""

    by_content = False
    by_position = True
    weight: nn.Parameter

    def prepare(self, key: Tensor, positions: Tensor | None = None) -> Tensor:
        """Returns the positions of the keys, (..., Lk, 1)."""
        assert positions is not None
        return positions.unsqueeze(-1)


class OffsetWeights(_ByPosition):
    """The weight of key j for query i is w_{j−i}, and 0 if they are more than `reach` positions apart."""

    name = "convolution"

    def __init__(self, heads: int, reach: int) -> None:
        super().__init__()
        check_sizes(heads=heads, reach=reach)
        self.reach, bound = reach, (2 * reach + 1) ** -0.5
        self.weight = nn.Parameter(torch.empty(heads, 2 * reach + 1).uniform_(-bound, bound))

    def scores(self, query: Tensor, prepared: Tensor) -> Tensor:
        position, head = query.long().unbind(-1)
        offsets = prepared.squeeze(-1).unsqueeze(-2) - position.unsqueeze(-1)
        index = (offsets + self.reach).clamp(0, 2 * self.reach)
        return self.weight[head].gather(-1, index) * (offsets.abs() <= self.reach)


class TableWeights(_ByPosition):
    """The weight of key j for query i is w_ij, for the first `max_positions` positions. Raises UserError for more of them."""

    name = "dense"

    def __init__(self, heads: int, max_positions: int) -> None:
        super().__init__()
        check_sizes(heads=heads, max_positions=max_positions)
        self.max_positions, bound = max_positions, max_positions**-0.5
        self.weight = nn.Parameter(torch.empty(heads, max_positions, max_positions).uniform_(-bound, bound))

    def prepare(self, key: Tensor, positions: Tensor | None = None) -> Tensor:
        prepared = super().prepare(key, positions)
        if (number := num_positions(prepared)) > self.max_positions:
            raise UserError(
                f"there are {number} positions, but this model mixes them with a dense table of {self.max_positions}; use "
                f"shorter inputs, or train it with max_positions={number}"
            )
        return prepared

    def scores(self, query: Tensor, prepared: Tensor) -> Tensor:
        position, head = query.long().unbind(-1)
        keys = prepared.squeeze(-1).unsqueeze(-2)
        rows = self.weight[head, position]
        return rows.gather(-1, keys.expand(*rows.shape[:-1], keys.shape[-1]))


class FixedMixing(MultiHeadAttention):
    """Multi-head self-attention with weights fixed by position, which may be negative and do not sum to 1.

    width, heads, options: as in `MultiHeadAttention`. weights: the weights of all heads.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        weights: OffsetWeights | TableWeights,
        *,
        key_dim: int | None = None,
        kv_heads: int | None = None,
        project_values: bool = True,
        project_output: bool = True,
    ) -> None:
        super().__init__(
            width,
            heads,
            score=weights,
            key_dim=key_dim,
            kv_heads=kv_heads,
            project_values=project_values,
            project_output=project_output,
        )
        del self.query  # there is nothing to compare with the keys

    def extra_repr(self) -> str:
        return f"width={self.width}, heads={self.heads}, weights={self.score.name}"

    def check_sequence(self, name: str, x: Tensor, width: int) -> None:
        check_tensor(name, x)
        if x.dim() < 2 or x.shape[-1] != width:
            raise ValueError(f"{name} has shape {tuple(x.shape)}, expected (batch, length, {width})")
        check_dtype(name, x, next(self.parameters()).dtype, "the layer has weights of")

    def queries(self, x_BLD: Tensor, positions_BL: Tensor | None = None) -> Tensor:
        """Returns (position, head) of each query, (B, H, L, 2), in a type that is exact for long sequences."""
        positions = torch.arange(x_BLD.shape[-2], device=x_BLD.device) if positions_BL is None else positions_BL
        positions_BHL = positions.unsqueeze(-2).expand(*x_BLD.shape[:-2], self.heads, x_BLD.shape[-2])
        heads_BHL = torch.arange(self.heads, device=x_BLD.device)[:, None].expand(positions_BHL.shape)
        exact = torch.promote_types(x_BLD.dtype, torch.float32)
        return torch.stack((positions_BHL, heads_BHL), dim=-1).to(exact)

    def _mechanism(
        self,
        query_BHLd: Tensor,
        prepared: Tensor,
        allow: Tensor | None,
        positions: tuple[Tensor, Tensor] | None,
        *,
        causal: bool = False,
    ) -> Mechanism:
        return Mechanism(self.score, allow, attention="unnormalised")

    def beyond_torch(self) -> list[str]:
        return [f"weights by position ({self.score.name})"]


def make_mixing(
    mixing: Literal["convolution", "dense"],
    width: int,
    heads: int,
    *,
    reach: int,
    max_positions: int,
    key_dim: int | None,
    kv_heads: int | None,
    project_values: bool,
    project_output: bool,
) -> FixedMixing:
    """Returns a layer that replaces self-attention. reach: of a convolution. max_positions: of a dense table."""
    weights = OffsetWeights(heads, reach) if mixing == "convolution" else TableWeights(heads, max_positions)
    return FixedMixing(
        width,
        heads,
        weights,
        key_dim=key_dim,
        kv_heads=kv_heads,
        project_values=project_values,
        project_output=project_output,
    )
