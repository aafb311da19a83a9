"""Tables of weight names, read both ways: the names of another format and ours."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.errors import UserError, plural, shown

MAX_NAMED = 3
"""How many names an error message lists."""


@dataclass(frozen=True)
class Names:
    """The weights of one format.

    modules: the name of each of their modules -> that of ours, where {i} is the number of a layer. Several of ours stand in a
    tuple where theirs is one matrix that computes all of them. Several of theirs may have the same name of ours: they are
    copies of one tensor, and the first is the one to write.
    separator: what separates the names of a module and of its tensor.
    norms: their names of the weight and the bias of a layer norm.
    """

    modules: Mapping[str, str | tuple[str, ...]]
    separator: str = "."
    norms: tuple[str, str] = ("weight", "bias")

    def to_ours(self, theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns weights under our names. Raises UserError for names that the table does not hold, and for copies that
        differ."""
        ours: dict[str, Tensor] = {}
        origin: dict[str, str] = {}
        unknown = [name for name in theirs if self._ours(name) is None]
        if unknown:
            raise UserError(f"{listed('unknown weight', unknown)}; expected those of this architecture only")
        for name, tensor in theirs.items():
            targets = self._ours(name) or ()
            if tensor.dim() == 0 or tensor.shape[0] % len(targets):
                raise UserError(
                    f"{name} has the shape {tuple(tensor.shape)}, which cannot be split into {len(targets)} equal parts"
                )
            for target, part in zip(targets, tensor.chunk(len(targets)), strict=True):
                if target in ours and not _equal(ours[target], part):
                    raise UserError(f"{name} and {origin[target]} differ, expected two copies of one tensor")
                if target not in ours:
                    ours[target], origin[target] = part, name
        return ours

    def to_theirs(self, ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns weights under their names. Raises UserError for a weight that the table does not hold."""
        left, theirs = dict(ours), dict[str, Tensor]()
        layers = sorted({int(number) for name in ours for number in re.findall(r"\d+", name)})
        for pattern, targets in self.modules.items():
            for number in layers if "{i}" in pattern else [0]:
                module, names = pattern.format(i=number), [one.format(i=number) for one in _several(targets)]
                for kind in ("weight", "bias"):
                    full = [f"{name}.{kind}" for name in names]
                    if all(name in left for name in full):
                        parts = [left.pop(name) for name in full]
                        value = parts[0] if len(parts) == 1 else torch.cat(parts)
                        theirs[module + self.separator + self._their_kind(names[0], kind)] = value
        if left:
            raise UserError(f"{listed('weight', left)} without a name in that format")
        return theirs

    def _ours(self, name: str) -> list[str] | None:
        """Returns our names for one of theirs; None if the table does not hold it."""
        module, _, kind = name.rpartition(self.separator)
        numbers = [int(match) for match in re.findall(r"(?<![A-Za-z0-9])\d+|(?<=layer_)\d+", module)]
        for number in numbers or [0]:
            for pattern in (module, re.sub(rf"(?<!\d){number}(?!\d)", "{i}", module, count=1)):
                if pattern in self.modules:
                    targets = [target.format(i=number) for target in _several(self.modules[pattern])]
                    kinds = {self._their_kind(targets[0], ours): ours for ours in ("weight", "bias")}
                    return [f"{target}.{kinds[kind]}" for target in targets] if kind in kinds else None
        return None

    def _their_kind(self, module: str, kind: str) -> str:
        """Returns their name for "weight" or "bias" of one of our modules."""
        return dict(zip(("weight", "bias"), self.norms, strict=True))[kind] if module.endswith("norm") else kind


def _several(names: str | tuple[str, ...]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.data_ptr() == other.data_ptr() or (one.shape == other.shape and torch.equal(one, other))


def listed(noun: str, names: Iterable[str]) -> str:
    """Returns a count and the first names, for an error message: "2 unknown weights: a, b"."""
    names = list(names)
    more = ", …" if len(names) > MAX_NAMED else ""
    return f"{plural(len(names), noun)}: {', '.join(shown(name)[1:-1] for name in names[:MAX_NAMED])}{more}"


def check_complete(expected: Mapping[str, tuple[int, ...]], found: Mapping[str, Tensor]) -> None:
    """Raises UserError with all weights that are missing, unknown or of another shape. expected: name -> shape."""
    wrong: list[str] = []
    if missing := [name for name in expected if name not in found]:
        wrong.append(listed("missing weight", missing))
    if unknown := [name for name in found if name not in expected]:
        wrong.append(listed("unknown weight", unknown))
    shapes = [
        f"{name} has the shape {tuple(found[name].shape)}, expected {shape}"
        for name, shape in expected.items()
        if name in found and tuple(found[name].shape) != shape
    ]
    if shapes:
        wrong.append("; ".join(shapes[:MAX_NAMED]))
    if wrong:
        raise UserError("; ".join(wrong))


ATTENTION = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "out_proj": "output"}
"""The projections of an attention as fairseq named them, and as ours are named."""


def bart_modules(prefix: str, embeddings: Mapping[str, str]) -> dict[str, str | tuple[str, ...]]:
    """Returns the modules of an encoder-decoder whose layers have fairseq's names, as those of BART and Marian do.

    prefix: what precedes "encoder." and "decoder.".  embeddings: the modules outside the layers.
    """
    modules: dict[str, str | tuple[str, ...]] = dict(embeddings)
    for side, kinds in (("encoder", ("self",)), ("decoder", ("self", "encoder"))):
        theirs, ours = f"{prefix}{side}.layers.{{i}}", f"{side}.layers.{{i}}"
        for kind in kinds:
            name = "attention" if kind == "self" else "cross"
            modules |= {f"{theirs}.{kind}_attn.{one}": f"{ours}.{name}.{other}" for one, other in ATTENTION.items()}
            modules[f"{theirs}.{kind}_attn_layer_norm"] = f"{ours}.around_{name}.norm"
        modules[f"{theirs}.fc1"], modules[f"{theirs}.fc2"] = f"{ours}.feed_forward.0", f"{ours}.feed_forward.3"
        modules[f"{theirs}.final_layer_norm"] = f"{ours}.around_feed_forward.norm"
        modules[f"{prefix}{side}.layer_norm"] = f"{side}.norm"
    return modules


def check_reasons(what: str, reasons: Sequence[str]) -> None:
    """Raises UserError with all reasons why a model cannot be converted, if there are any."""
    if reasons:
        raise UserError(f"{what}: {'; '.join(reasons)}")
