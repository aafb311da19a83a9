"""Masks: boolean, True = may attend, always. Every mask of the project is made here, so that there is one meaning of True.

A mask is named `allow` and broadcasts against scores (..., Lq, Lk).
"""

import torch
from torch import Tensor

from regard.core.checks import check_length, check_tensor


def causal(num_queries: int, num_keys: int | None = None, *, device: torch.device | str | None = None) -> Tensor:
    """(Lq, Lk): the look-ahead mask. The last query sees all keys, the one before it all but the last, and so on.

    With a cache there are more keys than queries, and the corner that matters is the bottom right one.
    """
    num_keys = _num_keys(num_queries, num_keys)
    return torch.ones(num_queries, num_keys, dtype=torch.bool, device=device).tril(num_keys - num_queries)


def window(num_queries: int, num_keys: int | None = None, *, width: int, device: torch.device | str | None = None) -> Tensor:
    """(Lq, Lk): each query sees the keys up to `width` places before and behind its own; aligned bottom-right as well."""
    check_length("width", width)
    num_keys = _num_keys(num_queries, num_keys)
    near = torch.ones(num_queries, num_keys, dtype=torch.bool, device=device)
    own = num_keys - num_queries
    return near.tril(own + width).triu(own - width)


def not_padding(ids: Tensor, pad: int) -> Tensor:
    """True where a token is real; the shape of the ids."""
    check_tensor("ids", ids)
    return ids != pad


def first(lengths_B: Tensor, num_positions: int) -> Tensor:
    """(B, num_positions): True for the first `lengths[b]` places of each row."""
    return _arange("lengths", lengths_B, num_positions) < lengths_B[:, None]


def behind(firsts_B: Tensor, num_positions: int) -> Tensor:
    """(B, num_positions): True from place `firsts[b]` on."""
    return _arange("firsts", firsts_B, num_positions) >= firsts_B[:, None]


def positions(allow: Tensor) -> Tensor:
    """The number of each real place among the real ones, from 0, wherever the padding stands; padding itself has 0."""
    check_tensor("allow", allow)
    return (allow.cumsum(-1) - 1) * allow


def among(positions: Tensor, allow: Tensor, num_positions: int) -> Tensor:
    """(..., num_positions): True at the places (..., T) that are listed, if allow (broadcasts to them) is True for them."""
    listed = torch.where(allow, positions, num_positions)  # the others point behind the end
    marks = torch.zeros(*positions.shape[:-1], num_positions + 1, dtype=torch.bool, device=positions.device)
    return marks.scatter_(-1, listed, True)[..., :num_positions]


def every(allow_BHW: Tensor, step: int) -> Tensor:
    """Of squares of `step` by `step` pixels: True where any of the pixels is real, the padding being at the right and below."""
    return allow_BHW[..., ::step, ::step]


def at_least_first(allow_BS: Tensor) -> Tensor:
    """The same, but rows in which nothing is allowed get their first place."""
    return allow_BS | (
        first(torch.ones_like(allow_BS[:, 0], dtype=torch.long), allow_BS.shape[1]) & ~allow_BS.any(1, keepdim=True)
    )


def both(one: Tensor, other: Tensor) -> Tensor:
    """Allowed by both masks."""
    check_tensor("one", one)
    check_tensor("other", other)
    return one & other


def _num_keys(num_queries: int, num_keys: int | None) -> int:
    """As many as queries, unless their number is given."""
    check_length("num_queries", num_queries)
    if num_keys is None:
        return num_queries
    check_length("num_keys", num_keys)
    return num_keys


def _arange(name: str, numbers_B: Tensor, num_positions: int) -> Tensor:
    check_tensor(name, numbers_B)
    check_length("num_positions", num_positions)
    if numbers_B.dim() != 1:
        raise ValueError(f"{name} has shape {tuple(numbers_B.shape)}, expected (batch,): one number for each sentence")
    return torch.arange(num_positions, device=numbers_B.device)
