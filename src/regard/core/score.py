"""The base class of score functions; `regard.scores` (layers/scores.py) holds those that come with the package."""

from __future__ import annotations

from torch import Tensor


class Score:
    """A score function (alignment model, Bahdanau et al. 2015): how well a query fits a key, before any mask or softmax.

    Subclasses define `scores`; the rest has defaults.

    `scores` must compute each query row independently of the others, so that long inputs can be processed in tiles.

    >>> class Manhattan(regard.Score):
    ...     name = "manhattan"
    ...     def scores(self, query, prepared):
    ...         return -(query.unsqueeze(-2) - prepared.unsqueeze(-3)).abs().sum(-1)
    >>> x = torch.tensor([[0.0], [9.0]])
    >>> regard.attention_weights(x, x, score=Manhattan()).round(decimals=2)
    tensor([[1., 0.],
            [0., 1.]])
    """

    name: str
    """The name of the score in model settings and model folders."""

    numbers_per_pair: int = 1
    """The most numbers that `scores` holds at a time per (query, key) pair; it determines the size of a tile."""

    by_content: bool = True
    """Whether the score depends on the content of the keys."""

    by_position: bool = False
    """Whether `prepare` requires the positions of the keys."""

    rotary: bool = False
    """Whether the score is unchanged when query and prepared key are rotated by the same angle, as rotary positions require."""

    def scores(self, query: Tensor, prepared: Tensor) -> Tensor:
        """Returns the scores (..., Lq, Lk) of queries (..., Lq, dq) and the keys as `prepare` returned them.

        >>> query, key = torch.ones(2, 16), torch.ones(3, 16)
        >>> score = regard.scores.ScaledDot()
        >>> score.scores(query, score.prepare(key))
        tensor([[4., 4., 4.],
                [4., 4., 4.]])
        """
        raise NotImplementedError(f"{type(self).__name__} needs a method scores(query, prepared)")

    def prepare(self, key: Tensor, positions: Tensor | None = None) -> Tensor:
        """Computes what depends on the keys alone, once per source: (..., Lk, dk) -> (..., Lk, any width).

        positions (..., Lk): the positions of the keys; given only if `by_position` is set.

        >>> regard.scores.Additive(query_width=8, key_width=6, width=16).prepare(torch.zeros(5, 6)).shape
        torch.Size([5, 16])
        """
        return key

    def known(self, prepared: Tensor) -> Tensor | None:
        """Returns a mask (..., Lk), False for keys whose score is undefined, which get no weight; None if all are defined.

        >>> regard.scores.ScaledDot().known(torch.ones(3, 16)) is None
        True
        """
        return None

    def as_dot(self, query: Tensor, prepared: Tensor) -> tuple[Tensor, Tensor, float] | None:
        """Returns (query', key', scale) for the fused kernel, or None if the score is not a dot product.

        scores = scale · query'·key', up to a constant per query, which does not change the softmax.

        >>> query, key, scale = regard.scores.ScaledDot().as_dot(torch.ones(2, 16), torch.ones(3, 16))
        >>> scale
        0.25
        """
        return None

    def as_additive(self, query: Tensor, prepared: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
        """Returns (query', key', v) for the fused kernel of additive attention, or None if the score is not of that form.

        scores = vᵀ tanh(query' + key').

        >>> regard.scores.ScaledDot().as_additive(torch.ones(2, 16), torch.ones(3, 16)) is None
        True
        """
        return None
