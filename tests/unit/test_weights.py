"""Hard, gated and unnormalised attention, and attention dropout."""

import itertools
import math

import pytest
import torch
from table import SCORES
from torch import Tensor

import regard
from regard.core import attention as core_attention
from regard.core import masks
from regard.core.losses import Baseline, policy_gradient, reward_to_go
from regard.core.weights import gated_weights, hard_weights, masked_softmax


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def inputs(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """B2 H3 Lq5 Lk7 d11 dv2; query 1 may attend to nothing."""
    query, key, value = torch.randn(2, 3, 5, 11), torch.randn(2, 3, 7, 11), torch.randn(2, 3, 7, 2)
    allow = torch.rand(2, 1, 5, 7) < 0.7
    allow[:, :, 1] = False
    allow[:, :, 2] = True
    return query.to(dtype), key.to(dtype), value.to(dtype), allow


def make_score(name: str) -> regard.Score:
    score = SCORES[name](11)
    return score.double() if isinstance(score, torch.nn.Module) else score


# --- hard and gated attention ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("generator", [None, 3])
@pytest.mark.parametrize("score_name", SCORES)
def test_one_key_is_chosen(score_name: str, generator: int | None) -> None:  # SPEC A3.2
    query, key, value, allow = inputs()
    options = {"score": make_score(score_name), "allow": allow, "attention": "hard"}
    soft = regard.attention_weights(query, key, score=options["score"], allow=allow)
    weights = regard.attention_weights(query, key, **options, generator=generator and seeded(generator))
    attended = regard.attend(query, key, value, **options, generator=generator and seeded(generator))
    assert set(weights.unique().tolist()) == {0.0, 1.0}
    assert torch.equal(weights.sum(-1), allow.any(-1).expand(2, 3, 5).double())
    assert (weights[(~allow).expand_as(weights)] == 0).all()
    if generator is None:
        assert torch.equal(weights.argmax(-1)[:, :, 2], soft.argmax(-1)[:, :, 2])
    torch.testing.assert_close(attended.context, weights @ value)
    chosen = (weights * soft).sum(-1)
    torch.testing.assert_close(attended.log_prob, torch.where(chosen > 0, chosen, 1.0).log())
    torch.testing.assert_close(attended.entropy, -torch.special.xlogy(soft, soft).sum(-1))


def test_hard_samples_follow_the_softmax() -> None:  # SPEC A3.2
    scores, allow = torch.tensor([1.0, 0.0, 5.0, -1.0]), torch.tensor([True, True, False, True])
    samples = hard_weights(scores.expand(20_000, 4), allow, seeded())
    expected = masked_softmax(scores, allow)
    error = (expected * (1 - expected) / 20_000).sqrt()
    assert ((samples.weights.mean(0) - expected).abs() <= 4 * error).all()
    again, other = (hard_weights(scores.expand(20_000, 4), allow, seeded(seed)).weights for seed in (0, 1))
    assert torch.equal(again, samples.weights)
    assert not torch.equal(other, samples.weights)


def test_gates_open_independently() -> None:  # SPEC A3.2
    query, key, value, allow = inputs()
    score = regard.scores.ScaledDot()
    chances = score.scores(query, key).sigmoid()
    for generator in (None, seeded()):
        state = None if generator is None else generator.clone_state()
        weights = regard.attention_weights(query, key, allow=allow, attention="gated", generator=generator)
        attended = regard.attend(query, key, value, allow=allow, attention="gated", generator=state)
        gates = (weights > 0).double()
        torch.testing.assert_close(weights, gates / gates.sum(-1, keepdim=True).clamp(min=1))
        assert (gates[(~allow).expand_as(gates)] == 0).all()
        assert gates.sum(-1).max() > 1
        if generator is None:
            assert torch.equal(gates > 0, (chances > 0.5) & allow)
        each = torch.distributions.Bernoulli(chances)
        torch.testing.assert_close(attended.log_prob, (each.log_prob(gates) * allow).sum(-1))
        torch.testing.assert_close(attended.entropy, (each.entropy() * allow).sum(-1))
        torch.testing.assert_close(attended.context, weights @ value)
    scores = torch.tensor([1.0, -2.0, 0.0])
    samples = gated_weights(scores.expand(20_000, 3), None, seeded()).weights > 0
    expected = scores.sigmoid()
    error = (expected * (1 - expected) / 20_000).sqrt()
    assert ((samples.float().mean(0) - expected).abs() <= 4 * error).all()


@pytest.mark.parametrize("attention", ["hard", "gated"])
def test_a_row_without_allowed_keys_decides_nothing(attention: str) -> None:  # SPEC A4.4
    query, key, value, allow = (tensor.requires_grad_() if tensor.is_floating_point() else tensor for tensor in inputs())
    attended = regard.attend(query, key, value, allow=allow, attention=attention, generator=seeded())
    for tensor in (attended.context, attended.log_prob, attended.entropy):
        assert (tensor[:, :, 1] == 0).all()
    (attended.context.square().sum() + attended.log_prob.sum() + attended.entropy.sum()).backward()
    assert all(tensor.grad.isfinite().all() for tensor in (query, key, value))
    assert (query.grad[:, :, 1] == 0).all()


@pytest.mark.parametrize("attention", ["hard", "gated"])
def test_no_gradient_runs_straight_through(attention: str) -> None:  # SPEC A3.2
    query, key, value, allow = (tensor.requires_grad_() if tensor.is_floating_point() else tensor for tensor in inputs())
    attended = regard.attend(query, key, value, allow=allow, attention=attention, generator=seeded())
    assert (torch.autograd.grad(attended.context.sum(), query, retain_graph=True)[0] == 0).all()
    assert torch.autograd.grad(attended.context.sum(), value, retain_graph=True)[0].abs().max() > 0
    assert torch.autograd.grad(attended.log_prob.sum(), query)[0].abs().max() > 0


# --- the estimator -----------------------------------------------------------------------------------------------------------


def two_steps(theta: Tensor, choose) -> tuple[Tensor, Tensor]:  # type: ignore[no-untyped-def]
    """A tiny model with 3 keys: two decisions, of which the second and its outcome depend on the first.

    theta (N, 18): per row the parameters of everything. `choose(scores (N, 3), step) -> (one-hot (N, 3), log π (N,))`.
    Returns log p(y_t | a_≤t) and log π(a_t), both (N, 2).
    """
    values, first, second, carry, readout = theta.split([3, 3, 3, 3, 6], dim=-1)
    one, log_one = choose(first, 0)
    context = (one * values).sum(-1)
    two, log_two = choose(second + carry * context[:, None], 1)
    later = (two * values).sum(-1) - 0.7 * context
    log_p = [
        (readout[:, 3 * step : 3 * step + 3] * seen[:, None]).log_softmax(-1)[:, y]
        for step, (seen, y) in enumerate(((context, 1), (later, 2)))
    ]
    return torch.stack(log_p, -1), torch.stack((log_one, log_two), -1)


def test_policy_gradient_is_unbiased() -> None:  # SPEC A3.2
    """3 keys, 2 steps: the mean gradient of 20,000 samples lies within 4 standard errors of the exact one."""
    torch.manual_seed(1)
    theta = torch.randn(18, dtype=torch.float64)

    exact_theta = theta.clone().requires_grad_()
    expected_log_p = torch.zeros((), dtype=torch.float64)
    for choices in itertools.product(range(3), repeat=2):

        def forced(scores: Tensor, step: int, choices: tuple[int, ...] = choices) -> tuple[Tensor, Tensor]:
            return torch.eye(3, dtype=torch.float64)[[choices[step]]], scores.log_softmax(-1)[:, choices[step]]

        log_p, log_pi = two_steps(exact_theta[None], forced)
        expected_log_p = expected_log_p + log_pi.sum().exp() * log_p.sum()
    (exact,) = torch.autograd.grad(-expected_log_p, exact_theta)

    num_samples, generator = 20_000, seeded(5)
    rows = theta.repeat(num_samples, 1).requires_grad_()  # a copy for each sample, which gets that sample's gradient

    def drawn(scores: Tensor, step: int) -> tuple[Tensor, Tensor]:
        query, values = torch.eye(1, dtype=torch.float64), torch.eye(3, dtype=torch.float64)
        attended = regard.attend(
            query.expand(len(scores), 1, 1),
            scores[..., None],
            values,
            score=regard.scores.Dot(),
            attention="hard",
            generator=generator,
        )
        return attended.context[:, 0], attended.log_prob[:, 0]

    log_p, log_pi = two_steps(rows, drawn)
    loss = -log_p.sum() + policy_gradient(reward_to_go(log_p), log_pi, baseline=-1.5)
    (gradients,) = torch.autograd.grad(loss, rows)
    error = gradients.std(0) / math.sqrt(num_samples)
    assert ((gradients.mean(0) - exact).abs() <= 4 * error).all()
    assert exact.abs().max() > 10 * error.max()  # the gradient is large enough to test


def test_rewards_and_baseline_by_hand() -> None:  # SPEC A3.2
    log_p = torch.tensor([[-1.0, -2.0, -4.0]], requires_grad=True)
    assert reward_to_go(log_p).tolist() == [[-7.0, -6.0, -4.0]]
    assert not reward_to_go(log_p).requires_grad
    log_pi, entropy = torch.tensor([[0.1, 0.2, 0.3]]), torch.tensor([[1.0, 2.0, 3.0]])
    loss = policy_gradient(reward_to_go(log_p), log_pi, entropy, baseline=-5.0, entropy_bonus=0.5)
    assert loss.item() == pytest.approx(-(-2.0 * 0.1 - 1.0 * 0.2 + 1.0 * 0.3) - 0.5 * 6.0)
    assert not policy_gradient(log_p, log_pi).requires_grad  # rewards of any origin are held constant
    baseline = Baseline()
    for reward in (-4.0, -2.0):
        baseline = baseline.after(reward)
    assert baseline.value == -3.0
    for _ in range(200):
        baseline = baseline.after(-1.0)
    assert baseline.value == pytest.approx(-1.0, abs=1e-3)


# --- unnormalised attention --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("score_name", SCORES)
def test_unnormalised_attention_is_a_weighted_sum(score_name: str, monkeypatch: pytest.MonkeyPatch) -> None:  # SPEC A3.4
    query, key, value, allow = inputs()
    score = make_score(score_name)
    prepared = core_attention.prepare(score, key, allow)
    f = score.scores(query, prepared).masked_fill(~allow, 0.0)
    expected = torch.zeros(2, 3, 5, 2, dtype=torch.float64)
    for i, j in itertools.product(range(5), range(7)):
        expected[:, :, i] += f[:, :, i, j, None] * value[:, :, j]
    for tile in (core_attention.TILE, 1):
        monkeypatch.setattr(core_attention, "TILE", tile)
        torch.testing.assert_close(
            regard.attend(query, key, value, score=score, allow=allow, attention="unnormalised"), expected
        )
    torch.testing.assert_close(
        regard.attention_weights(query, key, score=score, allow=allow, attention="unnormalised"), f.expand(2, 3, 5, 7)
    )


# --- random numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attention", ["soft", "hard", "gated"])
def test_tiles_draw_the_same_numbers_again_in_their_backward_pass(attention: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpointed tiles are computed twice; the gradient must belong to the result of the first time."""
    monkeypatch.setattr(core_attention, "TILE", 2 * 3 * 7 * 2)  # two rows of five at a time
    query, key, value, allow = inputs()

    def run(query: Tensor, value: Tensor) -> Tensor:
        result = regard.attend(
            query,
            key,
            value,
            allow=allow,
            attention=attention,
            dropout=0.4 if attention == "soft" else 0.0,
            generator=seeded(7),
        )
        return result if isinstance(result, Tensor) else torch.cat((result.context, result.log_prob[..., None]), -1)

    assert torch.equal(run(query, value), run(query, value))
    wrt = (query.requires_grad_(), value.requires_grad_()) if attention == "soft" else (query, value.requires_grad_())
    assert torch.autograd.gradcheck(run, wrt)


@pytest.mark.parametrize("attention", ["soft", "hard", "gated"])
def test_every_tile_draws_numbers_of_its_own(attention: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal queries in different tiles get different samples; their shares are those of one large tile."""
    query, key = torch.randn(1, 11).double().expand(2000, 11), torch.randn(7, 11).double()
    dropout = 0.4 if attention == "soft" else 0.0
    shares = []
    for tile in (1 << 22, 7, 2 * 7):  # all rows at once, row by row, two at a time
        monkeypatch.setattr(core_attention, "TILE", tile)
        result = regard.attend(query, key, torch.eye(7).double(), attention=attention, dropout=dropout, generator=seeded(7))
        weights = result if isinstance(result, Tensor) else result.context
        assert len(weights.unique(dim=0)) > 5
        shares.append((weights > 0).double().mean(0))
    for share in shares[1:]:
        torch.testing.assert_close(share, shares[0], atol=0.06, rtol=0)


@pytest.mark.parametrize("attention", ["hard", "gated"])
def test_entropy_and_log_probability_have_their_gradients(attention: str) -> None:  # SPEC A3.2
    query, key, value, allow = inputs()

    def parts(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        result = regard.attend(query, key, value, allow=allow, attention=attention, generator=seeded(3))
        return result.log_prob, result.entropy

    assert torch.autograd.gradcheck(parts, (query.requires_grad_(), key.requires_grad_()))


def test_a_gate_at_one_half_is_closed() -> None:  # SPEC A3.2
    """Without a generator it opens above a probability of ½, that is, for scores above 0."""
    scores = torch.tensor([[0.0, 1e-9, -1e-9, 3.0]])
    assert gated_weights(scores).weights.tolist() == [[0.0, 0.5, 0.0, 0.5]]


def test_dropout_leaves_out_weights_and_keeps_the_mean() -> None:
    query, key = torch.randn(5, 11).double(), torch.randn(7, 11).double()
    value, allow = torch.eye(7).double(), masks.causal(5, 7)
    weights = regard.attention_weights(query, key, allow=allow)
    generator = seeded()
    samples = torch.stack(
        [regard.attend(query, key, value, allow=allow, dropout=0.25, generator=generator) for _ in range(4000)]
    )
    kept = samples[0] > 0
    torch.testing.assert_close(samples[0][kept], weights[kept] / 0.75)
    torch.testing.assert_close((samples[:, allow] == 0).double().mean().item(), 0.25, atol=0.01, rtol=0)
    torch.testing.assert_close(samples.mean(0), weights, atol=0.02, rtol=0)


def test_no_generator_no_random_numbers() -> None:
    query, key, value, allow = inputs()
    before = torch.get_rng_state()
    generator = seeded()
    regard.attend(query, key, value, allow=allow, attention="hard")
    regard.attend(query, key, value, allow=allow, attention="hard", generator=generator)
    regard.attend(query, key, value, allow=allow, dropout=0.3, generator=generator)
    assert torch.equal(before, torch.get_rng_state())
    state = generator.get_state()
    for score in (None, make_score("additive")):  # what is certain draws nothing from a generator either
        regard.attend(query, key, value, score=score, allow=allow, generator=generator)
        regard.attend(query, key, value, score=score, allow=allow, attention="unnormalised", generator=generator)
    assert torch.equal(state, generator.get_state())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"attention": "one"}, r"attention is 'one', expected one of soft, unnormalised, hard, gated"),
        (
            {"dropout": 0.1},
            r"dropout is 0.1, which needs random numbers, but there is no generator; pass generator=torch.default",
        ),
        ({"dropout": 1.0}, r"dropout is 1.0, expected a probability from 0 up to, but not including, 1"),
        (
            {"dropout": 0.1, "attention": "hard"},
            r"dropout is 0.1 and attention is 'hard'; dropout applies to soft attention only",
        ),
    ],
)
def test_invalid_mechanisms_are_refused(options: dict[str, object], words: str) -> None:
    query, key, value, _ = inputs()
    with pytest.raises(ValueError, match=words):
        regard.attend(query, key, value, **options)


@pytest.mark.parametrize("attention", ["hard", "gated"])
@pytest.mark.parametrize("seed", [None, 3])
def test_values_may_have_more_leading_dimensions_than_keys(attention: str, seed: int | None) -> None:
    """One choice serves all values that share its keys."""
    query, key, value = torch.randn(5, 4).double(), torch.randn(7, 4).double(), torch.randn(2, 3, 7, 11).double()

    def attend(value: Tensor) -> regard.AttentionOutput:
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        return regard.attend(query, key, value, attention=attention, generator=generator)

    together = attend(value)
    assert together.context.shape == (2, 3, 5, 11)
    for row in range(2):
        for column in range(3):
            alone = attend(value[row, column])
            torch.testing.assert_close(together.context[row, column], alone.context)
            torch.testing.assert_close(together.log_prob[row, column], alone.log_prob)
            torch.testing.assert_close(together.entropy[row, column], alone.entropy)
