"""What training minimises: the loss of a batch, with the terms for hard attention, for a teacher and for even attention."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.core import masks
from regard.core.losses import (
    Baseline,
    distillation_loss,
    doubly_stochastic_loss,
    leave_one_out,
    policy_gradient,
    reward_to_go,
)
from regard.data.batch import Batch
from regard.look import Look, Tap
from regard.models.contract import Decoded, Memory, Model, Seq2Seq
from regard.training.settings import TrainSettings


def batch_loss(
    model: Model,
    batch: Batch,
    settings: TrainSettings,
    baseline: Baseline | None = None,
    teacher: Seq2Seq | None = None,
) -> tuple[Tensor, Baseline]:
    """Returns the loss summed over the target tokens, including that of hard or gated attention, and the next baseline.

    With several samples of the choices, it is the mean of their losses. baseline: the moving average of hard or gated
    attention; by default the mean reward of the batch itself.
    teacher: a model in evaluation mode; its distribution replaces the targets, by train.teacher_weight.
    """
    memory = model.encode(batch.source)
    samples, sampled_memory = repeated(batch, memory, settings.samples)
    look = Look((Tap("cross", layer=-1),), grad=True) if settings.doubly_stochastic else None
    decoded = model.decode(samples.target_in_BT, sampled_memory, look)
    total = decoded.loss(samples.target_out_BT, pad=batch.pad, smoothing=settings.label_smoothing)
    if teacher:
        taught_BTV = taught_by(teacher, batch).repeat_interleave(settings.samples, dim=0)
        taught = distillation_loss(decoded.distribution(), taught_BTV, samples.target_out_BT, pad=batch.pad)
        total = (1 - settings.teacher_weight) * total + settings.teacher_weight * taught
    if settings.doubly_stochastic:
        weights_BTS = decoded.seen[0].weights_BHTS.mean(1)
        real_BT = masks.not_padding(samples.target_out_BT, batch.pad)
        total = total + settings.doubly_stochastic * doubly_stochastic_loss(weights_BTS, real_BT, sampled_memory.allow_BS)
    if decoded.attention_log_prob_BT is None or not settings.policy_gradient:
        return total / settings.samples, baseline or Baseline()
    best_BT = None
    if settings.baseline == "self_critical":
        best_BT = token_rewards(most_probable(model, batch, memory), batch)
    choices, baseline = hard_attention_loss(decoded, samples, baseline, settings, best_BT)
    return (total + choices) / settings.samples, baseline


def repeated(batch: Batch, memory: Memory, num_samples: int) -> tuple[Batch, Memory]:
    """Returns the targets and the memory with every example `num_samples` times, one after the other; the encoder has run only
    once."""
    if num_samples == 1:
        return batch, memory

    def repeat(tensor: Tensor) -> Tensor:
        return tensor.repeat_interleave(num_samples, dim=0)

    targets = replace(
        batch,
        target_in_BT=repeat(batch.target_in_BT),
        target_out_BT=repeat(batch.target_out_BT),
        num_targets=num_samples * batch.num_targets,
    )
    tensors: dict[str, Any] = {name: repeat(value) for name, value in vars(memory).items() if isinstance(value, Tensor)}
    return targets, replace(memory, **tensors)


@torch.no_grad()
def most_probable(model: Model, batch: Batch, memory: Memory) -> Decoded:
    """Returns the result of the most probable choices, without dropout."""
    training = model.training
    decoded = model.eval().decode(batch.target_in_BT, memory)
    model.train(training)
    return decoded


def token_rewards(decoded: Decoded, batch: Batch) -> Tensor:
    """Returns the log-probability of every target token, held constant; 0 at padding."""
    real_BT = masks.not_padding(batch.target_out_BT, batch.pad)
    return decoded.log_probs(batch.target_out_BT).detach().masked_fill(~real_BT, 0.0)


@torch.no_grad()
def taught_by(teacher: Seq2Seq, batch: Batch) -> Tensor:
    """Returns the log-probabilities (B, T, V) that a teacher gives to the tokens of a batch."""
    return teacher.decode(batch.target_in_BT, teacher.encode(batch.source)).distribution()


def hard_attention_loss(
    decoded: Decoded, batch: Batch, baseline: Baseline | None, settings: TrainSettings, best_BT: Tensor | None = None
) -> tuple[Tensor, Baseline]:
    """Returns the policy-gradient loss of hard or gated attention, and the moving average for the next batch.

    batch: each example occurs settings.samples times. baseline: the moving average; None for the mean reward of the batch
    itself. best_BT: for settings.baseline=self_critical, the `token_rewards` of the most probable choices for each example.
    """
    assert decoded.attention_log_prob_BT is not None
    assert decoded.attention_entropy_BT is not None

    def affected(token_BT: Tensor) -> Tensor:
        """Sums over the tokens that a choice affects."""
        return reward_to_go(token_BT) if decoded.affects_later_steps else token_BT

    real_BT = masks.not_padding(batch.target_out_BT, batch.pad)
    token_BT = token_rewards(decoded, batch)
    following = (baseline or Baseline()).after((token_BT.sum() / batch.num_targets).item())
    reward_BT = affected(token_BT)
    if settings.baseline == "leave_one_out":
        expected_BT = leave_one_out(reward_BT.unflatten(0, (-1, settings.samples))).flatten(0, 1)
    elif best_BT is not None:
        expected_BT = affected(best_BT).repeat_interleave(settings.samples, dim=0)
    else:
        expected_BT = (baseline or following).value * affected(real_BT.to(reward_BT.dtype))
    loss = policy_gradient(
        reward_BT,
        decoded.attention_log_prob_BT * real_BT,
        decoded.attention_entropy_BT * real_BT,
        baseline=expected_BT,
        entropy_bonus=settings.entropy_bonus,
    )
    return loss, following
