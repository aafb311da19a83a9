"""`Decoded` is what a loss needs; a model need not compute logits from an output projection."""

from dataclasses import dataclass

import pytest
import torch
from table import PAD, make_source
from torch import Tensor, nn

from regard.core.losses import Baseline
from regard.core.source import Source
from regard.data.batch import Batch
from regard.errors import UserError
from regard.models.contract import Decoded, Memory, Projected
from regard.training.objective import batch_loss, hard_attention_loss
from regard.training.settings import TrainSettings

B, T, V = 3, 5, 7
TARGETS = torch.tensor([[4, 6, 1, 5, 3], [5, 3, PAD, PAD, PAD], [3, PAD, PAD, PAD, PAD]])
REAL = TARGETS != PAD


@dataclass(frozen=True, eq=False)
class Mixture(Decoded):
    """p = Σ_k π_k p_k, from log π (B, T, K) and log p_k (B, T, K, V), as of a pointer network or summed hard attention."""

    log_mixture_BTK: Tensor
    log_probs_BTKV: Tensor

    def distribution(self) -> Tensor:
        return (self.log_mixture_BTK.unsqueeze(-1) + self.log_probs_BTKV).logsumexp(-2)


class MixtureModel(nn.Module):
    """Decodes to a mixture of two distributions, whatever it reads."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.mixture = nn.Parameter(torch.randn(B, T, 2, generator=generator, dtype=torch.float64))
        self.logits = nn.Parameter(torch.randn(B, T, 2, V, generator=generator, dtype=torch.float64))

    def encode(self, source: Source, look: None = None) -> Memory:
        nothing = torch.zeros(B, 0)
        return Memory(nothing[:, :, None], nothing.bool(), nothing, axes=(0,))

    def decode(self, ids_BT: Tensor, memory: Memory, look: None = None) -> Mixture:
        return Mixture(self.mixture.log_softmax(-1), self.logits.log_softmax(-1))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_mixture_of_distributions_is_trained(smoothing: float) -> None:
    """Against probabilities: −Σ q log(Σ_k π_k p_k), where q has 1 − ε at the target and ε/V everywhere."""
    model = MixtureModel()
    batch = Batch(make_source(7, 5, 3), TARGETS.roll(1, 1), TARGETS, int(REAL.sum()))
    loss, baseline = batch_loss(model, batch, TrainSettings(label_smoothing=smoothing), Baseline())  # type: ignore[arg-type]
    loss.backward()
    assert baseline == Baseline()

    mixture, logits = (parameter.detach().clone().requires_grad_() for parameter in model.parameters())
    p = torch.einsum("btk,btkv->btv", mixture.softmax(-1), logits.softmax(-1))
    expected = torch.zeros((), dtype=torch.float64)
    for b, t in REAL.nonzero().tolist():
        q = torch.full((V,), smoothing / V, dtype=torch.float64)
        q[TARGETS[b, t]] += 1 - smoothing
        expected = expected - (q * p[b, t].log()).sum()
    expected.backward()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(model.mixture.grad, mixture.grad)
    torch.testing.assert_close(model.logits.grad, logits.grad)
    assert model.logits.grad is not None
    assert not model.logits.grad[~REAL].any()


def impossible(token: int) -> Mixture:
    """Returns a mixture that gives this token the probability 0."""
    logits = torch.randn(B, T, 2, V, generator=torch.Generator().manual_seed(2))
    logits[..., token] = -torch.inf
    return Mixture(
        torch.full((B, T, 2), 0.5).log(),
        logits.log_softmax(-1),
        attention_log_prob_BT=-torch.rand(B, T),
        attention_entropy_BT=torch.rand(B, T),
    )


def test_label_smoothing_requires_that_every_token_is_possible() -> None:
    with pytest.raises(UserError, match=r"gives some tokens the probability 0; set train.label_smoothing=0"):
        impossible(2).loss(TARGETS, pad=PAD, smoothing=0.1)
    assert impossible(2).loss(TARGETS, pad=PAD).isfinite()
    assert impossible(4).loss(TARGETS, pad=PAD) == torch.inf  # 4 is a target


def test_padding_that_is_impossible_does_not_count() -> None:
    decoded, batch = impossible(PAD), Batch(make_source(7, 5, 3), TARGETS, TARGETS, int(REAL.sum()))
    assert decoded.loss(TARGETS, pad=PAD).isfinite()
    loss, baseline = hard_attention_loss(decoded, batch, Baseline(), TrainSettings())
    assert loss.isfinite()
    assert baseline.value == pytest.approx(decoded.log_probs(TARGETS)[REAL].mean().item(), rel=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
def test_a_projection_has_the_loss_of_its_distribution(smoothing: float) -> None:
    projected = Projected(
        *(torch.randn(*sizes, dtype=torch.float64, requires_grad=True) for sizes in ((B, T, 11), (V, 11), (V,)))
    )
    parts = projected.states_BTD, projected.weight_VD, projected.bias_V
    cheap, plain = (
        projected.loss(TARGETS, pad=PAD, smoothing=smoothing),
        Decoded.loss(projected, TARGETS, pad=PAD, smoothing=smoothing),
    )
    torch.testing.assert_close(cheap, plain)
    for ours, theirs in zip(torch.autograd.grad(cheap, parts), torch.autograd.grad(plain, parts), strict=True):
        torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(projected.distribution().exp(), projected.logits_BTV.softmax(-1))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_targets_of_the_wrong_shape_are_refused(smoothing: float) -> None:
    for decoded in (impossible(2), Projected(torch.randn(B, T, 11), torch.randn(V, 11), torch.randn(V))):
        with pytest.raises(ValueError, match=r"the targets have shape \(5, 3\), expected \(3, 5\)"):
            decoded.loss(TARGETS.T, pad=PAD, smoothing=smoothing)
    for wrong in (-0.1, 1.5, True):
        with pytest.raises(ValueError, match=r"smoothing is .*, expected a number from 0 to 1"):
            Decoded.loss(
                Projected(torch.randn(B, T, 11), torch.randn(V, 11), torch.randn(V)), TARGETS, pad=PAD, smoothing=wrong
            )
