"""What training minimises."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

ROOM = 2**22
"""How many logits `projected_loss` holds at a time."""


def sequence_loss(logits_BTV: Tensor, targets_BT: Tensor, *, pad: int, smoothing: float = 0.0) -> Tensor:
    """Cross-entropy summed over the real targets; padding counts neither in the sum nor in the smoothing."""
    _check_targets(logits_BTV, targets_BT, smoothing)
    return F.cross_entropy(
        logits_BTV.flatten(0, 1), targets_BT.flatten(), ignore_index=pad, label_smoothing=smoothing, reduction="sum"
    )


def projected_loss(
    states_BTD: Tensor, weight_VD: Tensor, bias_V: Tensor, targets_BT: Tensor, *, pad: int, smoothing: float = 0.0
) -> Tensor:
    """`sequence_loss` of the logits states · weightᵀ + bias, which never exist all at once: a few rows at a time are worked off
    as far as their gradient. Padding is not even projected. Value and first gradient only."""
    _check_targets(states_BTD, targets_BT, smoothing)
    real_N = targets_BT.flatten().ne(pad).nonzero().squeeze(-1)
    states_ND, targets_N = states_BTD.flatten(0, 1)[real_N], targets_BT.flatten()[real_N]
    loss: Tensor = _ProjectedLoss.apply(states_ND, weight_VD, bias_V, targets_N, smoothing)  # type: ignore[no-untyped-call]
    return loss


def _check_targets(rows_BTX: Tensor, targets_BT: Tensor, smoothing: float) -> None:
    """(T, B) has as many targets as (B, T), so that nothing else would notice."""
    if targets_BT.shape != rows_BTX.shape[:-1]:
        raise ValueError(
            f"the targets have shape {tuple(targets_BT.shape)}, expected {tuple(rows_BTX.shape[:-1])}, one for each position"
        )
    if not isinstance(smoothing, Real) or isinstance(smoothing, bool) or not 0 <= smoothing <= 1:
        raise ValueError(f"smoothing is {smoothing!r}, expected a share from 0 to 1")


class _ProjectedLoss(torch.autograd.Function):
    """With z the logits of a row, y its target, ε the smoothing: lse(z) − (1−ε) z_y − ε mean(z); its gradient by z is
    softmax(z) − (1−ε) 1_y − ε/V."""

    @staticmethod
    def forward(ctx: Any, states_ND: Tensor, weight_VD: Tensor, bias_V: Tensor, targets_N: Tensor, smoothing: float) -> Tensor:
        V = len(weight_VD)
        wanted = any(ctx.needs_input_grad)
        d_states_ND, d_weight_VD, d_bias_V = torch.empty_like(states_ND), torch.zeros_like(weight_VD), torch.zeros_like(bias_V)
        mean_D, mean = weight_VD.mean(0), bias_V.mean()
        loss = states_ND.new_zeros(())
        rows = max(1, ROOM // V)
        for first in range(0, len(states_ND), rows):
            x_ND, y_N1 = states_ND[first : first + rows], targets_N[first : first + rows, None]
            z_NV = torch.addmm(bias_V, x_ND, weight_VD.t())
            p_NV = z_NV.softmax(-1)
            lse_N1 = z_NV.amax(-1, keepdim=True) - p_NV.amax(-1, keepdim=True).log()
            loss += (lse_N1 - (1 - smoothing) * z_NV.gather(1, y_N1)).sum() - smoothing * (x_ND @ mean_D + mean).sum()
            if wanted:
                p_NV.scatter_add_(1, y_N1, p_NV.new_full(y_N1.shape, smoothing - 1))
                p_NV.sub_(smoothing / V)
                torch.mm(p_NV, weight_VD, out=d_states_ND[first : first + rows])
                torch.addmm(d_weight_VD, p_NV.t(), x_ND, out=d_weight_VD)
                d_bias_V += p_NV.sum(0)
        if wanted:
            ctx.save_for_backward(d_states_ND, d_weight_VD, d_bias_V)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return (*(gradient * one for one in ctx.saved_tensors), None, None)


# --- hard attention ----------------------------------------------------------------------------------------------------------


def reward_to_go(log_prob_BT: Tensor) -> Tensor:
    """R_t = Σ_{t' ≥ t} log p(y_t' | a_≤t'), detached: what came of the decision at t and of those after it."""
    return log_prob_BT.detach().flip(-1).cumsum(-1).flip(-1)


def policy_gradient(
    reward_BT: Tensor,
    attention_log_prob_BT: Tensor,
    attention_entropy_BT: Tensor | None = None,
    *,
    baseline: Tensor | float = 0.0,
    entropy_bonus: float = 0.0,
) -> Tensor:
    """−Σ_t (R_t − b) log π(a_t), whose gradient teaches where to look (Xu et al. 2015, 4.1; Williams 1992).

    reward_BT: R_t, detached (`reward_to_go`); where a decision bears on its own token alone, log p(y_t) does, with far less
    noise: the tokens after it add nothing in the mean. attention_log_prob_BT, attention_entropy_BT: of the decisions, 0 at padding.
    Added to −Σ_t log p(y_t | a_≤t), the gradient is, in the mean over the decisions, that of the expected log-likelihood.
    b (a number, or one for each t; see `Baseline`) changes the spread of the estimate only, the bonus for undecided attention
    also its aim.
    """
    decisions = {"reward": reward_BT, "attention_log_prob": attention_log_prob_BT}
    if attention_entropy_BT is not None:
        decisions["attention_entropy"] = attention_entropy_BT
    elif entropy_bonus:
        raise ValueError(f"entropy_bonus is {entropy_bonus}, but there is no entropy; pass attention_entropy_BT, or no bonus")
    if len({one.shape for one in decisions.values()}) > 1:
        shapes = ", ".join(f"{name} {tuple(one.shape)}" for name, one in decisions.items())
        raise ValueError(f"the decisions have shapes {shapes}; expected equal ones, (B, T)")
    loss = -((reward_BT.detach() - baseline) * attention_log_prob_BT).sum()
    if attention_entropy_BT is None or not entropy_bonus:
        return loss
    return loss - entropy_bonus * attention_entropy_BT.sum()


@dataclass(frozen=True)
class Baseline:
    """A moving average of rewards, in which the first ones are a plain mean. Training keeps that of one token; what is to be
    expected of a decision is as many times as much as tokens are paid for it."""

    value: float = 0.0
    num_rewards: int = 0

    def after(self, reward: float, *, memory: float = 0.95) -> Baseline:
        share = max(1 - memory, 1 / (self.num_rewards + 1))
        return Baseline(self.value + share * (reward - self.value), self.num_rewards + 1)


def doubly_stochastic_loss(weights_BTS: Tensor, real_BT: Tensor, allow_BS: Tensor) -> Tensor:
    """Σ_i (1 − Σ_t α_ti)² over all real places i, summed over the batch: the doubly stochastic regulariser (Xu et al. 2015,
    eq. 14), which wants attention to have been everywhere when the last word is written."""
    looked_BS = (weights_BTS * real_BT.unsqueeze(-1)).sum(1)
    return ((1 - looked_BS).square() * allow_BS).sum()
