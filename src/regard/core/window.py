"""Attention within a local window: blocks of queries with only the keys in their reach, in time and memory O(L·w).

A sequence is a grid of one row, so one function serves both. Along each axis a block of queries reaches `width` keys beyond its
ends. For gradients, keys are cut where any block begins or ends, and a block joins its pieces: the gradient of a slice would
have the full size of the tensor, for every block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from regard.core import masks
from regard.errors import check_whole, shown

BLOCK, GRID_BLOCK = 64, 8
"""The smallest length of a block of queries: in a sequence, and along each axis of a grid."""

Axes = tuple[int, int]
"""(rows, columns)."""

Compute = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(queries, keys, values, mask) of a block -> its result (..., queries, ·)."""


Pieces = list[list[Tensor]]
"""Rows of pieces (..., rows, columns, ·) that join to one block."""


@dataclass(frozen=True)
class Window:
    """Which keys are near a query: at most `width` positions before or after it.

    axes: (rows, columns) if the positions are the cells of a grid; the window then has `width` rows and columns to each side.
    causal: whether it ends at the query itself; in sequences only.
    """

    width: int
    axes: Axes | None = None
    causal: bool = False

    def mask(self, num_queries: int, num_keys: int, device: torch.device) -> Tensor:
        """Returns the same window as one mask (Lq, Lk)."""
        if self.axes is not None:
            return masks.grid_window(*self.axes, width=self.width, device=device)
        near = masks.window(num_queries, num_keys, width=self.width, device=device)
        return masks.both(masks.causal(num_queries, num_keys, device=device), near) if self.causal else near

    @property
    def block(self) -> int:
        """The length of a block of queries along each axis."""
        return max(self.width, BLOCK if self.axes is None else GRID_BLOCK)


@dataclass(frozen=True)
class Block:
    """The queries of a block along one axis, and the keys in their reach. shift: what is added to the position of a query."""

    queries: range
    keys: range
    shift: int

    def allow(self, window: Window, device: torch.device) -> Tensor:
        """Returns the mask (queries, keys) of the window."""
        queries, keys = (torch.arange(part.start, part.stop, device=device) for part in (self.queries, self.keys))
        return masks.near(queries + self.shift, keys, width=window.width, causal=window.causal)


def in_window(
    compute: Compute,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    allow: Tensor | None,
    window: Window,
    *,
    repeatable: bool,
) -> Tensor:
    """Computes attention block by block. Arguments as in `attend`; there is at least one query.

    repeatable: whether `compute` gives the same result again; then the backward pass repeats it instead of keeping its parts.
    """
    query_axes, key_axes = window.axes or (1, query.shape[-2]), window.axes or (1, key.shape[-2])
    row_blocks, column_blocks = (
        _blocks(num_queries, num_keys, window) for num_queries, num_keys in zip(query_axes, key_axes, strict=True)
    )
    tracks = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value))
    make_parts = _Pieces if tracks else _Slices
    queries = make_parts(query, query_axes, [row.queries for row in row_blocks], [column.queries for column in column_blocks])
    keys, values = (
        make_parts(x, key_axes, [row.keys for row in row_blocks], [column.keys for column in column_blocks])
        for x in (key, value)
    )

    def compute_block(query: Pieces, key: Pieces, value: Pieces, allow: Tensor) -> Tensor:
        return compute(_joined(query), _joined(key), _joined(value), allow)

    result = _Result(query_axes, tracks=tracks)
    for row, column in product(row_blocks, column_blocks):
        near = masks.on_grid(row.allow(window, query.device), column.allow(window, query.device))
        if allow is not None:
            near = masks.both(near, _cut_mask(allow, row, column, query_axes, key_axes))
        block = (
            queries.at(row.queries, column.queries),
            keys.at(row.keys, column.keys),
            values.at(row.keys, column.keys),
            near,
        )
        if tracks and repeatable:
            computed = checkpoint(compute_block, *block, use_reentrant=False, preserve_rng_state=False)
        else:
            computed = compute_block(*block)
        result.put(row.queries, column.queries, computed)
    return result.joined()


def check_window(width: object, axes: object, num_queries: int, num_keys: int) -> None:
    """Raises ValueError unless width and axes fit the lengths."""
    if width is None:
        raise ValueError(f"axes is {shown(axes)}, but there is no window; pass window=…, or leave out axes")
    check_whole("window", width, 0)
    if axes is None:
        return
    if not isinstance(axes, tuple) or len(axes) != 2:
        raise ValueError(f"axes is {shown(axes)}, expected (rows, columns) of a grid, or None for a sequence")
    for name, size in zip(("rows", "columns"), axes, strict=True):
        check_whole(name, size)
    rows, columns = axes
    if not num_queries == num_keys == rows * columns:
        raise ValueError(
            f"a grid of {rows} rows and {columns} columns has {rows * columns} cells, but there are {num_queries} queries and "
            f"{num_keys} keys; expected one of each per cell, row by row"
        )


def _blocks(num_queries: int, num_keys: int, window: Window) -> list[Block]:
    """Returns the blocks of one axis; the last query belongs to the last key, as in `masks.window`."""
    shift, before, after = num_keys - num_queries, window.width, 0 if window.causal else window.width
    blocks = []
    for start in range(0, num_queries, window.block):
        stop = min(start + window.block, num_queries)
        first, last = (min(max(0, end), num_keys) for end in (start + shift - before, stop + shift + after))
        blocks.append(Block(range(start, stop), range(first, last), shift))
    return blocks


class _Slices:
    """The blocks of a tensor (..., rows · columns, ·), without copying it."""

    def __init__(self, x: Tensor, axes: Axes, rows: Sequence[range], columns: Sequence[range]) -> None:
        self.grid: Tensor = x.unflatten(-2, axes)

    def at(self, rows: range, columns: range) -> Pieces:
        """Returns one block."""
        return [[self.grid[..., rows.start : rows.stop, columns.start : columns.stop, :]]]


class _Pieces:
    """The same for gradients: the tensor is cut along both axes wherever one of these ranges begins or ends."""

    def __init__(self, x: Tensor, axes: Axes, rows: Sequence[range], columns: Sequence[range]) -> None:
        self.row_borders, self.column_borders = _borders(rows), _borders(columns)
        (first, *_, last), (left, *_, right) = self.row_borders, self.column_borders
        grid = x.unflatten(-2, axes)[..., first:last, left:right, :]
        lines = grid.split([stop - start for start, stop in pairwise(self.row_borders)], dim=-3)
        sizes = [stop - start for start, stop in pairwise(self.column_borders)]
        self.pieces = [line.split(sizes, dim=-2) for line in lines]

    def at(self, rows: range, columns: range) -> Pieces:
        """Returns the pieces of one block."""
        left, right = self.column_borders.index(columns.start), self.column_borders.index(columns.stop)
        lines = self.pieces[self.row_borders.index(rows.start) : self.row_borders.index(rows.stop)]
        return [list(line[left:right]) or [line[0][..., :0, :]] for line in lines]


def _borders(ranges: Sequence[range]) -> list[int]:
    """Returns where the ranges begin and end, in ascending order; at least two numbers."""
    borders = sorted({end for part in ranges for end in (part.start, part.stop)})
    return borders if len(borders) > 1 else borders * 2


def _joined(pieces: Pieces) -> Tensor:
    """Joins the pieces of a block to a sequence (..., rows · columns, ·)."""
    lines = [line[0] if len(line) == 1 else torch.cat(line, dim=-2) for line in pieces]
    joined: Tensor = (lines[0] if len(lines) == 1 else torch.cat(lines, dim=-3)).flatten(-3, -2)
    return joined


def _cut_mask(allow: Tensor, row: Block, column: Block, query_axes: Axes, key_axes: Axes) -> Tensor:
    """Returns the mask of a block; an axis of size 1 broadcasts."""
    if allow.shape[-1] > 1:
        allow = _cut_last(allow, key_axes, row.keys, column.keys)
    if allow.shape[-2] > 1:
        allow = _cut_last(allow.transpose(-1, -2), query_axes, row.queries, column.queries).transpose(-1, -2)
    return allow


def _cut_last(x: Tensor, axes: Axes, rows: range, columns: range) -> Tensor:
    cut: Tensor = x.unflatten(-1, axes)[..., rows.start : rows.stop, columns.start : columns.stop].flatten(-2)
    return cut


class _Result:
    """Collects the results of all blocks, in their order. Without gradients they are written to one tensor: joining them at the
    end would take twice the memory."""

    def __init__(self, axes: Axes, *, tracks: bool) -> None:
        self.axes, self.tracks = axes, tracks
        self.lines: list[list[Tensor]] = []
        self.whole: Tensor | None = None

    def put(self, rows: range, columns: range, block: Tensor) -> None:
        """Adds the result (..., rows · columns, ·) of a block."""
        cells = block.unflatten(-2, (len(rows), len(columns)))
        if self.tracks:
            if columns.start == 0:
                self.lines.append([])
            self.lines[-1].append(cells)
            return
        if self.whole is None:
            self.whole = block.new_empty(*block.shape[:-2], *self.axes, block.shape[-1])
        self.whole[..., rows.start : rows.stop, columns.start : columns.stop, :] = cells

    def joined(self) -> Tensor:
        """Returns (..., L, ·)."""
        if self.whole is None:
            return _joined(self.lines)
        joined: Tensor = self.whole.flatten(-3, -2)
        return joined
