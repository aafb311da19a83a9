"""A recurrent tagger: one output for every place of the source, softmax(W_o h_t + b_o)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from regard.contracts import Look, Memory, Source
from regard.errors import check_numbers
from regard.layers.dropout import Dropout
from regard.layers.recurrent import Cell, RecurrentEncoder, check_cell

# B sentences  S source places  E memory width  V tags


@dataclass(frozen=True, kw_only=True)
class RnnTaggerSettings:
    kind: Literal["rnn_tagger"] = "rnn_tagger"
    cell: Cell = "gru"
    bidirectional: bool = True
    width: int = 192
    embedding: int = 64
    layers: int = 1
    dropout: float = 0.1

    def __post_init__(self) -> None:
        check_numbers(self)
        check_cell(self.cell)
        if self.bidirectional and self.width % 2:
            raise ValueError(f"width {self.width} does not split into two directions; make it even")


class RnnTagger(nn.Module):
    """Not a Seq2Seq: there is nothing to search, because no tag depends on another."""

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
        """Logits (B, S, V). Those of padding mean nothing."""
        logits_BSV: Tensor = self.output(memory.values_BSE)
        return logits_BSV
