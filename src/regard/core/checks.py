"""What the public functions require of their arguments, so that a mistake is named where it is made."""

import torch
from torch import Tensor

from regard.errors import check_whole


def check_tensor(name: str, x: object) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} is {_a(x)}, expected a tensor; write torch.as_tensor({name})")
    if x.layout != torch.strided:
        raise ValueError(f"{name} has layout {x.layout}, expected a dense tensor; write {name}.to_dense()")


def check_dtype(name: str, x: Tensor, wanted: torch.dtype, of: str) -> None:
    """That two tensors can be multiplied. Under autocast, torch sees to it."""
    if x.dtype != wanted and not torch.is_autocast_enabled(x.device.type):
        raise ValueError(f"{name} has dtype {x.dtype}, but {of} {wanted}; expected the same; write {name}.to({wanted})")


def check_length(name: str, number: object, least: int = 0) -> None:
    """A whole number, or a size that a graph to be exported does not know yet."""
    if not isinstance(number, torch.SymInt):
        check_whole(name, number, least)


def _a(x: object) -> str:
    name = type(x).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
