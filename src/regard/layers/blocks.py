"""The two halves of a Transformer, one layer each, pre-norm: x + f(LN(x))."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from regard.contracts import Look, Score
from regard.layers.attention import KeysValues, MultiHeadAttention

# B batch  S source places  R rows: the places of a target sequence, or the hypotheses of one step  D width

LookBack = Callable[[MultiHeadAttention, Tensor], tuple[Tensor, Tensor | None]]
"""How a decoder layer attends to what came before, in a whole sequence or through a cache: (attention, x) -> (x, weights)."""


def feed_forward(width: int, inner: int, dropout: float) -> nn.Sequential:
    """max(0, xW₁+b₁)W₂+b₂, place by place (Vaswani et al. 2017, eq. 2)."""
    return nn.Sequential(nn.Linear(width, inner), nn.ReLU(), nn.Dropout(dropout), nn.Linear(inner, width))


class EncoderLayer(nn.Module):
    def __init__(self, width: int, heads: int, inner: int, dropout: float, *, score: Score) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(width, heads, score=score)
        self.feed_forward = feed_forward(width, inner, dropout)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_BSD: Tensor, allow: Tensor, look: Look | None) -> tuple[Tensor, Tensor | None]:
        inner = self.norms[0](x_BSD)
        seen, weights = self.attention.attend(self.attention.queries(inner), *self.attention.keys_values(inner), allow, look)
        x_BSD = x_BSD + self.dropout(seen)
        return x_BSD + self.dropout(self.feed_forward(self.norms[1](x_BSD))), weights


class DecoderLayer(nn.Module):
    def __init__(self, width: int, heads: int, inner: int, dropout: float, *, score: Score, cross_score: Score) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(width, heads, score=score)
        self.cross = MultiHeadAttention(width, heads, score=cross_score)
        self.feed_forward = feed_forward(width, inner, dropout)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x_BRD: Tensor, look_back: LookBack, source: KeysValues, allow: Tensor, look: Look | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """(x, weights of self-attention, weights of cross-attention). `source` holds the keys and values of the memory."""
        context, self_weights = look_back(self.attention, self.norms[0](x_BRD))
        x_BRD = x_BRD + self.dropout(context)
        query = self.cross.queries(self.norms[1](x_BRD))
        context, cross_weights = self.cross.attend(query, *source, allow, look)
        x_BRD = x_BRD + self.dropout(context)
        return x_BRD + self.dropout(self.feed_forward(self.norms[2](x_BRD))), self_weights, cross_weights
