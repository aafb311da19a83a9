"""The base class of all States, which selects, removes, joins and copies the rows of a batch.

A State is a dataclass of tensors, or of tuples with one tensor per layer. Each field declares its first axes:

    per_sentence()        (B, ...)      shared by all hypotheses of a sentence
    per_hypothesis()      (B, K, ...)   separate for each hypothesis
    ..., grows=axis                     the size of this axis differs between batches: `join` pads it
    ..., source=axis                    the same, and it is the axis of the source positions, of which allow_BS is the mask
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import Field, dataclass, fields, replace
from functools import partial
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

FEW_POSITIONS = 16
"""Fewer source positions than these are never removed."""


def per_sentence(*, grows: int | None = None, source: int | None = None) -> Any:
    """Declares a field (B, ...). grows: the axis that `join` pads, if any.  source: that axis, if it is that of the source."""
    return _field(False, grows, source)


def per_hypothesis(*, grows: int | None = None, source: int | None = None) -> Any:
    """Declares a field (B, K, ...). grows, source: as in `per_sentence`."""
    return _field(True, grows, source)


def _field(hypotheses: bool, grows: int | None, source: int | None) -> Any:
    metadata = {"hypotheses": hypotheses, "grows": grows if source is None else source, "source": source}
    return dataclasses.field(metadata=metadata)


@dataclass(kw_only=True)
class BatchState:
    """Implements the `State` contract for dataclasses whose fields are made by `per_sentence` and `per_hypothesis`.

    lengths_B: number of tokens read, per sentence. spent: whether a step has used this State.
    owned: whether no other State and no Memory shares the tensors per sentence, so that `put` may write into them.
    """

    lengths_B: Tensor = per_sentence()
    spent: bool = False
    owned: bool = False

    def spend(self) -> None:
        """Marks this State as used. Raises RuntimeError if it already is."""
        if self.spent:
            raise RuntimeError(
                "this State was already used by an earlier step, which may have modified it; call copy() before that step"
            )
        self.spent = True

    def check_ids(self, ids_BK: Tensor) -> None:
        """Raises ValueError unless there is one id for each hypothesis of each sentence."""
        name = next(field.name for field in self._tensor_fields() if field.metadata["hypotheses"])
        value = getattr(self, name)
        expected = tuple((value[0] if isinstance(value, tuple) else value).shape[:2])
        if tuple(ids_BK.shape) != expected:
            raise ValueError(f"ids have shape {tuple(ids_BK.shape)}, expected (sentences, hypotheses) = {expected}")

    def select(self, parents_BK: Tensor) -> Self:
        """Returns a State in which hypothesis k of sentence b continues hypothesis parents_BK[b, k] of this State."""
        if len(parents_BK) != len(self.lengths_B):
            raise ValueError(f"parents has {len(parents_BK)} rows, expected {len(self.lengths_B)}, one per sentence")
        rows_B1 = torch.arange(parents_BK.shape[0], device=parents_BK.device)[:, None]
        return self._map(lambda tensor: tensor[rows_B1, parents_BK], only_hypotheses=True)

    def keep(self, rows_N: Tensor) -> Self:
        """Returns a State with only these sentences, in this order."""
        return replace(self._map(lambda tensor: tensor[rows_N]), owned=True)._without_padding()

    def copy(self) -> Self:
        """Returns a copy that can be stepped independently of this State."""
        self.owned = False
        return self._map(lambda tensor: tensor.clone(), only_hypotheses=True)

    def join(self, *others: Self) -> Self:
        """Returns a State with the sentences of all States, those of this one first.

        Raises ValueError if the States differ in their model or in their number of hypotheses.
        """
        for state in (self, *others):
            state._check_unspent()
        changes: dict[str, Any] = {"owned": True}
        for field in self._tensor_fields():
            values = [getattr(state, field.name) for state in (self, *others)]
            grows = field.metadata["grows"]
            if isinstance(values[0], tuple):
                changes[field.name] = tuple(_concatenate(tensors, grows) for tensors in zip(*values, strict=True))
            else:
                changes[field.name] = _concatenate(values, grows)
        return replace(self, **changes)

    def put(self, rows_N: Tensor, new: Self) -> Self:
        """Returns a State in which the sentences in these rows are replaced by those of another State, in order.

        This costs about as much as the new sentences alone, while `keep` and `join` copy all of them: it writes into the
        tensors of this State, unless others share them. Raises ValueError as `join` does.
        """
        self._check_unspent()
        new._check_unspent()
        in_place = self.owned and not torch.is_grad_enabled()
        changes: dict[str, Any] = {"owned": True}
        for field in self._tensor_fields():
            value, other, grows = getattr(self, field.name), getattr(new, field.name), field.metadata["grows"]
            if isinstance(value, tuple):
                pairs = zip(value, other, strict=True)
                changes[field.name] = tuple(_written(one, rows_N, into, grows, in_place) for one, into in pairs)
            else:
                changes[field.name] = _written(value, rows_N, other, grows, in_place)
        return replace(self, **changes)._without_padding()

    def _without_padding(self) -> Self:
        """Returns this State without the source positions that no sentence has any more, if they are more than half."""
        allow_BS: Tensor | None = getattr(self, "allow_BS", None)
        if allow_BS is None or allow_BS.shape[1] <= FEW_POSITIONS:
            return self
        columns_N, num_positions = allow_BS.any(0).nonzero(), allow_BS.shape[1]
        needed = int(columns_N.max()) + 1 if len(columns_N) else 0
        if num_positions <= 2 * max(FEW_POSITIONS, needed):
            return self
        changes: dict[str, Any] = {}
        for field in self._tensor_fields():
            if (axis := field.metadata["source"]) is not None:
                value = getattr(self, field.name)
                cut = partial(_cut, axis=axis, size=needed)
                changes[field.name] = tuple(map(cut, value)) if isinstance(value, tuple) else cut(value)
        return replace(self, **changes)

    @property
    def nbytes(self) -> int:
        """Size of all tensors in bytes."""
        values = (getattr(self, field.name) for field in self._tensor_fields())
        return sum(tensor.nbytes for value in values for tensor in (value if isinstance(value, tuple) else (value,)))

    def _tensor_fields(self) -> list[Field[Any]]:
        return [field for field in fields(self) if "hypotheses" in field.metadata]

    def _check_unspent(self) -> None:
        if self.spent:
            self.spend()

    def _map(self, change: Callable[[Tensor], Tensor], *, only_hypotheses: bool = False) -> Self:
        """Returns a State with `change` applied to all tensors, or only to those of `per_hypothesis` fields."""
        self._check_unspent()
        changes: dict[str, Any] = {}
        for field in self._tensor_fields():
            if only_hypotheses and not field.metadata["hypotheses"]:
                continue
            value = getattr(self, field.name)
            changes[field.name] = tuple(map(change, value)) if isinstance(value, tuple) else change(value)
        return replace(self, **changes)


def _concatenate(tensors: Sequence[Tensor], grows: int | None) -> Tensor:
    """Concatenates tensors along the first axis; the axis that grows is padded with zeros (False in a mask) at its end."""
    if grows is not None:
        size = max(tensor.shape[grows] for tensor in tensors)
        tensors = [_pad(tensor, grows, size) for tensor in tensors]
    for tensor in tensors[1:]:
        _check_rows(tensor, tensors[0])
    return torch.cat(list(tensors))


def _written(tensor: Tensor, rows_N: Tensor, new: Tensor, grows: int | None, in_place: bool) -> Tensor:
    """Returns the tensor with new rows instead of some. in_place: whether it may be written into."""
    if grows is not None:
        size = max(tensor.shape[grows], new.shape[grows])
        in_place = in_place or size > tensor.shape[grows]  # padding copies
        tensor, new = _pad(tensor, grows, size), _pad(new, grows, size)
    _check_rows(new, tensor)
    if not in_place:
        return tensor.index_copy(0, rows_N, new)
    tensor[rows_N] = new
    return tensor


def _check_rows(new: Tensor, others: Tensor) -> None:
    if new.shape[1:] != others.shape[1:]:
        raise ValueError(
            f"cannot join rows of shape {tuple(new.shape[1:])} with rows of shape {tuple(others.shape[1:])}; "
            "all States need the same model and the same number of hypotheses"
        )


def _cut(tensor: Tensor, axis: int, size: int) -> Tensor:
    return tensor.narrow(axis, 0, min(size, tensor.shape[axis])).clone()


def _pad(tensor: Tensor, axis: int, size: int) -> Tensor:
    missing = size - tensor.shape[axis]
    return F.pad(tensor, [0, 0] * (tensor.dim() - 1 - axis) + [0, missing]) if missing else tensor
