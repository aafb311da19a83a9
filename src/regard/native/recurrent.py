"""Recurrent layers over whole sequences as operators of torch: values, gradients, shapes for tracing; see recurrent.cpp."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.native.calls import call, differentiated, library_on_torch_threads, on_cpu_in_float32
from regard.native.library import RecurrentProblem

# N rows  T steps  I input width  W width  D directions  G width of all gates

_LIBRARY = library_on_torch_threads()

MODES = {"GRU": 0, "RNN_TANH": 1, "RNN_RELU": 2, "RNN_SIGMOID": 3}
"""The kinds of cells, with their numbers in abi.h."""

_PARTS = (5, 2, 2, 2)
_INPUTS = ("input", "weight", "recurrent", "bias", "recurrent_bias", "first", "lengths")


@dataclass(frozen=True)
class Weights:
    """W, U and the bias of each, stacked for one direction or two."""

    input_DGI: Tensor
    recurrent_DGW: Tensor
    bias_DG: Tensor
    recurrent_bias_DG: Tensor


def fits(*tensors: Tensor) -> bool:
    """Whether the kernels compute this: float32 on the CPU, and nothing is empty."""
    return _LIBRARY is not None and on_cpu_in_float32(*tensors)


def run_layer(mode: str, x_NTI: Tensor, weights: Weights, first_DNW: Tensor, lengths_N: Tensor | None) -> tuple[Tensor, Tensor]:
    """Returns (all h (N, T, D, W), the states after the last step (D, N, W)) of one layer.

    mode: one of `MODES`. lengths_N: the second direction reads each row reversed within its length.
    """
    w = weights
    arguments = (MODES[mode], x_NTI, w.input_DGI, w.recurrent_DGW, w.bias_DG, w.recurrent_bias_DG, first_DNW, lengths_N)
    if not torch.is_grad_enabled() and not torch.compiler.is_compiling() and type(x_NTI) is Tensor:
        states_NTDW, last_DNW, _ = _compute(*arguments)  # the operator would import torch's compiler
    else:
        states_NTDW, last_DNW, _ = torch.ops.regard.recurrent(*arguments)
    return states_NTDW, last_DNW


def _compute(
    mode: int,
    x: Tensor,
    weight: Tensor,
    recurrent: Tensor,
    bias: Tensor,
    recurrent_bias: Tensor,
    first: Tensor,
    lengths: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the states, the last states and what the backward pass needs."""
    states, last, kept = _empty(mode, x, recurrent, first)
    inputs = _named(x, weight, recurrent, bias, recurrent_bias, first, lengths)
    problem = RecurrentProblem(mode, *x.shape, recurrent.shape[-1], len(weight))
    call("regard_recurrent_forward", problem, {**inputs, "states": states, "last": last, "kept": kept})
    return states, last, kept


_forward = torch.library.custom_op("regard::recurrent", _compute, mutates_args=(), device_types="cpu")


@_forward.register_fake
def _(
    mode: int,
    x: Tensor,
    weight: Tensor,
    recurrent: Tensor,
    bias: Tensor,
    recurrent_bias: Tensor,
    first: Tensor,
    lengths: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    return _empty(mode, x, recurrent, first)


@torch.library.custom_op("regard::recurrent_backward", mutates_args=(), device_types="cpu")
def _backward(
    mode: int,
    states_gradient: Tensor,
    last_gradient: Tensor,
    x: Tensor,
    weight: Tensor,
    recurrent: Tensor,
    bias: Tensor,
    recurrent_bias: Tensor,
    first: Tensor,
    lengths: Tensor | None,
    kept: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    inputs = _named(x, weight, recurrent, bias, recurrent_bias, first, lengths)
    d_x, d_weight, d_recurrent, d_bias, d_recurrent_bias, d_first = (
        own.new_empty(own.shape) for own in (x, weight, recurrent, bias, recurrent_bias, first)
    )
    found = (d_x, d_weight, d_recurrent, d_bias, d_recurrent_bias, d_first)
    gradients = {f"{name}_gradient": own for name, own in zip(_INPUTS, found, strict=False)}
    upstream = {"states_gradient": states_gradient.contiguous(), "last_gradient": last_gradient.contiguous()}
    problem = RecurrentProblem(mode, *x.shape, recurrent.shape[-1], len(weight))
    call("regard_recurrent_backward", problem, {**inputs, **upstream, **gradients, "kept": kept})
    return found


@_backward.register_fake
def _(
    mode: int,
    states_gradient: Tensor,
    last_gradient: Tensor,
    x: Tensor,
    weight: Tensor,
    recurrent: Tensor,
    bias: Tensor,
    recurrent_bias: Tensor,
    first: Tensor,
    lengths: Tensor | None,
    kept: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    d_x, d_weight, d_recurrent, d_bias, d_recurrent_bias, d_first = (
        own.new_empty(own.shape) for own in (x, weight, recurrent, bias, recurrent_bias, first)
    )
    return d_x, d_weight, d_recurrent, d_bias, d_recurrent_bias, d_first


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.mode = inputs[0]
    ctx.save_for_backward(*inputs[1:], output[2])


def _differentiate(ctx: Any, states_gradient: Tensor, last_gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    *inputs, lengths, kept = ctx.saved_tensors
    if torch.is_grad_enabled():  # create_graph=True
        upstream = (states_gradient, last_gradient)
        return None, *differentiated(formula, inputs, upstream, lengths, ctx.mode), None
    gradients = torch.ops.regard.recurrent_backward(ctx.mode, states_gradient, last_gradient, *inputs, lengths, kept)
    return None, *gradients, None


_forward.register_autograd(_differentiate, setup_context=_save)


def formula(
    x: Tensor,
    weight: Tensor,
    recurrent: Tensor,
    bias: Tensor,
    recurrent_bias: Tensor,
    first: Tensor,
    lengths: Tensor | None,
    mode: int,
) -> tuple[Tensor, Tensor]:
    """The same in torch's own operators, step by step."""
    positions = torch.arange(x.shape[1], device=x.device).expand(x.shape[:2])
    states, last = [], []
    for direction in range(len(weight)):
        order = positions
        if direction and lengths is not None:
            order = torch.where(positions < lengths[:, None], lengths[:, None] - 1 - positions, positions)
        known = F.linear(x, weight[direction], bias[direction])
        known = known.gather(1, order[..., None].expand_as(known))
        state, steps = first[direction], []
        for step in known.unbind(1):
            state = cell(mode, step, F.linear(state, recurrent[direction], recurrent_bias[direction]), state)
            steps.append(state)
        ordered = torch.stack(steps, dim=1)
        states.append(ordered.gather(1, order[..., None].expand_as(ordered)))  # the order is its own inverse
        last.append(state)
    return torch.stack(states, dim=2), torch.stack(last)


def cell(mode: int, known: Tensor, hidden: Tensor, state: Tensor) -> Tensor:
    """Returns the next state, given W x + b and U h + b'."""
    if mode == MODES["GRU"]:
        (r, z, n), (hidden_r, hidden_z, hidden_n) = known.chunk(3, dim=-1), hidden.chunk(3, dim=-1)
        z = (z + hidden_z).sigmoid()
        return (1 - z) * (n + (r + hidden_r).sigmoid() * hidden_n).tanh() + z * state
    activations = {MODES["RNN_TANH"]: torch.tanh, MODES["RNN_RELU"]: torch.relu, MODES["RNN_SIGMOID"]: torch.sigmoid}
    return activations[mode](known + hidden)


def _empty(mode: int, x: Tensor, recurrent: Tensor, first: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns room for the states, the last states and what is kept."""
    (rows, steps), directions, width = x.shape[:2], len(recurrent), recurrent.shape[-1]
    kept = x.new_empty(directions, rows, steps, _PARTS[mode], padded(width))
    return x.new_empty(rows, steps, directions, width), first.new_empty(first.shape), kept


def padded(width: int) -> int:
    """Returns the width that the kernels give to a gate."""
    return (width + 15) // 16 * 16


def _named(*tensors: Tensor | None) -> dict[str, Tensor | None]:
    """Returns the inputs by the names of abi.h, contiguous."""
    return {name: None if own is None else own.contiguous() for name, own in zip(_INPUTS, tensors, strict=True)}
