"""The training loop, complete in this file: learning rate, loss, updates, validation, checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor, nn

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
from regard.data.seeds import derived_seed
from regard.data.tokenizers.codec import PAD
from regard.errors import UserError
from regard.look import Look, Tap
from regard.models.contract import Decoded, Memory, Model, Seq2Seq
from regard.training.learner import Learner, TrainingState
from regard.training.settings import TrainSettings


@dataclass(frozen=True)
class Update:
    """The figures of one update of training.

    loss: per target token, including label smoothing. norm: the gradient norm before clipping.

    >>> updates = []
    >>> model = regard.train("pairs.tsv", steps=2, width=16, on_update=updates.append, quiet=True)
    >>> [update.number for update in updates], updates[1].loss < updates[0].loss
    ([0, 1], True)
    """

    number: int
    loss: float
    norm: float
    learning_rate: float
    num_targets: int


class Callbacks(Protocol):
    """The functions that `train` calls after an update, to validate the model, and to save it."""

    interrupted: bool
    """Whether the run should stop. The current update, its validation and its checkpoint are completed first."""

    def on_update(self, update: Update) -> None:
        """Called after every update."""

    def validate(self) -> float:
        """Returns the validation result of the current model; lower is better."""
        ...

    def save_best(self) -> None:
        """Called when the last validation result is the best so far."""

    def checkpoint(self) -> None:
        """Writes a checkpoint; raises UserError if the run was interrupted, unless it ends here."""


def learning_rate(number: int, settings: TrainSettings) -> float:
    """Returns the learning rate of an update: a linear warm-up, then the schedule; never 0, not even for the last update."""
    warmup = num_warmup(settings)
    rise = (number + 1) / warmup
    left = (settings.steps - number) / max(1, settings.steps - warmup)
    fall = {
        "linear": left,
        "cosine": 0.5 - 0.5 * math.cos(math.pi * min(1.0, left)),
        "inverse_sqrt": math.sqrt(warmup / (number + 1)),
        "constant": 1.0,
    }[settings.schedule]
    return settings.learning_rate * min(1.0, rise, fall)


def num_warmup(settings: TrainSettings) -> int:
    """Returns the number of warm-up updates."""
    return max(1, round(settings.warmup * settings.steps))


def same_rates(one: TrainSettings, other: TrainSettings, num_updates: int) -> bool:
    """Returns whether the first `num_updates` updates have the same learning rates under both settings."""
    return all(learning_rate(number, one) == learning_rate(number, other) for number in range(num_updates))


def train(
    learner: Learner,
    batches: Callable[[int], tuple[Batch, ...]],
    settings: TrainSettings,
    *,
    seed: int,
    callbacks: Callbacks,
    teacher: Seq2Seq | None = None,
) -> None:
    """Trains from the learner's last update to the end of the run.

    batches: returns the micro-batches of an update. Random numbers are a function of (seed, update, batch), so a resumed run
    repeats them exactly. teacher: a model whose distribution this one learns, too. Raises UserError if training diverges.
    """
    model = learner.model.train()
    device = next(model.parameters()).device
    while not finished(learner.state, settings):
        number = learner.state.update
        parts = batches(number)
        num_targets, loss = sum(part.num_targets for part in parts), 0.0
        for part, batch in enumerate(parts):
            torch.manual_seed(derived_seed(seed, "update", number, part))
            total, baseline = batch_loss(model, batch.to(device), settings, learner.state.baseline, teacher)
            (total / num_targets).backward()
            loss += total.item() / num_targets
            learner.state = replace(learner.state, baseline=baseline)
        norm = nn.utils.clip_grad_norm_(model.parameters(), settings.clip).item()
        if not math.isfinite(norm):
            raise UserError(
                f"update {number}: training diverged: the loss is {loss:.4g}, the gradient norm {norm:.4g}; "
                f"try a train.learning_rate below {settings.learning_rate:g}"
            )
        rate = learning_rate(number, settings)
        learner.update(rate)
        learner.state = replace(learner.state, update=number + 1)
        callbacks.on_update(Update(number, loss, norm, rate, num_targets))
        if settings.validate_every and (number + 1) % settings.validate_every == 0:
            learner.state = after_validation(learner.state, callbacks.validate())
            if learner.state.stale == 0:
                callbacks.save_best()
        stop = callbacks.interrupted
        if finished(learner.state, settings) or (number + 1) % settings.checkpoint_every == 0 or stop:
            callbacks.checkpoint()
        if stop:
            break
    model.eval()


def finished(state: TrainingState, settings: TrainSettings) -> bool:
    """Returns whether all updates are done, or the patience is used up."""
    return state.update >= settings.steps or bool(settings.patience and state.stale >= settings.patience)


def after_validation(state: TrainingState, value: float) -> TrainingState:
    """Returns the state after a validation with this result; `stale` is 0 if it is the best so far."""
    if state.best is None or value < state.best:
        return replace(state, best=value, best_at=state.update, stale=0)
    return replace(state, stale=state.stale + 1)


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
    total = decoded.loss(samples.target_out_BT, pad=PAD, smoothing=settings.label_smoothing)
    if teacher:
        taught_BTV = taught_by(teacher, batch).repeat_interleave(settings.samples, dim=0)
        taught = distillation_loss(decoded.distribution(), taught_BTV, samples.target_out_BT, pad=PAD)
        total = (1 - settings.teacher_weight) * total + settings.teacher_weight * taught
    if settings.doubly_stochastic:
        weights_BTS = decoded.seen[0].weights_BHTS.mean(1)
        real_BT = masks.not_padding(samples.target_out_BT, PAD)
        total = total + settings.doubly_stochastic * doubly_stochastic_loss(weights_BTS, real_BT, sampled_memory.allow_BS)
    if decoded.attention_log_prob_BT is None or not settings.policy_gradient:
        return total / settings.samples, baseline or Baseline()
    best_BT = None
    if settings.baseline == "self_critical":
        best_BT = token_rewards(most_probable(model, batch, memory), batch)
    choices, baseline = hard_attention_loss(decoded, samples, baseline, settings, best_BT)
    return (total + choices) / settings.samples, baseline


def repeated(batch: Batch, memory: Memory, num_samples: int) -> tuple[Batch, Memory]:
    """Returns the targets and the memory of every example as many times, one after the other; an encoder has run only once."""
    if num_samples == 1:
        return batch, memory

    def repeat(tensor: Tensor) -> Tensor:
        return tensor.repeat_interleave(num_samples, dim=0)

    targets = Batch(batch.source, repeat(batch.target_in_BT), repeat(batch.target_out_BT), num_samples * batch.num_targets)
    values_BSE, allow_BS, summary_BE = map(repeat, (memory.values_BSE, memory.allow_BS, memory.summary_BE))
    return targets, replace(memory, values_BSE=values_BSE, allow_BS=allow_BS, summary_BE=summary_BE)


@torch.no_grad()
def most_probable(model: Model, batch: Batch, memory: Memory) -> Decoded:
    """Returns the result of the most probable choices, without dropout."""
    training = model.training
    decoded = model.eval().decode(batch.target_in_BT, memory)
    model.train(training)
    return decoded


def token_rewards(decoded: Decoded, batch: Batch) -> Tensor:
    """Returns the log-probability of every target token, held constant; 0 at padding."""
    real_BT = masks.not_padding(batch.target_out_BT, PAD)
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

    real_BT = masks.not_padding(batch.target_out_BT, PAD)
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
