import cmath
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from regard.core.positions import LAYOUTS, Layout, alibi_slopes, fourier, one_hot, raw_index, rotate, sinusoidal
from regard.layers.embed import TokenEmbedding

every_layout = pytest.mark.parametrize("layout", LAYOUTS)


def columns(k: int, width: int, layout: Layout) -> tuple[int, int]:
    """The columns of the two numbers of pair k."""
    return (2 * k, 2 * k + 1) if layout == "interleaved" else (k, k + width // 2)


# --- sinusoidal --------------------------------------------------------------------------------------------------------------


@every_layout
@pytest.mark.parametrize("first", [0, 1])
def test_sinusoidal_by_hand(layout: Layout, first: int) -> None:  # SPEC A7.4
    table = sinusoidal(torch.arange(5000), 14, layout=layout, first=first)
    assert table.shape == (5000, 14)
    assert table.dtype == torch.float32
    for position in (0, 1, 17, 4999):
        for pair in range(7):
            angle = position / 10000 ** (2 * (pair + first) / 14)
            sine, cosine = columns(pair, 14, layout)
            assert table[position, sine].item() == pytest.approx(math.sin(angle), abs=1e-7)
            assert table[position, cosine].item() == pytest.approx(math.cos(angle), abs=1e-7)


def test_the_defaults_are_those_of_the_paper() -> None:
    positions = torch.tensor([[3, 5, 977], [0, 1, 2]])
    assert torch.equal(sinusoidal(positions, 6), sinusoidal(positions, 6, layout="interleaved", first=0))
    assert sinusoidal(positions, 6).shape == (2, 3, 6)


@every_layout
@pytest.mark.parametrize("first", [0, 1])
def test_similarity_depends_on_the_distance_alone(layout: Layout, first: int) -> None:  # SPEC A7.4
    table = sinusoidal(torch.arange(211), 34, layout=layout, first=first, dtype=torch.float64)
    distance = np.arange(211)[:, None] - np.arange(211)[None, :]
    expected = sum(np.cos(distance * 10000.0 ** (-2 * k / 34)) for k in range(first, first + 17))
    torch.testing.assert_close(table @ table.T, torch.from_numpy(expected))


@every_layout
@pytest.mark.parametrize("first", [0, 1])
def test_similarity_falls_with_the_distance_in_trend_only(layout: Layout, first: int) -> None:  # SPEC A7.4
    table = sinusoidal(torch.arange(1024), 34, layout=layout, first=first, dtype=torch.float64)
    products = table @ table.T
    elsewhere = products - torch.eye(1024) * 1e9
    assert (elsewhere.max(-1).values < products.diagonal() - 0.1).all()  # a strict maximum at i = j
    by_distance = products[0]
    trend = torch.stack([by_distance[2**n : 2 ** (n + 1)].mean() for n in range(10)])  # distances 1, 2-3, 4-7, … 512-1023
    assert (trend.diff() < 0).all()
    assert (by_distance.diff() > 0).any()


@pytest.mark.parametrize("make", [sinusoidal, fourier])
def test_far_positions_keep_their_phase(make: Callable[..., Tensor]) -> None:  # SPEC A7.4
    """In float32 an angle near 10⁷ is accurate to ± 0.5 only."""
    position = 10_000_019
    table = sinusoidal(torch.tensor(position), 6)
    assert table[0].item() == pytest.approx(math.sin(position), abs=1e-6)
    assert table[3].item() == pytest.approx(math.cos(position * 10000 ** (-1 / 3)), abs=1e-6)
    near, far = (make(torch.tensor([0, 7]) + shift, 22, dtype=torch.float64) for shift in (0, position))
    assert (far[0] @ far[1]).item() == pytest.approx((near[0] @ near[1]).item(), abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("make", [sinusoidal, fourier])
def test_tables_are_float64_until_they_are_cast(make: Callable[..., Tensor], dtype: torch.dtype) -> None:  # SPEC A7.4
    positions = torch.tensor([0, 1, 613, 4999])
    exact = make(positions, 22, dtype=torch.float64)
    assert exact.dtype == torch.float64
    assert torch.equal(make(positions, 22, dtype=dtype), exact.to(dtype))
    assert torch.equal(make(positions.float(), 22, dtype=dtype), exact.to(dtype))


@pytest.mark.parametrize("width", [7, 1, 0, -2])
def test_widths_that_make_no_pairs_are_refused(width: int) -> None:  # SPEC A7.4
    for make in (sinusoidal, fourier):
        with pytest.raises(ValueError, match=f"pairs .* but the width is {width}; make it even"):
            make(torch.arange(3), width)


def test_unknown_layouts_are_refused() -> None:
    for make in (sinusoidal, fourier):
        with pytest.raises(ValueError, match="unknown layout 'half'; expected 'interleaved' or 'halves'"):
            make(torch.arange(3), 6, layout="half")
    with pytest.raises(ValueError, match="unknown layout 'half'; expected 'interleaved' or 'halves'"):
        rotate(torch.randn(3, 6), torch.arange(3), layout="half")  # type: ignore[arg-type]


# --- the teaching schemes ----------------------------------------------------------------------------------------------------


def test_raw_index() -> None:  # SPEC A7.10
    assert raw_index(torch.tensor([[0, 3, 977]])).tolist() == [[[0.0], [3.0], [977.0]]]
    assert raw_index(torch.tensor([2**24 + 1]), dtype=torch.float64).item() == 2**24 + 1
    assert raw_index(torch.tensor(7), dtype=torch.bfloat16).dtype == torch.bfloat16


def test_one_hot() -> None:  # SPEC A7.10
    positions = torch.tensor([[4, 0, 2], [1, 3, 3]])
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        vectors = one_hot(positions, 5, dtype=dtype)
        assert vectors.dtype == dtype
        assert np.array_equal(vectors.double().numpy(), np.eye(5)[positions.numpy()])
    assert one_hot(torch.arange(0), 5).shape == (0, 5)


@pytest.mark.parametrize("position", [5, 977, -1])
def test_one_hot_refuses_positions_outside_its_width(position: int) -> None:  # SPEC A7.10
    with pytest.raises(
        ValueError, match=f"position {position} has no one-hot vector of width 5, which covers 0 to 4; increase"
    ):
        one_hot(torch.tensor([[4, 2], [position, 0]]), 5)


@every_layout
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fourier_is_close_to_a_gaussian(layout: Layout, dtype: torch.dtype) -> None:  # SPEC A7.10
    """The numbers of the specification: error < 1e-3 for |i − j| ≤ 64 at λ = 0.01, width 64. From any first position."""
    for start in (0, 4999):
        table = fourier(torch.arange(start, start + 65), 64, layout=layout, dtype=dtype)
        products = (table @ table.T).tolist()
        for i in range(65):
            for j in range(65):
                assert abs(products[i][j] - math.exp(-0.01 * (i - j) ** 2)) < 1e-3
            assert products[i][i] == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("sharpness", [0.0003, 0.01, 0.7])
@pytest.mark.parametrize("width", [8, 14, 64, 254])
def test_fourier_is_accurate_as_far_as_documented(width: int, sharpness: float) -> None:
    reach = (width / 2 - 3) / sharpness**0.5
    distances = np.linspace(0.0, reach, 1009)
    table = fourier(torch.from_numpy(distances), width, sharpness=sharpness, dtype=torch.float64)
    products = (table @ fourier(torch.tensor(0), width, sharpness=sharpness, dtype=torch.float64)).numpy()
    assert np.abs(products - np.exp(-sharpness * distances**2)).max() < 1e-4
    half_period = torch.tensor(math.pi * width / 6 / sharpness**0.5)
    product = fourier(half_period, width, sharpness=sharpness) @ fourier(torch.tensor(0), width, sharpness=sharpness)
    assert product.item() == pytest.approx(-1.0, abs=1e-4)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_fourier_pairs_follow_the_layout(layout: Layout) -> None:
    table = fourier(torch.arange(97), 10, layout=layout, dtype=torch.float64)
    for k in range(5):
        sine, cosine = columns(k, 10, layout)
        assert table[0, sine] == 0
        torch.testing.assert_close(table[:, [sine, cosine]].norm(dim=-1), table[0, cosine].expand(97))


@pytest.mark.parametrize("sharpness", [0.0, -0.01, math.nan])
def test_fourier_refuses_a_sharpness_that_is_not_positive(sharpness: float) -> None:
    with pytest.raises(ValueError, match=f"sharpness is {sharpness}, expected a number above 0; 0.01"):
        fourier(torch.arange(3), 6, sharpness=sharpness)


# --- rotary ------------------------------------------------------------------------------------------------------------------


@every_layout
@pytest.mark.parametrize("base", [10000.0, 500.0])
def test_rotate_is_a_product_of_complex_numbers(layout: Layout, base: float) -> None:
    x, positions = torch.randn(2, 3, 5, 14, dtype=torch.float64), torch.tensor([0, 1, 17, 977, 10_000_019])
    rotated = rotate(x, positions, layout=layout, base=base)
    assert rotated.shape == x.shape
    for number, position in enumerate(positions.tolist()):
        for k in range(7):
            real, imaginary = columns(k, 14, layout)
            rotation = cmath.exp(1j * position * base ** (-2 * k / 14))
            expected = (x[..., number, real].numpy() + 1j * x[..., number, imaginary].numpy()) * rotation
            got = rotated[..., number, real].numpy() + 1j * rotated[..., number, imaginary].numpy()
            np.testing.assert_allclose(got, expected, atol=1e-7)


@every_layout
def test_scores_of_rotated_vectors_depend_on_the_distance_alone(layout: Layout) -> None:
    query, key = torch.randn(22, dtype=torch.float64), torch.randn(22, dtype=torch.float64)
    positions = torch.arange(31)
    queries, keys = (rotate(vector.expand(31, 22), positions, layout=layout) for vector in (query, key))
    scores = queries @ keys.T
    for distance in range(-30, 31):
        diagonal = scores.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal))
    torch.testing.assert_close(scores.diagonal(), (query @ key).expand(31))
    assert (scores[0, 1:] - scores[0, 0]).abs().min() > 1e-6
    assert (scores[0, 1:] - scores[1:, 0]).abs().max() > 1e-3  # and on its sign


@every_layout
def test_rotating_back(layout: Layout) -> None:
    x, positions = torch.randn(5, 22, dtype=torch.float64), torch.tensor([0, 1, 2, 613, 4999])
    rotated = rotate(x, positions, layout=layout)
    assert torch.equal(rotated[0], x[0])
    torch.testing.assert_close(rotated.norm(dim=-1), x.norm(dim=-1))
    torch.testing.assert_close(rotate(rotated, -positions, layout=layout), x)


def test_positions_may_differ_by_sentence() -> None:
    x, positions = torch.randn(2, 3, 5, 14), torch.tensor([[0, 1, 2, 3, 4], [7, 8, 9, 10, 11]])
    rotated = rotate(x, positions[:, None])
    for sentence in range(2):
        for head in range(3):
            torch.testing.assert_close(rotated[sentence, head], rotate(x[sentence, head], positions[sentence]))
    assert torch.equal(rotate(x, torch.tensor(3)), rotate(x, torch.full((2, 3, 5), 3)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_rotated_in_float32(dtype: torch.dtype) -> None:
    """At far positions too: the result is rounded once, at the end, and the angle is not rounded."""
    x, positions = torch.randn(5, 22).to(dtype), torch.tensor([0, 1, 17, 4999, 10_000_019])
    rotated = rotate(x, positions)
    assert rotated.dtype == dtype
    in_float32 = rotate(x.float(), positions)
    assert torch.equal(rotated, in_float32.to(dtype))
    torch.testing.assert_close(in_float32.double(), rotate(x.double(), positions), rtol=1e-6, atol=1e-6)


@every_layout
def test_gradients_of_rotate(layout: Layout) -> None:
    x = torch.randn(2, 3, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: rotate(x, torch.tensor([0, 5, 977]), layout=layout), x)


def test_rotate_explains_shapes_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="the width is 7; make it even"):
        rotate(torch.randn(5, 7), torch.arange(5))
    for shape in ((2, 5), (4,), (7, 2, 3, 5)):
        with pytest.raises(
            ValueError, match=r"do not broadcast to \(2, 3, 5\), .* x \(2, 3, 5, 14\); .* write positions\[:, None\]"
        ):
            rotate(torch.randn(2, 3, 5, 14), torch.zeros(shape))


# --- ALiBi -------------------------------------------------------------------------------------------------------------------


def test_alibi_slopes_of_the_paper() -> None:
    assert alibi_slopes(8).tolist() == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]
    sixteen = [2 ** (-(h + 1) / 2) for h in range(16)]
    torch.testing.assert_close(alibi_slopes(16), torch.tensor(sixteen, dtype=torch.float64))
    assert alibi_slopes(1).tolist() == [2**-8]


def test_alibi_slopes_of_other_counts() -> None:
    """The authors' rule: the power of two below, then the 1st, 3rd, 5th … slope of the power of two above."""
    for heads in range(1, 40):
        below = 2 ** math.floor(math.log2(heads))
        expected = [2 ** (-8 * h / below) for h in range(1, below + 1)]
        expected += [2 ** (-8 * h / (2 * below)) for h in range(1, 2 * below + 1)][0::2][: heads - below]
        torch.testing.assert_close(alibi_slopes(heads), torch.tensor(expected, dtype=torch.float64))
    assert alibi_slopes(3).tolist() == [1 / 16, 1 / 256, 1 / 4]
    with pytest.raises(ValueError, match="heads is 0, expected a whole number, 1 or more"):
        alibi_slopes(0)


# --- other devices -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_everything_runs_on_tensors_without_data(device: str) -> None:
    with FakeTensorMode():
        positions = torch.ones(2, 5, dtype=torch.long, device=device)
        made = {
            14: sinusoidal(positions, 14),
            16: fourier(positions, 16),
            1: raw_index(positions),
            11: one_hot(positions, 11),
            6: rotate(torch.ones(2, 5, 6, device=device), positions),
        }
        for width, tensor in made.items():
            assert tensor.shape == (2, 5, width)
            assert tensor.device.type == device
        assert alibi_slopes(3, device=device).device.type == device
    assert one_hot(torch.ones(2, 5, dtype=torch.long, device="meta"), 11).shape == (2, 5, 11)


def test_one_hot_can_be_exported() -> None:
    class Module(torch.nn.Module):
        def forward(self, positions: Tensor) -> Tensor:
            return one_hot(positions, 11)

    positions = torch.tensor([3, 10, 0])
    exported = torch.export.export(Module(), (positions,)).module()
    assert torch.equal(exported(positions.flip(0)), one_hot(positions.flip(0), 11))
    assert (exported(torch.tensor([1, 11, 2])).sum(-1) == torch.tensor([1, 0, 1])).all()


def test_sinusoids_have_no_gaussian_limit() -> None:  # SPEC A0.10
    """−ln of the similarity is λ(i − j)² if that is Gaussian. The mean of cos(ω_k Δ) converges as the width grows, to an
    integral that falls like a logarithm; −ln/Δ² then differs a thousandfold. That of Fourier features is constant."""
    distances = torch.tensor([0, 1, 10, 100])

    def similarity(vectors: Tensor) -> Tensor:
        return (vectors @ vectors[0] / (vectors[0] @ vectors[0]))[1:]

    grid = 10000.0 ** -torch.linspace(0, 1, 200_001, dtype=torch.float64)
    limit = torch.stack([(grid * distance).cos().mean() for distance in (1, 10, 100)])
    errors = []
    for width in (64, 512, 4096):
        found = similarity(sinusoidal(distances, width, dtype=torch.float64))
        errors.append((found - limit).abs().max().item())
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-3
    curvatures = -limit.log() / distances[1:].square()
    assert curvatures[0] > 300 * curvatures[2]
    assert limit[2] > 0.4  # far from 0, where a Gaussian with the similarity of neighbours has exp(−10⁴ λ) < 1e-100
    assert math.exp(-1e4 * curvatures[0].item()) < 1e-100
    distances = torch.tensor([0, 1, 5, 20])
    found = similarity(fourier(distances, 128, sharpness=0.01, dtype=torch.float64))
    sharpness = -found.log() / distances[1:].square()
    torch.testing.assert_close(sharpness, torch.full_like(sharpness, 0.01), rtol=1e-2, atol=0)


def test_positions_are_counted_from_0_or_1_and_added_or_appended() -> None:  # SPEC A0.10
    """With first=1 the pair of k is that of k + 1, and an appended position leaves the token as it is."""
    positions = torch.arange(7)
    paper, note = (sinusoidal(positions, 8, first=first, dtype=torch.float64) for first in (0, 1))
    torch.testing.assert_close(note[:, :6], paper[:, 2:])
    torch.testing.assert_close(note[:, 6], (positions.double() * 10000.0 ** (-2 * 4 / 8)).sin())
    for appended in (0, 4):
        embedding = TokenEmbedding(5, 12, appended=appended)
        ids = torch.tensor([1, 2, 1])
        tokens, result = embedding.tokens(ids) * math.sqrt(12 - appended), embedding(ids, torch.arange(3))
        vectors = sinusoidal(torch.arange(3), appended or 12)
        torch.testing.assert_close(result, torch.cat((tokens, vectors), -1) if appended else tokens + vectors)
