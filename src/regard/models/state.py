"""The base class of all States, which selects, removes, joins and copies the rows of a batch.

A State is a dataclass of tensors, or of tuples with one tensor per layer. Each field declares its first axes:

    per_sentence()        (B, ...)      shared by all hypotheses of a sentence
    per_hypothesis()      (B, K, ...)   separate for each hypothesis
    ..., grows=axis                     the size of this axis differs between batches: `join` pads it
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import Field, dataclass, fields, replace
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor


def per_sentence(*, grows: int | None = None) -> Any:
    """Declares a field (B, ...). grows: the axis that `join` pads, if any."""
    return dataclasses.field(metadata={"hypotheses": False, "grows": grows})


def per_hypothesis(*, grows: int | None = None) -> Any:
    """Declares a field (B, K, ...). grows: the axis that `join` pads, if any."""
    return dataclasses.field(metadata={"hypotheses": True, "grows": grows})


@dataclass(kw_only=True)
class BatchState:
    """Implements the `State` contract for dataclasses whose fields are made by `per_sentence` and `per_hypothesis`.

    lengths_B: number of tokens read, per sentence. spent: whether a step has used this State.
    """

    lengths_B: Tensor = per_sentence()
    spent: bool = False

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
        return self._map(lambda tensor: tensor[rows_N])

    def copy(self) -> Self:
        """Returns a copy that can be stepped independently of this State."""
        return self._map(lambda tensor: tensor.clone(), only_hypotheses=True)

    def join(self, *others: Self) -> Self:
        """Returns a State with the sentences of all States, those of this one first.

        Raises ValueError if the States differ in their model or in their number of hypotheses.
        """
        for state in (self, *others):
            state._check_unspent()
        changes: dict[str, Any] = {}
        for field in self._tensor_fields():
            values = [getattr(state, field.name) for state in (self, *others)]
            grows = field.metadata["grows"]
            if isinstance(values[0], tuple):
                changes[field.name] = tuple(_concatenate(tensors, grows) for tensors in zip(*values, strict=True))
            else:
                changes[field.name] = _concatenate(values, grows)
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
    expected = tensors[0].shape[1:]
    for tensor in tensors[1:]:
        if tensor.shape[1:] != expected:
            raise ValueError(
                f"cannot join rows of shape {tuple(tensor.shape[1:])} with rows of shape {tuple(expected)}; "
                "all States need the same model and the same number of hypotheses"
            )
    return torch.cat(list(tensors))


def _pad(tensor: Tensor, axis: int, size: int) -> Tensor:
    missing = size - tensor.shape[axis]
    return F.pad(tensor, [0, 0] * (tensor.dim() - 1 - axis) + [0, missing]) if missing else tensor
