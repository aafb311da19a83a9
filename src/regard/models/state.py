"""What every model's State has in common: moving rows around.

A model's state is a dataclass of tensors (or tuples of them, one per layer). Each field says what its first axes are:

    per_sentence()        (B, ...)      the same for all hypotheses
    per_hypothesis()      (B, K, ...)   each hypothesis has its own
    ..., grows=axis                     this axis differs between batches: `join` pads it
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor


def per_sentence(*, grows: int | None = None) -> Any:
    return field(metadata={"hypotheses": False, "grows": grows})


def per_hypothesis(*, grows: int | None = None) -> Any:
    return field(metadata={"hypotheses": True, "grows": grows})


@dataclass(kw_only=True)
class BatchState:
    lengths_B: Tensor = per_sentence()
    spent: bool = False

    def spend(self) -> None:
        if self.spent:
            raise RuntimeError(
                "this State was spent by an earlier step, which may have written into it; fork it before with copy()"
            )
        self.spent = True

    def check_ids(self, ids_BK: Tensor) -> None:
        """Raises unless there is one id for each hypothesis of each sentence."""
        hypotheses = next(one.name for one in self._leaf_fields() if one.metadata["hypotheses"])
        leaf = getattr(self, hypotheses)
        wanted = tuple((leaf[0] if isinstance(leaf, tuple) else leaf).shape[:2])
        if tuple(ids_BK.shape) != wanted:
            raise ValueError(f"ids have shape {tuple(ids_BK.shape)}, expected (sentences, hypotheses) = {wanted}")

    def select(self, parents_BK: Tensor) -> Self:
        if len(parents_BK) != len(self.lengths_B):
            raise ValueError(f"parents for {len(parents_BK)} sentences, expected {len(self.lengths_B)}, one row for each")
        rows_B1 = torch.arange(parents_BK.shape[0], device=parents_BK.device)[:, None]
        return self._map(lambda leaf: leaf[rows_B1, parents_BK], only_hypotheses=True)

    def keep(self, rows_N: Tensor) -> Self:
        return self._map(lambda leaf: leaf[rows_N])

    def copy(self) -> Self:
        return self._map(lambda leaf: leaf.clone(), only_hypotheses=True)

    def join(self, *others: Self) -> Self:
        for state in (self, *others):
            state._unspent()
        changes: dict[str, Any] = {}
        for one in self._leaf_fields():
            parts = [getattr(state, one.name) for state in (self, *others)]
            grows = one.metadata["grows"]
            if isinstance(parts[0], tuple):
                changes[one.name] = tuple(_stack(layers, grows) for layers in zip(*parts, strict=True))
            else:
                changes[one.name] = _stack(parts, grows)
        return replace(self, **changes)

    @property
    def nbytes(self) -> int:
        leaves = (getattr(self, one.name) for one in self._leaf_fields())
        return sum(t.nbytes for leaf in leaves for t in (leaf if isinstance(leaf, tuple) else (leaf,)))

    def _leaf_fields(self) -> list[Any]:
        return [one for one in fields(self) if "hypotheses" in one.metadata]

    def _unspent(self) -> None:
        if self.spent:
            self.spend()

    def _map(self, change: Callable[[Tensor], Tensor], *, only_hypotheses: bool = False) -> Self:
        self._unspent()
        changes: dict[str, Any] = {}
        for one in self._leaf_fields():
            if only_hypotheses and not one.metadata["hypotheses"]:
                continue
            leaf = getattr(self, one.name)
            changes[one.name] = tuple(map(change, leaf)) if isinstance(leaf, tuple) else change(leaf)
        return replace(self, **changes)


def _stack(tensors: Sequence[Tensor], grows: int | None) -> Tensor:
    """One under the other; the axis that grows is filled up with zeros (False in a mask) at its end."""
    if grows is not None:
        size = max(tensor.shape[grows] for tensor in tensors)
        tensors = [_fill(tensor, grows, size) for tensor in tensors]
    mine = tensors[0].shape[1:]
    for theirs in tensors[1:]:
        if theirs.shape[1:] != mine:
            raise ValueError(
                f"rows of shape {tuple(theirs.shape[1:])} cannot join rows of shape {tuple(mine)}; "
                "both states need the same model and the same number of hypotheses"
            )
    return torch.cat(list(tensors))


def _fill(tensor: Tensor, axis: int, size: int) -> Tensor:
    missing = size - tensor.shape[axis]
    return F.pad(tensor, [0, 0] * (tensor.dim() - 1 - axis) + [0, missing]) if missing else tensor
