"""Bahdanau's decoder over whole sequences as operators of torch: values, gradients, shapes for tracing; see bahdanau.cpp."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.native.calls import call, differentiated, library_on_torch_threads, on_cpu_in_float32
from regard.native.library import BahdanauProblem
from regard.native.recurrent import MODES, cell, padded

# N rows  T steps  S source positions  W width  E memory width  A score width

_LIBRARY = library_on_torch_threads()

_INPUTS = (
    "input",
    "context_weight",
    "recurrent",
    "recurrent_bias",
    "query_weight",
    "v",
    "key",
    "value",
    "first",
)


def fits(*tensors: Tensor) -> bool:
    """Whether the kernels compute this: float32 on the CPU, and nothing is empty."""
    return _LIBRARY is not None and on_cpu_in_float32(*tensors)


def decode(
    input_NTG: Tensor,
    context_weight_GE: Tensor,
    recurrent_GW: Tensor,
    recurrent_bias_G: Tensor,
    query_weight_AW: Tensor,
    v_A: Tensor,
    key_NSA: Tensor,
    value_NSE: Tensor,
    first_NW: Tensor,
    allow_NS: Tensor,
) -> tuple[Tensor, Tensor]:
    """Returns all states s_t (N, T, W) of a GRU and the context vectors c_t (N, T, E).

    input_NTG: what the gates get from the inputs that are known, with the bias of W. context_weight_GE: W for the context.
    """
    arguments = (
        input_NTG,
        context_weight_GE,
        recurrent_GW,
        recurrent_bias_G,
        query_weight_AW,
        v_A,
        key_NSA,
        value_NSE,
        first_NW,
        allow_NS,
    )
    if not torch.is_grad_enabled() and not torch.compiler.is_compiling() and type(input_NTG) is Tensor:
        states_NTW, contexts_NTE, *_ = _compute(*arguments)  # the operator would import torch's compiler
    else:
        states_NTW, contexts_NTE, *_ = torch.ops.regard.bahdanau(*arguments)
    return states_NTW, contexts_NTE


def _compute(
    input: Tensor,
    context_weight: Tensor,
    recurrent: Tensor,
    recurrent_bias: Tensor,
    query_weight: Tensor,
    v: Tensor,
    key: Tensor,
    value: Tensor,
    first: Tensor,
    allow: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns the states, the contexts, the weights of attention and what else the backward pass needs."""
    states, contexts, weights, kept = _empty(input, first, value, v)
    inputs = _named(input, context_weight, recurrent, recurrent_bias, query_weight, v, key, value, first, allow)
    outputs = {"states": states, "contexts": contexts, "weights": weights, "kept": kept}
    call("regard_bahdanau_forward", _problem(input, first, value, v), {**inputs, **outputs})
    return states, contexts, weights, kept


_forward = torch.library.custom_op("regard::bahdanau", _compute, mutates_args=(), device_types="cpu")


@_forward.register_fake
def _(
    input: Tensor,
    context_weight: Tensor,
    recurrent: Tensor,
    recurrent_bias: Tensor,
    query_weight: Tensor,
    v: Tensor,
    key: Tensor,
    value: Tensor,
    first: Tensor,
    allow: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _empty(input, first, value, v)


@torch.library.custom_op("regard::bahdanau_backward", mutates_args=(), device_types="cpu")
def _backward(
    states_gradient: Tensor,
    contexts_gradient: Tensor,
    inputs: list[Tensor],
    allow: Tensor,
    contexts: Tensor,
    weights: Tensor,
    kept: Tensor,
) -> list[Tensor]:
    problem = _problem(inputs[0], inputs[8], inputs[7], inputs[5])
    gradients = [own.new_empty(own.shape) for own in inputs]
    tensors = {
        **_named(*inputs, allow),
        "contexts": contexts,
        "weights": weights,
        "kept": kept,
        "states_gradient": states_gradient.contiguous(),
        "contexts_gradient": contexts_gradient.contiguous(),
        **{f"{name}_gradient": own for name, own in zip(_INPUTS, gradients, strict=True)},
    }
    call("regard_bahdanau_backward", problem, tensors)
    return gradients


@_backward.register_fake
def _(
    states_gradient: Tensor,
    contexts_gradient: Tensor,
    inputs: list[Tensor],
    allow: Tensor,
    contexts: Tensor,
    weights: Tensor,
    kept: Tensor,
) -> list[Tensor]:
    return [own.new_empty(own.shape) for own in inputs]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs, *output[1:])


def _differentiate(ctx: Any, states_gradient: Tensor, contexts_gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    *inputs, allow, contexts, weights, kept = ctx.saved_tensors
    if torch.is_grad_enabled():  # create_graph=True
        return *differentiated(formula, inputs, (states_gradient, contexts_gradient), allow), None
    gradients = torch.ops.regard.bahdanau_backward(states_gradient, contexts_gradient, inputs, allow, contexts, weights, kept)
    return *gradients, None


_forward.register_autograd(_differentiate, setup_context=_save)


def formula(
    input: Tensor,
    context_weight: Tensor,
    recurrent: Tensor,
    recurrent_bias: Tensor,
    query_weight: Tensor,
    v: Tensor,
    key: Tensor,
    value: Tensor,
    first: Tensor,
    allow: Tensor,
) -> tuple[Tensor, Tensor]:
    """The same in torch's own operators, step by step."""
    state, states, contexts = first, [], []
    for known in input.unbind(1):
        scores = (F.linear(state, query_weight).unsqueeze(1) + key).tanh() @ v
        weights = scores.masked_fill(~allow, torch.finfo(scores.dtype).min).softmax(-1).masked_fill(~allow, 0.0)
        context = (weights.unsqueeze(1) @ value).squeeze(1)
        known = known + F.linear(context, context_weight)
        state = cell(MODES["GRU"], known, F.linear(state, recurrent, recurrent_bias), state)
        states.append(state)
        contexts.append(context)
    return torch.stack(states, dim=1), torch.stack(contexts, dim=1)


def _problem(input: Tensor, first: Tensor, value: Tensor, v: Tensor) -> BahdanauProblem:
    return BahdanauProblem(*input.shape[:2], value.shape[1], first.shape[-1], value.shape[2], len(v))


def _empty(input: Tensor, first: Tensor, value: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns room for the states, the contexts, the weights and what else is kept."""
    (rows, steps), width = input.shape[:2], first.shape[-1]
    kept = input.new_empty(rows, steps, 5 * padded(width) + padded(len(v)))
    contexts, weights = value.new_empty(rows, steps, value.shape[2]), value.new_empty(rows, steps, value.shape[1])
    return first.new_empty(rows, steps, width), contexts, weights, kept


def _named(*tensors: Tensor) -> dict[str, Tensor | None]:
    """Returns the inputs by the names of abi.h, contiguous."""
    return {name: own.contiguous() for name, own in zip((*_INPUTS, "allow"), tensors, strict=True)}
