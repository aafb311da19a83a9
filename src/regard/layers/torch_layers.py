"""Conversion from and to the layers of torch.nn: which of their parameters is which of ours, read in both directions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.errors import UserError, shown

ATTENTIONS = {"attention": "self_attn", "cross": "multihead_attn"}
"""Our name -> their name of the attentions in a layer; an encoder layer has only the first."""

ENCODER_PARTS = {
    "feed_forward.0": "linear1",
    "feed_forward.3": "linear2",
    "around_attention.norm": "norm1",
    "around_feed_forward.norm": "norm2",
}
DECODER_PARTS = ENCODER_PARTS | {"around_cross.norm": "norm2", "around_feed_forward.norm": "norm3"}

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "gelu_tanh": nn.GELU("tanh"),
}
"""Our name -> what a layer of torch takes as `activation`."""


def our_parameters(theirs: nn.Module) -> dict[str, Tensor]:
    """Returns our names of all their parameters, each with the tensor itself or a view of it."""
    if isinstance(theirs, nn.MultiheadAttention):
        return _of_attention(theirs)
    if isinstance(theirs, nn.TransformerEncoder | nn.TransformerDecoder):
        norm = {} if theirs.norm is None else dict(theirs.norm.named_parameters(prefix="norm"))
        return _prefixed({f"layers.{number}": our_parameters(layer) for number, layer in enumerate(theirs.layers)}) | norm
    parts = ENCODER_PARTS if isinstance(theirs, nn.TransformerEncoderLayer) else DECODER_PARTS
    named: dict[str, dict[str, Tensor]] = {
        ours: dict(theirs.get_submodule(name).named_parameters()) for ours, name in parts.items()
    }
    for ours, name in ATTENTIONS.items():
        if hasattr(theirs, name):
            named[ours] = _of_attention(getattr(theirs, name))
    return _prefixed(named)


def _of_attention(theirs: nn.MultiheadAttention) -> dict[str, Tensor]:
    if theirs.in_proj_weight is None:
        weights: Sequence[Tensor] = theirs.q_proj_weight, theirs.k_proj_weight, theirs.v_proj_weight
    else:
        weights = theirs.in_proj_weight.chunk(3)
    named = {"weight": [*weights, theirs.out_proj.weight]}
    if theirs.in_proj_bias is not None:
        named["bias"] = [*theirs.in_proj_bias.chunk(3), theirs.out_proj.bias]
    projections = "query", "key", "value", "output"
    return {
        f"{projection}.{kind}": tensor
        for kind, tensors in named.items()
        for projection, tensor in zip(projections, tensors, strict=True)
    }


def _prefixed(parts: dict[str, dict[str, Tensor]]) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": tensor for prefix, named in parts.items() for name, tensor in named.items()}


def load_from(ours: nn.Module, theirs: nn.Module) -> None:
    """Gives our module, which may be on the meta device, copies of their parameters, and their training mode."""
    source = our_parameters(theirs)
    ours.load_state_dict({name: tensor.detach().clone() for name, tensor in source.items()}, assign=True)
    for name, parameter in ours.named_parameters():
        parameter.requires_grad_(source[name].requires_grad)
    ours.train(theirs.training)


@torch.no_grad()
def copy_into(ours: nn.Module, theirs: nn.Module) -> None:
    """Gives their module, which is on the meta device, copies of our parameters, and our training mode."""
    parameters = dict(ours.named_parameters())
    first = next(iter(parameters.values()))
    theirs.to(first.dtype).to_empty(device=first.device)
    for name, tensor in our_parameters(theirs).items():
        tensor.copy_(parameters.pop(name))
    assert not parameters, parameters
    theirs.train(ours.training)


def refuse(what: str, reasons: Sequence[str]) -> None:
    """Raises UserError with all reasons, if there are any."""
    if reasons:
        raise UserError(f"{what}: {'; '.join(reasons)}")


# --- arguments of our constructors -------------------------------------------------------------------------------------------


def attention_options(theirs: nn.MultiheadAttention) -> dict[str, Any]:
    """Returns the arguments of our MultiHeadAttention; raises UserError with all reasons if there is no equal layer."""
    check_class(theirs, nn.MultiheadAttention)
    refuse("this nn.MultiheadAttention cannot be converted", _beyond_ours(theirs))
    return {
        "width": theirs.embed_dim,
        "heads": theirs.num_heads,
        "memory_width": theirs.kdim,
        "value_width": theirs.vdim,
        "bias": theirs.in_proj_bias is not None,
        "dropout": theirs.dropout,
    }


def layer_options(theirs: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer) -> dict[str, Any]:
    """Returns the arguments of our Transformer layers; raises UserError with all reasons if there is no equal layer."""
    attentions = [getattr(theirs, name) for name in ATTENTIONS.values() if hasattr(theirs, name)]
    activation = next((name for name, function in ACTIVATIONS.items() if _is_same(theirs.activation, function)), None)
    reasons = [reason for attention in attentions for reason in _beyond_ours(attention)]
    if activation is None:
        reasons.append(f"the activation is {shown(theirs.activation)}, expected one of {', '.join(ACTIVATIONS)}")
    if theirs.linear1.bias is None:
        reasons.append("bias=False leaves out the biases of all parts")
    attention_dropouts = {attention.dropout for attention in attentions}
    dropouts = {module.p for module in theirs.children() if isinstance(module, nn.Dropout)}
    epsilons = {module.eps for module in theirs.children() if isinstance(module, nn.LayerNorm)}
    if max(map(len, (attention_dropouts, dropouts, epsilons))) > 1:
        reasons.append("its parts differ in dropout or layer_norm_eps")
    refuse(f"this nn.{type(theirs).__name__} cannot be converted", list(dict.fromkeys(reasons)))
    return {
        "width": attentions[0].embed_dim,
        "heads": attentions[0].num_heads,
        "feed_forward": theirs.linear1.out_features,
        "activation": activation,
        "dropout": dropouts.pop(),
        "attention_dropout": attention_dropouts.pop(),
        "norm_order": "pre" if theirs.norm_first else "post",
        "norm_eps": epsilons.pop(),
    }


def stack_options(theirs: nn.TransformerEncoder | nn.TransformerDecoder) -> dict[str, Any]:
    """Returns the arguments of our stacks, but for the number of layers; raises UserError if there is no equal stack."""
    options = [layer_options(layer) for layer in theirs.layers]
    reasons = ["its layers differ from each other"] if any(one != options[0] for one in options) else []
    if theirs.norm is not None and type(theirs.norm) is not nn.LayerNorm:
        reasons.append(f"the norm after the last layer is {shown(theirs.norm)}, expected a LayerNorm or None")
    refuse(f"this nn.{type(theirs).__name__} cannot be converted", reasons)
    return options[0]


def check_class(theirs: object, expected: type[nn.Module]) -> None:
    """Raises TypeError unless their module is of exactly this class of torch.nn; a subclass may compute something else."""
    if type(theirs) is not expected:
        raise TypeError(f"expected a torch.nn.{expected.__name__}, not {shown(type(theirs))}, which may compute something else")


def _beyond_ours(theirs: nn.MultiheadAttention) -> list[str]:
    """Returns what their attention has that ours has not."""
    found = {
        "add_bias_kv=True adds a learned key and value to every sequence": theirs.bias_k is not None,
        "add_zero_attn=True adds a key and a value of zeros to every sequence": theirs.add_zero_attn,
    }
    return [reason for reason, applies in found.items() if applies]


def _is_same(activation: object, ours: Callable[[Tensor], Tensor]) -> bool:
    """Whether an activation, a function or a module, is one of ours."""
    as_function: dict[type, object] = {nn.ReLU: F.relu, nn.SiLU: F.silu}
    if isinstance(activation, nn.GELU):
        approximate = ours.approximate if isinstance(ours, nn.GELU) else "none" if ours is F.gelu else None
        return activation.approximate == approximate
    return as_function.get(type(activation), activation) is ours
