"""Fused additive attention as operators of torch: values, gradients, shapes for tracing. The kernels are in additive.cpp."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import torch
from torch import Tensor

from regard.native.calls import differentiated, library_on_torch_threads, on_cpu_in_float32
from regard.native.library import AdditiveProblem

# Q queries  K keys  A width of the hidden layer  V width of the values; … leading axes, which broadcast

_LIBRARY = library_on_torch_threads()


def fits(query: Tensor, key: Tensor, v: Tensor, value: Tensor) -> bool:
    """Whether the kernels compute this: float32 on the CPU, and nothing is empty."""
    return _LIBRARY is not None and on_cpu_in_float32(query, key, v, value)


def additive_attention(
    query: Tensor,
    key: Tensor,
    v: Tensor,
    value: Tensor,
    allow: Tensor | None,
    dropout: float = 0.0,
    seed: int = 0,
    most_kept: int = 0,
) -> Tensor:
    """Returns the context vectors (…, Q, V) of attention with the scores Σ_a v_a tanh(query_ia + key_ja).

    most_kept: the most weights that the forward pass keeps for the backward pass; if there are more, it computes them again.
    """
    if not torch.is_grad_enabled() and not torch.compiler.is_compiling() and type(query) is Tensor:
        return _compute(query, key, v, value, allow, dropout, seed, 0)[0]  # the operator would import torch's compiler
    most_kept = most_kept if torch.is_grad_enabled() else 0
    context: Tensor = torch.ops.regard.additive(query, key, v, value, allow, dropout, seed, most_kept)[0]
    return context


def additive_weights(query: Tensor, key: Tensor, v: Tensor, allow: Tensor | None) -> Tensor:
    """Returns the weights (…, Q, K); no gradient flows through them."""
    lead = _lead(query, key, query, allow)
    weights = query.new_empty(*lead, query.shape[-2], key.shape[-2])
    log_sum = query.new_empty(weights.shape[:-1])
    tensors = _Tensors(lead, query.detach(), key.detach(), v.detach(), None, allow)
    tensors.run("regard_additive_forward", weights=weights, log_sum=log_sum)
    return weights


def _compute(
    query: Tensor, key: Tensor, v: Tensor, value: Tensor, allow: Tensor | None, dropout: float, seed: int, most_kept: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the context, the logarithms of the normalisers, and the weights that are kept."""
    lead = _lead(query, key, value, allow)
    context, log_sum, weights = _empty(lead, query, key, value, most_kept)
    kept = {"weights": weights} if weights.numel() else {}
    tensors = _Tensors(lead, query, key, v, value, allow, dropout, seed)
    tensors.run("regard_additive_forward", context=context, log_sum=log_sum, **kept)
    return context, log_sum, weights


_forward = torch.library.custom_op("regard::additive", _compute, mutates_args=(), device_types="cpu")


@_forward.register_fake
def _(
    query: Tensor, key: Tensor, v: Tensor, value: Tensor, allow: Tensor | None, dropout: float, seed: int, most_kept: int
) -> tuple[Tensor, Tensor, Tensor]:
    return _empty(_lead(query, key, value, allow), query, key, value, most_kept)


@torch.library.custom_op("regard::additive_backward", mutates_args=(), device_types="cpu")
def _backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    v: Tensor,
    value: Tensor,
    allow: Tensor | None,
    log_sum: Tensor,
    weights: Tensor,
    dropout: float,
    seed: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    lead = _lead(query, key, value, allow)
    like = (query, key, value)
    gradients = [x.new_empty(*lead, *x.shape[-2:]) for x in like]
    v_gradient = v.new_empty(*lead, *v.shape)
    kept = {"weights": weights} if weights.numel() else {}
    _Tensors(lead, query, key, v, value, allow, dropout, seed).run(
        "regard_additive_backward",
        context_gradient=gradient.contiguous(),
        log_sum=log_sum,
        v_gradient=v_gradient,
        **kept,
        **dict(zip(("query_gradient", "key_gradient", "value_gradient"), gradients, strict=True)),
    )
    d_query, d_key, d_value = (own.sum_to_size(x.shape) for own, x in zip(gradients, like, strict=True))
    return d_query, d_key, v_gradient.flatten(end_dim=-2).sum(0) if lead else v_gradient, d_value


@_backward.register_fake
def _(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    v: Tensor,
    value: Tensor,
    allow: Tensor | None,
    log_sum: Tensor,
    weights: Tensor,
    dropout: float,
    seed: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    d_query, d_key, d_v, d_value = (x.new_empty(x.shape) for x in (query, key, v, value))
    return d_query, d_key, d_v, d_value


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    query, key, v, value, allow, dropout, seed, _ = inputs
    ctx.save_for_backward(query, key, v, value, allow, *output[1:])
    ctx.dropout, ctx.seed = dropout, seed


def _differentiate(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    if torch.is_grad_enabled():
        return *_differentiable(ctx, gradient), None, None, None, None
    gradients = torch.ops.regard.additive_backward(gradient, *ctx.saved_tensors, ctx.dropout, ctx.seed)
    return *gradients, None, None, None, None


def _differentiable(ctx: Any, gradient: Tensor) -> list[Tensor | None]:
    """Computes the gradients by torch's own operators, for `create_graph=True`."""
    *inputs, allow = ctx.saved_tensors[:5]
    if ctx.dropout:
        raise RuntimeError(
            "additive attention with dropout has no second derivative in the native kernels; "
            "use no dropout, or set REGARD_NATIVE=0 in the environment to compute with torch"
        )

    def formula(query: Tensor, key: Tensor, v: Tensor, value: Tensor) -> Tensor:
        scores = (query.unsqueeze(-2) + key.unsqueeze(-3)).tanh() @ v
        if allow is not None:
            scores = scores.masked_fill(~allow, torch.finfo(scores.dtype).min)
        weights = scores.softmax(-1) if allow is None else scores.softmax(-1).masked_fill(~allow, 0.0)
        return weights @ value

    return differentiated(formula, inputs, [gradient])


_forward.register_autograd(_differentiate, setup_context=_save)


class _Tensors:
    """The arguments of the kernels, which hold addresses only: this object keeps the tensors alive."""

    def __init__(
        self,
        lead: torch.Size,
        query: Tensor,
        key: Tensor,
        v: Tensor,
        value: Tensor | None,
        allow: Tensor | None,
        dropout: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.kept: list[Tensor] = []
        problem = self.problem = AdditiveProblem()
        problem.leads, problem.num_queries, problem.num_keys = math.prod(lead), query.shape[-2], key.shape[-2]
        problem.width = query.shape[-1]
        problem.dropout, problem.seed = dropout, seed
        problem.query, problem.key, problem.v = (self.keep(x.contiguous()) for x in (query, key, v))
        problem.query_of, problem.key_of = self.leads_of(query, lead), self.leads_of(key, lead)
        problem.key_leads = math.prod(key.shape[:-2])
        if value is not None:
            problem.value_width, problem.value_leads = value.shape[-1], math.prod(value.shape[:-2])
            problem.value, problem.value_of = self.keep(value.contiguous()), self.leads_of(value, lead)
        if allow is not None:
            rows, columns = allow.shape[-2:]
            problem.allow, problem.allow_of = self.keep(allow.contiguous()), self.leads_of(allow, lead)
            problem.allow_lead = rows * columns
            problem.allow_row, problem.allow_column = columns if rows > 1 else 0, 1 if columns > 1 else 0

    def keep(self, x: Tensor) -> int:
        self.kept.append(x)
        return x.data_ptr()

    def leads_of(self, x: Tensor, lead: torch.Size) -> int:
        """Returns the address of the lead of x for every common lead; 0 if they are the same."""
        own = x.shape[:-2]
        if math.prod(own) == math.prod(lead):
            return 0
        return self.keep(torch.arange(math.prod(own)).view(own).expand(lead).contiguous())

    def run(self, name: str, **outputs: Tensor) -> None:
        assert _LIBRARY is not None
        for field, tensor in outputs.items():
            setattr(self.problem, field, self.keep(tensor))
        _LIBRARY.regard_set_threads(torch.get_num_threads())
        getattr(_LIBRARY, name)(ctypes.byref(self.problem))


def _lead(query: Tensor, key: Tensor, value: Tensor, allow: Tensor | None) -> torch.Size:
    shapes = [x.shape[:-2] for x in (query, key, value, allow) if x is not None]
    return shapes[0] if all(shape == shapes[0] for shape in shapes) else torch.broadcast_shapes(*shapes)


def _empty(lead: torch.Size, query: Tensor, key: Tensor, value: Tensor, most_kept: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns room for the context, the logarithms of the sums, and the weights if they are kept."""
    queries, keys = query.shape[-2], key.shape[-2]
    kept = math.prod(lead) * queries * keys <= most_kept
    weights = query.new_empty(*lead, queries, keys) if kept else query.new_empty(0)
    return value.new_empty(*lead, queries, value.shape[-1]), query.new_empty(*lead, queries), weights
