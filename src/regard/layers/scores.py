"""Score functions (alignment models): how well a query fits a key. Every model supports the score functions in `SCORES`."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.core.attention import ScaledDot, additive_scores, same_width
from regard.core.positions import num_positions
from regard.core.score import Score
from regard.errors import UserError, check_positive, check_sizes, check_whole, did_you_mean, shown

__all__ = [
    "SCORES",
    "Additive",
    "Basic",
    "Concat",
    "Cosine",
    "Distance",
    "Dot",
    "General",
    "Location",
    "ScaledDot",
    "ScoreMaker",
    "make_score",
]


class Dot(ScaledDot):
    """Dot product s·h (Luong et al. 2015, eq. 8, "dot").

    >>> x = torch.ones(2, 16)
    >>> regard.scores.Dot().scores(x, x)
    tensor([[16., 16.],
            [16., 16.]])
    """

    name = "dot"

    def __init__(self) -> None:
        super().__init__(divide_by=1.0)


class General(nn.Module, Score):
    """Bilinear score sᵀ W h (Luong et al. 2015, eq. 8, "general"). Queries and keys may have different widths.

    >>> query, key = torch.randn(3, 8), torch.randn(5, 6)
    >>> regard.attention_weights(query, key, score=regard.scores.General(8, 6)).shape
    torch.Size([3, 5])
    """

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


class Basic(nn.Module, Score):
    """Basic attention of one of the lecture notes: (K h)·(Q s) / d with learned K and Q, and d the width of the states h.

    It is `General` with W = Qᵀ K / d, written as two matrices. Queries and keys may have different widths.

    >>> basic = regard.scores.Basic(query_width=8, key_width=4)
    >>> regard.attention_weights(torch.randn(3, 8), torch.randn(5, 4), score=basic).shape
    torch.Size([3, 5])
    """

    name = "basic"
    rotary = True

    def __init__(self, query_width: int, key_width: int) -> None:
        super().__init__()
        check_sizes(query_width=query_width, key_width=key_width)
        self.query = nn.Linear(query_width, key_width, bias=False)
        self.key = nn.Linear(key_width, key_width, bias=False)

    def prepare(self, key: Tensor, positions: Tensor | None = None) -> Tensor:
        """Returns Qᵀ K h / d, whose dot product with s is the score."""
        prepared: Tensor = self.key(key) @ self.query.weight / key.shape[-1]
        return prepared

    def scores(self, query: Tensor, prepared: Tensor) -> Tensor:
        return query @ prepared.transpose(-1, -2)

    def as_dot(self, query: Tensor, prepared: Tensor) -> tuple[Tensor, Tensor, float]:
        return query, prepared, 1.0


class Additive(nn.Module, Score):
    """Additive score vᵀ tanh(W_b s + W_c h) (Bahdanau et al. 2015, A.1.2). Queries and keys may have different widths.

    width: width of the hidden layer, i.e. of v.

    >>> query, key = torch.randn(3, 8), torch.randn(5, 6)
    >>> regard.attention_weights(query, key, score=regard.scores.Additive(8, 6, 16)).shape
    torch.Size([3, 5])
    """

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
        """Returns the same function from its form vᵀ tanh(W [s; h]) (Luong et al. 2015, "concat"), where W = [W_b W_c].

        weight: W, (width, dq + dk). v: (width,). query_width: dq. Raises ValueError for other shapes.

        >>> score = regard.scores.Additive.concat(torch.zeros(16, 8 + 6), torch.ones(16), 8)
        >>> score.query.weight.shape, score.key.weight.shape
        (torch.Size([16, 8]), torch.Size([16, 6]))
        """
        check_whole("query_width", query_width)
        width, query_and_key_width = weight.shape
        if not 0 < query_width < query_and_key_width or v.shape != (width,):
            raise ValueError(
                f"W is {tuple(weight.shape)}, v is {tuple(v.shape)}, the query's width is {query_width}; "
                f"expected W (width, dq + dk), v (width,) and 0 < dq < {query_and_key_width}"
            )
        score = cls(query_width, query_and_key_width - query_width, width).to(weight)
        with torch.no_grad():
            score.query.weight.copy_(weight[:, :query_width])
            score.key.weight.copy_(weight[:, query_width:])
            score.v.copy_(v)
        return score

    def prepare(self, key: Tensor, positions: Tensor | None = None) -> Tensor:
        prepared: Tensor = self.key(key)
        return prepared

    def scores(self, query: Tensor, prepared: Tensor) -> Tensor:
        return additive_scores(*self.as_additive(query, prepared))

    def as_additive(self, query: Tensor, prepared: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.query(query), prepared, self.v


class Concat(nn.Module, Score):
    """Additive score with one matrix, vᵀ tanh(W [s; h]) (Luong et al. 2015, eq. 8, "concat").

    It is `Additive` with W = [W_b W_c]; `Additive.concat` converts it. Queries and keys may have different widths.
    width: width of the hidden layer, i.e. of v.

    >>> query, key = torch.randn(3, 8), torch.randn(5, 6)
    >>> concat = regard.scores.Concat(8, 6, 16)
    >>> weights = regard.attention_weights(query, key, score=concat)
    >>> additive = regard.scores.Additive.concat(concat.weight.weight, concat.v, query_width=8)
    >>> torch.allclose(weights, regard.attention_weights(query, key, score=additive))
    True
    """

    name = "concat"

    def __init__(self, query_width: int, key_width: int, width: int) -> None:
        super().__init__()
        check_sizes(query_width=query_width, key_width=key_width, width=width)
        self.numbers_per_pair = width
        self.query_width = query_width
        self.weight = nn.Linear(query_width + key_width, width, bias=False)
        self.v = nn.Parameter(torch.empty(width).uniform_(-(width**-0.5), width**-0.5))

    def prepare(self, key: Tensor, positions: Tensor | None = None) -> Tensor:
        """Returns the part of W [s; h] that depends on h."""
        return F.linear(key, self.weight.weight[:, self.query_width :])

    def scores(self, query: Tensor, prepared: Tensor) -> Tensor:
        return additive_scores(*self.as_additive(query, prepared))

    def as_additive(self, query: Tensor, prepared: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return F.linear(query, self.weight.weight[:, : self.query_width]), prepared, self.v


@dataclass(frozen=True)
class Cosine(Score):
    """Cosine similarity cos(s, h) / temperature. A zero vector scores 0.

    >>> x = torch.tensor([[1.0, 0.0], [0.0, 5.0]])
    >>> regard.attention_weights(x, x, score=regard.scores.Cosine(temperature=1.0)).round(decimals=3)
    tensor([[0.7310, 0.2690],
            [0.2690, 0.7310]])
    """

    temperature: float = 0.1
    name = "cosine"
    rotary = True

    def __post_init__(self) -> None:
        check_positive("temperature", self.temperature)

    def prepare(self, key: Tensor, positions: Tensor | None = None) -> Tensor:
        return _unit(key)

    def scores(self, query: Tensor, prepared: Tensor) -> Tensor:
        query, prepared, scale = self.as_dot(query, prepared)
        return (query * scale) @ prepared.transpose(-1, -2)

    def as_dot(self, query: Tensor, prepared: Tensor) -> tuple[Tensor, Tensor, float]:
        same_width(query, prepared)
        return _unit(query), prepared, 1.0 / self.temperature


def _unit(x: Tensor) -> Tensor:
    """Returns x / ‖x‖ along the last axis, and zeros for a zero vector. The largest entry becomes 1 first, so that the squares
    of very short and very long vectors neither vanish nor overflow."""
    largest = F.pad(x.detach().abs(), (0, 1)).amax(-1, keepdim=True)  # padded, because the width may be 0
    return F.normalize(x / torch.where(largest > 0, largest, 1.0), dim=-1)


@dataclass(frozen=True)
class Distance(Score):
    """Negative squared distance −‖s−h‖² / 2d. For keys of equal norm it equals s·h / d, up to a constant per query.

    >>> x = torch.tensor([[0.0], [2.0]])
    >>> score = regard.scores.Distance()
    >>> score.scores(x, score.prepare(x))
    tensor([[ 0., -2.],
            [-2.,  0.]])
    """

    name = "distance"
    rotary = True

    def scores(self, query: Tensor, prepared: Tensor) -> Tensor:
        query_, key_, scale = self.as_dot(query, prepared)
        return (query_ @ key_.transpose(-1, -2) - query.square().sum(-1, keepdim=True) / 2) * scale

    def as_dot(self, query: Tensor, prepared: Tensor) -> tuple[Tensor, Tensor, float]:
        """Writes s·h − ‖h‖²/2 as one dot product [s; 1]·[h; −‖h‖²/2]; −‖s‖²/2 is the same for all keys."""
        width = same_width(query, prepared)
        norms = prepared.square().sum(-1, keepdim=True) / 2
        return F.pad(query, (0, 1), value=1.0), torch.cat((prepared, -norms), dim=-1), 1.0 / width


class Location(nn.Module, Score):
    """Location-based score W s (Luong et al. 2015, eq. 9, "location"): it depends on the position of a key, not its content.

    W has one row for each of the first `max_source` real positions. The score of position j is W_j·s, so W_j is the prepared
    key.

    beyond: how to treat sources with more positions. "error" raises UserError; "ignore" gives the positions beyond `max_source`
    no weight and warns how many there are.

    >>> score = regard.scores.Location(query_width=8, max_source=50)
    >>> x = torch.zeros(1, 8)
    >>> regard.attention_weights(x, torch.randn(4, 8), score=score).detach()
    tensor([[0.2500, 0.2500, 0.2500, 0.2500]])
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
                    f"there are {number} positions, but this location score supports {self.max_source}; "
                    f'use shorter inputs, or create the score with max_source={number} or beyond="ignore"'
                )
            return F.embedding(positions, self.weight)
        ignored = positions >= self.max_source
        if num_positions(positions) > self.max_source:
            warnings.warn(
                f"{int(ignored.sum())} keys are ignored, because this location score supports only the first "
                f"{self.max_source} positions",
                stacklevel=2,
            )
        rows = F.embedding(positions.clamp(max=self.max_source - 1), self.weight)
        return torch.cat((rows, (~ignored).unsqueeze(-1).to(rows.dtype)), dim=-1)  # last column: 1, or 0 if ignored

    def known(self, prepared: Tensor) -> Tensor | None:
        return None if self.beyond == "error" else prepared[..., -1] > 0

    def scores(self, query: Tensor, prepared: Tensor) -> Tensor:
        query, prepared, _ = self.as_dot(query, prepared)
        return query @ prepared.transpose(-1, -2)

    def as_dot(self, query: Tensor, prepared: Tensor) -> tuple[Tensor, Tensor, float]:
        width = self.weight.shape[1]
        if query.shape[-1] != width:
            raise ValueError(f"queries have width {query.shape[-1]}, but this location score expects width {width}")
        return query, prepared[..., :width], 1.0


ScoreMaker = Callable[..., Score]
"""A class or function that returns a score function. It is called with those of the following arguments that it has as
parameters: `query_width`, `key_width`, `width` (of a hidden layer), `max_source` (the largest number of source positions),
`beyond` (how to treat sources with more positions), and, where the settings of a model give them, `divide_by` and
`temperature`."""

SCORES: dict[str, ScoreMaker] = {
    "dot": Dot,
    "scaled_dot": ScaledDot,
    "general": General,
    "basic": Basic,
    "additive": Additive,
    "concat": Concat,
    "location": Location,
    "cosine": Cosine,
    "distance": Distance,
}
"""The score functions that come with the package, by the name that the settings of a model use."""


def check_score_name(name: str, custom: Collection[str] | None = None) -> None:
    """Raises UserError if there is no score function of this name. custom: names of the user's own score functions."""
    names = [*SCORES, *(custom or ())]
    if name not in names:
        raise UserError(
            f"there is no score {name!r}; expected one of {', '.join(names)}, or your own score, passed as "
            f'scores={{"{name}": …}} or --score file.py:Class{did_you_mean(name, names)}'
        )


OPTIONS = {"score_divisor": "scaled_dot", "score_temperature": "cosine"}
"""Settings of a model that only one of the built-in scores has."""


def check_score_options(names: Collection[str | None], **options: float | str | None) -> None:
    """Raises ValueError for a setting of `OPTIONS` that is not above 0, or that none of these built-in scores has.

    names: the scores of a model. A score that is not built in may have all options.
    """
    built_in = [name for name in names if name is not None]
    for option, value in options.items():
        if value is None:
            continue
        if not isinstance(value, str):
            check_positive(option, value)
        if not any(name == OPTIONS[option] or name not in SCORES for name in built_in):
            raise ValueError(
                f"{option} is {value}, but only the score {OPTIONS[option]} has one, and the score is {built_in[0]}; "
                f"set score={OPTIONS[option]}, or leave out {option}"
            )


def make_score(
    score: str | ScoreMaker, custom: Mapping[str, ScoreMaker] | None = None, /, **sizes: float | str | None
) -> Score:
    """Returns a new score function.

    score: a key of `SCORES` or of `custom`, or a class or function that returns a score function.
    custom: the user's own score functions by name.
    sizes: arguments of the constructor, which receives those that it has as parameters and that are not None.

    Raises UserError if there is no such score, if its constructor requires other arguments, or if it does not return a Score.

    >>> score = regard.scores.make_score("general", query_width=8, key_width=6, width=16)
    >>> score.name, score.weight.weight.shape
    ('general', torch.Size([8, 6]))
    """
    sizes = {name: size for name, size in sizes.items() if size is not None}
    if isinstance(score, Score) or not (isinstance(score, str) or callable(score)):
        raise UserError(
            f"the score is {shown(score)}, but every attention has a score function of its own; expected one of "
            f"{', '.join(SCORES)}, a class, or a function that returns a new one, e.g. lambda: regard.scores.Cosine(0.2)"
        )
    if isinstance(score, str):
        check_score_name(score, custom)
        name, maker = score, {**SCORES, **(custom or {})}[score]
    else:
        name, maker = getattr(score, "__name__", shown(score)), score
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = [parameter for parameter in inspect.signature(maker).parameters.values() if parameter.kind not in variadic]
    required = [parameter.name for parameter in parameters if parameter.default is parameter.empty]
    missing = [parameter for parameter in required if parameter not in sizes]
    if missing:
        raise UserError(
            f"the score {name!r} cannot be created: it requires {', '.join(missing)}, but a model only provides "
            f"{', '.join(sizes)}; give the other parameters default values"
        )
    made = maker(**{parameter.name: sizes[parameter.name] for parameter in parameters if parameter.name in sizes})
    if not isinstance(made, Score):
        raise UserError(f"the score {name!r} is an instance of {type(made).__name__}, expected a subclass of regard.Score")
    return made
