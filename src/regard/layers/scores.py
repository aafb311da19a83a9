"""Score functions: how well a query fits a key. A new one enters `SCORES` with one line and works in every model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.contracts import Score
from regard.core.attention import ScaledDot, additive_scores, same_width
from regard.errors import did_you_mean

__all__ = ["SCORES", "Additive", "Cosine", "Distance", "Dot", "General", "ScaledDot", "check_score_name"]


class Dot(ScaledDot):
    """s·h (Luong et al. 2015, eq. 8, "dot")."""

    name = "dot"

    def __init__(self) -> None:
        super().__init__(divide_by=1.0)


class General(nn.Module, Score):
    """sᵀ W h (Luong et al. 2015, eq. 8, "general"). Queries and keys may have different widths."""

    name = "general"

    def __init__(self, query_width: int, key_width: int) -> None:
        super().__init__()
        self.weight = nn.Linear(key_width, query_width, bias=False)

    def prepare(self, key: Tensor) -> Tensor:
        prepared: Tensor = self.weight(key)
        return prepared

    def scores(self, query: Tensor, prepared: Tensor) -> Tensor:
        return query @ prepared.transpose(-1, -2)

    def as_dot(self, query: Tensor, prepared: Tensor) -> tuple[Tensor, Tensor, float]:
        return query, prepared, 1.0


class Additive(nn.Module, Score):
    """vᵀ tanh(W_b s + W_c h) (Bahdanau et al. 2015, A.1.2). Queries and keys may have different widths."""

    name = "additive"

    def __init__(self, query_width: int, key_width: int, width: int) -> None:
        super().__init__()
        self.numbers_per_pair = width
        self.query = nn.Linear(query_width, width, bias=False)
        self.key = nn.Linear(key_width, width, bias=False)
        self.v = nn.Parameter(torch.empty(width).uniform_(-(width**-0.5), width**-0.5))

    @classmethod
    def concat(cls, weight: Tensor, v: Tensor, query_width: int) -> Additive:
        """The same function written as vᵀ tanh(W [s; h]) (Luong et al. 2015, "concat"): W = [W_b W_c], (width, dq + dk)."""
        width, both = weight.shape
        if not 0 < query_width < both or v.shape != (width,):
            raise ValueError(
                f"W is {tuple(weight.shape)}, v is {tuple(v.shape)}, the query's width is {query_width}; "
                f"expected W (width, dq + dk), v (width,) and 0 < dq < {both}"
            )
        score = cls(query_width, both - query_width, width).to(weight)
        with torch.no_grad():
            score.query.weight.copy_(weight[:, :query_width])
            score.key.weight.copy_(weight[:, query_width:])
            score.v.copy_(v)
        return score

    def prepare(self, key: Tensor) -> Tensor:
        prepared: Tensor = self.key(key)
        return prepared

    def scores(self, query: Tensor, prepared: Tensor) -> Tensor:
        return additive_scores(self.query(query), prepared, self.v)


@dataclass(frozen=True)
class Cosine(Score):
    """cos(s, h) / temperature: the dot product with the magnitudes divided out. A zero vector scores 0."""

    temperature: float = 0.1
    name = "cosine"

    def prepare(self, key: Tensor) -> Tensor:
        return F.normalize(key, dim=-1)

    def scores(self, query: Tensor, prepared: Tensor) -> Tensor:
        query, prepared, scale = self.as_dot(query, prepared)
        return (query * scale) @ prepared.transpose(-1, -2)

    def as_dot(self, query: Tensor, prepared: Tensor) -> tuple[Tensor, Tensor, float]:
        same_width(query, prepared)
        return F.normalize(query, dim=-1), prepared, 1.0 / self.temperature


@dataclass(frozen=True)
class Distance(Score):
    """−‖s−h‖² / 2d: near is good. With keys of equal norm it is the dot product over d, up to a constant per query."""

    name = "distance"

    def scores(self, query: Tensor, prepared: Tensor) -> Tensor:
        query_, key_, scale = self.as_dot(query, prepared)
        return (query_ @ key_.transpose(-1, -2) - query.square().sum(-1, keepdim=True) / 2) * scale

    def as_dot(self, query: Tensor, prepared: Tensor) -> tuple[Tensor, Tensor, float]:
        """s·h − ‖h‖²/2 as one dot product, [s; 1]·[h; −‖h‖²/2]; −‖s‖²/2 is the same for all keys."""
        width = same_width(query, prepared)
        norms = prepared.square().sum(-1, keepdim=True) / 2
        return F.pad(query, (0, 1), value=1.0), torch.cat((prepared, -norms), dim=-1), 1.0 / width


SCORES: dict[str, Callable[[int, int, int], Score]] = {
    "dot": lambda query_width, key_width, width: Dot(),
    "scaled_dot": lambda query_width, key_width, width: ScaledDot(),
    "general": lambda query_width, key_width, width: General(query_width, key_width),
    "additive": Additive,
    "cosine": lambda query_width, key_width, width: Cosine(),
    "distance": lambda query_width, key_width, width: Distance(),
}
"""name -> (query width, key width, inner width) -> Score."""


def check_score_name(name: str) -> None:
    if name not in SCORES:
        raise ValueError(f"there is no score {name!r}; expected one of {', '.join(SCORES)}{did_you_mean(name, list(SCORES))}")
