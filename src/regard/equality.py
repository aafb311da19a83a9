"""Equality of dataclasses that hold tensors or arrays, whose own `==` compares number by number."""

from __future__ import annotations

from dataclasses import fields
from typing import Any


class ByValue:
    """Defines equality for dataclasses with tensors or arrays: they are equal if shape, dtype, device and values are equal."""

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(_same(mine, theirs) for mine, theirs in zip(_values(self), _values(other), strict=True))

    def __hash__(self) -> int:
        return hash((type(self), *(value for value in _values(self) if not _is_array(value) and not isinstance(value, dict))))


def _values(data: object) -> list[object]:
    return [getattr(data, field.name) for field in fields(data)]  # type: ignore[arg-type]


def _is_array(value: Any) -> bool:
    return hasattr(value, "dtype") and hasattr(value, "shape")


def _same(mine: Any, theirs: Any) -> bool:
    if isinstance(mine, dict) and isinstance(theirs, dict):
        return mine.keys() == theirs.keys() and all(_same(value, theirs[key]) for key, value in mine.items())
    if not (_is_array(mine) and _is_array(theirs)):
        return bool(mine == theirs)
    if (type(mine), mine.shape, mine.dtype, mine.device) != (type(theirs), theirs.shape, theirs.dtype, theirs.device):
        return False
    return bool((mine == theirs).all())
