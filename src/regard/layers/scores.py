"""Score functions: how well a query fits a key. A new one enters `SCORES` with one line and works in every model."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from regard.contracts import Score
from regard.core.attention import ScaledDot, additive_scores
from regard.errors import did_you_mean

__all__ = ["SCORES", "Additive", "ScaledDot", "check_score"]


class Additive(nn.Module, Score):
    """vᵀ tanh(W_b s + W_c h) (Bahdanau et al. 2015, A.1.2). Queries and keys may have different widths."""

    name = "additive"

    def __init__(self, query_width: int, key_width: int, width: int) -> None:
        super().__init__()
        self.numbers_per_pair = width
        self.query = nn.Linear(query_width, width, bias=False)
        self.key = nn.Linear(key_width, width, bias=False)
        self.v = nn.Parameter(torch.empty(width).uniform_(-(width**-0.5), width**-0.5))

    def prepare(self, key: Tensor) -> Tensor:
        prepared: Tensor = self.key(key)
        return prepared

    def scores(self, query: Tensor, prepared: Tensor) -> Tensor:
        return additive_scores(self.query(query), prepared, self.v)


SCORES: dict[str, Callable[[int, int, int], Score]] = {
    "scaled_dot": lambda query_width, key_width, width: ScaledDot(),
    "additive": Additive,
}
"""name -> (query width, key width, inner width) -> Score."""


def check_score(name: str) -> None:
    if name not in SCORES:
        raise ValueError(f"there is no score {name!r}; expected one of {', '.join(SCORES)}{did_you_mean(name, list(SCORES))}")
