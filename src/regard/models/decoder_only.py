"""A Transformer language model (GPT, Radford et al. 2018): one stack with a causal mask and without cross-attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from regard.contracts import Traits
from regard.core.source import Source
from regard.look import Look
from regard.models.contract import Memory, Model, Projected, State, Step
from regard.models.decoder import CacheState, TargetDecoder
from regard.models.stack import Scores, StackSettings


@dataclass(frozen=True, kw_only=True)
class DecoderOnlySettings(StackSettings):
    """Settings of `DecoderOnly`."""

    kind: Literal["decoder_only"] = "decoder_only"
    layers: int = 4
    """Number of layers."""
    activation: Literal["relu", "gelu", "gelu_tanh", "silu", "swiglu"] = "gelu"
    look_ahead_mask: bool = True
    """Whether the decoder has the look-ahead mask. Without it, a position sees in training the tokens that it is to write."""
    tie: Literal["none", "output"] = "none"
    """Shared matrices: none, or output (the output matrix is the embedding matrix)."""

    @property
    def traits(self) -> Traits:
        return Traits(
            continues_text=True,
            learns_from="texts",
            max_positions=self.counted_positions,
            attention={"decoder": (self.layers, self.heads)},
            score=self.score,
            looks_ahead=not self.look_ahead_mask,
        )


class DecoderOnly(Model):
    """A Transformer language model with the interface of `Seq2Seq`. Its Memory has no positions: the source is ignored."""

    def __init__(
        self, settings: DecoderOnlySettings, source_vocab: int, target_vocab: int, scores: Scores = None, auxiliary: int = 0
    ) -> None:
        super().__init__(settings)
        self.width = settings.width
        self.decoder = TargetDecoder(
            settings,
            settings.layers,
            target_vocab,
            scores,
            cross=False,
            tied=settings.tie == "output",
            causal=settings.look_ahead_mask,
        )

    def encode(self, source: Source, look: Look | None = None) -> Memory:
        weight = self.decoder.embedding.tokens.weight
        values_BSD = weight.new_zeros(source.num_sentences, 0, self.width)
        return Memory(values_BSD, source.allow[:, :0], weight.new_zeros(source.num_sentences, self.width), axes=(0,))

    def start(self, memory: Memory, prefix_BP: Tensor | None = None) -> CacheState:
        return self.decoder.start(memory, prefix_BP, self.specials.pad)

    def step(self, ids_BK: Tensor, state: State, look: Look | None = None) -> Step:
        return self.decoder.step(ids_BK, state, look)

    def decode(self, ids_BT: Tensor, memory: Memory, look: Look | None = None) -> Projected:
        return self.decoder.decode(ids_BT, memory, look, self.specials.pad)
