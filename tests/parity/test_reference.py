"""Every score function against its formula in regard.reference."""

import math

import numpy as np
import pytest
import torch

from regard import reference
from regard.core import masks
from regard.core.attention import attend, attention_weights
from regard.core.positions import sinusoidal
from regard.layers.scores import Additive, Cosine, Distance, Dot, General, ScaledDot


def random_arrays(dq: int, dk: int) -> tuple[torch.Tensor, ...]:
    """B2 Lq3 Lk7 dv5."""
    return torch.randn(2, 3, dq).double(), torch.randn(2, 7, dk).double(), torch.randn(2, 7, 5).double()


def assert_equals_reference(score, dq: int, dk: int, formula) -> None:  # type: ignore[no-untyped-def]
    """Scores up to a constant per row where they run as a dot product; weights and context exactly."""
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


def test_distance() -> None:  # SPEC A2.8
    assert_equals_reference(Distance(), 11, 11, reference.distance)
    query, key, value = random_arrays(11, 11)
    key = key / key.norm(dim=-1, keepdim=True)
    over_d = ScaledDot("d")
    difference = Distance().scores(query, key) - over_d.scores(query, key)
    torch.testing.assert_close(difference, difference[..., :1].expand_as(difference))
    torch.testing.assert_close(attend(query, key, value, score=Distance()), attend(query, key, value, score=over_d))


def test_scaling_removes_variance() -> None:  # SPEC A0.5
    """Entries with variance 1 give q·k a variance of d, so √d brings it back to 1; the mean is 0 with and without."""
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
    near, changed = (attend(one, one, one, allow=masks.window(9, width=2)) for one in (x, far))
    assert torch.equal(near[:5], changed[:5])  # places 0-4 see at most place 6
    assert (near[5:] != changed[5:]).any(-1).all()
    with pytest.raises(ValueError, match="a window of -1 places"):
        masks.window(3, width=-1)


def test_sinusoidal() -> None:
    for place in (0, 3, 977):
        expected = torch.from_numpy(reference.sinusoidal(place, 12))
        torch.testing.assert_close(sinusoidal(torch.tensor(place), 12, dtype=torch.float64), expected)


def test_the_reference_itself() -> None:
    """By hand, so that the oracle is not only compared with what it judges."""
    scores = np.array([[0.0, np.log(3.0), 5.0], [1.0, 2.0, 3.0]])
    allow = np.array([[True, True, False], [False, False, False]])
    np.testing.assert_allclose(reference.softmax(scores, allow), [[0.25, 0.75, 0.0], [0.0, 0.0, 0.0]])
    np.testing.assert_allclose(reference.softmax(np.array([1e4, -1e4])), [1.0, 0.0])
    np.testing.assert_allclose(reference.entropy(np.array([[1.0, 0.0], [0.5, 0.5], [0.0, 0.0]])), [0.0, np.log(2.0), 0.0])
    q, k = np.array([[3.0, 4.0]]), np.array([[4.0, 3.0], [0.0, 0.0]])
    np.testing.assert_allclose(reference.dot(q, k), [[24.0, 0.0]])
    np.testing.assert_allclose(reference.cosine(q, k, 0.5), [[24 / 25 / 0.5, 0.0]])
    np.testing.assert_allclose(reference.distance(q, k), [[-2 / 4, -25 / 4]])
