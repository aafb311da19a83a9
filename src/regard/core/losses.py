"""Loss functions: cross-entropy for teacher forcing, the policy gradient of hard attention, doubly stochastic attention."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.core import masks
from regard.core.linear import product
from regard.core.precision import exact
from regard.errors import UserError

__all__ = [
    "Baseline",
    "distillation_loss",
    "doubly_stochastic_loss",
    "leave_one_out",
    "policy_gradient",
    "projected_loss",
    "reward_to_go",
    "sequence_loss",
    "smoothed_loss",
    "target_log_probs",
]

MAX_LOGITS = 2**22
"""The most logits that `projected_loss` holds at a time."""


def sequence_loss(logits_BTV: Tensor, targets_BT: Tensor, *, pad: int, smoothing: float = 0.0) -> Tensor:
    """Computes the cross-entropy with label smoothing, summed over all targets except padding.

    >>> logits, targets = torch.zeros(1, 3, 4), torch.tensor([[2, 1, 0]])
    >>> regard.losses.sequence_loss(logits, targets, pad=0)  # two targets, each of probability 1/4
    tensor(2.7726)
    """
    _check_targets(logits_BTV.shape[:-1], targets_BT)
    _check_smoothing(smoothing)
    return F.cross_entropy(
        logits_BTV.flatten(0, 1), targets_BT.flatten(), ignore_index=pad, label_smoothing=smoothing, reduction="sum"
    )


def projected_loss(
    states_BTD: Tensor, weight_VD: Tensor, bias_V: Tensor, targets_BT: Tensor, *, pad: int, smoothing: float = 0.0
) -> Tensor:
    """Computes `sequence_loss` of the logits states · weightᵀ + bias without holding all logits at once.

    Logits and their gradient are computed for some rows at a time, and not at all for padding. First derivatives only. Under
    autocast, too, they are computed in the type of the weight: a sum over a batch has more digits than half precision.

    >>> states, weight, bias = torch.zeros(1, 3, 8), torch.zeros(4, 8), torch.zeros(4)
    >>> regard.losses.projected_loss(states, weight, bias, torch.tensor([[2, 1, 0]]), pad=0)
    tensor(2.7726)
    """
    _check_targets(states_BTD.shape[:-1], targets_BT)
    _check_smoothing(smoothing)
    real_N = targets_BT.flatten().ne(pad).nonzero().squeeze(-1)
    states_ND, targets_N = states_BTD.flatten(0, 1)[real_N], targets_BT.flatten()[real_N]
    with exact(states_ND.device):
        states_ND = states_ND.to(weight_VD.dtype)
        loss: Tensor = _ProjectedLoss.apply(states_ND, weight_VD, bias_V, targets_N, smoothing)  # type: ignore[no-untyped-call]
    return loss


def target_log_probs(log_probs_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """Returns the log-probability of each target, (B, T).

    >>> log_probs = torch.tensor([[[0.75, 0.25], [0.5, 0.5]]]).log()
    >>> regard.losses.target_log_probs(log_probs, torch.tensor([[0, 1]])).exp()
    tensor([[0.7500, 0.5000]])
    """
    _check_targets(log_probs_BTV.shape[:-1], targets_BT)
    return log_probs_BTV.gather(-1, targets_BT.unsqueeze(-1)).squeeze(-1)


def smoothed_loss(log_probs_BTV: Tensor, targets_BT: Tensor, *, pad: int, smoothing: float) -> Tensor:
    """Computes `sequence_loss` from log-probabilities, for models without logits: −(1−ε) log p(y) − ε/V Σ_v log p(v).

    Raises UserError if a token has the probability 0, because label smoothing expects some of it from every token.

    >>> log_probs = torch.full((1, 2, 4), 0.25).log()
    >>> regard.losses.smoothed_loss(log_probs, torch.tensor([[3, 0]]), pad=0, smoothing=0.1)
    tensor(1.3863)
    """
    _check_smoothing(smoothing)
    real_BT = masks.not_padding(targets_BT, pad)
    log_prob_N, log_probs_NV = target_log_probs(log_probs_BTV, targets_BT)[real_BT], log_probs_BTV[real_BT]
    if torch.isneginf(log_probs_NV).any():
        raise UserError(
            f"label smoothing is {smoothing}, but this model gives some tokens the probability 0; set train.label_smoothing=0"
        )
    return -((1 - smoothing) * log_prob_N + smoothing * log_probs_NV.mean(-1)).sum()


def distillation_loss(log_probs_BTV: Tensor, teacher_BTV: Tensor, targets_BT: Tensor, *, pad: int) -> Tensor:
    """Returns the cross-entropy between a teacher and a model, −Σ_v q(v) log p(v), summed over all targets except padding
    (word-level knowledge distillation: Hinton et al. 2015; Kim & Rush 2016, 3.1).

    log_probs_BTV: log p, of the model.  teacher_BTV: log q, of the teacher, which gets no gradient.

    >>> p, q = torch.tensor([[[0.5, 0.5]]]).log(), torch.tensor([[[0.75, 0.25]]]).log()
    >>> regard.losses.distillation_loss(p, q, torch.tensor([[1]]), pad=0)
    tensor(0.6931)
    """
    real_BT = masks.not_padding(targets_BT, pad)
    log_p_NV, q_NV = log_probs_BTV[real_BT], teacher_BTV.detach()[real_BT].exp()
    return -(q_NV * log_p_NV.masked_fill(q_NV == 0, 0.0)).sum()  # 0 · log 0 is 0


def _check_targets(expected: tuple[int, ...], targets_BT: Tensor) -> None:
    """Raises ValueError for a wrong shape. (T, B) has as many targets as (B, T), so no later check would notice."""
    if targets_BT.shape != expected:
        raise ValueError(f"the targets have shape {tuple(targets_BT.shape)}, expected {tuple(expected)}, one for each position")


def _check_smoothing(smoothing: float) -> None:
    if not isinstance(smoothing, Real) or isinstance(smoothing, bool) or not 0 <= smoothing <= 1:
        raise ValueError(f"smoothing is {smoothing!r}, expected a number from 0 to 1")


class _ProjectedLoss(torch.autograd.Function):
    """lse(z) − (1−ε) z_y − ε mean(z), where z are the logits of a row, y is its target and ε the smoothing. The gradient with
    respect to z is softmax(z) − (1−ε) 1_y − ε/V."""

    @staticmethod
    def forward(ctx: Any, states_ND: Tensor, weight_VD: Tensor, bias_V: Tensor, targets_N: Tensor, smoothing: float) -> Tensor:
        V = len(weight_VD)
        needs_grad = any(ctx.needs_input_grad)
        d_states_ND, d_weight_VD, d_bias_V = torch.empty_like(states_ND), torch.zeros_like(weight_VD), torch.zeros_like(bias_V)
        multiply = product if needs_grad else F.linear
        mean_D, mean = weight_VD.mean(0), bias_V.mean()
        loss = states_ND.new_zeros(())
        rows = max(1, MAX_LOGITS // V)
        for first in range(0, len(states_ND), rows):
            x_ND, y_N1 = states_ND[first : first + rows], targets_N[first : first + rows, None]
            z_NV = multiply(x_ND, weight_VD, bias_V)
            p_NV = z_NV.softmax(-1)
            lse_N1 = z_NV.amax(-1, keepdim=True) - p_NV.amax(-1, keepdim=True).log()
            loss += (lse_N1 - (1 - smoothing) * z_NV.gather(1, y_N1)).sum() - smoothing * (x_ND @ mean_D + mean).sum()
            if needs_grad:
                p_NV.scatter_add_(1, y_N1, p_NV.new_full(y_N1.shape, smoothing - 1))
                p_NV.sub_(smoothing / V)
                d_states_ND[first : first + rows] = multiply(p_NV, weight_VD.t())
                d_weight_VD += multiply(p_NV.t(), x_ND.t())
                d_bias_V += p_NV.sum(0)
        if needs_grad:
            ctx.save_for_backward(d_states_ND, d_weight_VD, d_bias_V)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return (*(gradient * saved for saved in ctx.saved_tensors), None, None)


# --- hard attention ----------------------------------------------------------------------------------------------------------


def reward_to_go(log_prob_BT: Tensor) -> Tensor:
    """Computes R_t = Σ_{t' ≥ t} log p(y_t' | a_≤t'), detached: the rewards that the choice at t can affect.

    >>> regard.losses.reward_to_go(torch.tensor([[-1.0, -2.0, -4.0]]))
    tensor([[-7., -6., -4.]])
    """
    return log_prob_BT.detach().flip(-1).cumsum(-1).flip(-1)


def policy_gradient(
    reward_BT: Tensor,
    attention_log_prob_BT: Tensor,
    attention_entropy_BT: Tensor | None = None,
    *,
    baseline: Tensor | float = 0.0,
    entropy_bonus: float = 0.0,
) -> Tensor:
    """Computes −Σ_t (R_t − b) log π(a_t), whose gradient trains hard attention (Xu et al. 2015, 4.1; Williams 1992).

    Add it to −Σ_t log p(y_t | a_≤t): in expectation over the choices a_t, the gradient of the sum is that of the negative
    expected log-likelihood.

    reward_BT: R_t, held constant (`reward_to_go`). If a choice affects only its own token, pass log p(y_t) instead: the later
    tokens add nothing in expectation, and the variance is far lower without them.
    attention_log_prob_BT, attention_entropy_BT: log π(a_t) and the entropy of each choice, 0 at padding.
    baseline: b, a number or one for each t (see `Baseline` and `leave_one_out`); it changes only the variance of the estimate.
    entropy_bonus: rewards undecided attention; it also changes the expectation.
    Raises ValueError if the shapes differ, or if there is a bonus but no entropy.

    >>> reward, log_prob = torch.tensor([[-1.0, -3.0]]), torch.tensor([[-0.5, -0.25]])
    >>> regard.losses.policy_gradient(reward, log_prob, baseline=-2.0)
    tensor(0.2500)
    """
    tensors = {"reward": reward_BT, "attention_log_prob": attention_log_prob_BT}
    if attention_entropy_BT is not None:
        tensors["attention_entropy"] = attention_entropy_BT
    elif entropy_bonus:
        raise ValueError(
            f"entropy_bonus is {entropy_bonus}, but no entropy was given; pass attention_entropy_BT, or leave out entropy_bonus"
        )
    if len({tensor.shape for tensor in tensors.values()}) > 1:
        shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in tensors.items())
        raise ValueError(f"reward, log-probability and entropy have shapes {shapes}; expected equal shapes (B, T)")
    loss = -((reward_BT.detach() - baseline) * attention_log_prob_BT).sum()
    if attention_entropy_BT is None or not entropy_bonus:
        return loss
    return loss - entropy_bonus * attention_entropy_BT.sum()


@dataclass(frozen=True)
class Baseline:
    """An exponential moving average of rewards, which starts as the plain mean of the first ones.

    Training keeps the average reward per token; the baseline of a choice is this times the number of tokens in its reward.

    >>> baseline = regard.losses.Baseline().after(-2.0).after(-4.0)
    >>> baseline.value
    -3.0
    """

    value: float = 0.0
    num_rewards: int = 0

    def after(self, reward: float, *, memory: float = 0.95) -> Baseline:
        """Returns the average with one more reward; `memory` is the share of the old average."""
        share = max(1 - memory, 1 / (self.num_rewards + 1))
        return Baseline(self.value + share * (reward - self.value), self.num_rewards + 1)


def leave_one_out(reward_BKT: Tensor) -> Tensor:
    """Computes a baseline for each of K ≥ 2 samples of one example: the mean reward of the K − 1 others (Kool et al. 2019).

    The others are drawn independently, so the estimate stays unbiased; and unlike a moving average they know the example and
    the step. Raises ValueError if there is only one sample.

    >>> regard.losses.leave_one_out(torch.tensor([[[-1.0], [-2.0], [-6.0]]]))
    tensor([[[-4.0000],
             [-3.5000],
             [-1.5000]]])
    """
    num_samples = reward_BKT.shape[1]
    if num_samples < 2:
        raise ValueError(f"leave_one_out compares samples of one example, but there is {num_samples}; expected 2 or more")
    return (reward_BKT.sum(1, keepdim=True) - reward_BKT) / (num_samples - 1)


def doubly_stochastic_loss(weights_BTS: Tensor, real_BT: Tensor, allow_BS: Tensor) -> Tensor:
    """Computes Σ_i (1 − Σ_t α_ti)² over all source positions i except padding, summed over the batch.

    This is the doubly stochastic regulariser (Xu et al. 2015, eq. 14): it makes the model attend to every source position by
    the end of the output. real_BT: False at target padding.

    >>> weights = torch.tensor([[[1.0, 0.0], [1.0, 0.0]]])  # both steps attend to the first position
    >>> real = torch.ones(1, 2, dtype=torch.bool)
    >>> regard.losses.doubly_stochastic_loss(weights, real, real)
    tensor(2.)
    """
    total_BS = (weights_BTS * real_BT.unsqueeze(-1)).sum(1)
    return ((1 - total_BS).square() * allow_BS).sum()
