"""Counts every parameter of a model once, and names the parts that its modules are described by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from regard.inspection.parts import ModelPart, Role

PartReader = Callable[["Ledger", Any, str], list[ModelPart]]
"""Returns the parts of a module of one kind; the text is the letter of the length of its sequence."""


def shape_of(*sizes: int | str) -> str:
    return f"({', '.join(map(str, sizes))})"


def around(name: str, parts: Sequence[ModelPart], *, parameters: int = 0, **facts: Any) -> ModelPart:
    """Returns a part with inner parts. parameters: of its own."""
    inside = sum(part.copies * part.parameters for part in parts)
    return ModelPart(name, parameters=inside + parameters, parts=tuple(parts), **facts)


def input_part(name: str, shape: str) -> ModelPart:
    return ModelPart(name, shape=shape, role="input")


def bias_of(linear: nn.Linear) -> str:
    return " + b" if linear.bias is not None else ""


def collapsed(parts: Iterable[ModelPart]) -> list[ModelPart]:
    """Joins neighbours that differ in nothing but their weights."""
    joined: list[ModelPart] = []
    for part in parts:
        if joined and _nameless(joined[-1]) == _nameless(part):
            joined[-1] = replace(joined[-1], copies=joined[-1].copies + part.copies)
        else:
            joined.append(part)
    return joined


def _nameless(part: ModelPart) -> ModelPart:
    """Returns a part without the names of its modules and the number of its copies."""
    return replace(part, module="", copies=1, parts=tuple(map(_nameless, part.parts)))


class Ledger:
    """Reads the parts of a model from its modules.

    names: of its modules, by their ids.  counted: the ids of the parameters that were counted.
    readers: what reads each kind of module; the first kind that fits counts.
    reads_video: whether the model reads videos.  texts: the stacks of auxiliary texts.
    """

    def __init__(self, model: nn.Module, readers: Mapping[type[nn.Module], PartReader], *, reads_video: bool) -> None:
        self.names: dict[int, str] = {id(module): name for name, module in model.named_modules()}
        self.counted: set[int] = set()
        self.texts: list[ModelPart] = []
        self.readers = readers
        self.reads_video = reads_video

    def name(self, module: nn.Module | None) -> str:
        """Returns the name of a module, or "" if it has none."""
        return self.names.get(id(module), "")

    def parts(self, module: nn.Module | None, L: str) -> list[ModelPart]:
        """Returns the parts of any module. L: the letter of the length of its sequence."""
        if module is None or (not list(module.children()) and not list(module.parameters())):
            return []
        for kind, read in self.readers.items():
            if isinstance(module, kind):
                return read(self, module, L)
        inner = [part for child in module.children() for part in self.parts(child, L)]
        own = self.count(module)
        shape = inner[-1].shape if inner else ""
        return [around(type(module).__name__, inner, parameters=own, shape=shape, module=self.name(module))]

    def count(self, *modules: nn.Module | nn.Parameter | None) -> int:
        """Counts the parameters of modules that were not counted before."""
        number = 0
        for module in modules:
            if module is None:
                continue
            for parameter in (module,) if isinstance(module, nn.Parameter) else module.parameters():
                if id(parameter) not in self.counted:
                    self.counted.add(id(parameter))
                    number += parameter.numel()
        return number

    def leaf(self, name: str, module: nn.Module | None, formula: str, shape: str, role: Role = "other") -> ModelPart:
        """Returns a part that is one module, or none."""
        shared = module is not None and any(id(parameter) in self.counted for parameter in module.parameters())
        parameters = self.count(module)
        note = " (shared)" if shared else ""
        return ModelPart(
            name + note,
            formula,
            shape,
            parameters,
            module=self.name(module),
            role=role,
        )
