"""Attention masks: boolean, always with True = may attend. All masks of the package are created here, so True has one meaning.

A mask is named `allow` and broadcasts against scores (..., Lq, Lk). The masks of torch.nn.MultiheadAttention (attn_mask,
key_padding_mask) mean the opposite: pass `~mask`.
"""

import torch
from torch import Tensor

from regard.core.checks import check_length, check_tensor

__all__ = ["both", "causal", "first", "grid_window", "not_padding", "positions", "window"]


def causal(num_queries: int, num_keys: int | None = None, *, device: torch.device | str | None = None) -> Tensor:
    """Returns the causal mask (look-ahead mask), (Lq, Lk): the last query may attend to all keys, the one before it to all but
    the last, and so on.

    With a KV cache there are more keys than queries; the mask is therefore aligned at the bottom right.

    >>> regard.masks.causal(3)
    tensor([[ True, False, False],
            [ True,  True, False],
            [ True,  True,  True]])
    >>> regard.masks.causal(1, 3)
    tensor([[True, True, True]])
    """
    num_keys = _num_keys(num_queries, num_keys)
    return torch.ones(num_queries, num_keys, dtype=torch.bool, device=device).tril(num_keys - num_queries)


def window(num_queries: int, num_keys: int | None = None, *, width: int, device: torch.device | str | None = None) -> Tensor:
    """Returns (Lq, Lk): a query may attend to keys at most `width` positions before or after its own; aligned like `causal`.

    >>> regard.masks.window(4, width=1).int()
    tensor([[1, 1, 0, 0],
            [1, 1, 1, 0],
            [0, 1, 1, 1],
            [0, 0, 1, 1]], dtype=torch.int32)
    """
    check_length("width", width)
    num_keys = _num_keys(num_queries, num_keys)
    all_pairs = torch.ones(num_queries, num_keys, dtype=torch.bool, device=device)
    diagonal = num_keys - num_queries
    return all_pairs.tril(diagonal + width).triu(diagonal - width)


def near(queries: Tensor, keys: Tensor, *, width: int, causal: bool = False) -> Tensor:
    """Returns (Lq, Lk) for positions (Lq,) and (Lk,): a query may attend to keys at most `width` positions away.

    causal: whether it may attend only to itself and to earlier keys.
    """
    distance = queries[:, None] - keys
    return (distance >= 0) & (distance <= width) if causal else distance.abs() <= width


def on_grid(rows: Tensor, columns: Tensor) -> Tensor:
    """Returns the mask of the cells of a grid, row by row: (rows · columns of the queries, rows · columns of the keys).

    rows, columns: masks of the rows and of the columns; a cell may attend to another if both allow it.
    """
    return (rows[:, None, :, None] & columns[:, None]).flatten(2).flatten(0, 1)


def grid_window(rows: int, columns: int, *, width: int, device: torch.device | str | None = None) -> Tensor:
    """Returns (rows · columns, rows · columns): a cell may attend to cells at most `width` rows and `width` columns away.

    >>> regard.masks.grid_window(2, 3, width=1)[0]  # the cell at the top left does not see the last column
    tensor([ True,  True, False,  True,  True, False])
    """
    return on_grid(*(window(size, width=width, device=device) for size in (rows, columns)))


def not_padding(ids: Tensor, pad: int) -> Tensor:
    """Returns the key padding mask of ids (B, L): False at padding. `mask[:, None]` broadcasts to scores (B, Lq, Lk).

    >>> regard.masks.not_padding(torch.tensor([[5, 6, 0], [7, 0, 0]]), pad=0)
    tensor([[ True,  True, False],
            [ True, False, False]])
    """
    check_tensor("ids", ids)
    return ids != pad


def first(lengths_B: Tensor, num_positions: int) -> Tensor:
    """Returns the key padding mask (B, num_positions): True at the first `lengths[b]` positions of each row.

    >>> regard.masks.first(torch.tensor([2, 1]), 3)
    tensor([[ True,  True, False],
            [ True, False, False]])
    """
    return _arange("lengths", lengths_B, num_positions) < lengths_B[:, None]


def starting_at(firsts_B: Tensor, num_positions: int) -> Tensor:
    """Returns (B, num_positions): True from position `firsts[b]` on."""
    return _arange("firsts", firsts_B, num_positions) >= firsts_B[:, None]


def positions(allow: Tensor) -> Tensor:
    """Returns positions 0, 1, 2, … that skip padding, wherever it is; padding itself gets 0.

    >>> regard.masks.positions(torch.tensor([[False, True, True]]))
    tensor([[0, 0, 1]])
    """
    check_tensor("allow", allow)
    return (allow.cumsum(-1) - 1) * allow


def key_positions(allow: Tensor, num_keys: int) -> Tensor:
    """Returns the positions (..., Lk) of the keys of a mask (..., Lq, Lk). A key to which no query may attend is padding."""
    attended = allow.any(-2)
    return positions(attended.expand(*attended.shape[:-1], num_keys))


def at_positions(positions: Tensor, allow: Tensor, num_positions: int) -> Tensor:
    """Returns (..., num_positions): True at the positions (..., T) where `allow`, which broadcasts to them, is True."""
    listed = torch.where(allow, positions, num_positions)  # the others point past the end
    marks = torch.zeros(*positions.shape[:-1], num_positions + 1, dtype=torch.bool, device=positions.device)
    return marks.scatter_(-1, listed, True)[..., :num_positions]


def downsample(allow_BHW: Tensor, step: int) -> Tensor:
    """Returns the mask of squares of `step` by `step` pixels: True if any pixel is real. Padding is at the right and bottom."""
    return allow_BHW[..., ::step, ::step]


def at_least_first(allow_BS: Tensor) -> Tensor:
    """Returns the mask with the first position allowed in rows that allow none."""
    return allow_BS | (
        first(torch.ones_like(allow_BS[:, 0], dtype=torch.long), allow_BS.shape[1]) & ~allow_BS.any(1, keepdim=True)
    )


def both(one: Tensor, other: Tensor) -> Tensor:
    """Returns the mask of what both masks allow.

    >>> padding = regard.masks.first(torch.tensor([2]), 3)
    >>> regard.masks.both(regard.masks.causal(3), padding[:, None]).int()
    tensor([[[1, 0, 0],
             [1, 1, 0],
             [1, 1, 0]]], dtype=torch.int32)
    """
    check_tensor("one", one)
    check_tensor("other", other)
    return one & other


def without(allow: Tensor | None, links: Tensor) -> Tensor:
    """Returns the mask without some links, which are True; no mask allows everything."""
    return ~links if allow is None else both(allow, ~links)


def _num_keys(num_queries: int, num_keys: int | None) -> int:
    """Returns the checked number of keys; by default the number of queries."""
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
