"""The Transformer (Vaswani et al. 2017): encoder and decoder, with any score, any position encoding, pre-norm or post-norm."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor

from regard.contracts import Traits
from regard.core.source import Source
from regard.errors import UserError
from regard.layers.frontends import GRIDS, VIDEOS, FrontendName, check_frontend, make_frontend
from regard.look import Look
from regard.models.contract import Memory, Model, Projected, State, Step
from regard.models.decoder import CacheState, TargetDecoder
from regard.models.encoder import SourceEncoder, with_fusion
from regard.models.stack import Scores, StackSettings, score_of_width


@dataclass(frozen=True, kw_only=True)
class TransformerSettings(StackSettings):
    """Settings of `Transformer`."""

    kind: Literal["transformer"] = "transformer"
    encoder_layers: int = 2
    """Number of encoder layers."""
    decoder_layers: int = 2
    """Number of decoder layers."""
    look_ahead_mask: bool = True
    """Whether the decoder has the look-ahead mask. Without it, a position sees in training the tokens that it is to write."""
    tie: Literal["none", "output", "all"] = "none"
    """Shared matrices: none, output (output matrix = target embedding), or all (= source embedding too; one vocabulary)."""
    fusion_score: str | None = None
    """Name of the score function by which a file attends to its auxiliary text; by default the same as score."""
    frontend: Literal["tokens", FrontendName] = "tokens"
    """What the model reads: tokens, picture or video (by a residual network), patches (of a picture), grid, frames, sound."""
    grid_window: bool = False
    """For pictures and grids: whether window counts rows and columns of the grid; if not, cells row by row."""
    channels: int = 64
    """Channels of the last stage of the network for pictures and videos, and of the convolutions over sound."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_frontend(self.frontend, self.width, self.channels)
        if self.grid_window and (self.window is None or self.frontend not in GRIDS or self.frontend in VIDEOS):
            raise ValueError(
                "grid_window=true counts the rows and columns of a window over a picture or a grid, but window is "
                f"{self.window} and the model reads {self.frontend}; set window, or grid_window=false"
            )
        if self.frontend != "tokens" and self.tie == "all":
            raise ValueError(
                f"tie=all shares the embedding of source tokens, but this model reads {self.frontend}; use tie=output"
            )

    @property
    def scores(self) -> tuple[str | None, ...]:
        return self.score, self.fusion_score

    @property
    def traits(self) -> Traits:
        decoder = self.decoder_layers, self.heads
        return Traits(
            max_positions=self.counted_positions,
            attention={"encoder": (self.encoder_layers, self.heads), "decoder": decoder, "cross": decoder},
            soft_cross_attention=True,
            frontend=self.frontend,
            score=self.score,
            looks_ahead=not self.look_ahead_mask,
            shares_vocabulary=self.tie == "all",
        )


MARIAN: dict[str, Any] = {"norm_order": "post", "layout": "halves", "tie": "all"}
"""What the models of Marian have in common."""
_BASE = TransformerSettings(
    width=512, heads=8, feed_forward=2048, encoder_layers=6, decoder_layers=6, norm_order="post", tie="output"
)
_OPUS = replace(_BASE, activation="silu", **MARIAN)

PRESETS: dict[str, TransformerSettings] = {
    "tiny": TransformerSettings(width=128, heads=4, feed_forward=256, encoder_layers=4, decoder_layers=4),
    "small": TransformerSettings(width=256, heads=4, feed_forward=1024, encoder_layers=3, decoder_layers=3),
    "base": _BASE,
    "deep-shallow": TransformerSettings(width=256, heads=4, feed_forward=1024, encoder_layers=12, decoder_layers=1),
    "marian": _OPUS,
    "pegasus": replace(_OPUS, norm_order="pre"),
}
"""Presets. base is the base model of Vaswani et al. 2017; deep-shallow decodes fast (Kasai et al. 2021); marian is the model of
OPUS-MT (Tiedemann & Thottingal 2020), and pegasus its twin with pre-norm."""


class Transformer(Model):
    """A Transformer encoder-decoder. Arguments: see `build`. Raises UserError if tie=all and the vocabularies differ."""

    def __init__(
        self, settings: TransformerSettings, source_vocab: int, target_vocab: int, scores: Scores = None, auxiliary: int = 0
    ) -> None:
        super().__init__(settings)
        if self.traits.shares_vocabulary and source_vocab != target_vocab:
            raise UserError(
                f"tie=all requires one vocabulary for both sides, but there are {source_vocab} source and {target_vocab} "
                "target tokens; use tie=output"
            )
        frontend = None
        if settings.frontend != "tokens":
            frontend = make_frontend(
                settings.frontend,
                source_vocab,
                settings.width,
                settings.channels,
                positions=True,
                auxiliary=auxiliary,
                make_score=lambda width: score_of_width(settings, settings.fusion_score or settings.score, scores, width),
            )
            self.traits = with_fusion(self.traits, frontend)
        encoder_vocab = None if frontend or self.traits.shares_vocabulary else source_vocab
        self.encoder = SourceEncoder(
            settings, settings.encoder_layers, encoder_vocab, scores, frontend, grid_window=settings.grid_window
        )
        self.decoder = TargetDecoder(
            settings,
            settings.decoder_layers,
            target_vocab,
            scores,
            cross=True,
            tied=settings.tie != "none",
            causal=settings.look_ahead_mask,
        )

    def encode(self, source: Source, look: Look | None = None) -> Memory:
        return self.encoder.encode(source, look, self.decoder.embedding if self.traits.shares_vocabulary else None)

    def start(self, memory: Memory, prefix_BP: Tensor | None = None) -> CacheState:
        return self.decoder.start(memory, prefix_BP, self.specials.pad)

    def step(self, ids_BK: Tensor, state: State, look: Look | None = None) -> Step:
        return self.decoder.step(ids_BK, state, look)

    def decode(self, ids_BT: Tensor, memory: Memory, look: Look | None = None) -> Projected:
        return self.decoder.decode(ids_BT, memory, look, self.specials.pad)
