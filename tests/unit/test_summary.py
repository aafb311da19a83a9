import pytest
import torch
from table import SCORES
from test_attention import Largest

import regard
from regard import reference
from regard.core import masks, summary
from regard.core.attention import attention_weights


def make_mask(kind: str) -> torch.Tensor | None:
    if kind == "none":
        return None
    if kind == "causal":
        return masks.causal(5, 7)
    allow = torch.rand(2, 1, 5, 7) < 0.6
    allow[0, :, 3] = False
    return allow


@pytest.mark.parametrize("tile", [1, 2 * 3 * 7 * 2, summary.TILE])
@pytest.mark.parametrize("mask", ["none", "causal", "with an empty row"])
@pytest.mark.parametrize("score_name", SCORES)
def test_a_summary_equals_the_matrix(score_name: str, mask: str, tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary, "TILE", tile)
    score, allow = SCORES[score_name](11), make_mask(mask)
    score = score.double() if isinstance(score, torch.nn.Module) else score
    query, key = torch.randn(2, 3, 5, 11).double(), torch.randn(2, 3, 7, 11).double()
    weights = attention_weights(query, key, score=score, allow=allow)
    found = regard.summarise(query, key, top=3, score=score, allow=allow)
    torch.testing.assert_close(found.mass, weights.sum(-2))
    torch.testing.assert_close(found.top_weights, weights.topk(3).values)
    torch.testing.assert_close(weights.gather(-1, found.top_keys), found.top_weights)
    entropy = torch.from_numpy(reference.entropy(weights.detach().numpy()))
    torch.testing.assert_close(found.entropy, entropy)
    assert not found.mass.requires_grad


@pytest.mark.parametrize("num_keys", [64 * 13, 64 * 12 + 1, 64 * 15 + 63, 997])
@pytest.mark.parametrize("masked", [False, True])
def test_long_rows(num_keys: int, masked: bool) -> None:
    """The strongest links are searched for in blocks; those after the last whole block are found too."""
    query, key = torch.randn(2, 5, 3).double(), torch.randn(2, num_keys, 3).double()
    key[0, -1], key[1, 0] = 10 * query[0, 1], 10 * query[1, 2]
    allow = torch.rand(5, num_keys) < 0.01 if masked else None
    if allow is not None:
        allow[:, -1] = True
    weights = attention_weights(query, key, allow=allow)
    found = regard.summarise(query, key, top=3, allow=allow)
    torch.testing.assert_close(found.top_weights, weights.topk(3).values)
    torch.testing.assert_close(weights.gather(-1, found.top_keys), found.top_weights)
    torch.testing.assert_close(found.mass, weights.sum(-2))
    assert found.top_keys.max() > num_keys - num_keys % 64 - 64


def test_broadcasts_and_survives_extremes() -> None:
    query, key = 1e4 * torch.randn(5, 11), torch.randn(2, 3, 7, 11)
    allow = torch.rand(2, 1, 1, 7) < 0.5
    allow[1] = False
    found = regard.summarise(query, key, top=7, allow=allow)
    weights = attention_weights(query, key, allow=allow)
    assert found.mass.shape == (2, 3, 7)
    torch.testing.assert_close(found.mass, weights.sum(-2))
    assert (found.mass[1] == 0).all()
    assert (found.entropy[1] == 0).all()
    assert found.entropy.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_can_represent_masked_scores(dtype: torch.dtype) -> None:
    query, key = torch.full((1, 1), 300.0, dtype=dtype), torch.ones(3, 1, dtype=dtype)
    found = regard.summarise(query, key, top=3, allow=torch.tensor([[True, False, True]]))
    torch.testing.assert_close(found.entropy.float(), torch.tensor([0.6931]), atol=1e-2, rtol=0)
    assert found.top_weights.tolist() == [[0.5, 0.5, 0.0]]


def test_never_holds_the_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary, "TILE", 10_000)
    query, key = torch.randn(1, 4, 512, 8), torch.randn(1, 4, 512, 8)
    with Largest() as largest:
        regard.summarise(query, key)
    assert largest.numel <= 4 * 512 * 8  # the inputs and the top links; the matrix would have 4 x 512 x 512


def test_more_links_than_keys_are_refused() -> None:
    with pytest.raises(ValueError, match="top is 8, but there are 7 keys; expected at most as many"):
        regard.summarise(torch.randn(5, 11), torch.randn(7, 11))
    with pytest.raises(ValueError, match=r"dtype torch.int64, expected torch.bool"):
        regard.summarise(torch.randn(5, 11), torch.randn(7, 11), top=2, allow=torch.ones(5, 7).long())
