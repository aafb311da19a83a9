"""One encoder layer and one decoder layer of a Transformer, and their parts: residual connection, layer norm, feed-forward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.core.attention import AttentionOutput
from regard.layers.attention import KeysValues, MultiHeadAttention
from regard.layers.dropout import Dropout
from regard.look import Look, Seen

# B batch  S source positions  R rows: the positions of a target sequence, or the hypotheses of one step  D width

NormOrder = Literal["pre", "post"]
Norm = Literal["layer", "rms"]
Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "swiglu"]


class Gelu(nn.Module):
    """GELU, computed in place when gradients are disabled, because its input is the widest tensor of a layer.

    approximate: "none" or "tanh", as in F.gelu.
    """

    def __init__(self, approximate: Literal["none", "tanh"]) -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            return F.gelu(x, approximate=self.approximate)
        y: Tensor = torch.ops.aten.gelu_(x, approximate=self.approximate)
        return y


ACTIVATIONS: dict[Activation, Callable[[], nn.Module]] = {
    "relu": lambda: nn.ReLU(inplace=True),
    "gelu": lambda: Gelu("none"),
    "gelu_tanh": lambda: Gelu("tanh"),
    "silu": nn.SiLU,
}

SelfAttend = Callable[[MultiHeadAttention, Tensor], AttentionOutput]
"""Causal self-attention of a decoder layer, over a whole sequence or through a cache: (attention, x) -> AttentionOutput."""


def make_norm(kind: Norm, width: int, eps: float = 1e-5) -> nn.Module:
    """Returns a LayerNorm ("layer") or an RMSNorm ("rms")."""
    return nn.LayerNorm(width, eps) if kind == "layer" else nn.RMSNorm(width, eps)


class SwiGlu(nn.Module):
    """Gated feed-forward block (swish(xW) ⊙ xV)W₂ (Shazeer 2020, eq. 6)."""

    def __init__(self, width: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.gate_and_value = nn.Linear(width, 2 * inner, bias=False)
        self.dropout = Dropout(dropout)
        self.output = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.gate_and_value(x).chunk(2, dim=-1)
        y: Tensor = self.output(self.dropout(F.silu(gate) * value))
        return y


def feed_forward(width: int, inner: int, dropout: float, activation: Activation = "relu") -> nn.Module:
    """Returns the position-wise block max(0, xW₁+b₁)W₂+b₂ (Vaswani et al. 2017, eq. 2), or one with another activation."""
    if activation == "swiglu":
        return SwiGlu(width, inner, dropout)
    return nn.Sequential(nn.Linear(width, inner), ACTIVATIONS[activation](), Dropout(dropout), nn.Linear(inner, width))


class ResidualConnection(nn.Module):
    """Residual connection with layer norm around a block f: x + f(LN(x)) (pre-norm) or LN(x + f(x)) (post-norm; Vaswani et al.
    2017).

    `before` returns the input of f, `after` the sum of x and f's output y. Dropout is applied to y.
    """

    def __init__(self, norm: nn.Module, dropout: float, norm_order: NormOrder) -> None:
        super().__init__()
        self.norm, self.norm_order = norm, norm_order
        self.dropout = Dropout(dropout)

    def before(self, x: Tensor) -> Tensor:
        return self.norm(x) if self.norm_order == "pre" else x

    def after(self, x: Tensor, y: Tensor) -> Tensor:
        x = x + self.dropout(y)
        return x if self.norm_order == "pre" else self.norm(x)


class EncoderLayer(nn.Module):
    """Self-attention, then a feed-forward block, each with a residual connection.

    residual: function that returns a new residual connection.
    """

    def __init__(
        self, attention: MultiHeadAttention, feed_forward: nn.Module, residual: Callable[[], ResidualConnection]
    ) -> None:
        super().__init__()
        self.attention, self.around_attention = attention, residual()
        self.feed_forward, self.around_feed_forward = feed_forward, residual()

    def forward(
        self, x_BSD: Tensor, allow: Tensor, positions_BS: Tensor | None, look: Look | None
    ) -> tuple[Tensor, tuple[Seen[Tensor], ...]]:
        """Returns (output, what the look requested).

        positions_BS: positions of the tokens; None counts from 0.
        """
        inner, attention = self.around_attention.before(x_BSD), self.attention
        keys, values = attention.keys_values(inner, positions_BS)
        attended = attention.attend(attention.queries(inner, positions_BS), keys, values, allow, look)
        x_BSD = self.around_attention.after(x_BSD, attended.context)
        fed = self.feed_forward(self.around_feed_forward.before(x_BSD))
        return self.around_feed_forward.after(x_BSD, fed), attended.seen


class DecoderLayer(nn.Module):
    """Self-attention, cross-attention and a feed-forward block, each with a residual connection.

    cross: attention to the source; None in a language model.
    residual: function that returns a new residual connection.
    """

    def __init__(
        self,
        attention: MultiHeadAttention,
        cross: MultiHeadAttention | None,
        feed_forward: nn.Module,
        residual: Callable[[], ResidualConnection],
    ) -> None:
        super().__init__()
        self.attention, self.around_attention = attention, residual()
        self.cross = cross
        self.around_cross = None if cross is None else residual()
        self.feed_forward, self.around_feed_forward = feed_forward, residual()

    def forward(
        self,
        x_BRD: Tensor,
        self_attend: SelfAttend,
        source: KeysValues | None,
        allow: Tensor | None,
        look: Look | None,
        positions: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, tuple[Seen[Tensor], ...]]:
        """Returns (output, what looks requested in self-attention and in cross-attention).

        source: keys and values of the memory. allow, look, positions: mask, look and positions of the cross-attention.
        """
        attended = self_attend(self.attention, self.around_attention.before(x_BRD))
        x_BRD, seen = self.around_attention.after(x_BRD, attended.context), attended.seen
        if source is not None:
            assert self.cross is not None
            assert self.around_cross is not None
            query = self.cross.queries(self.around_cross.before(x_BRD))
            crossed = self.cross.attend(query, *source, allow, look, positions)
            x_BRD, seen = self.around_cross.after(x_BRD, crossed.context), seen + crossed.seen
        fed = self.feed_forward(self.around_feed_forward.before(x_BRD))
        return self.around_feed_forward.after(x_BRD, fed), seen
