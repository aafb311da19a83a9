"""A language model (GPT, Radford et al. 2018): one stack with a look-ahead mask and no cross-attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from regard.contracts import Decoded, Look, Memory, Source, State, Step
from regard.models.decoder import CacheState, TransformerDecoder
from regard.models.stack import Scores, StackSettings


@dataclass(frozen=True, kw_only=True)
class DecoderOnlySettings(StackSettings):
    kind: Literal["decoder_only"] = "decoder_only"
    layers: int = 4
    """Layers of the stack."""
    activation: Literal["relu", "gelu", "gelu_tanh", "silu", "swiglu"] = "gelu"
    tie: Literal["none", "output"] = "none"
    """output: the output matrix is the embedding."""


class DecoderOnly(nn.Module):
    """Its Memory is empty: of a source it takes only the number of sentences."""

    def __init__(self, settings: DecoderOnlySettings, source_vocab: int, target_vocab: int, scores: Scores = None) -> None:
        super().__init__()
        self.width = settings.width
        self.decoder = TransformerDecoder(
            settings, settings.layers, target_vocab, scores, cross=False, tied=settings.tie == "output"
        )

    def encode(self, source: Source, look: Look | None = None) -> Memory:
        weight = self.decoder.embedding.tokens.weight
        nothing = weight.new_zeros(source.num_sentences, 0, self.width)
        return Memory(nothing, source.allow[:, :0], weight.new_zeros(source.num_sentences, self.width), axes=(0,))

    def start(self, memory: Memory, prefix_BP: Tensor | None = None) -> CacheState:
        return self.decoder.start(memory, prefix_BP)

    def step(self, ids_BK: Tensor, state: State, look: Look | None = None) -> Step:
        return self.decoder.step(ids_BK, state, look)

    def decode(self, ids_BT: Tensor, memory: Memory, look: Look | None = None) -> Decoded:
        return self.decoder.decode(ids_BT, memory, look)
