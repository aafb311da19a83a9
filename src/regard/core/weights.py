"""From scores to weights: softly, by choosing one key, by opening gates, or not at all.

Scores are (..., Lq, Lk). Random numbers come from the generator in the caller's hand; without one, choices are arg-max.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

AttentionType = Literal["soft", "unnormalised", "hard", "gated"]
"""soft: softmax. sum: the scores as they are (Σ_j f(q, k_j) v_j). one: a single key. gates: any keys, each decided alone."""

HARD = ("hard", "gated")


@dataclass(frozen=True)
class AttentionWeights:
    """Weights (..., Lq, Lk). Where attention is hard they have no gradient; what a policy gradient needs has: log_prob and
    entropy (..., Lq) of the decision of each query."""

    weights: Tensor
    log_prob: Tensor | None = None
    entropy: Tensor | None = None


def masked_softmax(scores: Tensor, allow: Tensor | None = None) -> Tensor:
    """How much each query looks at each key: softmax over the allowed keys. A row with nothing allowed gives zeros, not NaN."""
    if allow is None:
        return scores.softmax(-1)
    filled = scores.masked_fill(~allow, torch.finfo(scores.dtype).min)
    return filled.softmax(-1).masked_fill(~allow, 0.0)


def unnormalised(scores: Tensor, allow: Tensor | None = None) -> Tensor:
    """The scores themselves as weights; 0 for keys that are not allowed."""
    return scores if allow is None else scores.masked_fill(~allow, 0.0)


def hard_weights(scores: Tensor, allow: Tensor | None = None, generator: torch.Generator | None = None) -> AttentionWeights:
    """All weight on one key, drawn from the softmax (Xu et al. 2015, 4.1), or the likeliest. Nothing allowed: no key."""
    filled = scores if allow is None else scores.masked_fill(~allow, torch.finfo(scores.dtype).min)
    if not filled.shape[-1]:  # there is no key at all
        return AttentionWeights(filled, filled.sum(-1), filled.sum(-1))
    log_weights = filled.log_softmax(-1)
    weights = masked_softmax(scores, allow)
    with torch.no_grad():
        race = weights  # the largest p / Exp(1) is a draw from p, and p = 0 never wins
        if generator is not None:
            race = weights / torch.empty_like(weights).exponential_(generator=generator).clamp_(min=1e-30)
        index = race.argmax(-1, keepdim=True)
        one = torch.zeros_like(weights).scatter_(-1, index, 1.0)
    log_prob, entropy = log_weights.gather(-1, index).squeeze(-1), -(weights * log_weights).sum(-1)
    if allow is None:
        return AttentionWeights(one, log_prob, entropy)
    empty = ~allow.any(-1)
    return AttentionWeights(one.masked_fill(~allow, 0.0), log_prob.masked_fill(empty, 0.0), entropy.masked_fill(empty, 0.0))


def gated_weights(scores: Tensor, allow: Tensor | None = None, generator: torch.Generator | None = None) -> AttentionWeights:
    """A 0/1 gate per key, open with probability σ(score), or where that is above 1/2; weights g / max(1, Σ g)."""
    chances = scores.sigmoid()
    with torch.no_grad():
        gates = (scores > 0).to(scores.dtype) if generator is None else chances.bernoulli(generator=generator)
        gates = unnormalised(gates, allow)
    log_prob = -F.softplus(torch.where(gates > 0, -scores, scores))
    entropy = F.softplus(scores) - scores * chances
    return AttentionWeights(
        weights=gates / gates.sum(-1, keepdim=True).clamp(min=1.0),
        log_prob=unnormalised(log_prob, allow).sum(-1),
        entropy=unnormalised(entropy, allow).sum(-1),
    )


def drop_weights(weights: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Attention dropout: each weight is set to 0 with this probability, the others grow so that the mean stays."""
    return weights * torch.empty_like(weights).bernoulli_(1 - share, generator=generator) / (1 - share)
