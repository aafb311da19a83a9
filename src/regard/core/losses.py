"""What training minimises."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor


def sequence_loss(logits_BTV: Tensor, targets_BT: Tensor, *, pad: int, smoothing: float = 0.0) -> Tensor:
    """Cross-entropy summed over the real targets; padding counts neither in the sum nor in the smoothing."""
    return F.cross_entropy(
        logits_BTV.flatten(0, 1), targets_BT.flatten(), ignore_index=pad, label_smoothing=smoothing, reduction="sum"
    )


# --- hard attention ----------------------------------------------------------------------------------------------------------


def reward_to_go(log_prob_BT: Tensor) -> Tensor:
    """R_t = Σ_{t' ≥ t} log p(y_t' | a_≤t'), detached: what came of the decision at t and of those after it."""
    return log_prob_BT.detach().flip(-1).cumsum(-1).flip(-1)


def policy_gradient(
    reward_BT: Tensor,
    choice_log_prob_BT: Tensor,
    choice_entropy_BT: Tensor | None = None,
    *,
    baseline: float = 0.0,
    entropy_bonus: float = 0.0,
) -> Tensor:
    """−Σ_t (R_t − b) log π(a_t), whose gradient teaches where to look (Xu et al. 2015, 4.1; Williams 1992).

    reward_BT: R_t, detached (`reward_to_go`); where a decision bears on its own token alone, log p(y_t) does, with far less
    noise: the tokens after it add nothing in the mean. choice_log_prob_BT, choice_entropy_BT: of the decisions, 0 at padding.
    Added to −Σ_t log p(y_t | a_≤t), the gradient is, in the mean over the decisions, that of the expected log-likelihood.
    b (see `Baseline`) changes the spread of the estimate only, the bonus for undecided attention also its aim.
    """
    loss = -((reward_BT.detach() - baseline) * choice_log_prob_BT).sum()
    if choice_entropy_BT is None or not entropy_bonus:
        return loss
    return loss - entropy_bonus * choice_entropy_BT.sum()


@dataclass(frozen=True)
class Baseline:
    """A moving average of rewards, in which the first ones are a plain mean."""

    value: float = 0.0
    num_rewards: int = 0

    def after(self, reward: float, *, memory: float = 0.95) -> Baseline:
        share = max(1 - memory, 1 / (self.num_rewards + 1))
        return Baseline(self.value + share * (reward - self.value), self.num_rewards + 1)
