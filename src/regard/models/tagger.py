"""A recurrent tagger: one tag for every position of the source, softmax(W_o h_t + b_o)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from regard.core.source import Source
from regard.errors import check_numbers
from regard.layers.dropout import Dropout
from regard.layers.recurrent import Cell, RecurrentEncoder, check_cell
from regard.look import Look
from regard.models.contract import Memory

# B sentences  S source positions  E memory width  V tags


@dataclass(frozen=True, kw_only=True)
class RnnTaggerSettings:
    """Settings of `RnnTagger`."""

    kind: Literal["rnn_tagger"] = "rnn_tagger"
    """Model family."""
    cell: Cell = "gru"
    """Type of recurrent cell."""
    bidirectional: bool = True
    """Whether the encoder reads the source in both directions."""
    width: int = 192
    """Width of the recurrent states, both directions together."""
    embedding: int = 64
    """Width of the token embeddings."""
    layers: int = 1
    """Number of recurrent layers."""
    dropout: float = 0.1
    """Dropout probability during training."""

    def __post_init__(self) -> None:
        check_numbers(self)
        check_cell(self.cell)
        if self.bidirectional and self.width % 2:
            raise ValueError(f"width {self.width} cannot be split evenly between two directions; make it even")


class RnnTagger(nn.Module):
    """A recurrent encoder with an output layer. Not a `Seq2Seq`: no tag depends on another, so there is nothing to search."""

    def __init__(self, settings: RnnTaggerSettings, source_vocab: int, num_tags: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(source_vocab, settings.embedding)
        self.encoder = RecurrentEncoder(
            settings.cell,
            settings.embedding,
            settings.width,
            settings.layers,
            settings.dropout,
            bidirectional=settings.bidirectional,
        )
        self.output = nn.Linear(settings.width, num_tags)
        self.dropout = Dropout(settings.dropout)

    def encode(self, source: Source, look: Look | None = None) -> Memory:
        values_BSE, summary_BE = self.encoder(self.dropout(self.embedding(source.values)), source.allow)
        return Memory(self.dropout(values_BSE), source.allow, summary_BE, axes=(values_BSE.shape[1],))

    def tag(self, memory: Memory) -> Tensor:
        """Returns logits (B, S, V). Ignore those at padding."""
        logits_BSV: Tensor = self.output(memory.values_BSE)
        return logits_BSV
