"""Whether torch runs the code as usual, traces it, or transforms it.

Traced code (torch.compile, torch.export) must not depend on the values of tensors. Transformed code (torch.func.grad,
torch.vmap) runs on wrapped tensors, without storage and without hooks for saved tensors.
"""

import torch
from torch import Tensor


def is_transformed() -> bool:
    """Whether a transform of torch.func, such as grad or vmap, is active."""
    return torch._C._are_functorch_transforms_active()


def is_readable(x: Tensor) -> bool:
    """Whether Python may read the values of x: traced, meta and fake tensors have none, and those of vmap have many."""
    if torch.compiler.is_compiling() or torch._C._functorch.is_functorch_wrapped_tensor(x):
        return False
    return x.untyped_storage().device.type != "meta"
