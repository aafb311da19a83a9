"""The parts of recurrent models: cells, bridge, attention, features, copying."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from torch import nn

from regard.inspection.ledger import Ledger, around, input_part, shape_of
from regard.inspection.parts import ModelPart
from regard.inspection.read_frontends import read_source
from regard.layers.frontends import GRIDS
from regard.layers.recurrent import RecurrentEncoder, state_width
from regard.models.rnn_seq2seq import RnnSeq2Seq

WEIGHTS = {
    "soft": "softmax(scores)",
    "hard": "one position, chosen by softmax(scores)",
    "gated": "gates of 0 or 1, chosen by σ(scores)",
    "unnormalised": "scores",
    "marginal": "softmax(scores), a sum over all choices of one position",
    "monotone": "softmax(scores + moves), a sum over all choices that only move to the right",
}
"""Type of attention -> how scores become weights."""


def read_recurrent_model(ledger: Ledger, model: RnnSeq2Seq) -> tuple[ModelPart, ...]:
    """Returns the stacks of a recurrent encoder-decoder."""
    settings, children = model.settings, dict(model.named_children())
    features = read_feature_embedding(ledger, model) if settings.features == "set" else []
    tokens, *rest = read_source(ledger, model.source_embedding)
    source = [*features, replace(tokens, follows=not features), *rest]
    if "encoder" in children:
        source += read_recurrent_encoder(ledger, model.encoder)
    source[-1] = replace(source[-1], gives="memory")
    grid = settings.frontend in GRIDS
    source += read_bridge(ledger, model, "the mean over all positions" if grid else "the last states")
    target = [input_part("target tokens, <sos> first", "(B, T)"), *ledger.parts(model.target_embedding, "T")]
    attention = [] if settings.decoder == "fixed" else [read_recurrent_attention(ledger, model)]
    if settings.decoder == "bahdanau":
        target += attention
    target += read_recurrence(ledger, model)
    if settings.features == "set":
        target += read_features(ledger, model)
    if settings.decoder == "luong":
        target += attention
    read, skips = ("s", 0) if settings.decoder == "fixed" else ("[s; c]", 2 if settings.decoder == "bahdanau" else 1)
    if "combine" in children:
        shape = shape_of("B", "T", settings.width)
        combined = ledger.leaf("attentional state s̃", model.combine, "tanh(W [c; s] + b)", shape, "dense")
        target.append(replace(combined, skips=1, gives="s̃"))
        read, skips = "s̃", 0
    if settings.readout_activation != "none":
        read = f"{settings.readout_activation}({read})"
    shape = shape_of("B", "T", model.output.out_features)
    target.append(replace(ledger.leaf("output layer", model.output, f"W_o {read} + b_o", shape, "output"), skips=skips))
    target.append(ModelPart("softmax", shape=shape, role="output"))
    if settings.copy:
        target.append(read_copying(ledger, model, shape))
    return around("encoder", source, role="stack"), around("decoder", target, role="stack")


def read_feature_embedding(ledger: Ledger, model: RnnSeq2Seq) -> list[ModelPart]:
    """Returns the features of a source, which are read apart from its text, and their embedding."""
    shape = shape_of("B", "features", model.settings.embedding)
    part = ledger.leaf("feature embedding", model.source_embedding, "E[feature]", shape, "embedding")
    return [input_part("features, in no order", "(B, features)"), replace(part, gives="features")]


def read_features(ledger: Ledger, model: RnnSeq2Seq) -> list[ModelPart]:
    """Returns the gates by which a state chooses among the features, and the state with what they let through."""
    width, embedding = model.settings.width, model.settings.embedding
    shape = shape_of("B", "T", width)
    inner = [
        ledger.leaf("Q = s W_Q + b", model.feature_query, "", shape_of("B", "T", embedding)),
        ModelPart("K", "f, the features", shape_of("B", "features", embedding)),
        ledger.leaf("V = f W_V", model.feature_value, "", shape_of("B", "features", width)),
        ModelPart("gates", f"σ(Q Kᵀ / √{embedding})", "(B, T, features)"),
        ModelPart("chosen features", "gates V", shape),
    ]
    gates = around("feature gates", inner, shape=shape, reads=("features",), role="attention")
    return [gates, ModelPart("Add", "s + f(s)", shape, skips=1, role="norm")]


def read_copying(ledger: Ledger, model: RnnSeq2Seq, shape: str) -> ModelPart:
    """Returns the choice between a token of the vocabulary and a copy of the source token. shape: of the probabilities."""
    gate = ledger.leaf("gate g", model.gate, "σ(W_g [s; h] + b_g)", "(B, T, S)")
    formula = "g · source token + (1 − g) · softmax"
    return around("copying", [gate], formula=formula, shape=shape, reads=("memory",), skips=3, role="output")


def read_bridge(ledger: Ledger, model: RnnSeq2Seq, ends: str) -> list[ModelPart]:
    """Returns the summary C of the source and the initial state of the decoder, as far as the model has them."""
    settings = model.settings
    summary = ModelPart("summary C", ends, shape_of("B", settings.memory_width), gives="C")
    if settings.bridge == "zero":
        return [summary] if settings.every_step else []
    shape = shape_of("B", model.decoder.num_layers, state_width(model.decoder))
    formula, module = ("tanh(W C + b)", model.bridge) if settings.bridge == "learned" else ("C", None)
    part = ledger.leaf("bridge", module, f"initial state s_0 = {formula}", shape, "dense")
    return [summary, replace(part, gives="s_0")]


def read_recurrence(ledger: Ledger, model: RnnSeq2Seq) -> list[ModelPart]:
    """Returns the cells of the decoder and, if they read more than the embedding y, what is joined with it."""
    settings = model.settings
    extra = "s̃" if settings.input_feeding else "c" if settings.decoder == "bahdanau" else "C" if settings.every_step else ""
    first, *rest = read_cells(ledger, model.decoder, "s", "T", f"[{extra}; y]" if extra else "y")
    initial = () if settings.bridge == "zero" else ("s_0",)
    cells = [replace(first, reads=initial, gives="" if rest else "s_(t−1)"), *rest]
    if rest:
        cells[-1] = replace(cells[-1], gives="s_(t−1)")
    if not extra:
        return cells
    shape = shape_of("B", "T", model.decoder.input_size)
    joined = ModelPart("joined input", f"[{extra}; y]", shape, reads=() if extra == "c" else (extra,))
    return [replace(joined, skips=1 if extra == "c" else 0), *cells]


def read_recurrent_attention(ledger: Ledger, model: RnnSeq2Seq) -> ModelPart:
    """Returns the cross-attention of a recurrent decoder, with the layer that scores the moves of monotone attention."""
    settings, score = model.settings, model.score
    before = settings.decoder == "bahdanau"
    memory, query = (shape_of("B", L, width) for L, width in (("S", settings.memory_width), ("T", settings.width)))
    inner = [
        ModelPart("Q", "s_(t−1)" if before else "s_t", query),
        ModelPart("K = V", "h, the memory", memory),
        ledger.leaf("scores", score if isinstance(score, nn.Module) else None, f"{score.name}(Q, K)", "(B, T, S)"),
    ]
    if settings.attention == "monotone":
        inner.append(ledger.leaf("moves", model.jump, "W [s; h] + b", shape_of("B", "T", "S", model.jump.out_features)))
    shape = shape_of("B", "T", settings.memory_width)
    inner += [ModelPart("weights", WEIGHTS[settings.attention], "(B, T, S)"), ModelPart("context c", "weights V", shape)]
    reads = ("memory", "s_(t−1)") if before else ("memory",)
    return around("cross-attention", inner, shape=shape, reads=reads, follows=not before, role="attention")


def read_sequence_model(ledger: Ledger, children: Mapping[str, nn.Module]) -> tuple[ModelPart, ...]:
    """Returns the parts of a recurrent model without attention: embedding, cells, output."""
    embedding, output = children.get("embedding"), children.get("output")
    cells = children.get("encoder", children.get("stack"))
    if not isinstance(embedding, nn.Embedding) or not isinstance(output, nn.Linear):
        return ()
    L, name = ("S", "source tokens") if isinstance(cells, RecurrentEncoder) else ("T", "target tokens, <sos> first")
    parts = [input_part(name, shape_of("B", L)), *ledger.parts(embedding, L)]
    if isinstance(cells, RecurrentEncoder):
        parts += read_recurrent_encoder(ledger, cells)
    else:
        parts += read_cells(ledger, cells, "h", "T")
    vocabulary = output.out_features
    parts.append(ledger.leaf("output layer", output, "W_o h + b", shape_of("B", L, vocabulary), "output"))
    parts.append(ModelPart("softmax", shape=shape_of("B", L, vocabulary), role="output"))
    return (around("recurrent network", parts, role="stack"),)


def read_recurrent_encoder(ledger: Ledger, encoder: RecurrentEncoder) -> list[ModelPart]:
    """Returns one part per layer, with its cells in one or two directions."""
    parts = []
    for number, forwards in enumerate(encoder.forwards):
        ahead = read_cells(ledger, forwards, "h", "S", directions="left to right")
        back = []
        if encoder.backwards is not None:
            back = read_cells(ledger, encoder.backwards[number], "h", "S", directions="right to left")
        width = cast(nn.RNNBase, forwards).hidden_size * (2 if back else 1)
        joined = "[h→; h←]" if back else "h"
        parts.append(
            around("encoder layer", [*ahead, *back], formula=joined, shape=shape_of("B", "S", width), role="recurrent")
        )
    return parts


def read_cells(ledger: Ledger, stack: Any, letter: str, L: str, read: str = "x", *, directions: str = "") -> list[ModelPart]:
    """Returns one part per layer of a stack of recurrent cells. read: what the first layer reads."""
    width, name = stack.hidden_size, type(stack).__name__
    parts = []
    for number in range(stack.num_layers):
        own = [parameter for key, parameter in stack.named_parameters() if key.endswith(f"_l{number}")]
        formula = f"{letter}_t = {name}({letter}_(t−1), {read if number == 0 else 'layer below'})"
        title = "cells" + (f", {directions}" if directions else "")
        parameters = ledger.count(*own)
        module = ledger.name(stack)
        parts.append(ModelPart(title, formula, shape_of("B", L, width), parameters, module=module, role="recurrent"))
    return parts
