"""The policy gradient with several samples, against the sum over all choices: its mean and its variance, by enumeration."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch
from table import EOS, MODELS, make_source
from torch import Tensor

from regard.core.losses import Baseline, leave_one_out
from regard.data.batch import Batch
from regard.models.rnn_seq2seq import RnnSeq2Seq, RnnSettings
from regard.training.objective import batch_loss
from regard.training.settings import TrainSettings

# M entries of all parameters together

DECODERS = {
    "bahdanau": replace(MODELS["rnn gru, bahdanau, hard"], dropout=0.0),
    "input feeding": replace(MODELS["rnn hard"], input_feeding=True, dropout=0.0),
    "luong": replace(MODELS["rnn hard"], dropout=0.0),
}
SETTINGS = {
    "moving": TrainSettings(),
    "moving, 2 samples": TrainSettings(samples=2),
    "leave one out": TrainSettings(samples=2, baseline="leave_one_out"),
    "self-critical": TrainSettings(baseline="self_critical"),
    "self-critical, 2 samples": TrainSettings(samples=2, baseline="self_critical"),
}
every_decoder = pytest.mark.parametrize("decoder", DECODERS)
every_setting = pytest.mark.parametrize("setting", SETTINGS)
LENGTH = 3
OUTPUTS = ([7, EOS], [EOS])
"""The outputs of two examples with three source positions each."""


class Forced:
    """Replaces sampling, which takes the arg-max of p / noise: in the next forward pass, row n of the batch chooses paths[n][t]
    at step t. Without paths, sampling is as ever."""

    real_noise = torch.Tensor.exponential_

    def __init__(self) -> None:
        self.use()

    def use(self, *paths: Sequence[int]) -> None:
        self.paths, self.step = paths, 0

    def noise(self, x: Tensor, generator: torch.Generator) -> Tensor:
        if not self.paths:
            return Forced.real_noise(x, generator=generator)
        x.fill_(1e20)
        for row, path in enumerate(self.paths):
            for column in range(x.shape[2]):
                x[row, 0, column, path[self.step + column]] = 1e-20
        self.step += x.shape[2]
        return x


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> Forced:
    choices = Forced()
    monkeypatch.setattr(torch.Tensor, "exponential_", lambda x, *, generator: choices.noise(x, generator))
    return choices


def make(decoder: str) -> RnnSeq2Seq:
    torch.manual_seed(5)
    settings = DECODERS[decoder]
    assert isinstance(settings, RnnSettings)
    model = RnnSeq2Seq(settings, 13, 13).double().train()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)  # choices that matter, and are not equally likely
        model.output.bias[7] -= 4.0  # the first example is far less probable than the second
    return model


def batch_of(output: Sequence[int]) -> Batch:
    targets = torch.tensor([output])
    return Batch(make_source(LENGTH), torch.cat((torch.tensor([[2]]), targets[:, :-1]), dim=1), targets, len(output))


def gradient(loss: Tensor, model: RnnSeq2Seq) -> Tensor:
    parts = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True, materialize_grads=True)
    return torch.cat([part.flatten() for part in parts])


def all_paths(output: Sequence[int]) -> list[tuple[int, ...]]:
    return list(itertools.product(range(LENGTH), repeat=len(output)))


def exact(model: RnnSeq2Seq, output: Sequence[int], forced: Forced) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the probability of each path, the gradient of −Σ_a π(a) log p(y | a), and the mean log p(y | a)."""
    batch, log_pis, log_ps = batch_of(output), [], []
    for path in all_paths(output):
        forced.use(path)
        decoded = model.decode(batch.target_in_BT, model.encode(batch.source))
        assert decoded.attention_log_prob_BT is not None
        log_pis.append(decoded.attention_log_prob_BT.sum())
        log_ps.append(decoded.log_probs(batch.target_out_BT).sum())
    pi, log_p = torch.stack(log_pis).exp(), torch.stack(log_ps)
    torch.testing.assert_close(pi.sum(), torch.ones((), dtype=torch.float64))
    assert pi.max() < 0.9
    mean = (pi * log_p).sum()
    return pi.detach(), gradient(-mean, model), mean.detach()


def estimates(
    model: RnnSeq2Seq, output: Sequence[int], forced: Forced, settings: TrainSettings, baseline: Baseline
) -> Iterator[tuple[tuple[int, ...], Tensor]]:
    """Yields the indices of each tuple of sampled paths, with the gradient that `batch_loss` estimates from it."""
    paths = all_paths(output)
    for numbers in itertools.product(range(len(paths)), repeat=settings.samples):
        forced.use(*(paths[number] for number in numbers))
        loss, _ = batch_loss(model, batch_of(output), settings, baseline)
        yield numbers, gradient(loss, model)


@every_decoder
@every_setting
def test_the_estimate_is_unbiased(decoder: str, setting: str, forced: Forced) -> None:  # SPEC A3.2
    """The expectation over all tuples of samples is the gradient of the expectation over all choices."""
    model, settings = make(decoder), SETTINGS[setting]
    pi, expected_M, _ = exact(model, OUTPUTS[0], forced)
    mean_M = torch.zeros_like(expected_M)
    for numbers, estimate_M in estimates(model, OUTPUTS[0], forced, settings, Baseline(-2.0, 7)):
        mean_M += pi[list(numbers)].prod() * estimate_M
    torch.testing.assert_close(mean_M, expected_M, rtol=1e-9, atol=1e-9)
    assert expected_M.norm() > 0.1


def variance(model: RnnSeq2Seq, forced: Forced, settings: TrainSettings) -> float:
    """Returns the variance of the estimated gradient, summed over its entries and both examples. The moving average has
    converged: it is the mean reward per token."""
    found = [(output, *exact(model, output, forced)) for output in OUTPUTS]
    baseline = Baseline((sum(mean for *_, mean in found) / sum(map(len, OUTPUTS))).item(), 1000)  # type: ignore[union-attr]
    total = 0.0
    for output, pi, expected_M, _ in found:
        for numbers, estimate_M in estimates(model, output, forced, settings, baseline):
            total += (pi[list(numbers)].prod() * (estimate_M - expected_M).square().sum()).item()
    return total


@every_decoder
def test_the_variance_is_lower_than_with_the_moving_average(decoder: str, forced: Forced) -> None:
    """With as many samples: the examples differ, and a moving average does not know them."""
    model = make(decoder)
    found = {name: variance(model, forced, settings) for name, settings in SETTINGS.items()}
    assert found["moving, 2 samples"] == pytest.approx(found["moving"] / 2)
    assert found["self-critical, 2 samples"] == pytest.approx(found["self-critical"] / 2)
    assert found["leave one out"] < 0.8 * found["moving, 2 samples"], found
    assert found["self-critical"] < 0.8 * found["moving"], found


def test_the_mean_of_many_samples_approaches_the_gradient(forced: Forced) -> None:
    """20 times 200 samples as they are drawn in training; the sum of squared errors is about that of 20 independent draws."""
    model, settings = make("bahdanau"), TrainSettings(samples=200, baseline="leave_one_out")
    _, expected_M, _ = exact(model, OUTPUTS[0], forced)
    forced.use()
    torch.manual_seed(1)
    drawn_NM = torch.stack([gradient(batch_loss(model, batch_of(OUTPUTS[0]), settings)[0], model) for _ in range(20)])
    error = (drawn_NM.mean(0) - expected_M).norm()
    assert 0 < error < 2 * (drawn_NM.var(0).sum() / len(drawn_NM)).sqrt()
    assert error < 0.05 * expected_M.norm()


def test_leave_one_out_is_the_mean_of_the_others() -> None:
    reward_BKT = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(2))
    for b, k in itertools.product(range(2), range(3)):
        others = [reward_BKT[b, other] for other in range(3) if other != k]
        torch.testing.assert_close(leave_one_out(reward_BKT)[b, k], torch.stack(others).mean(0))
    with pytest.raises(ValueError, match=r"there is 1; expected 2 or more"):
        leave_one_out(reward_BKT[:, :1])
