"""Tokens as vectors that know their place."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.core.positions import Layout, fourier, num_positions, one_hot, raw_index, sinusoidal
from regard.errors import UserError, did_you_mean

PositionEncoding = Literal["sinusoidal", "learned", "rotary", "alibi", "fourier", "one_hot", "index", "none"]
"""Vectors that join those of the tokens; but rotary and alibi act inside self-attention, and none leaves the order unknown."""

POSITION_ENCODINGS: tuple[PositionEncoding, ...] = get_args(PositionEncoding)
IN_ATTENTION = ("rotary", "alibi", "none")


class TokenEmbedding(nn.Module):
    """√d · E[token], joined by the position φ(i): added to it, or appended, x' = [x; φ(i)].

    width: of what comes out. Appended positions take `appended` of it, and the tokens the rest; 0 means added.
    max_positions: how many places learned positions know. layout: of the pairs of sinusoidal and Fourier positions.
    norm: comes last.
    """

    def __init__(
        self,
        vocab: int,
        width: int,
        encoding: PositionEncoding = "sinusoidal",
        *,
        appended: int = 0,
        max_positions: int = 256,
        layout: Layout = "interleaved",
        norm: nn.Module | None = None,
    ) -> None:
        super().__init__()
        check_position_encoding(encoding, width, appended)
        self.encoding, self.appended, self.layout = encoding, appended, layout
        self.width = width - appended
        self.tokens = nn.Embedding(vocab, self.width)
        nn.init.normal_(self.tokens.weight, std=self.width**-0.5)  # times √d: as large as the positions
        self.learned = Learned(max_positions, appended or width) if encoding == "learned" else None
        self.norm = norm

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        """ids (...,) and the numbers of their places, which broadcast to them -> (..., width)."""
        joined = self._joined(self.tokens(ids) * math.sqrt(self.width), positions)
        return joined if self.norm is None else self.norm(joined)

    def _joined(self, tokens: Tensor, positions: Tensor) -> Tensor:
        if self.encoding in IN_ATTENTION:
            return tokens
        vectors = self._vectors(positions, tokens.dtype)
        if not self.appended:
            return tokens + vectors
        return torch.cat((tokens, vectors.expand(*tokens.shape[:-1], self.appended)), dim=-1)

    def _vectors(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        width = self.appended or self.width
        if self.learned is not None:
            vectors: Tensor = self.learned(positions)
            return vectors
        if self.encoding == "index":
            return raw_index(positions, dtype=dtype)
        if self.encoding == "one_hot":
            return one_hot(positions, width, dtype=dtype)
        table = sinusoidal if self.encoding == "sinusoidal" else fourier
        return table(positions, width, layout=self.layout, dtype=dtype)


class Learned(nn.Module):
    """A vector of its own for each of the first places. They start as large as sinusoids, whose mean square is 1/2."""

    def __init__(self, max_positions: int, width: int) -> None:
        super().__init__()
        self.vectors = nn.Embedding(max_positions, width)
        nn.init.normal_(self.vectors.weight, std=math.sqrt(0.5))

    def forward(self, positions: Tensor) -> Tensor:
        known = self.vectors.num_embeddings
        if (number := num_positions(positions)) > known:
            raise UserError(
                f"there are {number} places, but the positions were learned for {known}; "
                f"give shorter inputs, or train with max_positions={number}"
            )
        vectors: Tensor = self.vectors(positions)
        return vectors


class Output(nn.Module):
    """A logit for every word. tied: its matrix is the embedding's, of this width, which comes with every call; what is wider,
    because positions were appended, is projected first."""

    def __init__(self, width: int, vocab: int, *, tied: int | None = None) -> None:
        super().__init__()
        whole = nn.Linear(width, vocab)
        self.weight = whole.weight if tied is None else None
        self.bias = whole.bias if tied is None else nn.Parameter(torch.zeros(vocab))
        self.project = nn.Linear(width, tied, bias=False) if tied not in (None, width) else None

    def forward(self, x: Tensor, embedding_VD: Tensor) -> Tensor:
        return F.linear(*self.parts(x, embedding_VD))

    def parts(self, x: Tensor, embedding_VD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(x, W, b), whose x Wᵀ + b are the logits."""
        x = x if self.project is None else self.project(x)
        return x, embedding_VD if self.weight is None else self.weight, self.bias


def check_position_encoding(encoding: str, width: int, appended: int) -> None:
    if encoding not in POSITION_ENCODINGS:
        raise ValueError(
            f"there are no positions {encoding!r}; expected one of {', '.join(POSITION_ENCODINGS)}"
            f"{did_you_mean(encoding, list(POSITION_ENCODINGS))}"
        )
    if appended and encoding in IN_ATTENTION:
        raise ValueError(
            f"positions {encoding!r} have no vector that could be appended; leave out the appended width {appended}"
        )
    if not 0 <= appended < width:
        raise ValueError(f"{appended} of the width {width} are for appended positions; expected 0 (added) to {width - 1}")
    if encoding == "index" and appended != 1:
        raise ValueError(
            f"the raw index is one number, to be appended, but its width is {appended or width}; say join=appended and "
            "position_width=1 (added to every column, layer normalisation would take it out again)"
        )
    if encoding in ("sinusoidal", "fourier") and (size := appended or width) % 2:
        raise ValueError(f"{encoding} positions come in pairs of sine and cosine, but their width is {size}; make it even")
