"""The encoder of a Transformer: tokens, or the output of a frontend -> Memory."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from regard.contracts import Traits
from regard.core import masks
from regard.core.source import Source
from regard.layers.blocks import output_and_seen
from regard.layers.dropout import Dropout
from regard.layers.embed import TokenEmbedding
from regard.layers.frontends import Frontend, FrontendOutput, FusionFrontend
from regard.layers.scores import Location
from regard.look import Look, Seen
from regard.models.contract import Memory
from regard.models.stack import Scores, StackSettings, last_norm, make_embedding, make_encoder_layer

# B sentences  S source positions  D width


class SourceEncoder(nn.Module):
    """Embedding or frontend, and a stack of encoder layers.

    layers: number of layers. scores: the user's own score functions by name.
    vocab: number of source tokens. frontend: frontend of other sources, if `vocab` is None.
    If both are None, the embedding belongs to another module and is passed to `encode`.
    grid_window: whether the window has rows and columns, because the frontend returns a grid.
    """

    def __init__(
        self,
        settings: StackSettings,
        layers: int,
        vocab: int | None,
        scores: Scores,
        frontend: Frontend | None = None,
        *,
        grid_window: bool = False,
    ) -> None:
        super().__init__()
        self.embedding = frontend if vocab is None else make_embedding(settings, vocab)
        encoder_layers = [make_encoder_layer(settings, scores) for _ in range(layers)]
        self.layers = nn.ModuleList(encoder_layers)
        self.norm = last_norm(settings)
        self.dropout = Dropout(settings.dropout)
        self.window, self.grid_window = settings.near, grid_window
        self.by_position = any(layer.attention.score.by_position for layer in encoder_layers)

    def encode(self, source: Source, look: Look | None = None, embedding: TokenEmbedding | None = None) -> Memory:
        output = self._frontend_output(source, embedding or self.embedding, look)
        x_BSD, allow_BS = self.dropout(output.x_BSD), output.allow_BS
        positions_BS = masks.positions(allow_BS) if self.by_position else None  # None counts from 0: padding is at the end
        axes = (output.axes[0], output.axes[1]) if self.grid_window else None
        seen: tuple[Seen[Tensor], ...] = output.seen
        for number, layer in enumerate(self.layers):
            layer_look = look.at("encoder", number, len(self.layers)) if look else None
            output_BSD = layer(
                x_BSD,
                allow=allow_BS[:, None, None],
                positions=positions_BS,
                window=self.window,
                axes=axes,
                look=layer_look,
            )
            x_BSD, layer_seen = output_and_seen(output_BSD)
            seen += layer_seen
        x_BSD = self.norm(x_BSD)
        return Memory(x_BSD, allow_BS, masked_mean(x_BSD, allow_BS), output.axes, seen=seen)

    def _frontend_output(
        self, source: Source, embedding: TokenEmbedding | Frontend | None, look: Look | None
    ) -> FrontendOutput:
        assert embedding is not None
        if isinstance(embedding, Frontend):
            output: FrontendOutput = embedding(source, look)
            return output
        positions_S = torch.arange(source.values.shape[1], device=source.values.device)
        return FrontendOutput(embedding(source.values, positions_S), source.allow, (len(positions_S),))


def with_fusion(traits: Traits, frontend: Frontend) -> Traits:
    """Returns the traits of a model with this frontend: those of its settings, and fusion if it reads an auxiliary text."""
    if not isinstance(frontend, FusionFrontend):
        return traits
    attention, score = {**traits.attention, "fusion": (1, frontend.attention.heads)}, frontend.attention.score
    if isinstance(score, Location) and score.beyond == "error":
        traits = replace(traits, max_positions=min(traits.max_positions or score.max_source, score.max_source))
    return replace(traits, attention=attention)


def masked_mean(x_BSD: Tensor, allow_BS: Tensor) -> Tensor:
    """Returns the mean (B, D) over the real positions; zeros if there are none."""
    real_BS1 = allow_BS.unsqueeze(-1)
    return (x_BSD * real_BS1).sum(1) / real_BS1.sum(1).clamp(min=1)
