"""The training loop. Read it top to bottom; there is nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor, nn

from regard.contracts import Decoded
from regard.core import masks
from regard.core.losses import Baseline, policy_gradient, projected_loss, reward_to_go
from regard.data.batch import Batch
from regard.data.tokenizers.codec import PAD
from regard.errors import UserError
from regard.models.build import Model
from regard.training.settings import TrainSettings


@dataclass(frozen=True)
class Update:
    """What is known after one update: the loss per target token (smoothing included), the gradient's norm before clipping."""

    number: int
    loss: float
    norm: float
    learning_rate: float
    num_targets: int


def learning_rate(number: int, settings: TrainSettings) -> float:
    """Up in a straight line for the warm-up, then down in a straight line; update 0 and the last one both move a little."""
    warmup = max(1, round(settings.warmup * settings.steps))
    rise = (number + 1) / warmup
    fall = (settings.steps - number) / max(1, settings.steps - warmup)
    return settings.learning_rate * min(1.0, rise, fall)


def train(
    model: Model, batches: Iterator[Batch], settings: TrainSettings, *, seed: int, record: Callable[[Update], None]
) -> None:
    """Randomness (dropout) is a function of (seed, update), never a stream that could be lost."""
    device = next(model.parameters()).device
    optimiser = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=settings.weight_decay, fused=True)
    baseline = Baseline()
    model.train()
    for number, batch in enumerate(islice(batches, settings.steps)):
        torch.manual_seed(seed * 2**32 + number)
        batch = batch.to(device)
        decoded = model.decode(batch.target_in_BT, model.encode(batch.source))
        total = projected_loss(
            decoded.states_BTD,
            decoded.weight_VD,
            decoded.bias_V,
            batch.target_out_BT,
            pad=PAD,
            smoothing=settings.label_smoothing,
        )
        if decoded.choice_log_prob_BT is not None:  # hard attention
            choices, baseline = choice_loss(decoded, batch, baseline, settings.entropy_bonus)
            total = total + choices
        loss = total / batch.num_targets
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        if not norm.isfinite():
            raise UserError(
                f"update {number}: the loss is {loss.item():.4g}, the gradient's norm {norm.item():.4g}; "
                f"the run has diverged and nothing was saved. Try a smaller train.learning_rate than {settings.learning_rate:g}"
            )
        rate = learning_rate(number, settings)
        for group in optimiser.param_groups:
            group["lr"] = rate
        optimiser.step()
        optimiser.zero_grad()
        record(Update(number, loss.item(), norm.item(), rate, batch.num_targets))
    model.eval()


def choice_loss(decoded: Decoded, batch: Batch, baseline: Baseline, entropy_bonus: float) -> tuple[Tensor, Baseline]:
    """What hard attention learns from, and the baseline for the next update."""
    assert decoded.choice_log_prob_BT is not None
    assert decoded.choice_entropy_BT is not None
    real_BT = masks.not_padding(batch.target_out_BT, PAD)
    log_probs_BTV = decoded.logits_BTV.detach().log_softmax(-1)
    log_prob_BT = log_probs_BTV.gather(-1, batch.target_out_BT.unsqueeze(-1)).squeeze(-1) * real_BT
    reward_BT = reward_to_go(log_prob_BT) if decoded.choices_last else log_prob_BT.detach()
    loss = policy_gradient(
        reward_BT,
        decoded.choice_log_prob_BT * real_BT,
        decoded.choice_entropy_BT * real_BT,
        baseline=baseline.value,
        entropy_bonus=entropy_bonus,
    )
    return loss, baseline.after(((reward_BT * real_BT).sum() / batch.num_targets).item())
