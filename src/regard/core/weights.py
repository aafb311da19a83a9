"""From scores to weights: softmax (soft), one key (hard), independent gates (gated), or the scores themselves (unnormalised).

Scores are (..., Lq, Lk). Hard and gated weights are sampled with the caller's generator; without one, they are the most
probable choice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

AttentionType = Literal["soft", "unnormalised", "hard", "gated"]
"""soft: softmax. unnormalised: the scores themselves (Σ_j f(q, k_j) v_j). hard: one key. gated: a 0/1 gate per key."""

SAMPLED = ("hard", "gated")
"""The types that choose keys, and need a policy gradient to train."""


@dataclass(frozen=True)
class AttentionWeights:
    """Weights (..., Lq, Lk).

    Hard and gated weights have no gradient; log_prob and entropy (..., Lq) of each query's choice have, for a policy gradient.
    """

    weights: Tensor
    log_prob: Tensor | None = None
    entropy: Tensor | None = None


def masked_softmax(scores: Tensor, allow: Tensor | None = None) -> Tensor:
    """Computes the softmax over the allowed keys. A row with no key allowed gives zeros, not NaN."""
    if allow is None:
        return scores.softmax(-1)
    filled = scores.masked_fill(~allow, torch.finfo(scores.dtype).min)
    return filled.softmax(-1).masked_fill(~allow, 0.0)


def unnormalised(scores: Tensor, allow: Tensor | None = None) -> Tensor:
    """Returns the scores as weights, with 0 for keys that are not allowed."""
    return scores if allow is None else scores.masked_fill(~allow, 0.0)


def hard_weights(scores: Tensor, allow: Tensor | None = None, generator: torch.Generator | None = None) -> AttentionWeights:
    """Puts all weight on one key, sampled from the softmax (Xu et al. 2015, 4.1), or the most probable one without a generator.

    A row with no key allowed gives zeros.
    """
    filled = scores if allow is None else scores.masked_fill(~allow, torch.finfo(scores.dtype).min)
    if not filled.shape[-1]:  # there are no keys
        return AttentionWeights(filled, filled.sum(-1), filled.sum(-1))
    log_weights = filled.log_softmax(-1)
    weights = masked_softmax(scores, allow)
    with torch.no_grad():
        race = weights  # argmax of p / Exp(1) is a sample from p, and p = 0 is never chosen
        if generator is not None:
            race = weights / torch.empty_like(weights).exponential_(generator=generator).clamp(min=1e-30)
        index = race.argmax(-1, keepdim=True)
        one_hot = torch.zeros_like(weights).scatter(-1, index, 1.0)
    log_prob, entropy = log_weights.gather(-1, index).squeeze(-1), -(weights * log_weights).sum(-1)
    if allow is None:
        return AttentionWeights(one_hot, log_prob, entropy)
    empty = ~allow.any(-1)
    return AttentionWeights(one_hot.masked_fill(~allow, 0.0), log_prob.masked_fill(empty, 0.0), entropy.masked_fill(empty, 0.0))


def gated_weights(scores: Tensor, allow: Tensor | None = None, generator: torch.Generator | None = None) -> AttentionWeights:
    """Returns the weights g / max(1, Σ g) of 0/1 gates g, one per key, sampled with probability σ(score).

    Without a generator, a gate is open if its probability is above 1/2.
    """
    probabilities = scores.sigmoid()
    with torch.no_grad():
        gates = (scores > 0).to(scores.dtype) if generator is None else probabilities.bernoulli(generator=generator)
        gates = unnormalised(gates, allow)
    log_prob = -F.softplus(torch.where(gates > 0, -scores, scores))
    entropy = F.softplus(scores) - scores * probabilities
    return AttentionWeights(
        weights=gates / gates.sum(-1, keepdim=True).clamp(min=1.0),
        log_prob=unnormalised(log_prob, allow).sum(-1),
        entropy=unnormalised(entropy, allow).sum(-1),
    )


def drop_weights(weights: Tensor, probability: float, generator: torch.Generator) -> Tensor:
    """Applies attention dropout: sets each weight to 0 with this probability and scales the others to keep the expectation."""
    return weights * torch.empty_like(weights).bernoulli_(1 - probability, generator=generator) / (1 - probability)
