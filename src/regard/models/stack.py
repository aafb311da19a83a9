"""What all Transformers share: their settings, and how these become layers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

from torch import nn

from regard.core.positions import Layout
from regard.errors import check_numbers
from regard.layers.attention import MultiHeadAttention
from regard.layers.blocks import (
    Activation,
    DecoderLayer,
    EncoderLayer,
    Norm,
    NormOrder,
    ResidualConnection,
    feed_forward,
    make_norm,
)
from regard.layers.embed import PositionEncoding, TokenEmbedding, check_position_encoding
from regard.layers.scores import ScoreMaker, make_score

Scores = Mapping[str, ScoreMaker] | None
"""Score functions of the user's own, by name."""


@dataclass(frozen=True, kw_only=True)
class StackSettings:
    kind: str = ""
    """The family."""
    width: int = 128
    """Of every token's vector, in all layers."""
    heads: int = 4
    """Heads of attention in a layer."""
    kv_heads: int | None = None
    """Heads of keys and values, each of which serves a group of query heads; by default as many as heads."""
    key_dim: int | None = None
    """Width of one head; by default width / heads."""
    feed_forward: int = 512
    """Width of the hidden layer behind attention."""
    activation: Activation = "relu"
    """Of that hidden layer."""
    norm: Norm = "layer"
    """LayerNorm or RMSNorm."""
    norm_order: NormOrder = "pre"
    """Where the norm stands: pre, x + f(LN(x)), or post, LN(x + f(x)), as in the paper."""
    norm_eps: float = 1e-5
    """What a norm adds to the variance."""
    embedding_norm: bool = False
    """Whether the embedded tokens get a norm too."""
    score: str = "scaled_dot"
    """How well a query fits a key; a name of ours, or that of your own."""
    score_width: int = 32
    """Of the hidden layer of the additive score."""
    window: int | None = None
    """Self-attention sees this many places to either side; by default all."""
    dropout: float = 0.1
    """The share of numbers that training drops."""
    positions: PositionEncoding = "sinusoidal"
    """How a token knows its place."""
    position_join: Literal["added", "appended"] = "added"
    """How positions join the tokens. Appended ones take `position_width` of the width; the tokens have the rest."""
    position_width: int = 32
    """Of positions that are appended."""
    layout: Layout = "interleaved"
    """How sines and cosines stand in sinusoidal positions."""
    max_positions: int = 256
    """How many places learned positions and the location score know."""
    beyond: Literal["error", "ignore"] = "error"
    """What the location score does with more."""

    def __post_init__(self) -> None:
        check_numbers(self)
        check_position_encoding(self.positions, self.width, self.appended)
        if self.key_dim is None and self.width % self.heads:
            unit = math.lcm(2, self.heads)  # sinusoids come in pairs
            better = -(-self.width // unit) * unit
            raise ValueError(f"width {self.width} does not split into {self.heads} heads; try width={better}, or give key_dim")
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} heads do not fall into {self.kv_heads} groups; make kv_heads a divisor of heads")
        if self.positions == "rotary" and self.head_width % 2:
            raise ValueError(f"rotary positions turn pairs, but a head has width {self.head_width}; make key_dim even")

    @property
    def appended(self) -> int:
        return self.position_width if self.position_join == "appended" else 0

    @property
    def head_width(self) -> int:
        return self.key_dim or self.width // self.heads


def make_embedding(settings: StackSettings, vocab: int) -> TokenEmbedding:
    return TokenEmbedding(
        vocab,
        settings.width,
        settings.positions,
        appended=settings.appended,
        max_positions=settings.max_positions,
        layout=settings.layout,
        norm=make_norm(settings.norm, settings.width, settings.norm_eps) if settings.embedding_norm else None,
    )


def make_encoder_layer(settings: StackSettings, scores: Scores) -> EncoderLayer:
    return EncoderLayer(_attention(settings, scores), _feed_forward(settings), partial(_residual, settings))


def make_decoder_layer(settings: StackSettings, scores: Scores, *, cross: bool) -> DecoderLayer:
    crossing = _attention(settings, scores, cross=True) if cross else None
    return DecoderLayer(_attention(settings, scores), crossing, _feed_forward(settings), partial(_residual, settings))


def last_norm(settings: StackSettings) -> nn.Module:
    """After the last layer; with post-norm every layer ends in one already."""
    return make_norm(settings.norm, settings.width, settings.norm_eps) if settings.norm_order == "pre" else nn.Identity()


def _feed_forward(settings: StackSettings) -> nn.Module:
    return feed_forward(settings.width, settings.feed_forward, settings.dropout, settings.activation)


def _residual(settings: StackSettings) -> ResidualConnection:
    return ResidualConnection(
        make_norm(settings.norm, settings.width, settings.norm_eps), settings.dropout, settings.norm_order
    )


def _attention(settings: StackSettings, scores: Scores, *, cross: bool = False) -> MultiHeadAttention:
    """Rotary positions and ALiBi speak of distances within one sequence: they have no place in cross-attention."""
    score = make_score(
        settings.score,
        scores,
        query_width=settings.head_width,
        key_width=settings.head_width,
        width=settings.score_width,
        max_source=settings.max_positions,
        beyond=settings.beyond,
    )
    return MultiHeadAttention(
        settings.width,
        settings.heads,
        score=score,
        key_dim=settings.key_dim,
        kv_heads=settings.kv_heads,
        rotary=settings.layout if settings.positions == "rotary" and not cross else None,
        alibi=settings.positions == "alibi" and not cross,
    )
