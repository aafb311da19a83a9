"""Argument checks of the public functions, so that an error names the argument that caused it."""

import torch
from torch import Tensor

from regard.core.precision import is_rounding
from regard.errors import check_whole


def check_tensor(name: str, x: object) -> None:
    """Raises unless x is a dense tensor."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} is {_type_name(x)}, expected a tensor; write torch.as_tensor({name})")
    if x.layout != torch.strided:
        raise ValueError(f"{name} has layout {x.layout}, expected a dense tensor; write {name}.to_dense()")


def check_dtype(name: str, x: Tensor, expected: torch.dtype, owner: str) -> None:
    """Raises ValueError unless x has the expected dtype. Under autocast, torch converts dtypes itself.

    owner: subject and verb of the message for what has the expected dtype, e.g. "query has".
    """
    if x.dtype != expected and not is_rounding(x.device):
        raise ValueError(f"{name} has dtype {x.dtype}, but {owner} {expected}; expected the same; write {name}.to({expected})")


def check_length(name: str, number: object, least: int = 0) -> None:
    """Raises ValueError unless `number` is a whole number, or a symbolic size while a graph is exported."""
    if not isinstance(number, torch.SymInt):
        check_whole(name, number, least)


def _type_name(x: object) -> str:
    """Returns the name of x's type with its article: "a list", "an int"."""
    name = type(x).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
