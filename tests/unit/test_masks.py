import torch

from regard.core import masks
from regard.core.attention import attend


def test_causal_is_aligned_bottom_right() -> None:  # SPEC A4.2
    assert masks.causal(3).int().tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert masks.causal(2, 4).int().tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert masks.causal(1, 4).int().tolist() == [[1, 1, 1, 1]]


def test_later_inputs_do_not_change_earlier_outputs() -> None:  # SPEC A4.2
    x = torch.randn(2, 7, 11)
    changed = x.clone()
    changed[:, 4:] += torch.randn(2, 3, 11)
    before, after = (attend(inputs, inputs, inputs, allow=masks.causal(7)) for inputs in (x, changed))
    assert torch.equal(before[:, :4], after[:, :4])
    assert (before[:, 4:] != after[:, 4:]).all()


def test_padding_and_lengths() -> None:  # SPEC A4.1
    assert masks.not_padding(torch.tensor([[5, 9, 0], [7, 0, 0]]), 0).int().tolist() == [[1, 1, 0], [1, 0, 0]]
    assert masks.first(torch.tensor([2, 0, 3]), 3).int().tolist() == [[1, 1, 0], [0, 0, 0], [1, 1, 1]]


def test_both() -> None:  # SPEC A4.3
    combined = masks.both(masks.causal(3), masks.first(torch.tensor([2]), 3)[:, None])
    assert combined.int().tolist() == [[[1, 0, 0], [1, 1, 0], [1, 1, 0]]]


def test_positions_skip_padding() -> None:  # SPEC A4.1
    """Wherever it is; padding itself gets 0."""
    allow = torch.tensor([[True, True, True, True], [True, True, False, False], [False, True, False, True], [False] * 4])
    assert masks.positions(allow).tolist() == [[0, 1, 2, 3], [0, 1, 0, 0], [0, 0, 0, 1], [0, 0, 0, 0]]


def test_at_least_first() -> None:
    allow = masks.first(torch.tensor([2, 0, 3]), 3)
    assert masks.at_least_first(allow).int().tolist() == [[1, 1, 0], [1, 0, 0], [1, 1, 1]]


def test_a_square_of_pixels_is_real_if_any_of_them_is() -> None:
    real = torch.zeros(1, 7, 11, dtype=torch.bool)
    real[0, :3, :5] = True  # padding is at the right and at the bottom
    expected = [
        [[bool(real[0, row : row + 2, column : column + 2].any()) for column in range(0, 11, 2)] for row in range(0, 7, 2)]
    ]
    assert masks.downsample(real, 2).tolist() == expected
