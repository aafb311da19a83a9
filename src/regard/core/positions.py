"""Position encodings (positional encodings): vectors φ(i) to add or append to embeddings, rotations of queries and keys (rotary
position embedding, RoPE), slopes for scores (ALiBi).

Positions are integers in a tensor of any shape (...,); φ returns (..., width). Angles are computed in float64, so that large
positions keep their phase, and the results are then cast.
"""

from typing import Literal, get_args

import torch
from torch import Tensor

from regard.core.checks import check_length, check_tensor
from regard.core.transforms import is_readable
from regard.errors import check_positive, check_whole, shown

__all__ = ["Layout", "alibi_slopes", "fourier", "one_hot", "raw_index", "rotate", "sinusoidal"]

Layout = Literal["interleaved", "halves"]
"""Order of pairs (a_k, b_k) in a vector: a_0 b_0 a_1 b_1 … as in the papers, or a_0 a_1 … b_0 b_1 … as in Marian and Llama."""

LAYOUTS: tuple[Layout, ...] = get_args(Layout)


# --- vectors -----------------------------------------------------------------------------------------------------------------


def sinusoidal(
    positions: Tensor, width: int, *, layout: Layout = "interleaved", first: int = 0, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Returns pairs sin(ω_k i), cos(ω_k i), ω_k = 10000^(−2k/width) (Vaswani et al. 2017, 3.5); k counts from `first`.

    φ(i)·φ(j) = Σ_k cos(ω_k (i − j)) depends on the distance only.

    >>> regard.positions.sinusoidal(torch.arange(2), 4)
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.8415, 0.5403, 0.0100, 0.9999]])
    """
    _check_pairs(width, layout)
    check_tensor("positions", positions)
    angle = _angles(positions, width, first=first)
    return _join(angle.sin(), angle.cos(), layout).to(dtype)


def tensor2tensor(number: int, width: int, *, first: int = 0) -> Tensor:
    """Returns the sinusoids of tensor2tensor (number, width) from position `first` on, as CTranslate2, fairseq and Whisper have
    them: sines | cosines with the frequencies 10000^(−k/(d/2−1)), the slowest exactly 1/10000, and not the paper's
    10000^(−2k/d)."""
    k = torch.arange(width // 2, dtype=torch.float64)
    angle = torch.arange(first, first + number)[:, None] * 10000 ** (-k / (width // 2 - 1))
    return torch.cat((angle.sin(), angle.cos()), dim=1).float()


def fourier(
    positions: Tensor,
    width: int,
    *,
    sharpness: float = 0.01,
    layout: Layout = "interleaved",
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Returns pairs of sines and cosines with φ(i)·φ(j) ≈ exp(−λ(i−j)²), λ = `sharpness`, and exactly 1 for i = j.

    The Gaussian is the mean of cos(2√λ u (i−j)) over u with density ∝ exp(−u²) (Rahimi & Recht 2007, who sample u; here u takes
    the width/2 midpoints of a grid from 0 to 3). The error is below 1e-4 for |i−j| ≤ (width/2 − 3)/√λ; at larger distances the
    curve repeats with opposite sign, around |i−j| = π·width/(6√λ).

    >>> phi = regard.positions.fourier(torch.arange(50), 64)
    >>> (phi @ phi.T)[0, :3]
    tensor([1.0000, 0.9901, 0.9608])
    """
    _check_pairs(width, layout)
    check_tensor("positions", positions)
    check_positive("sharpness", sharpness, "a number above 0; 0.01 makes similarity fade over about ten positions")
    u = 6 * (torch.arange(width // 2, dtype=torch.float64, device=positions.device) + 0.5) / width
    angle = positions.to(torch.float64).unsqueeze(-1) * (2 * sharpness**0.5 * u)
    amplitude = (-u.square()).softmax(-1).sqrt()
    return _join(amplitude * angle.sin(), amplitude * angle.cos(), layout).to(dtype)


def raw_index(positions: Tensor, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """Returns φ(i) = i, of width 1. Half precision rounds it early: bfloat16 represents all integers only up to 256.

    >>> regard.positions.raw_index(torch.arange(3))
    tensor([[0.],
            [1.],
            [2.]])
    """
    check_tensor("positions", positions)
    return positions.unsqueeze(-1).to(dtype)


def one_hot(positions: Tensor, width: int, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """Returns φ(i) = e_i. Raises ValueError for positions outside 0 … width − 1; an exported graph returns zeros instead.

    >>> regard.positions.one_hot(torch.tensor([2, 0]), 3)
    tensor([[0., 0., 1.],
            [1., 0., 0.]])
    """
    check_tensor("positions", positions)
    check_length("width", width)
    hot = positions.unsqueeze(-1) == torch.arange(width, device=positions.device)
    if is_readable(positions) and not (covered := hot.any(-1)).all():
        raise ValueError(
            f"position {positions[~covered][0].item()} has no one-hot vector of width {width}, which covers 0 to {width - 1}; "
            "increase the width or shorten the input"
        )
    return hot.to(dtype)


def num_positions(positions: Tensor) -> int:
    """Returns the largest position plus one; 0 if there is none, or if its value cannot be read."""
    return int(positions.max()) + 1 if positions.numel() and is_readable(positions) else 0


# --- rotations and slopes ----------------------------------------------------------------------------------------------------


def rotate(x: Tensor, positions: Tensor, *, layout: Layout = "halves", base: float = 10000.0) -> Tensor:
    """Rotates pair k of each vector by i · base^(−2k/d) (RoPE, Su et al. 2021, 3.2.2): x (..., L, d), positions i (..., L).

    Applied to queries and keys, it makes their dot product depend on i − j only. Half precision is rotated in float32.

    >>> x = torch.ones(3, 4)
    >>> rotated = regard.positions.rotate(x, torch.arange(3))
    >>> scores = rotated @ rotated.T
    >>> torch.allclose(scores[0, 1], scores[1, 2])  # the distance is the same
    True
    """
    check_tensor("x", x)
    check_tensor("positions", positions)
    check_positive("base", base)
    _check_pairs(x.shape[-1], layout)
    try:
        positions.expand(x.shape[:-1])
    except RuntimeError:
        raise ValueError(
            f"positions {tuple(positions.shape)} do not broadcast to {tuple(x.shape[:-1])}, the leading axes of "
            f"x {tuple(x.shape)}; for positions (B, L) and heads (B, H, L, d) write positions[:, None]"
        ) from None
    precision = torch.promote_types(x.dtype, torch.float32)
    angle = _angles(positions, x.shape[-1], base=base)
    sin, cos = angle.sin().to(precision), angle.cos().to(precision)
    a, b = _split(x.to(precision), layout)
    return _join(a * cos - b * sin, a * sin + b * cos, layout).to(x.dtype)


def alibi_slopes(heads: int, *, device: torch.device | str | None = None) -> Tensor:
    """Returns the slopes (H,) of ALiBi, scores − slope · |i − j| (Press et al. 2022, 3).

    For 2^n heads the slopes are 2^(−8h/2^n), h = 1, 2, …; for other numbers of heads, every second slope of the next power of
    two is appended, as in the authors' code.

    >>> regard.positions.alibi_slopes(4)
    tensor([0.2500, 0.0625, 0.0156, 0.0039], dtype=torch.float64)
    """
    check_whole("heads", heads)
    power = 1 << (heads.bit_length() - 1)  # the largest power of two up to heads
    h = torch.arange(1, heads + 1, dtype=torch.float64, device=device)
    return 2.0 ** (-8 * torch.where(h <= power, h, h - power - 0.5) / power)


# --- pairs -------------------------------------------------------------------------------------------------------------------


def _check_pairs(width: int, layout: str) -> None:
    if isinstance(width, bool) or not isinstance(width, int | torch.SymInt) or width < 2 or width % 2:
        raise ValueError(
            f"this position encoding needs pairs (sine, cosine), but the width is {shown(width)}; make it even, 2 or more"
        )
    check_length("width", width)
    if layout not in LAYOUTS:
        raise ValueError(f"unknown layout {shown(layout)}; expected {' or '.join(map(repr, LAYOUTS))}")


def _angles(positions: Tensor, width: int, *, base: float = 10000.0, first: int = 0) -> Tensor:
    """Returns the angles i · base^(−2k/width), k = first, first + 1, …: (...,) -> (..., width/2)."""
    k = torch.arange(first, first + width // 2, dtype=torch.float64, device=positions.device)
    return positions.to(torch.float64).unsqueeze(-1) * base ** (-2 * k / width)


def _join(a: Tensor, b: Tensor, layout: Layout) -> Tensor:
    """Arranges pairs (a_k, b_k) in one vector."""
    return torch.stack((a, b), dim=-1).flatten(-2) if layout == "interleaved" else torch.cat((a, b), dim=-1)


def _split(x: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """The inverse of `_join`."""
    half = x.shape[-1] // 2
    return (x[..., 0::2], x[..., 1::2]) if layout == "interleaved" else (x[..., :half], x[..., half:])
