"""Token embeddings with position encodings (positional encodings), and the output layer."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from regard.core.linear import linear
from regard.core.positions import Layout, fourier, num_positions, one_hot, raw_index, sinusoidal
from regard.errors import UserError, did_you_mean

PositionEncoding = Literal["sinusoidal", "learned", "rotary", "alibi", "fourier", "one_hot", "index", "none"]
"""rotary and alibi act inside self-attention; none gives the model no information about order; all others are position vectors
that are added or appended to the token embeddings."""

POSITION_ENCODINGS: tuple[PositionEncoding, ...] = get_args(PositionEncoding)
IN_ATTENTION = ("rotary", "alibi", "none")
"""Position encodings without position vectors."""


class TokenEmbedding(nn.Module):
    """Token embeddings √d · E[token], to which the position vector φ(i) is added, or appended as x' = [x; φ(i)].

    vocab: number of tokens.
    width: width of the output, position vector included.
    encoding: position encoding.
    appended: width of an appended position vector, which leaves width − appended for the tokens; 0 if φ(i) is added.
    max_positions: number of positions with a learned vector.
    layout: order of sines and cosines in sinusoidal and Fourier positions.
    scaled: whether E[token] is multiplied by √d.
    norm: applied to the result.
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
        scaled: bool = True,
        norm: nn.Module | None = None,
    ) -> None:
        super().__init__()
        check_position_encoding(encoding, width, appended)
        self.encoding, self.appended, self.layout = encoding, appended, layout
        self.width = width - appended
        self.scaled = scaled
        self.tokens = nn.Embedding(vocab, self.width)
        nn.init.normal_(self.tokens.weight, std=self.width**-0.5)  # times √d, as large as position vectors
        self.learned = Learned(max_positions, appended or width) if encoding == "learned" else None
        self.norm = norm

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Returns (..., width) for ids (...,) and positions that broadcast to the shape of the ids."""
        tokens = self.tokens(ids) * math.sqrt(self.width) if self.scaled else self.tokens(ids)
        embedded = self._with_positions(tokens, positions)
        return embedded if self.norm is None else self.norm(embedded)

    def _with_positions(self, tokens: Tensor, positions: Tensor) -> Tensor:
        if self.encoding in IN_ATTENTION:
            return tokens
        vectors = self.position_vectors(positions, tokens.dtype)
        if not self.appended:
            return tokens + vectors
        return torch.cat((tokens, vectors.expand(*tokens.shape[:-1], self.appended)), dim=-1)

    def position_vectors(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        width = self.appended or self.width
        if self.learned is not None:
            vectors: Tensor = self.learned(positions)
            return vectors
        if self.encoding == "index":
            return raw_index(positions, dtype=dtype)
        if self.encoding == "one_hot":
            return one_hot(positions, width, dtype=dtype)
        encode = sinusoidal if self.encoding == "sinusoidal" else fourier
        return encode(positions, width, layout=self.layout, dtype=dtype)


class Learned(nn.Module):
    """A learned vector for each of the first `max_positions` positions. Initial values have mean square 1/2, like sinusoids.

    Calling it raises UserError for a position without a vector.
    """

    def __init__(self, max_positions: int, width: int) -> None:
        super().__init__()
        self.vectors = nn.Embedding(max_positions, width)
        nn.init.normal_(self.vectors.weight, std=math.sqrt(0.5))

    def forward(self, positions: Tensor) -> Tensor:
        limit = self.vectors.num_embeddings
        if (number := num_positions(positions)) > limit:
            raise UserError(
                f"the input has {number} positions, but this model has learned vectors for {limit}; "
                f"use shorter inputs, or train with max_positions={number}"
            )
        vectors: Tensor = self.vectors(positions)
        return vectors


class Output(nn.Module):
    """Linear layer from states to logits, one per token of the vocabulary.

    tied: width of the token embedding whose matrix is used as the output matrix and passed with every call; None for a separate
    matrix. States that are wider than it, because positions were appended, are projected to this width first.
    """

    def __init__(self, width: int, vocab: int, *, tied: int | None = None) -> None:
        super().__init__()
        linear = nn.Linear(width, vocab)
        self.weight = linear.weight if tied is None else None
        self.bias = linear.bias if tied is None else nn.Parameter(torch.zeros(vocab))
        self.project = nn.Linear(width, tied, bias=False) if tied not in (None, width) else None

    def forward(self, x: Tensor, embedding_VD: Tensor) -> Tensor:
        """Returns the logits (..., V). embedding_VD: the token embedding; only used if the layer is tied."""
        return linear(*self.parts(x, embedding_VD))

    def parts(self, x: Tensor, embedding_VD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns (x, W, b), so that x Wᵀ + b are the logits."""
        x = x if self.project is None else self.project(x)
        return x, embedding_VD if self.weight is None else self.weight, self.bias


def check_position_encoding(encoding: str, width: int, appended: int) -> None:
    """Raises ValueError if there is no such position encoding, or if it cannot have this width. appended: 0 if added."""
    if encoding not in POSITION_ENCODINGS:
        raise ValueError(
            f"there is no position encoding {encoding!r}; expected one of {', '.join(POSITION_ENCODINGS)}"
            f"{did_you_mean(encoding, list(POSITION_ENCODINGS))}"
        )
    if appended and encoding in IN_ATTENTION:
        raise ValueError(
            f"{encoding!r} positions have no vector to append, but the appended width is {appended}; set position_join=added"
        )
    if not 0 <= appended < width:
        raise ValueError(
            f"appended positions have width {appended}, but width is {width}; expected 1 to {width - 1}, or 0 if added"
        )
    if encoding == "index" and appended != 1:
        raise ValueError(
            f"the raw index is one appended number, but its width is {appended or width}; set position_join=appended and "
            "position_width=1 (layer normalisation would remove an index that is added to every column)"
        )
    if encoding in ("sinusoidal", "fourier") and (size := appended or width) % 2:
        raise ValueError(f"{encoding} positions consist of pairs of sine and cosine, but their width is {size}; make it even")
