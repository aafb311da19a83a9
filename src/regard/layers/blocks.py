"""The two halves of a Transformer, one layer each, pre-norm: x + f(LN(x))."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from regard.contracts import Look
from regard.core.attention import Attended
from regard.layers.attention import KeysValues, MultiHeadAttention

# B batch  S source places  R rows: the places of a target sequence, or the hypotheses of one step  D width

LookBack = Callable[[MultiHeadAttention, Tensor], Attended]
"""How a decoder layer attends to what came before, in a whole sequence or through a cache: (attention, x) -> Attended."""


def feed_forward(width: int, inner: int, dropout: float) -> nn.Sequential:
    """max(0, xW₁+b₁)W₂+b₂, place by place (Vaswani et al. 2017, eq. 2)."""
    return nn.Sequential(nn.Linear(width, inner), nn.ReLU(), nn.Dropout(dropout), nn.Linear(inner, width))


class EncoderLayer(nn.Module):
    def __init__(self, width: int, inner: int, dropout: float, *, attention: MultiHeadAttention) -> None:
        super().__init__()
        self.attention, self.attention_norm = attention, nn.LayerNorm(width)
        self.feed_forward, self.feed_forward_norm = feed_forward(width, inner, dropout), nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x_BSD: Tensor, allow: Tensor, places_BS: Tensor | None, look: Look | None
    ) -> tuple[Tensor, Tensor | None]:
        """(x, weights)."""
        inner, attention = self.attention_norm(x_BSD), self.attention
        keys, values = attention.keys_values(inner, places_BS)
        attended = attention.attend(attention.queries(inner, places_BS), keys, values, allow, look)
        x_BSD = x_BSD + self.dropout(attended.context)
        return x_BSD + self.dropout(self.feed_forward(self.feed_forward_norm(x_BSD))), attended.weights


class DecoderLayer(nn.Module):
    """Without `cross` there is no source: a layer of a language model."""

    def __init__(
        self, width: int, inner: int, dropout: float, *, attention: MultiHeadAttention, cross: MultiHeadAttention | None
    ) -> None:
        super().__init__()
        self.attention, self.attention_norm = attention, nn.LayerNorm(width)
        if cross is not None:
            self.cross, self.cross_norm = cross, nn.LayerNorm(width)
        self.feed_forward, self.feed_forward_norm = feed_forward(width, inner, dropout), nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x_BRD: Tensor, look_back: LookBack, source: KeysValues | None, allow: Tensor | None, look: Look | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """(x, weights of self-attention, weights of cross-attention). `source` holds the keys and values of the memory."""
        attended = look_back(self.attention, self.attention_norm(x_BRD))
        x_BRD, cross_weights = x_BRD + self.dropout(attended.context), None
        if source is not None:
            query = self.cross.queries(self.cross_norm(x_BRD))
            crossed = self.cross.attend(query, *source, allow, look)
            x_BRD, cross_weights = x_BRD + self.dropout(crossed.context), crossed.weights
        return x_BRD + self.dropout(self.feed_forward(self.feed_forward_norm(x_BRD))), attended.weights, cross_weights
