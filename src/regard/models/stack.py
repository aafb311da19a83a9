"""Settings that all Transformers share, and the functions that build layers from them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import nn

from regard.core.positions import Layout
from regard.core.score import Score
from regard.layers.blocks import (
    Activation,
    LayerOptions,
    Norm,
    NormOrder,
    TransformerDecoderLayer,
    TransformerEncoderLayer,
    check_contexts,
    make_norm,
)
from regard.layers.embed import PositionEncoding, TokenEmbedding, check_position_encoding
from regard.layers.fixed import Mixing
from regard.layers.scores import ScoreMaker, check_score_options, make_score
from regard.models.contract import ModelSettings

Scores = Mapping[str, ScoreMaker] | None
"""The user's own score functions by name."""


@dataclass(frozen=True, kw_only=True)
class StackSettings(ModelSettings):
    """Settings that all Transformers share."""

    kind: str = ""
    width: int = 128
    """Width of the token vectors in all layers."""
    heads: int = 4
    """Number of attention heads per layer."""
    kv_heads: int | None = None
    """Number of key-value heads, each shared by a group of query heads; by default the same as heads."""
    key_dim: int | None = None
    """Width of one head; by default width / heads."""
    feed_forward: int = 512
    """Width of the hidden layer of the feed-forward block."""
    activation: Activation = "relu"
    """Activation function of the feed-forward block."""
    norm: Norm = "layer"
    """Type of normalisation: layer (LayerNorm), rms (RMSNorm) or none."""
    norm_order: NormOrder = "pre"
    """Normalisation before each block, x + f(LN(x)) (pre), or after it, LN(x + f(x)) (post, Vaswani et al. 2017)."""
    norm_eps: float = 1e-5
    """Constant that is added to the variance in a normalisation."""
    residual: bool = True
    """Whether each block has a residual connection; without it, f(LN(x)) instead of x + f(LN(x))."""
    project_values: bool = True
    """Whether the heads have W_V; without it, the values of all heads are the states themselves."""
    project_output: bool = True
    """Whether attention has W_O; without it, its output is the concatenation of the heads' contexts."""
    scale_embedding: bool = True
    """Whether token embeddings are multiplied by √width (Vaswani et al. 2017); BERT and Whisper leave it out."""
    embedding_norm: bool = False
    """Whether the token embeddings are normalised too."""
    mixing: Mixing = "attention"
    """What mixes the positions of a sequence: attention; or, instead of self-attention, learned weights that are fixed by
    distance (convolution) or by both positions (dense, a table for max_positions). Cross-attention stays."""
    reach: int = 3
    """For mixing=convolution: how many positions to either side it reaches, in a decoder to the left only."""
    score: str = "scaled_dot"
    """Name of the score function: a built-in one such as scaled_dot or additive, or your own."""
    score_width: int = 32
    """Width of the hidden layer of the scores additive and concat."""
    score_divisor: float | Literal["d"] | None = None
    """What the score scaled_dot divides by: d, or a number (1 leaves the scale out); by default √d."""
    score_temperature: float | None = None
    """What the score cosine divides by; by default 0.1."""
    window: int | None = None
    """Number of positions to either side that self-attention may attend to; by default all."""
    dropout: float = 0.1
    """Dropout probability during training."""
    positions: PositionEncoding = "sinusoidal"
    """Position encoding."""
    position_join: Literal["added", "appended"] = "added"
    """Whether position vectors are added to the token embeddings or appended; appended, they take position_width of width."""
    position_width: int = 32
    """Width of appended position vectors."""
    layout: Layout = "interleaved"
    """Order of sine-cosine (or rotary) pairs: interleaved (a1 b1 a2 b2 …), or halves (a1 a2 … b1 b2 …)."""
    max_positions: int = 256
    """Number of positions that learned position vectors, the location score and mixing=dense support."""
    beyond: Literal["error", "ignore"] = "error"
    """What the location score does with positions beyond max_positions: error, or ignore them with a warning."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_score_options(self.scores, score_divisor=self.score_divisor, score_temperature=self.score_temperature)
        check_position_encoding(self.positions, self.width, self.appended)
        if self.key_dim is None and self.width % self.heads:
            divisor = math.lcm(2, self.heads)  # sinusoidal positions consist of pairs
            suggested = -(-self.width // divisor) * divisor
            raise ValueError(
                f"width {self.width} is not divisible by {self.heads} heads; try width={suggested}, or set key_dim"
            )
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise ValueError(
                f"{self.heads} heads cannot share {self.kv_heads} key-value heads evenly; make kv_heads a divisor of heads"
            )
        self._check_mixing()
        if not self.project_output:
            check_contexts(self.heads, self.head_width if self.project_values else self.width, self.width)
        if self.embedding_norm and self.norm == "none":
            raise ValueError(
                "embedding_norm=true normalises the embeddings, but norm=none leaves out all norms; set one of them"
            )
        if self.positions == "rotary" and self.head_width % 2:
            raise ValueError(
                f"rotary positions rotate pairs of numbers, but a head has width {self.head_width}; make key_dim even"
            )

    def _check_mixing(self) -> None:
        """Raises ValueError for settings of attention that weights fixed by position do not have."""
        if self.mixing == "attention":
            return
        if self.positions in ("rotary", "alibi"):
            raise ValueError(
                f"positions={self.positions} change the scores of self-attention, but mixing={self.mixing} has none; set "
                "positions=none, or one that is added to the embeddings, such as sinusoidal"
            )
        if self.mixing == "convolution" and self.window is not None:
            raise ValueError(
                f"window is {self.window}, but a convolution has its own, reach={self.reach}; set reach, and leave out window"
            )

    @property
    def near(self) -> int | None:
        """The number of positions to either side that self-attention, or what replaces it, mixes; None for all."""
        return self.reach if self.mixing == "convolution" else self.window

    @property
    def counted_positions(self) -> int | None:
        """The number of positions that a Transformer with these settings can count; None if it is unlimited."""
        limits = []
        if self.positions == "one_hot":
            limits.append(self.appended or self.width)
        if self.mixing == "dense" or self.positions == "learned" or (self.score == "location" and self.beyond == "error"):
            limits.append(self.max_positions)
        return min(limits, default=None)

    @property
    def scores(self) -> tuple[str | None, ...]:
        """The names of all score functions of the model."""
        return (self.score,)

    @property
    def appended(self) -> int:
        """Width of the appended position vectors; 0 if positions are added."""
        return self.position_width if self.position_join == "appended" else 0

    @property
    def head_width(self) -> int:
        """Width of one head."""
        return self.key_dim or self.width // self.heads


def make_embedding(settings: StackSettings, vocab: int) -> TokenEmbedding:
    """Returns a token embedding with positions. vocab: number of tokens."""
    return TokenEmbedding(
        vocab,
        settings.width,
        settings.positions,
        appended=settings.appended,
        max_positions=settings.max_positions,
        layout=settings.layout,
        scaled=settings.scale_embedding,
        norm=make_norm(settings.norm, settings.width, settings.norm_eps) if settings.embedding_norm else None,
    )


def make_encoder_layer(settings: StackSettings, scores: Scores) -> TransformerEncoderLayer:
    """Returns one encoder layer."""
    return TransformerEncoderLayer(settings.width, settings.heads, **_options(settings, scores))


def make_decoder_layer(settings: StackSettings, scores: Scores, *, cross: bool) -> TransformerDecoderLayer:
    """Returns one decoder layer. cross: whether it attends to a source."""
    return TransformerDecoderLayer(settings.width, settings.heads, cross=cross, **_options(settings, scores))


def last_norm(settings: StackSettings) -> nn.Module:
    """Returns the norm after the last layer; the identity with post-norm, where every layer already ends with a norm."""
    return make_norm(settings.norm, settings.width, settings.norm_eps) if settings.norm_order == "pre" else nn.Identity()


def score_of_width(settings: StackSettings, name: str, scores: Scores, width: int) -> Score:
    """Returns the score function of this name for queries and keys of this width."""
    return make_score(
        name,
        scores,
        query_width=width,
        key_width=width,
        width=settings.score_width,
        max_source=settings.max_positions,
        beyond=settings.beyond,
        divide_by=settings.score_divisor,
        temperature=settings.score_temperature,
    )


def _options(settings: StackSettings, scores: Scores) -> LayerOptions:
    """Returns the options of all layers. Position vectors are part of the embedding, so that layers have none of them."""

    def score() -> Score:
        return score_of_width(settings, settings.score, scores, settings.head_width)

    return LayerOptions(
        feed_forward=settings.feed_forward,
        key_dim=settings.head_width,
        kv_heads=settings.kv_heads or settings.heads,
        score=score,
        positions=settings.positions if settings.positions in ("rotary", "alibi") else "none",
        layout=settings.layout,
        activation=settings.activation,
        dropout=settings.dropout,
        norm=settings.norm,
        norm_order=settings.norm_order,
        norm_eps=settings.norm_eps,
        residual=settings.residual,
        project_values=settings.project_values,
        project_output=settings.project_output,
        mixing=settings.mixing,
        reach=settings.reach,
        max_positions=settings.max_positions,
    )
