"""The encoder half of a Transformer: tokens -> Memory."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.contracts import Look, Memory, Seen, Source
from regard.core import masks
from regard.layers.dropout import Dropout
from regard.layers.embed import TokenEmbedding
from regard.models.stack import Scores, StackSettings, last_norm, make_embedding, make_encoder_layer

# B sentences  S source places  D width


class TransformerEncoder(nn.Module):
    """With `vocab=None` the embedding is somebody else's, and comes with every call."""

    def __init__(self, settings: StackSettings, layers: int, vocab: int | None, scores: Scores) -> None:
        super().__init__()
        self.embedding = None if vocab is None else make_embedding(settings, vocab)
        made = [make_encoder_layer(settings, scores) for _ in range(layers)]
        self.layers = nn.ModuleList(made)
        self.norm = last_norm(settings)
        self.dropout = Dropout(settings.dropout)
        self.window = settings.window
        self.by_place = any(layer.attention.score.by_place for layer in made)

    def encode(self, source: Source, look: Look | None = None, embedding: TokenEmbedding | None = None) -> Memory:
        embedding = embedding or self.embedding
        assert embedding is not None
        num_places = source.values.shape[1]
        places_S = torch.arange(num_places, device=source.values.device)
        x_BSD = self.dropout(embedding(source.values, places_S))
        places_BS = masks.places(source.allow) if self.by_place else None  # None counts padding too, which stands at the end
        allow = source.allow[:, None, None]
        if self.window is not None:
            allow = masks.both(allow, masks.window(num_places, width=self.window, device=allow.device))
        seen: tuple[Seen, ...] = ()
        for number, layer in enumerate(self.layers):
            here = look.at("encoder", number, len(self.layers)) if look else None
            x_BSD, found = layer(x_BSD, allow, places_BS, here)
            seen += found
        x_BSD = self.norm(x_BSD)
        return Memory(x_BSD, source.allow, mean_of_real(x_BSD, source.allow), axes=(num_places,), seen=seen)


def mean_of_real(x_BSD: Tensor, allow_BS: Tensor) -> Tensor:
    real_BS1 = allow_BS.unsqueeze(-1)
    return (x_BSD * real_BS1).sum(1) / real_BS1.sum(1).clamp(min=1)
