"""The parts of Transformer layers: attention, blocks, residual connections, norms, embedding and output."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import cast

from torch import nn

from regard.core.score import Score
from regard.errors import plural
from regard.inspection.ledger import Ledger, around, bias_of, collapsed, shape_of
from regard.inspection.parts import ModelPart
from regard.layers.attention import MultiHeadAttention
from regard.layers.blocks import ResidualConnection, SwiGlu, TransformerLayer
from regard.layers.embed import IN_ATTENTION, Output, TokenEmbedding
from regard.layers.fixed import FixedMixing, OffsetWeights, TableWeights
from regard.layers.mixing import Convolution, Dense

ATTENTIONS = {"attention": ("x", "self-attention"), "cross": ("memory", "cross-attention")}
"""Module of a Transformer layer -> (what its keys and values are made of, its name)."""


def read_layers(ledger: Ledger, layers: Iterable[nn.Module], L: str, name: str, allowed: str) -> list[ModelPart]:
    """Returns layers; neighbours that differ in nothing but their weights are one part with several copies.

    allowed: what their self-attention may attend to, if not all positions.
    """
    described = []
    for layer in layers:
        inner = read_layer(ledger, layer, L, allowed) if isinstance(layer, TransformerLayer) else ledger.parts(layer, L)
        shape = inner[-1].shape if inner else ""
        described.append(around(name, inner, shape=shape, role="layer", module=ledger.name(layer)))
    return collapsed(described)


def read_layer(ledger: Ledger, layer: TransformerLayer, L: str, allowed: str) -> list[ModelPart]:
    """Returns the blocks of a layer, whatever they are, each with what is around it."""
    parts: list[ModelPart] = []
    children = dict(layer.named_children())
    for name, block in children.items():
        if isinstance(block, ResidualConnection):
            continue
        if isinstance(block, FixedMixing):
            inner = [read_mixing(ledger, block, L, allowed)]
        elif isinstance(block, MultiHeadAttention):
            inner = [read_attention(ledger, block, L, *ATTENTIONS.get(name, ("x", name)), "" if name == "cross" else allowed)]
        else:
            inner = read_block(ledger, block, name, L)
        around = children.get(f"around_{name}")
        parts += read_residual(ledger, around, inner) if isinstance(around, ResidualConnection) else inner
    return parts


def read_residual(ledger: Ledger, around: ResidualConnection, block: Sequence[ModelPart]) -> list[ModelPart]:
    """Returns a block with its residual connection and its norm, in the order in which they are computed."""
    shape = block[-1].shape if block else ""
    norm = read_norm(ledger, around.norm, shape)
    if around.norm_order == "pre":
        added = [ModelPart("Add", "x + f(x)", shape, skips=len(norm) + len(block), role="norm")] if around.adds else []
        return [*norm, *block, *added]
    if not around.adds or not norm:
        added = [ModelPart("Add", "x + f(x)", shape, skips=len(block), role="norm")] if around.adds else []
        return [*block, *added, *norm]
    (part,) = norm
    both = replace(part, name="Add & Norm", formula=f"{part.formula.split('(')[0]}(x + f(x))", skips=len(block))
    return [*block, both]


def read_block(ledger: Ledger, block: nn.Module, name: str, L: str) -> list[ModelPart]:
    """Returns a block of a layer other than attention."""
    module = ledger.name(block)
    if isinstance(block, SwiGlu):
        inner = block.output.in_features
        formula, width = f"(swish(x W) ⊙ x V) W₂, hidden {inner}", block.output.out_features
    elif isinstance(block, nn.Sequential) and isinstance(block[0], nn.Linear) and isinstance(block[-1], nn.Linear):
        activation = type(block[1]).__name__.lower()
        formula, width = (
            f"{block[0].in_features} → {block[0].out_features} → {block[-1].out_features}, {activation}",
            block[-1].out_features,
        )
    elif isinstance(block, Convolution):
        reach = block.convolution.kernel_size[0] // 2
        formula, width = f"Σ_o W_o x_(i+o), o = −{reach} … {reach}", block.value_width
    elif isinstance(block, Dense):
        formula, width = f"Σ_j W_ij x_j over {block.length} positions", block.width
    else:
        return ledger.parts(block, L)
    shape = shape_of("B", L, width)
    return [ModelPart(name.replace("_", "-"), formula, shape, ledger.count(block), module=module, role="dense")]


def read_attention(ledger: Ledger, attention: MultiHeadAttention, L: str, source: str, name: str, allowed: str) -> ModelPart:
    """Returns attention with the origin of its queries, keys and values.

    source: what keys and values are made of.  allowed: what it may attend to, if not all positions.
    """
    S = L if source == "x" else "S"
    heads, groups, d = attention.heads, attention.kv_heads, attention.key_dim
    bias = bias_of(attention.query)
    turned = ", turned by rotary positions" if attention.rotary else ""
    parts = [ledger.leaf(f"Q = x W_Q{bias}{turned}", attention.query, "", shape_of("B", heads, L, d))]
    if attention.key is not None:
        parts.append(ledger.leaf(f"K = {source} W_K{bias}{turned}", attention.key, "", shape_of("B", groups, S, d)))
    parts.append(read_values(ledger, attention, source, S))
    far = " − slope · distance" if attention.slopes_H is not None else ""
    score: Score = attention.score
    keys = "Q, K" if attention.key is not None else "Q"
    formula = f"softmax({score.name}({keys}){far}){allowed}"
    parts.append(ledger.leaf("weights", score if isinstance(score, nn.Module) else None, formula, shape_of("B", heads, L, S)))
    parts += read_heads(ledger, attention, L)
    return around(
        name,
        parts,
        formula=_num_heads(attention, "keys and values"),
        shape=parts[-1].shape,
        reads=() if source == "x" else (source,),
        role="attention",
        module=ledger.name(attention),
    )


def read_mixing(ledger: Ledger, mixing: FixedMixing, L: str, allowed: str) -> ModelPart:
    """Returns what replaces self-attention: heads whose weights w are fixed by position. allowed: as for `attention`."""
    weights = cast(OffsetWeights | TableWeights, mixing.score)
    if isinstance(weights, OffsetWeights):
        name, formula = "convolution", f"w_(j−i) for |j − i| ≤ {weights.reach}"
    else:
        name, formula = "dense mixing", f"w_ij for at most {weights.max_positions} positions"
    formula += f",{allowed}" if allowed else ""
    parts = [
        read_values(ledger, mixing, "x", L),
        ledger.leaf("weights", weights, formula, shape_of(mixing.heads, L, L)),
        *read_heads(ledger, mixing, L),
    ]
    module = ledger.name(mixing)
    return around(name, parts, formula=_num_heads(mixing, "values"), shape=parts[-1].shape, role="dense", module=module)


def read_values(ledger: Ledger, attention: MultiHeadAttention, source: str, S: str) -> ModelPart:
    """Returns the values of attention. source: what they are made of.  S: the letter of its length."""
    made = f"V = {source}" if attention.value is None else f"V = {source} W_V{bias_of(attention.value)}"
    return ledger.leaf(made, attention.value, "", shape_of("B", attention.kv_heads, S, attention.value_dim))


def read_heads(ledger: Ledger, attention: MultiHeadAttention, L: str) -> list[ModelPart]:
    """Returns the context of each head, and the output for all of them."""
    heads, v, output = attention.heads, attention.value_dim, attention.output
    joined = "context" if heads == 1 else f"[head 1; {'' if heads == 2 else '…; '}head {heads}]"
    made, width = joined, heads * v
    if isinstance(output, nn.Linear):
        made, width = f"{joined} W_O{bias_of(output)}", attention.width
    context = ModelPart("context", "weights V", shape_of("B", heads, L, v))
    return [context, ledger.leaf("output", output, made, shape_of("B", L, width))]


def read_embedding(ledger: Ledger, embedding: TokenEmbedding, L: str) -> list[ModelPart]:
    """Returns token embedding, positions and norm."""
    tokens, whole = shape_of("B", L, embedding.width), shape_of("B", L, embedding.width + embedding.appended)
    formula = f"√{embedding.width} · E[token]" if embedding.scaled else "E[token]"
    parts = [ledger.leaf("embedding", embedding.tokens, formula, tokens, "embedding")]
    if embedding.encoding not in IN_ATTENTION:
        formula = f"{'[x; φ(i)]' if embedding.appended else 'x + φ(i)'}, {embedding.encoding}"
        parts.append(ledger.leaf("positions", embedding.learned, formula, whole, "embedding"))
    return [*parts, *read_norm(ledger, embedding.norm, whole)]


def read_norm(ledger: Ledger, norm: nn.Module | None, shape: str) -> list[ModelPart]:
    if norm is None or isinstance(norm, nn.Identity):
        return []
    return [ledger.leaf("Norm", norm, f"{type(norm).__name__}(x)", shape, "norm")]


def read_output(ledger: Ledger, output: Output, vocabulary: int) -> list[ModelPart]:
    """Returns the output layer, whose matrix may be that of the embedding, and the softmax."""
    parts = []
    if output.project is not None:
        shape = shape_of("B", "T", output.project.out_features)
        parts.append(ledger.leaf("projection", output.project, "x W", shape, "output"))
    formula = "x W + b" if output.weight is not None else "x Eᵀ + b, E of the embedding"
    shape = shape_of("B", "T", vocabulary)
    parts.append(ledger.leaf("output layer", output, formula, shape, "output"))
    return [*parts, ModelPart("softmax", shape=shape, role="output")]


def _num_heads(attention: MultiHeadAttention, shared: str) -> str:
    """Returns the number of heads. shared: what several heads may share."""
    heads, groups = attention.heads, attention.kv_heads
    return plural(heads, "head") + (f", {groups} of {shared}" if groups != heads else "")


def read_lookup(ledger: Ledger, embedding: nn.Embedding, L: str) -> list[ModelPart]:
    shape = shape_of("B", L, embedding.embedding_dim)
    return [ledger.leaf("embedding", embedding, "E[token]", shape, "embedding")]


def read_linear(ledger: Ledger, linear: nn.Linear, L: str) -> list[ModelPart]:
    formula = f"x W{bias_of(linear)}, {linear.in_features} → {linear.out_features}"
    return [ledger.leaf("linear", linear, formula, shape_of("B", L, linear.out_features), "dense")]


def read_layer_norm(ledger: Ledger, norm: nn.LayerNorm | nn.RMSNorm, L: str) -> list[ModelPart]:
    return read_norm(ledger, norm, shape_of("B", L, *norm.normalized_shape))
