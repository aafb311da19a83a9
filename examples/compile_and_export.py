"""Use PyTorch's own tools on Regard's layers: torch.compile, torch.export, torch.func and autocast."""

import torch
from torch import Tensor
from torch.export import Dim, export

import regard

torch.manual_seed(1)
encoder = regard.TransformerEncoder(32, 4, 2, feed_forward=64, positions="rotary").eval()
x = torch.randn(2, 7, 32)
expected = encoder(x)

# torch.compile: the whole encoder is one graph. (Leave out `backend` to generate code; that needs a C++ compiler.)
compiled = torch.compile(encoder, fullgraph=True, backend="aot_eager")
print("compiled:", torch.allclose(compiled(x), expected, atol=1e-5))

# torch.export: one graph for every batch size and length.
batch, length = Dim("batch"), Dim("length")
exported = export(encoder, (x,), dynamic_shapes=({0: batch, 1: length},)).module()
longer = torch.randn(3, 11, 32)
print("exported, another size:", torch.allclose(exported(longer), encoder(longer), atol=1e-5))

# torch.func: the gradient of every example on its own, for any score function.
score = regard.scores.Additive(32, 32, 16)


def loss(query: Tensor, key: Tensor) -> Tensor:
    return regard.attend(query, key, key, score=score).square().sum()


per_example = torch.vmap(torch.func.grad(loss))(x, torch.randn(2, 5, 32))
print("gradients per example:", tuple(per_example.shape))

# autocast: matrix products in bfloat16.
with torch.autocast("cpu", torch.bfloat16):
    lower = encoder(x)
print(f"autocast, largest difference: {(lower - expected).abs().max().item():.3f}")
assert (lower - expected).abs().max() < 0.1
