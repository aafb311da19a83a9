"""Where a token stands, as numbers: φ(i) to be added or appended, rotations of queries and keys, slopes for scores.

Places are position numbers of any shape (...,); φ gives (..., width). All tables are computed in float64, so that far places
keep their phase, and then cast.
"""

from typing import Literal, get_args

import torch
from torch import Tensor

from regard.core.checks import check_length, check_tensor
from regard.errors import check_positive, check_whole, shown

Layout = Literal["interleaved", "halves"]
"""How pairs (a_k, b_k) stand in a row: a_0 b_0 a_1 b_1 … as in the papers, or a_0 a_1 … b_0 b_1 … as in Marian and Llama."""

LAYOUTS: tuple[Layout, ...] = get_args(Layout)


# --- vectors for places ------------------------------------------------------------------------------------------------------


def sinusoidal(
    positions: Tensor, width: int, *, layout: Layout = "interleaved", first: int = 0, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Pairs sin(ω_k i), cos(ω_k i), ω_k = 10000^(−2k/width) (Vaswani et al. 2017, 3.5); k counts from `first`.

    φ(i)·φ(j) = Σ_k cos(ω_k (i − j)): it depends on the distance only.
    """
    _check_pairs(width, layout)
    check_tensor("positions", positions)
    angle = _angles(positions, width, first=first)
    return _join(angle.sin(), angle.cos(), layout).to(dtype)


def fourier(
    positions: Tensor,
    width: int,
    *,
    sharpness: float = 0.01,
    layout: Layout = "interleaved",
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Pairs of sines and cosines with φ(i)·φ(j) ≈ exp(−λ(i−j)²), λ = `sharpness`, and 1 at i = j.

    The Gaussian is the mean of cos(2√λ u (i−j)) over u with density ∝ exp(−u²) (Rahimi & Recht 2007, who draw u at random;
    here it takes the width/2 midpoints of a grid from 0 to 3). The error is below 1e-4 while |i−j| ≤ (width/2 − 3)/√λ; farther
    away the bell comes back upside down, around |i−j| = π·width/(6√λ).
    """
    _check_pairs(width, layout)
    check_tensor("positions", positions)
    check_positive("sharpness", sharpness, "a number above 0; 0.01 lets similarity fade over some ten places")
    u = 6 * (torch.arange(width // 2, dtype=torch.float64, device=positions.device) + 0.5) / width
    angle = positions.to(torch.float64).unsqueeze(-1) * (2 * sharpness**0.5 * u)
    amplitude = (-u.square()).softmax(-1).sqrt()
    return _join(amplitude * angle.sin(), amplitude * angle.cos(), layout).to(dtype)


def raw_index(positions: Tensor, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """φ(i) = i, of width 1. Half precision blurs it early: bfloat16 knows every whole number only up to 256."""
    check_tensor("positions", positions)
    return positions.unsqueeze(-1).to(dtype)


def one_hot(positions: Tensor, width: int, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """φ(i) = e_i. A place outside 0 … width − 1 is an error; in an exported graph, which cannot ask, it gives zeros."""
    check_tensor("positions", positions)
    check_length("width", width)
    hot = positions.unsqueeze(-1) == torch.arange(width, device=positions.device)
    if _readable(positions) and not (known := hot.any(-1)).all():
        raise ValueError(
            f"place {positions[~known][0].item()} has no one-hot vector of width {width}, for places 0 to {width - 1}; "
            "make the width larger or the input shorter"
        )
    return hot.to(dtype)


def num_positions(positions: Tensor) -> int:
    """The largest number plus one; 0 where there is none to read."""
    return int(positions.max()) + 1 if positions.numel() and _readable(positions) else 0


def _readable(positions: Tensor) -> bool:
    """Meta and fake tensors hold no numbers, and tracing must not look at them."""
    return not torch.compiler.is_compiling() and positions.untyped_storage().device.type != "meta"


# --- places inside attention -------------------------------------------------------------------------------------------------


def rotate(x: Tensor, positions: Tensor, *, layout: Layout = "halves", base: float = 10000.0) -> Tensor:
    """Turns pair k of every vector by the angle i · base^(−2k/d) (Su et al. 2021, 3.2.2): (..., L, d) with places (..., L).

    Done to queries and keys, it makes their dot product depend on i − j only. Half precision is turned in float32.
    """
    check_tensor("x", x)
    check_tensor("positions", positions)
    check_positive("base", base)
    _check_pairs(x.shape[-1], layout)
    try:
        positions.expand(x.shape[:-1])
    except RuntimeError:
        raise ValueError(
            f"places {tuple(positions.shape)} do not broadcast to {tuple(x.shape[:-1])}, the leading axes of x {tuple(x.shape)}; "
            "places (B, L) for heads (B, H, L, d) want places[:, None]"
        ) from None
    work = torch.promote_types(x.dtype, torch.float32)
    angle = _angles(positions, x.shape[-1], base=base)
    sin, cos = angle.sin().to(work), angle.cos().to(work)
    a, b = _part(x.to(work), layout)
    return _join(a * cos - b * sin, a * sin + b * cos, layout).to(x.dtype)


def alibi_slopes(heads: int, *, device: torch.device | str | None = None) -> Tensor:
    """(H,): how much score each head takes off per place of distance, scores − slope · |i − j| (Press et al. 2022, 3).

    For 2^n heads the slopes are 2^(−8h/2^n), h = 1, 2, …; other counts append every second slope of the next power of two,
    as the authors' code does.
    """
    check_whole("heads", heads)
    power = 1 << (heads.bit_length() - 1)  # the largest power of two that is not above
    h = torch.arange(1, heads + 1, dtype=torch.float64, device=device)
    return 2.0 ** (-8 * torch.where(h <= power, h, h - power - 0.5) / power)


# --- pairs -------------------------------------------------------------------------------------------------------------------


def _check_pairs(width: int, layout: str) -> None:
    if isinstance(width, bool) or not isinstance(width, int | torch.SymInt) or width < 2 or width % 2:
        raise ValueError(
            f"these positions work on pairs, sine and cosine, but the width is {shown(width)}; make it even, 2 or more"
        )
    check_length("width", width)
    if layout not in LAYOUTS:
        raise ValueError(f"unknown layout {shown(layout)}; expected {' or '.join(map(repr, LAYOUTS))}")


def _angles(positions: Tensor, width: int, *, base: float = 10000.0, first: int = 0) -> Tensor:
    """i · base^(−2k/width), k = first, first + 1, …: (...,) -> (..., width/2)."""
    k = torch.arange(first, first + width // 2, dtype=torch.float64, device=positions.device)
    return positions.to(torch.float64).unsqueeze(-1) * base ** (-2 * k / width)


def _join(a: Tensor, b: Tensor, layout: Layout) -> Tensor:
    return torch.stack((a, b), dim=-1).flatten(-2) if layout == "interleaved" else torch.cat((a, b), dim=-1)


def _part(x: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """The inverse of `_join`."""
    half = x.shape[-1] // 2
    return (x[..., 0::2], x[..., 1::2]) if layout == "interleaved" else (x[..., :half], x[..., half:])
