"""Whether torch runs the code as usual, traces it, or transforms it.

Traced code (torch.compile, torch.export) must not depend on the values of tensors. Transformed code (torch.func.grad,
torch.vmap) runs on wrapped tensors, without storage and without hooks for saved tensors.
"""

import torch
from torch import Tensor


def is_transformed() -> bool:
    """Whether a transform of torch.func, such as grad or vmap, is active, and not part of a traced graph."""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


def is_vmapped() -> bool:
    """Whether one of the active transforms is vmap."""
    transforms = torch._C._functorch
    return is_transformed() and any(
        transform.key() == transforms.TransformType.Vmap for transform in transforms.get_interpreter_stack()
    )


def is_readable(x: Tensor) -> bool:
    """Whether Python may read the values of x: traced, meta and fake tensors have none, and those of vmap have many."""
    if torch.compiler.is_compiling():
        return False
    while torch._C._functorch.is_gradtrackingtensor(x):
        x = torch._C._functorch.get_unwrapped(x)
    return not torch._C._functorch.is_batchedtensor(x) and x.untyped_storage().device.type != "meta"
