"""The attention mechanism as one argument: score, attention mask, ALiBi, type of attention, attention dropout."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Real

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.core import masks
from regard.core.score import Score
from regard.core.weights import (
    SAMPLED,
    AttentionType,
    AttentionWeights,
    drop_weights,
    gated_weights,
    hard_weights,
    masked_softmax,
    unnormalised,
)
from regard.errors import did_you_mean, shown


@dataclass(frozen=True)
class Alibi:
    """The bias −m·|i − j| added to the scores to favour near keys (ALiBi, Press et al. 2022); each head has its own m.

    slopes_H: m.  query_positions (..., 1, Lq): i.  key_positions (..., 1, Lk): j. Axis -2 broadcasts over the heads.
    """

    slopes_H: Tensor
    query_positions: Tensor
    key_positions: Tensor

    def rows(self, part: slice) -> Tensor:
        """Computes the bias (..., H, rows, Lk) of some query rows."""
        distance = (self.query_positions[..., part, None] - self.key_positions[..., None, :]).abs()
        return -self.slopes_H[:, None, None] * distance


@dataclass(frozen=True)
class Mechanism:
    """Everything that determines attention except queries, keys and values.

    generator: source of random numbers. Without one, hard and gated attention take the most probable choice, and dropout draws
    from torch's default generator of the device, as nn.Dropout does; `check` refuses that for functions, layers may do it.
    causal: whether `allow` is exactly masks.causal; the fused kernel then skips later keys without reading the mask.
    """

    score: Score
    allow: Tensor | None = None
    alibi: Alibi | None = None
    attention: AttentionType = "soft"
    dropout: float = 0.0
    generator: torch.Generator | None = None
    causal: bool = False

    def check(self) -> None:
        """Raises TypeError or ValueError if an option is invalid or conflicts with another."""
        if not isinstance(self.score, Score):
            raise TypeError(
                f"score is {shown(self.score)}, expected a Score such as regard.scores.General(query_width, key_width)"
            )
        if self.attention not in (types := ["soft", "unnormalised", *SAMPLED]):
            raise ValueError(
                f"attention is {shown(self.attention)}, expected one of {', '.join(types)}{did_you_mean(self.attention, types)}"
            )
        if isinstance(self.dropout, bool) or not isinstance(self.dropout, Real) or not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is {shown(self.dropout)}, expected a probability from 0 up to, but not including, 1")
        if self.generator is not None and not isinstance(self.generator, torch.Generator):
            raise TypeError(
                f"generator is {shown(self.generator)}, expected a torch.Generator; "
                "for a seed write torch.Generator().manual_seed(seed)"
            )
        if self.dropout and self.attention != "soft":
            raise ValueError(
                f"dropout is {self.dropout} and attention is {self.attention!r}; dropout applies to soft attention only"
            )
        if self.dropout and self.generator is None:
            raise ValueError(
                f"dropout is {self.dropout}, which needs random numbers, but there is no generator; "
                "pass generator=torch.default_generator, or your own generator"
            )

    def without_unknown(self, prepared: Tensor) -> Mechanism:
        """Returns the mechanism that also masks the keys whose score is undefined (`Score.known`)."""
        known = self.score.known(prepared)
        if known is None:
            return self
        known = known.unsqueeze(-2)
        return replace(self, allow=known if self.allow is None else masks.both(self.allow, known), causal=False)

    def picked(self, heads: Sequence[int] | None, rows: Sequence[int] | None) -> Mechanism:
        """Returns the mechanism for some heads (axis -3) and queries (axis -2) only; None means all."""
        allow, alibi = self.allow, self.alibi
        if allow is not None:
            allow = pick_axis(pick_axis(allow, -3, heads), -2, rows)
        if alibi is not None:
            slopes_H = pick_axis(alibi.slopes_H, -1, heads)
            alibi = replace(alibi, slopes_H=slopes_H, query_positions=pick_axis(alibi.query_positions, -1, rows))
        return replace(self, allow=allow, alibi=alibi, causal=self.causal and rows is None)

    def allow_rows(self, part: slice) -> Tensor | None:
        """Returns the mask of some query rows."""
        return self.allow if self.allow is None or self.allow.shape[-2] == 1 else self.allow[..., part, :]

    def bias_rows(self, part: slice) -> Tensor:
        """Computes the ALiBi bias of some query rows, −∞ where they may not attend."""
        assert self.alibi is not None
        rows, allow = self.alibi.rows(part), self.allow_rows(part)
        return rows if allow is None else rows.masked_fill(~allow, -math.inf)

    def scores(self, query: Tensor, prepared: Tensor, part: slice) -> Tensor:
        """Computes the scores of some query rows, before any mask."""
        scores = self.score.scores(query[..., part, :], prepared)
        return scores if self.alibi is None else scores + self.alibi.rows(part)

    def weights(self, query: Tensor, prepared: Tensor, part: slice, seed: int | None) -> AttentionWeights:
        """Computes the weights of some query rows, before dropout."""
        scores = self.scores(query, prepared, part)
        allow = self.allow_rows(part)
        if self.attention in SAMPLED:
            choose = hard_weights if self.attention == "hard" else gated_weights
            return choose(scores, allow, _make_generator(seed, scores.device))
        return AttentionWeights(masked_softmax(scores, allow) if self.attention == "soft" else unnormalised(scores, allow))

    def dropped(self, weights: Tensor, seed: int | None) -> Tensor:
        """Applies attention dropout. Without a seed, torch's default generator draws the numbers."""
        if not self.dropout:
            return weights
        generator = _make_generator(seed, weights.device)
        return F.dropout(weights, self.dropout) if generator is None else drop_weights(weights, self.dropout, generator)

    @property
    def is_random(self) -> bool:
        """Whether it draws random numbers."""
        return bool(self.dropout) or (self.generator is not None and self.attention in SAMPLED)

    def draw_seed(self) -> int | None:
        """Draws a seed for the random numbers of one tile, so that the backward pass can repeat them; None if not needed."""
        if self.generator is None or not self.is_random:
            return None
        seed = torch.randint(2**62, (), generator=self.generator, device=self.generator.device)
        if torch.compiler.is_exporting() or torch._C._functorch.is_batchedtensor(seed):
            raise ValueError(
                "a generator cannot draw numbers in an exported graph, nor in vmap with randomness='different'; for dropout "
                "use regard.MultiHeadAttention(dropout=…), and pass no generator for hard and gated attention"
            )
        return int(seed)


def pick_axis(tensor: Tensor, axis: int, numbers: Sequence[int] | None) -> Tensor:
    """Selects entries along a negative axis; an axis that is missing or has size 1 broadcasts and is left unchanged."""
    return tensor if tensor.dim() < -axis or tensor.shape[axis] == 1 else select_axis(tensor, axis, numbers)


def select_axis(tensor: Tensor, axis: int, numbers: Sequence[int] | None) -> Tensor:
    """Selects entries along an axis, which may have size 1; None means all."""
    return tensor if numbers is None else torch.cat([tensor.narrow(axis, number, 1) for number in numbers], dim=axis)


def _make_generator(seed: int | None, device: torch.device) -> torch.Generator | None:
    return None if seed is None else torch.Generator(device).manual_seed(seed)
