"""Score functions: how well a query fits a key. A new one enters `SCORES` with one line and works in every model."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.contracts import Score
from regard.core.attention import ScaledDot, additive_scores, same_width
from regard.core.positions import num_positions
from regard.errors import UserError, check_positive, check_sizes, check_whole, did_you_mean, shown

__all__ = [
    "SCORES",
    "Additive",
    "Cosine",
    "Distance",
    "Dot",
    "General",
    "Location",
    "ScaledDot",
    "check_score_name",
    "make_score",
]


class Dot(ScaledDot):
    """s·h (Luong et al. 2015, eq. 8, "dot")."""

    name = "dot"

    def __init__(self) -> None:
        super().__init__(divide_by=1.0)


class General(nn.Module, Score):
    """sᵀ W h (Luong et al. 2015, eq. 8, "general"). Queries and keys may have different widths."""

    name = "general"
    rotary = True

    def __init__(self, query_width: int, key_width: int) -> None:
        super().__init__()
        check_sizes(query_width=query_width, key_width=key_width)
        self.weight = nn.Linear(key_width, query_width, bias=False)

    def prepare(self, key: Tensor, positions: Tensor | None = None) -> Tensor:
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
        check_sizes(query_width=query_width, key_width=key_width, width=width)
        self.numbers_per_pair = width
        self.query = nn.Linear(query_width, width, bias=False)
        self.key = nn.Linear(key_width, width, bias=False)
        self.v = nn.Parameter(torch.empty(width).uniform_(-(width**-0.5), width**-0.5))

    @classmethod
    def concat(cls, weight: Tensor, v: Tensor, query_width: int) -> Additive:
        """The same function written as vᵀ tanh(W [s; h]) (Luong et al. 2015, "concat"): W = [W_b W_c], (width, dq + dk)."""
        check_whole("query_width", query_width)
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

    def prepare(self, key: Tensor, positions: Tensor | None = None) -> Tensor:
        prepared: Tensor = self.key(key)
        return prepared

    def scores(self, query: Tensor, prepared: Tensor) -> Tensor:
        return additive_scores(self.query(query), prepared, self.v)


@dataclass(frozen=True)
class Cosine(Score):
    """cos(s, h) / temperature: the dot product with the magnitudes divided out. A zero vector scores 0."""

    temperature: float = 0.1
    name = "cosine"
    rotary = True

    def __post_init__(self) -> None:
        check_positive("temperature", self.temperature)

    def prepare(self, key: Tensor, positions: Tensor | None = None) -> Tensor:
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
    rotary = True

    def scores(self, query: Tensor, prepared: Tensor) -> Tensor:
        query_, key_, scale = self.as_dot(query, prepared)
        return (query_ @ key_.transpose(-1, -2) - query.square().sum(-1, keepdim=True) / 2) * scale

    def as_dot(self, query: Tensor, prepared: Tensor) -> tuple[Tensor, Tensor, float]:
        """s·h − ‖h‖²/2 as one dot product, [s; 1]·[h; −‖h‖²/2]; −‖s‖²/2 is the same for all keys."""
        width = same_width(query, prepared)
        norms = prepared.square().sum(-1, keepdim=True) / 2
        return F.pad(query, (0, 1), value=1.0), torch.cat((prepared, -norms), dim=-1), 1.0 / width


class Location(nn.Module, Score):
    """softmax(W s) (Luong et al. 2015, eq. 9, "location"): where to look is read off the query; of a key only its place counts.

    W has a row for each of the first `max_source` real places. The score of place j is W_j·s, so W_j is the prepared key.
    A source with more places is an error, or, with beyond="ignore", those behind get no weight, and a warning says how many.
    """

    name = "location"
    by_content = False
    by_position = True

    def __init__(self, query_width: int, max_source: int, beyond: Literal["error", "ignore"] = "error") -> None:
        super().__init__()
        check_sizes(query_width=query_width, max_source=max_source)
        if beyond not in ("error", "ignore"):
            raise ValueError(f"beyond is {shown(beyond)}, expected error or ignore")
        self.max_source = max_source
        self.beyond = beyond
        self.weight = nn.Parameter(torch.empty(max_source, query_width).uniform_(-(query_width**-0.5), query_width**-0.5))

    def prepare(self, key: Tensor, positions: Tensor | None = None) -> Tensor:
        if positions is None:
            positions = torch.arange(key.shape[-2], device=key.device)
        if self.beyond == "error":
            if (number := num_positions(positions)) > self.max_source:
                raise UserError(
                    f"there are {number} places, but this location score was made for {self.max_source}; "
                    f'give shorter inputs, make it with max_source={number}, or with beyond="ignore"'
                )
            return F.embedding(positions, self.weight)
        behind = positions >= self.max_source
        if num_positions(positions) > self.max_source:
            warnings.warn(
                f"{int(behind.sum())} keys stand behind place {self.max_source}, the last one that this location score knows, "
                "and are ignored",
                stacklevel=2,
            )
        rows = F.embedding(positions.clamp(max=self.max_source - 1), self.weight)
        return torch.cat((rows, (~behind).unsqueeze(-1).to(rows.dtype)), dim=-1)  # the last column: known or not

    def known(self, prepared: Tensor) -> Tensor | None:
        return None if self.beyond == "error" else prepared[..., -1] > 0

    def scores(self, query: Tensor, prepared: Tensor) -> Tensor:
        query, prepared, _ = self.as_dot(query, prepared)
        return query @ prepared.transpose(-1, -2)

    def as_dot(self, query: Tensor, prepared: Tensor) -> tuple[Tensor, Tensor, float]:
        width = self.weight.shape[1]
        if query.shape[-1] != width:
            raise ValueError(f"queries have width {query.shape[-1]}, but this location score was made for {width}")
        return query, prepared[..., :width], 1.0


ScoreMaker = Callable[..., Score]
"""A class or function that makes a score. Of the sizes of a model it gets those that its parameters name: `query_width`,
`key_width`, `width` (an inner one), `max_source` (how many places there may be) and `beyond` (what to do with more)."""

SCORES: dict[str, ScoreMaker] = {
    "dot": Dot,
    "scaled_dot": ScaledDot,
    "general": General,
    "additive": Additive,
    "location": Location,
    "cosine": Cosine,
    "distance": Distance,
}


def check_score_name(name: str, own: Collection[str] | None = None) -> None:
    known = [*SCORES, *(own or ())]
    if name not in known:
        raise UserError(
            f"there is no score {name!r}; expected one of {', '.join(known)}, or one of your own, which comes along as "
            f'scores={{"{name}": …}}, or with --score file.py:Class{did_you_mean(name, known)}'
        )


def make_score(name: str, own: Mapping[str, ScoreMaker] | None = None, /, **sizes: int | str) -> Score:
    """The score of this name, ours or one of the user's own, made for these sizes."""
    check_score_name(name, own)
    makers = {**SCORES, **(own or {})}
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = [one for one in inspect.signature(makers[name]).parameters.values() if one.kind not in variadic]
    lacking = [one.name for one in parameters if one.default is one.empty and one.name not in sizes]
    if lacking:
        raise UserError(
            f"the score {name!r} cannot be made: it wants {', '.join(lacking)}, but a model can only tell {', '.join(sizes)}; "
            "give the others default values"
        )
    score = makers[name](**{one.name: sizes[one.name] for one in parameters if one.name in sizes})
    if not isinstance(score, Score):
        raise UserError(f"the score {name!r} is a {type(score).__name__}, expected a subclass of regard.Score")
    return score
