"""Argument checks of the public functions, so that an error names the argument that caused it."""

import torch
from torch import Tensor

from regard.errors import check_whole


def check_tensor(name: str, x: object) -> None:
    """Raises unless x is a dense tensor."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} is {_a(x)}, expected a tensor; write torch.as_tensor({name})")
    if x.layout != torch.strided:
        raise ValueError(f"{name} has layout {x.layout}, expected a dense tensor; write {name}.to_dense()")


def check_dtype(name: str, x: Tensor, wanted: torch.dtype, of: str) -> None:
    """Raises ValueError unless x has the wanted dtype, which `of` has. Under autocast, torch converts dtypes itself."""
    if x.dtype != wanted and not torch.is_autocast_enabled(x.device.type):
        raise ValueError(f"{name} has dtype {x.dtype}, but {of} {wanted}; expected the same; write {name}.to({wanted})")


def check_length(name: str, number: object, least: int = 0) -> None:
    """Raises ValueError unless `number` is a whole number, or a symbolic size while a graph is exported."""
    if not isinstance(number, torch.SymInt):
        check_whole(name, number, least)


def _a(x: object) -> str:
    """Returns the name of x's type with its article: "a list", "an int"."""
    name = type(x).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
