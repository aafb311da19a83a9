"""How far gradients reach: over the length of a sequence, and over how many steps its two ends are connected.

A layer is a function of sequences, (B, L, D) -> (B, L, D), that treats the sequences of a batch independently. Some layers of
this package have names here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.errors import check_sizes, did_you_mean, shown
from regard.layers.attention import MultiHeadAttention
from regard.layers.mixing import Convolution
from regard.layers.recurrent import CELLS, make_stack, run, state_width

# B batch  L length  D width  X width of a recurrent state

Layer = Callable[[Tensor], Tensor]

LAYERS = ("attention", "convolution", *CELLS)
"""The layers that have names: one head of self-attention, a convolution with a matrix per offset, recurrent cells."""


def gradient_reach(
    layers: Iterable[str] | Mapping[str, Layer], lengths: Iterable[int], *, width: int = 64, reach: int = 1, seed: int = 0
) -> dict[str, list[float]]:
    """Returns the norm of ∂ output_L / ∂ x_1 for each length L: of all outputs at the last position by all inputs at the first.

    layers: names of `LAYERS`, which get new weights, or your own layers in float64, by any name.
    width: width of the sequences. reach: of the convolution. seed: of the weights and of the sequences.
    Raises ValueError for an unknown name or an invalid size.

    >>> norms = regard.gradient_reach(("rnn_tanh", "attention"), lengths=(10, 40))
    >>> norms["rnn_tanh"][1] < norms["attention"][1]  # over 40 positions
    True
    """
    check_sizes(width=width)
    lengths = list(lengths)
    for length in lengths:
        check_sizes(length=length)
    if not isinstance(layers, Mapping):
        layers = {name: _layer(_module(name, width, reach, seed)) for name in layers}
    return {
        name: [_jacobian_norm(layer, _sequence(length, width, seed)) for length in lengths] for name, layer in layers.items()
    }


def path_length(layer: str | Layer, length: int, *, width: int = 8, reach: int = 1, seed: int = 0) -> int:
    """Returns after how many steps some output depends on both the first and the last of `length` inputs, by their gradients.

    A step is one layer of attention or of convolution, and one time step of a recurrent network.
    layer: a name of `LAYERS`, or your own layer in float64, which is applied again and again. Other arguments: as in
    `gradient_reach`. Raises ValueError for an unknown name or an invalid size, and if the ends are not connected after `length`
    steps.

    >>> [regard.path_length(name, 9) for name in ("attention", "convolution", "gru")]
    [1, 4, 9]
    """
    check_sizes(length=length, width=width)
    module = _module(layer, width, reach, seed) if isinstance(layer, str) else layer
    x_1LD = _sequence(length, width, seed)
    for number in range(1, length + 1):
        depends_LL = _depends(lambda x_BLD, number=number: _after(module, x_BLD, number), x_1LD)  # type: ignore[misc]
        if bool((depends_LL[:, 0] & depends_LL[:, -1]).any()):
            return number
    raise ValueError(f"no output depends on the first and the last of {length} inputs, even after {length} steps of this layer")


def _module(name: str, width: int, reach: int, seed: int) -> nn.Module:
    """Returns a layer of this name in float64, with weights that depend on the seed only."""
    if name not in LAYERS:
        raise ValueError(
            f"there is no layer {shown(name)}; expected one of {', '.join(LAYERS)}{did_you_mean(name, list(LAYERS))}"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if name == "attention":
            return MultiHeadAttention(width, 1).double()
        if name == "convolution":
            return Convolution(width, width, reach).double()
        return make_stack(next(cell for cell in CELLS if cell == name), width, width).double()


def _layer(module: nn.Module) -> Layer:
    return (lambda x_BLD: run(module, x_BLD)[0]) if isinstance(module, nn.RNNBase) else module


def _after(layer: Layer, x_BLD: Tensor, number: int) -> Tensor:
    """Returns the output after a number of steps. Each position of a recurrent network has then read its last inputs."""
    if not isinstance(layer, nn.RNNBase):
        for _ in range(number):
            x_BLD = layer(x_BLD)
        return x_BLD
    x_N1D, lead = x_BLD.flatten(0, 1).unsqueeze(1), x_BLD.shape[:2]
    state_1NX, h_N1D = x_BLD.new_zeros(1, len(x_N1D), state_width(layer)), x_N1D
    for _ in range(number):
        h_N1D, state_1NX = run(layer, x_N1D, state_1NX)
        state_1NX = F.pad(state_1NX.unflatten(1, lead)[:, :, :-1], (0, 0, 1, 0)).flatten(1, 2)  # that of the position before
    h_BLD: Tensor = h_N1D.unflatten(0, lead).squeeze(2)
    return h_BLD


def _sequence(length: int, width: int, seed: int) -> Tensor:
    """Returns a random sequence (1, L, D)."""
    return torch.randn(1, length, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _jacobian_norm(layer: Layer, x_1LD: Tensor) -> float:
    """Computes ‖∂ output_L / ∂ x_1‖ with one sequence of a batch for each number of the output."""
    width = layer(x_1LD).shape[-1]
    x_BLD = x_1LD.repeat(width, 1, 1).requires_grad_()
    (gradient_BLD,) = torch.autograd.grad(layer(x_BLD)[:, -1].diagonal().sum(), x_BLD)
    return float(gradient_BLD[:, 0].norm())


def _depends(layer: Layer, x_1LD: Tensor) -> Tensor:
    """Returns (L, L): whether output i depends on input j, with one sequence of a batch for each i."""
    length = x_1LD.shape[1]
    x_BLD = x_1LD.repeat(length, 1, 1).requires_grad_()
    positions_L = torch.arange(length)
    outputs_LD = layer(x_BLD)[positions_L, positions_L]
    direction_D = torch.linspace(1.0, 2.0, outputs_LD.shape[-1], dtype=outputs_LD.dtype)
    (gradient_BLD,) = torch.autograd.grad((outputs_LD @ direction_D).sum(), x_BLD)
    return gradient_BLD.ne(0).any(-1)
