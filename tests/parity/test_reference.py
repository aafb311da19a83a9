"""Compares our functions with their formulas in regard.reference, and those formulas with torch or with results by hand, so
that the oracle is not only compared with the code that it checks."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from regard import reference
from regard.core import masks
from regard.core.attention import ScaledDot, attend, attention_weights
from regard.core.positions import sinusoidal
from regard.layers.scores import Additive, Basic, Cosine, Distance, Dot, General


def random_arrays(dq: int, dk: int) -> tuple[torch.Tensor, ...]:
    """B2 Lq3 Lk7 dv5."""
    return torch.randn(2, 3, dq).double(), torch.randn(2, 7, dk).double(), torch.randn(2, 7, 5).double()


def assert_equals_reference(score, dq: int, dk: int, formula) -> None:  # type: ignore[no-untyped-def]
    """Compares weights and context, and scores up to a constant per row where they are computed as a dot product."""
    score = score.double() if isinstance(score, torch.nn.Module) else score
    query, key, value = random_arrays(dq, dk)
    expected = formula(query.numpy(), key.numpy())
    torch.testing.assert_close(score.scores(query, score.prepare(key)), torch.from_numpy(expected))
    allow = masks.causal(3, 7)
    weights = reference.softmax(expected, allow.numpy())
    torch.testing.assert_close(attention_weights(query, key, score=score, allow=allow), torch.from_numpy(weights))
    context = reference.attention(expected, value.numpy(), allow.numpy())
    torch.testing.assert_close(attend(query, key, value, score=score, allow=allow), torch.from_numpy(context))


def array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().double().numpy()


def test_dot() -> None:  # SPEC A2.1
    assert_equals_reference(Dot(), 11, 11, reference.dot)
    for score in (Dot(), ScaledDot(), Cosine(), Distance()):
        with pytest.raises(ValueError, match=r"queries have 11 and keys 5; use General\(11, 5\) or Additive\(11, 5, …\)"):
            attend(*random_arrays(11, 5), score=score)


@pytest.mark.parametrize("divide_by", ["√d", "d", 1.0, 0.37])
def test_scaled_dot(divide_by: float | str) -> None:  # SPEC A0.2
    number = {"√d": math.sqrt(11), "d": 11.0}.get(divide_by, divide_by)
    assert_equals_reference(ScaledDot(divide_by), 11, 11, lambda q, k: reference.scaled_dot(q, k, number))


def test_general() -> None:  # SPEC A2.3
    score = General(11, 13)
    assert_equals_reference(score, 11, 13, lambda q, k: reference.general(q, k, array(score.weight.weight)))


@pytest.mark.parametrize(("dq", "dk"), [(11, 11), (11, 13)])
def test_basic_is_general(dq: int, dk: int) -> None:  # SPEC A2.9
    """(K h)·(Q s)/d equals sᵀ W h with W = Qᵀ K/d, value and gradient."""
    score, general = Basic(dq, dk).double(), General(dq, dk).double()
    K, Q = score.key.weight, score.query.weight
    assert_equals_reference(score, dq, dk, lambda s, h: reference.basic(s, h, array(K), array(Q)))
    del general.weight.weight  # a parameter cannot be a product
    general.weight.weight = Q.T @ K / dk
    query, key, value = (tensor.requires_grad_() for tensor in random_arrays(dq, dk))
    results = [attend(query, key, value, score=each) for each in (score, general)]
    torch.testing.assert_close(*results)
    direction = torch.randn_like(results[0])
    inputs = [query, key, value, K, Q]
    for mine, theirs in zip(*(torch.autograd.grad((one * direction).sum(), inputs) for one in results), strict=True):
        assert mine.abs().max() > 0
        torch.testing.assert_close(mine, theirs)


def test_additive_in_both_forms() -> None:  # SPEC A2.4
    w, v = torch.randn(17, 11 + 13), torch.randn(17)
    score = Additive.concat(w, v, query_width=11)
    w_b, w_c = array(w)[:, :11], array(w)[:, 11:]
    assert_equals_reference(score, 11, 13, lambda q, k: reference.concat(q, k, array(w), array(v)))
    assert_equals_reference(score, 11, 13, lambda q, k: reference.additive(q, k, w_b, w_c, array(v)))
    with pytest.raises(ValueError, match=r"W is \(17, 24\), v is \(17,\), the query's width is 24; expected .* 0 < dq < 24"):
        Additive.concat(w, v, query_width=24)


def test_cosine() -> None:  # SPEC A2.7
    assert_equals_reference(Cosine(0.3), 11, 11, lambda q, k: reference.cosine(q, k, 0.3))
    query, key, _ = random_arrays(11, 11)
    key[:, 2] = 0.0
    scores = Cosine(0.3).scores(query, Cosine(0.3).prepare(key))
    assert (scores[..., 2] == 0).all()
    assert (scores.abs() <= 1 / 0.3 + 1e-9).all()
    longer = Cosine(0.3).scores(3.0 * query, Cosine(0.3).prepare(5.0 * key))  # magnitudes are divided out
    torch.testing.assert_close(longer, scores)


@pytest.mark.parametrize(("dtype", "sizes"), [(torch.float32, (1e-30, 1e-3, 1e30)), (torch.float64, (1e-300, 1e-9, 1e300))])
def test_cosine_of_very_short_and_very_long_vectors(dtype: torch.dtype, sizes: tuple[float, ...]) -> None:  # SPEC A2.7
    """The cosine does not depend on the lengths, even where their squares vanish or overflow; only zero has no direction."""
    query, key = torch.randn(3, 11, dtype=dtype), torch.randn(7, 11, dtype=dtype)
    expected = torch.nn.functional.cosine_similarity(query[:, None], key[None], dim=-1) / 0.3
    score = Cosine(0.3)
    for size in sizes:
        torch.testing.assert_close(score.scores(query * size, score.prepare(key)), expected)
        torch.testing.assert_close(score.scores(query, score.prepare(key * size)), expected)
    short = (query * sizes[0]).requires_grad_()
    (gradient,) = torch.autograd.grad(score.scores(short, score.prepare(key)).sum(), short)
    assert gradient.isfinite().all()
    zero = torch.zeros(2, 11, dtype=dtype, requires_grad=True)
    scores = score.scores(zero, score.prepare(key))
    (gradient,) = torch.autograd.grad(scores.sum(), zero)
    assert (scores == 0).all()
    assert gradient.isfinite().all()


def test_distance() -> None:  # SPEC A2.8
    assert_equals_reference(Distance(), 11, 11, reference.distance)
    query, key, value = random_arrays(11, 11)
    key = key / key.norm(dim=-1, keepdim=True)
    over_d = ScaledDot("d")
    difference = Distance().scores(query, key) - over_d.scores(query, key)
    torch.testing.assert_close(difference, difference[..., :1].expand_as(difference))
    torch.testing.assert_close(attend(query, key, value, score=Distance()), attend(query, key, value, score=over_d))


def test_scaling_removes_variance() -> None:  # SPEC A0.5
    """Entries with variance 1 give q·k a variance of d, so dividing by √d makes it 1 again; the mean is 0 in both cases."""
    for width in (4, 64, 400):
        query, key = torch.randn(400, width).double(), torch.randn(500, width).double()
        raw, scaled = (score.scores(query, key) for score in (Dot(), ScaledDot()))
        assert raw.var().item() == pytest.approx(width, rel=0.1)
        assert scaled.var().item() == pytest.approx(1.0, rel=0.1)
        assert abs(scaled.mean().item()) < 0.05


def test_masks() -> None:  # SPEC A3.3
    for num_queries, num_keys in ((3, 7), (7, 7), (1, 5)):
        assert masks.causal(num_queries, num_keys).tolist() == reference.causal(num_queries, num_keys).tolist()
        for width in (0, 1, 3):
            expected = reference.window(num_queries, num_keys, width).tolist()
            assert masks.window(num_queries, num_keys, width=width).tolist() == expected
    x = torch.randn(9, 11).double()
    far = x.clone()
    far[7:] += 1.0
    near, changed = (attend(y, y, y, allow=masks.window(9, width=2)) for y in (x, far))
    assert torch.equal(near[:5], changed[:5])  # positions 0-4 attend to position 6 at most
    assert (near[5:] != changed[5:]).any(-1).all()
    with pytest.raises(ValueError, match="width is -1, expected a whole number, 0 or more"):
        masks.window(3, width=-1)


def test_sinusoidal() -> None:
    for position in (0, 3, 977):
        expected = torch.from_numpy(reference.sinusoidal(position, 12))
        torch.testing.assert_close(sinusoidal(torch.tensor(position), 12, dtype=torch.float64), expected)


# --- the reference itself ----------------------------------------------------------------------------------------------------


def normal(*shape: int) -> np.ndarray:
    """Random numbers from torch's generator, which is seeded again for each test."""
    return torch.randn(shape, dtype=torch.float64).numpy()


def assert_same(ours: np.ndarray, theirs: torch.Tensor | np.ndarray) -> None:
    theirs = array(theirs) if isinstance(theirs, torch.Tensor) else theirs
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-11)


def matrix(linear: nn.Linear) -> np.ndarray:
    """The matrix W of torch's Linear in the notation x W of the Transformer paper."""
    return array(linear.weight).T


def test_reference_softmax_entropy_and_scores_by_hand() -> None:
    scores = np.array([[0.0, np.log(3.0), 5.0], [1.0, 2.0, 3.0]])
    allow = np.array([[True, True, False], [False, False, False]])
    np.testing.assert_allclose(reference.softmax(scores, allow), [[0.25, 0.75, 0.0], [0.0, 0.0, 0.0]])
    np.testing.assert_allclose(reference.softmax(np.array([1e4, -1e4])), [1.0, 0.0])
    np.testing.assert_allclose(reference.entropy(np.array([[1.0, 0.0], [0.5, 0.5], [0.0, 0.0]])), [0.0, np.log(2.0), 0.0])
    q, k = np.array([[3.0, 4.0]]), np.array([[4.0, 3.0], [0.0, 0.0]])
    np.testing.assert_allclose(reference.dot(q, k), [[24.0, 0.0]])
    np.testing.assert_allclose(reference.cosine(q, k, 0.5), [[24 / 25 / 0.5, 0.0]])
    np.testing.assert_allclose(reference.distance(q, k), [[-2 / 4, -25 / 4]])


def test_reference_location() -> None:
    """Row j of W belongs to the j-th real position, wherever the padding is; positions beyond W get no weight."""
    Q, W = normal(2, 3, 5), normal(4, 5)
    real = np.array([[True, True, True, False, False, False, False], [False, True, True, False, True, True, True]])
    weights = reference.softmax(reference.location(Q, W, real))
    expected = np.zeros((2, 3, 7))
    for i in range(3):
        expected[0, i, :3] = reference.softmax(W[:3] @ Q[0, i])
        expected[1, i, [1, 2, 4, 5]] = reference.softmax(W @ Q[1, i])  # the fifth real position has no row
    assert_same(weights, expected)
    assert_same(reference.location(Q, W, np.full((2, 4), True)), np.einsum("bqd,kd->bqk", Q, W))
    assert (reference.softmax(reference.location(Q, W, np.full((2, 7), False))) == 0).all()


def test_reference_unnormalised_attention() -> None:
    scores, V = np.array([[2.0, -3.0, 5.0]]), np.array([[1.0, 0.0], [1.0, 1.0], [7.0, 7.0]])
    assert_same(reference.unnormalised(scores, V), np.array([[34.0, 32.0]]))
    assert_same(reference.unnormalised(scores, V, np.array([[True, True, False]])), np.array([[-1.0, -3.0]]))


def test_reference_hard_attention() -> None:
    scores, a = normal(2, 3, 7), np.array([[0, 6, 2], [3, 3, 5]])
    distribution = torch.distributions.Categorical(logits=torch.from_numpy(scores))
    assert_same(reference.hard_log_prob(scores, a), distribution.log_prob(torch.from_numpy(a)))
    assert_same(reference.entropy(reference.softmax(scores)), distribution.entropy())
    scores = np.array([[1.0, 3.0, 9.0], [800.0, 0.0, 2.0], [1.0, 2.0, 3.0]])
    allow = np.array([[True, True, False], [True, True, True], [False, False, False]])
    assert_same(reference.hard(scores, allow), np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]))
    assert_same(reference.hard_log_prob(scores, np.array([1, 1, 1]), allow), np.array([-np.log1p(np.exp(-2.0)), -800.0, 0.0]))
    assert reference.hard_log_prob(scores, np.array([2, 0, 0]), allow)[0] == -np.inf  # a key that may not be chosen


def test_reference_gates() -> None:
    scores, g = normal(2, 3, 7), normal(2, 3, 7) > 0
    allow = np.arange(7) < np.array([[[7]], [[4]]])
    distribution = torch.distributions.Bernoulli(logits=torch.from_numpy(scores))
    kept = torch.from_numpy(allow)
    assert_same(reference.log_gates(scores, g, allow), (distribution.log_prob(torch.from_numpy(g).double()) * kept).sum(-1))
    assert_same(reference.log_gates(scores, g), distribution.log_prob(torch.from_numpy(g).double()).sum(-1))
    assert_same(reference.gates_entropy(scores, allow), (distribution.entropy() * kept).sum(-1))
    assert_same(reference.gates_entropy(scores), distribution.entropy().sum(-1))
    all_g = np.array(list(itertools.product([0, 1], repeat=7)))  # the probabilities of all 2⁷ settings sum to 1
    assert np.exp(reference.log_gates(scores[0, 0], all_g)).sum() == pytest.approx(1.0)
    assert_same(
        reference.gate_weights(np.array([[0, 0, 0], [0, 1, 0], [1, 0, 1]])), np.array([[0, 0, 0], [0, 1, 0], [0.5, 0, 0.5]])
    )
    scores, allow = np.array([[0.1, 0.0, 900.0], [-1.0, -900.0, -2.0]]), np.array([[True, True, False], [True, True, True]])
    assert_same(reference.hard_gates(scores), np.array([[0.5, 0.0, 0.5], [0.0, 0.0, 0.0]]))
    assert_same(reference.hard_gates(scores, allow), np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]))
    assert reference.log_gates(np.array([900.0, -900.0, 900.0]), np.array([0, 1, 1])) == -1800.0


def test_reference_gradient_of_hard_attention() -> None:
    """3 keys, 2 steps, all 9 choices enumerated; the second step's scores and output depend on the first decision."""
    assert_same(
        reference.reward_to_go(np.array([[-1.0, -2.0, -4.0], [-3.0, 0.0, 0.0]])),
        np.array([[-7.0, -6.0, -4.0], [-3.0, 0.0, 0.0]]),
    )
    theta, first, second, values = normal(5), normal(3, 5), normal(3, 3, 5), normal(3, 3, 5)
    choices = list(itertools.product(range(3), repeat=2))

    def steps(theta: np.ndarray, a: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        """log p and log π of both steps."""
        scores = np.stack([first @ theta, second[a[0]] @ theta])
        log_p = -np.logaddexp(0.0, np.array([values[a[0], 0] @ theta, values[a] @ theta]))
        return log_p, reference.hard_log_prob(scores, np.array(a))

    def slope(f: Callable[[np.ndarray], float]) -> np.ndarray:
        return np.array([(f(theta + e) - f(theta - e)) / 2e-6 for e in np.eye(5) * 1e-6])

    def objective(theta: np.ndarray) -> float:
        """E_a Σ_t log p(y_t)."""
        return float(sum(np.exp(log_pi.sum()) * log_p.sum() for log_p, log_pi in (steps(theta, a) for a in choices)))

    def mean_slope(b: float) -> np.ndarray:
        probability = {a: np.exp(steps(theta, a)[1].sum()) for a in choices}
        R = {a: reference.reward_to_go(steps(theta, a)[0]) for a in choices}
        return sum(probability[a] * slope(lambda x, a=a: float(reference.surrogate(*steps(x, a), R[a], b))) for a in choices)

    for b in (0.0, -1.7):  # the baseline changes the noise, not the mean
        np.testing.assert_allclose(mean_slope(b), slope(objective), atol=1e-7)
    log_p, log_pi, R, H = (np.array(pair) for pair in ((-1.0, -2.0), (-0.5, -3.0), (-3.0, -2.0), (0.2, 0.4)))
    assert reference.surrogate(log_p, log_pi, R, -1.0) == pytest.approx((-1 + 2 * 0.5) + (-2 + 1 * 3))
    assert reference.surrogate(log_p, log_pi, R, -1.0, H, 0.5) == pytest.approx(1.0 + 0.3)


def test_reference_self_attention() -> None:
    X, allow = normal(2, 7, 5), reference.causal(7, 7)
    x = torch.from_numpy(X)
    assert_same(reference.self_attention(X), F.scaled_dot_product_attention(x, x, x, scale=1.0))
    assert_same(reference.self_attention(X, allow), F.scaled_dot_product_attention(x, x, x, scale=1.0, is_causal=True))
    W_q, W_k, W_v = normal(5, 3), normal(5, 3), normal(5, 11)
    in_one_line = reference.softmax(X @ W_q @ W_k.T @ X.swapaxes(1, 2) / np.sqrt(3)) @ X
    assert_same(reference.one_head(X, X, reference.Head(W_q, W_k, W_v)), in_one_line @ W_v)
    assert_same(reference.one_head(X, X, reference.Head(W_q, W_k)), in_one_line)  # without W_v, the values are the states


def heads_of(theirs: nn.MultiheadAttention) -> list[reference.Head]:
    """torch's matrices (out, in), split into heads."""
    if theirs.in_proj_weight is None:
        wide = [theirs.q_proj_weight, theirs.k_proj_weight, theirs.v_proj_weight]
    else:
        wide = list(theirs.in_proj_weight.chunk(3))
    parts = [np.split(array(weight).T, theirs.num_heads, axis=1) for weight in wide]
    parts += [np.split(array(bias), theirs.num_heads) for bias in theirs.in_proj_bias.chunk(3)]
    return [reference.Head(*head) for head in zip(*parts, strict=True)]


def multi_head_of(theirs: nn.MultiheadAttention) -> reference.Mix:
    nn.init.normal_(theirs.in_proj_bias)  # they start at 0
    nn.init.normal_(theirs.out_proj.bias)
    heads, W_O, b_O = heads_of(theirs), matrix(theirs.out_proj), array(theirs.out_proj.bias)
    return lambda X, Z, allow: reference.multi_head(X, Z, heads, W_O, b_O, allow)


def test_reference_multi_head() -> None:
    """Cross-attention between two modalities: 15 features attend to 7."""
    theirs = nn.MultiheadAttention(15, 3, kdim=7, vdim=7, batch_first=True).double()
    X, Z, real = normal(2, 5, 15), normal(2, 11, 7), np.arange(11) < np.array([[11], [4]])
    ours = multi_head_of(theirs)(X, Z, real[:, None])
    x, z = torch.from_numpy(X), torch.from_numpy(Z)
    assert_same(ours, theirs(x, z, z, key_padding_mask=torch.from_numpy(~real))[0])


def test_reference_heads_of_any_width() -> None:
    """2 heads, key_dim 2, value_dim 3; a score per head; groups that share keys and values."""
    X, Z = normal(2, 5, 7), normal(2, 11, 7)
    heads = [reference.Head(normal(7, 2), normal(7, 2), normal(7, 3)) for _ in range(2)]
    x, z = torch.from_numpy(X)[:, None], torch.from_numpy(Z)[:, None]
    W_Q, W_K, W_V = (torch.from_numpy(np.stack(part)) for part in list(zip(*heads, strict=True))[:3])
    theirs = F.scaled_dot_product_attention(x @ W_Q, z @ W_K, z @ W_V).transpose(1, 2).flatten(2)
    assert theirs.shape == (2, 5, 6)
    assert_same(reference.multi_head(X, Z, heads), theirs)
    W_O = normal(6, 7)
    assert_same(reference.multi_head(X, Z, heads, W_O), array(theirs) @ W_O)
    heads = [head._replace(score=reference.dot) for head in heads]
    theirs = F.scaled_dot_product_attention(x @ W_Q, z @ W_K, z @ W_V, scale=1.0).transpose(1, 2).flatten(2)
    assert_same(reference.multi_head(X, Z, heads), theirs)
    W_Q, W_K, W_V = (torch.randn(shape).double() for shape in ((6, 7, 2), (3, 7, 2), (3, 7, 5)))
    theirs = F.scaled_dot_product_attention(x @ W_Q, z @ W_K, z @ W_V, enable_gqa=True).transpose(1, 2).flatten(2)
    assert_same(reference.multi_head(X, Z, reference.grouped(array(W_Q), array(W_K), array(W_V))), theirs)


def test_reference_positions() -> None:
    def waves(i: int, first: int) -> list[tuple[float, float]]:
        return [(math.sin(i / 10000 ** (2 * k / 6)), math.cos(i / 10000 ** (2 * k / 6))) for k in range(first, first + 3)]

    for i, first in itertools.product((0, 5, 977), (0, 1)):
        pairs = waves(i, first)
        assert_same(reference.sinusoidal(i, 6, first), np.array(pairs).ravel())
        assert_same(reference.sinusoidal(i, 6, first, "halves"), np.array(pairs).T.ravel())
    positions = np.array([[0, 3], [7, 2]])
    assert_same(reference.sinusoidal(positions, 6)[1, 0], np.array(waves(7, 0)).ravel())
    assert_same(reference.raw_index(positions), np.array([[[0.0], [3.0]], [[7.0], [2.0]]]))
    assert_same(reference.one_hot(positions, 11), F.one_hot(torch.from_numpy(positions), 11))
    assert reference.fourier_kernel(7, 3, 0.5) == pytest.approx(math.exp(-8))
    assert reference.fourier_kernel(7, 3) == pytest.approx(math.exp(-0.16))
    X, phi = np.array([[[1.0, 2.0, 3.0, 4.0]]]), np.array([[10.0, 20.0, 30.0, 40.0]])
    assert_same(reference.added(X, phi), np.array([[[12.0, 24.0, 36.0, 48.0]]]))
    assert_same(reference.appended(X, phi[:, :2]), np.array([[[2.0, 4.0, 6.0, 8.0, 10.0, 20.0]]]))


@pytest.mark.parametrize(("layout", "pairs"), [("halves", [(0, 3), (1, 4), (2, 5)]), ("interleaved", [(0, 1), (2, 3), (4, 5)])])
def test_reference_rotary(layout: reference.Layout, pairs: list[tuple[int, int]]) -> None:
    x, positions = normal(2, 5, 6), np.array([0, 1, 2, 13, 977])
    expected = np.empty_like(x)
    for (row, position), (k, pair) in itertools.product(enumerate(positions), enumerate(pairs)):
        angle = position / 10000 ** (2 * k / 6)
        rotation = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
        expected[:, row, pair] = x[:, row, pair] @ rotation.T
    assert_same(reference.rotary(x, positions, layout), expected)
    q, k = normal(1, 6), normal(1, 6)
    scores = [reference.dot(reference.rotary(q, i, layout), reference.rotary(k, i - 3, layout)) for i in (3, 40, 500)]
    assert_same(scores[1], scores[0])
    assert_same(scores[2], scores[0])


def test_reference_alibi() -> None:
    assert_same(reference.alibi_slopes(8), 1 / np.array([2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0]))
    assert_same(reference.alibi_slopes(6), 1 / np.array([4.0, 16.0, 64.0, 256.0, 2.0, 8.0]))
    assert_same(reference.alibi_slopes(1), np.array([1 / 256]))
    i, j = np.array([4, 5]), np.arange(3, 6)
    assert_same(reference.alibi(i, j, 0.5), np.array([[-0.5, 0.0, -0.5], [-1.0, -0.5, 0.0]]))
    assert_same(reference.alibi(i, j, np.array([0.5, 0.25]))[1], reference.alibi(i, j, 0.25))


def weights_of(theirs: nn.Module, suffix: str = "") -> tuple[np.ndarray, ...]:
    """W, U and both biases."""
    return tuple(array(getattr(theirs, name + suffix)) for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))


def test_reference_cells() -> None:
    x, h, c = normal(2, 5), normal(2, 3), normal(2, 3)
    as_torch = [torch.from_numpy(values) for values in (x, h, c)]
    for name, f in (("tanh", np.tanh), ("relu", reference.relu)):
        cell = nn.RNNCell(5, 3, nonlinearity=name).double()
        W, U, b_W, b_U = weights_of(cell)
        (ours,) = reference.rnn_cell(x, h, W, U, b_W + b_U, f)
        assert_same(ours, cell(*as_torch[:2]))
    (ours,) = reference.rnn_cell(x, h, W, U, b_W + b_U, reference.sigmoid)
    assert_same(ours, 1 / (1 + np.exp(-(np.einsum("nm,bm->bn", W, x) + np.einsum("nm,bm->bn", U, h) + b_W + b_U))))
    cell = nn.LSTMCell(5, 3).double()
    W, U, b_W, b_U = weights_of(cell)
    for ours, theirs in zip(reference.lstm_cell(x, h, c, W, U, b_W + b_U), cell(as_torch[0], tuple(as_torch[1:])), strict=True):
        assert_same(ours, theirs)
    cell = nn.GRUCell(5, 3).double()
    (ours,) = reference.gru_cell(x, h, *weights_of(cell))
    assert_same(ours, cell(*as_torch[:2]))


def gru(theirs: nn.Module, suffix: str = "") -> reference.Cell:
    return lambda x, h: reference.gru_cell(x, h, *weights_of(theirs, suffix))


def lstm(theirs: nn.Module, suffix: str = "") -> reference.Cell:
    W, U, b_W, b_U = weights_of(theirs, suffix)
    return lambda x, h, c: reference.lstm_cell(x, h, c, W, U, b_W + b_U)


def test_reference_encoders() -> None:
    X, h, c = normal(2, 7, 5), normal(2, 3), normal(2, 3)
    theirs = nn.LSTM(5, 3, batch_first=True).double()
    states, (last_h, last_c) = theirs(torch.from_numpy(X), (torch.from_numpy(h)[None], torch.from_numpy(c)[None]))
    H, last = reference.unroll(lstm(theirs, "_l0"), X, (h, c))
    for ours, other in ((H, states), (last[0], last_h[0]), (last[1], last_c[0])):
        assert_same(ours, other)
    theirs = nn.GRU(5, 3, num_layers=2, bidirectional=True, batch_first=True).double()
    states, last_h = theirs(torch.from_numpy(X))
    H = X
    for layer in ("_l0", "_l1"):  # stacked: the second layer reads the states of the first
        H, ends = reference.bidirectional(gru(theirs, layer), gru(theirs, layer + "_reverse"), H, (np.zeros((2, 3)),))
    assert_same(H, states)
    assert_same(ends, torch.cat((last_h[-2], last_h[-1]), dim=-1))
    output = nn.Linear(6, 11).double()
    assert_same(reference.tagger(H, array(output.weight), array(output.bias)), output(states).softmax(-1))


def linear(in_width: int, out_width: int) -> tuple[nn.Linear, np.ndarray, np.ndarray]:
    layer = nn.Linear(in_width, out_width).double()
    return layer, array(layer.weight), array(layer.bias)


@pytest.mark.parametrize("feeding", [False, True])
def test_reference_luong_decoder(feeding: bool) -> None:
    """Three steps with a GRU and the general score: B2 Lk5 h7 s3 s̃11 y13, vocabulary 17."""
    H, Y, s = normal(2, 5, 7), normal(2, 3, 13), normal(2, 3)
    W_a, real = normal(3, 7), np.arange(5) < np.array([[5], [2]])
    cell = nn.GRUCell(13 + 11 * feeding, 3).double()
    (combine, W, b), (output, W_o, b_o) = linear(7 + 3, 11), linear(11, 17)
    h, hidden, mixed = torch.from_numpy(H), torch.from_numpy(s), torch.zeros(2, 11).double()
    state, fed = (s,), np.zeros((2, 11)) if feeding else None

    def look(s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return reference.context(s, H, lambda Q, K: reference.general(Q, K, W_a), real)

    for t in range(3):
        y = torch.from_numpy(Y[:, t])
        hidden = cell(torch.cat((mixed, y), dim=-1) if feeding else y, hidden)
        scores = torch.einsum("bn,nm,bkm->bk", hidden, torch.from_numpy(W_a), h)
        weights = scores.masked_fill(torch.from_numpy(~real), -torch.inf).softmax(-1)
        context = torch.einsum("bk,bkm->bm", weights, h)
        mixed = combine(torch.cat((context, hidden), dim=-1)).tanh()
        step = reference.luong_step(state, Y[:, t], gru(cell), look, W, b, W_o, b_o, fed)
        assert_same(step.state[0], hidden)
        assert_same(step.weights, weights)
        assert_same(step.context, context)
        assert_same(step.readout, mixed)
        assert_same(step.logits, output(mixed))
        state, fed = step.state, step.readout if feeding else None


def test_reference_bahdanau_decoder() -> None:
    """Three steps with an LSTM and the additive score: B2 Lk5 h7 s3 a11 y13, vocabulary 17."""
    H, Y, s, c = normal(2, 5, 7), normal(2, 3, 13), normal(2, 3), normal(2, 3)
    W_b, W_c, v = normal(11, 3), normal(11, 7), normal(11)
    cell = nn.LSTMCell(7 + 13, 3).double()
    output, W_o, b_o = linear(3 + 7, 17)
    h, hidden = torch.from_numpy(H), (torch.from_numpy(s), torch.from_numpy(c))
    state: reference.State = (s, c)

    def look(s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return reference.context(s, H, lambda Q, K: reference.additive(Q, K, W_b, W_c, v))

    for t in range(3):
        inner = (hidden[0] @ torch.from_numpy(W_b).T)[:, None] + h @ torch.from_numpy(W_c).T
        weights = (inner.tanh() @ torch.from_numpy(v)).softmax(-1)
        context = torch.einsum("bk,bkm->bm", weights, h)
        hidden = cell(torch.cat((context, torch.from_numpy(Y[:, t])), dim=-1), hidden)
        step = reference.bahdanau_step(state, Y[:, t], lstm(cell), look, W_o, b_o)
        for ours, theirs in zip(step.state, hidden, strict=True):
            assert_same(ours, theirs)
        assert_same(step.weights, weights)
        assert_same(step.context, context)
        assert_same(step.logits, output(torch.cat((hidden[0], context), dim=-1)))
        state = step.state


@pytest.mark.parametrize("normalise", [reference.hard, reference.hard_gates])
def test_reference_hard_context(normalise: reference.Weighting) -> None:
    s, H = np.array([1.0, -1.0]), np.array([[3.0, 1.0], [-1.0, 5.0], [9.0, 0.0], [1.0, 0.0]])  # scores 2, −6, 9, 1
    c, weights = reference.context(s, H, reference.dot, np.array([True, True, False, True]), normalise)
    expected = [1.0, 0.0, 0.0, 0.0] if normalise is reference.hard else [0.5, 0.0, 0.0, 0.5]
    assert_same(weights, np.array(expected))
    assert_same(c, np.array([3.0, 1.0] if normalise is reference.hard else [2.0, 0.5]))


@pytest.mark.parametrize("joins", [False, True])
def test_reference_fixed_vector_decoder(joins: bool) -> None:
    s, y, C = normal(2, 3), normal(2, 5), normal(2, 7)
    cell = nn.GRUCell(5 + 7 * joins, 3).double()
    output, W_o, b_o = linear(3, 11)
    state, logits = reference.fixed_step((s,), y, gru(cell), W_o, b_o, C if joins else None)
    hidden = cell(torch.from_numpy(np.concatenate([C, y], axis=-1) if joins else y), torch.from_numpy(s))
    assert_same(state[0], hidden)
    assert_same(logits, output(hidden))


def test_reference_norms_and_feed_forward() -> None:
    x, g, b = normal(2, 3, 5), normal(5), normal(5)
    as_torch = [torch.from_numpy(values) for values in (x, g, b)]
    assert_same(reference.layer_norm(x, g, b), F.layer_norm(as_torch[0], (5,), *as_torch[1:]))
    assert_same(reference.layer_norm(x, g, b, 0.1), F.layer_norm(as_torch[0], (5,), *as_torch[1:], eps=0.1))
    assert_same(reference.rms_norm(x, g), F.rms_norm(as_torch[0], (5,), as_torch[1], eps=1e-5))
    assert_same(reference.rms_norm(x, g, 0.1), F.rms_norm(as_torch[0], (5,), as_torch[1], eps=0.1))
    assert_same(reference.gelu(x), F.gelu(as_torch[0]))
    (first, W_1, b_1), (second, W_2, b_2) = linear(5, 7), linear(7, 5)
    assert_same(reference.feed_forward(x, W_1.T, b_1, W_2.T, b_2), second(F.relu(first(as_torch[0]))))
    assert_same(reference.feed_forward(x, W_1.T, b_1, W_2.T, b_2, reference.gelu), second(F.gelu(first(as_torch[0]))))
    W, V, W_2 = (torch.randn(shape).double() for shape in ((5, 7), (5, 7), (7, 5)))
    assert_same(reference.swiglu(x, array(W), array(V), array(W_2)), (F.silu(as_torch[0] @ W) * (as_torch[0] @ V)) @ W_2)
    assert reference.sigmoid(np.array([-1e4, 0.0, 1e4])).tolist() == [0.0, 0.5, 1.0]


def rest_of(theirs: nn.Module, f: reference.Map) -> tuple[reference.Map, list[reference.Map]]:
    """Returns the feed-forward part and the norms of torch's layer."""
    norms = [getattr(theirs, f"norm{number}") for number in (1, 2, 3) if hasattr(theirs, f"norm{number}")]
    for norm in norms:
        nn.init.normal_(norm.weight)  # they start at 1 and 0
        nn.init.normal_(norm.bias)
    first, second = theirs.linear1, theirs.linear2
    return (
        lambda x: reference.feed_forward(x, matrix(first), array(first.bias), matrix(second), array(second.bias), f),
        [lambda x, norm=norm: reference.layer_norm(x, array(norm.weight), array(norm.bias)) for norm in norms],
    )


@pytest.mark.parametrize("order", ["pre", "post"])
@pytest.mark.parametrize(("name", "f"), [("relu", reference.relu), ("gelu", reference.gelu)])
def test_reference_transformer_layers(order: reference.NormOrder, name: str, f: reference.Map) -> None:
    """Dropout is 0 and torch is in training mode, so that it takes its plain path."""
    settings = {"dim_feedforward": 29, "dropout": 0.0, "activation": name, "batch_first": True, "norm_first": order == "pre"}
    X, Y, real = normal(2, 7, 15), normal(2, 5, 15), np.arange(7) < np.array([[7], [4]])
    x, y, hidden = (torch.from_numpy(values) for values in (X, Y, ~real))

    theirs = nn.TransformerEncoderLayer(15, 3, **settings).double()
    attend = multi_head_of(theirs.self_attn)
    feed, norms = rest_of(theirs, f)
    assert_same(reference.encoder_layer(X, attend, feed, norms, order, real[:, None]), theirs(x, src_key_padding_mask=hidden))

    decoder = nn.TransformerDecoderLayer(15, 3, **settings).double()
    attend, cross = multi_head_of(decoder.self_attn), multi_head_of(decoder.multihead_attn)
    feed, norms = rest_of(decoder, f)
    look_ahead = torch.from_numpy(~reference.causal(5, 5))
    expected = decoder(y, x, tgt_mask=look_ahead, memory_key_padding_mask=hidden)
    assert_same(reference.decoder_layer(Y, X, attend, cross, feed, norms, order, real[:, None]), expected)


def test_reference_convolution_and_dense() -> None:
    X, W = normal(2, 7, 5), normal(3, 5, 11)
    kernel = torch.from_numpy(W).permute(2, 1, 0)  # torch: (out, in, position)
    assert_same(reference.convolution(X, W), F.conv1d(torch.from_numpy(X).transpose(1, 2), kernel, padding=1).transpose(1, 2))
    W = normal(7, 7, 5, 11)
    assert_same(reference.dense(X, W), np.stack([sum(X[:, j] @ W[i, j] for j in range(7)) for i in range(7)], axis=1))


def test_reference_costs() -> None:
    """The form of the notes by hand, with L = 7, d = 5, d_k = 2, d_v = 11, k = 3; the exact form is counted in torch."""
    L, d, d_k, d_v, k = 7, 5, 2, 11, 3
    assert reference.costs(L, d, d_k, d_v, k) == {
        "self-attention": (98, 75, 1),
        "recurrent": (385, 176, 7),
        "convolution": (1155, 165, 1),
        "dense": (2695, 385, 1),
    }
    x, h = torch.randn(L, d), torch.zeros(1, d_v)
    W_q, W_k, W_v = torch.randn(d, d_k), torch.randn(d, d_k), torch.randn(d, d_v)
    W, U = torch.randn(d, d_v), torch.randn(d_v, d_v)
    kernel, full = torch.randn(d_v, d, k), torch.randn(L * d, L * d_v)

    def recurrent() -> None:
        for t in range(L):
            x[t : t + 1] @ W + h @ U

    layers: dict[str, tuple[Callable[[], object], list[torch.Tensor]]] = {
        "self-attention": (lambda: ((x @ W_q) @ (x @ W_k).T) @ (x @ W_v), [W_q, W_k, W_v]),
        "recurrent": (recurrent, [W, U]),
        "convolution": (lambda: F.conv1d(x.T[None], kernel, padding=k // 2), [kernel]),
        "dense": (lambda: x.reshape(1, -1) @ full, [full]),
    }
    exact = reference.costs(L, d, d_k, d_v, k, "exact")
    assert exact.keys() == layers.keys()
    for name, (run, parameters) in layers.items():
        with FlopCounterMode(display=False) as counter:
            run()
        operations = counter.get_total_flops() // 2  # a multiplication and an addition
        steps = L if name == "recurrent" else 1
        assert exact[name] == (operations, sum(weight.numel() for weight in parameters), steps), name
