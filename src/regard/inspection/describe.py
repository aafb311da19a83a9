"""Describes a model before anything is trained: its parts in the order of computation, with the shape of every output and the
number of parameters of every part; as text, and as a diagram (diagram.py).

Wherever possible, the description is read from the modules of a model, not from its settings, so that it says what the model is
made of. A module that has no description here is listed by its class, with its inner modules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import nn

from regard.core.score import Score
from regard.core.spectrum import BANDS
from regard.errors import UserError, did_you_mean, plural, shown
from regard.inspection.description import Description
from regard.inspection.parts import ModelPart, Role
from regard.layers.attention import MultiHeadAttention
from regard.layers.blocks import ResidualConnection, SwiGlu, TransformerLayer
from regard.layers.embed import IN_ATTENTION, Output, TokenEmbedding
from regard.layers.fixed import FixedMixing, OffsetWeights, TableWeights
from regard.layers.frontends import (
    VIDEOS,
    FrameFrontend,
    Frontend,
    FusionFrontend,
    GridFrontend,
    GridProjection,
    PatchFrontend,
    ResNetFrontend,
    SoundFrontend,
    TimeBlock,
    VideoFrontend,
)
from regard.layers.mixing import Convolution, Dense
from regard.layers.recurrent import RecurrentEncoder, state_width
from regard.layers.scores import ScoreMaker
from regard.layers.subsample import Subsampling
from regard.models.build import FAMILIES, build, num_parameters, presets
from regard.models.contract import Model, ModelSettings
from regard.models.decoder import TargetDecoder
from regard.models.encoder import SourceEncoder
from regard.models.ensemble import Ensemble
from regard.models.rnn_seq2seq import RnnSeq2Seq
from regard.pipeline import Translator

VOCABULARY = 8000
"""Tokens of a vocabulary that is not known."""
WEIGHTS = {
    "soft": "softmax(scores)",
    "hard": "one position, chosen by softmax(scores)",
    "gated": "gates of 0 or 1, chosen by σ(scores)",
    "unnormalised": "scores",
    "marginal": "softmax(scores), a sum over all choices of one position",
    "monotone": "softmax(scores + moves), a sum over all choices that only move to the right",
}
"""Type of attention -> how scores become weights."""
ATTENTIONS = {"attention": ("x", "self-attention"), "cross": ("memory", "cross-attention")}
"""Module of a Transformer layer -> (what its keys and values are made of, its name)."""
NUMBERS = {"picture": 3, "patches": 3, "sound": BANDS, "grid": 64, "frames": 64, "video": 3, "video_grid": 64}
"""Frontend -> numbers per pixel, frame or grid cell, if they are not known."""


def describe(
    model: Translator | nn.Module | ModelSettings | str,
    *,
    num_tokens: int | tuple[int, int] | None = None,
    scores: Mapping[str, ScoreMaker] | None = None,
) -> Description:
    """Describes a model, trained or not: its parts, where queries, keys and values come from, shapes and parameters.

    `print(regard.describe("base"))` shows the text, `regard.describe("base").draw("base.svg")` the diagram.

    model: a model, a layer, settings of a model, or the name of a preset ("tiny", "small", "base", "deep-shallow") or of a
    family ("rnn", "transformer", …).
    num_tokens: for settings and names, the number of tokens of both vocabularies, or of source and target; 8,000 by default. If
    the source is a picture, a video, a grid, frames or sound, the first is the number of numbers per pixel, cell or frame.
    scores: for settings, your own score functions by name.

    Raises UserError for an unknown name, TypeError for something else, and ValueError if a model comes with `num_tokens`.

    >>> print(regard.describe(regard.MultiHeadAttention(16, 4, memory_width=8)))
    MultiHeadAttention: 832 parameters (B sentences, S source positions, T target positions)
    <BLANKLINE>
    attention: 4 heads                     (B, T, 16)    832
      Q = x W_Q + b                        (B, 4, T, 4)  272
      K = memory W_K + b                   (B, 4, S, 4)  144
      V = memory W_V + b                   (B, 4, S, 4)  144
      weights: softmax(scaled_dot(Q, K))   (B, 4, T, S)    0
      context: weights V                   (B, 4, T, 4)    0
      output: [head 1; …; head 4] W_O + b  (B, T, 16)    272
    """
    if isinstance(model, str):
        model = _settings(model)
    if isinstance(model, ModelSettings):
        sizes = _sizes(model, num_tokens)
        with torch.device("meta"):  # shapes without numbers: nothing is computed, and no memory is used
            module: nn.Module = build(model, *sizes, scores)
        source = "source tokens" if model.traits.frontend == "tokens" else f"numbers per position ({model.traits.frontend})"
        read = "" if model.traits.continues_text else f"{sizes[0]:,} {source}, "
        return _describe(module, f"{type(module).__name__}, {read}{sizes[1]:,} target tokens")
    if num_tokens is not None:
        raise ValueError("got num_tokens, but a model has its vocabularies already; leave it out")
    if isinstance(model, Translator):
        model = model.model
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"describe expects a model, its settings, or the name of a preset or a family, but got a {type(model).__name__}"
        )
    return _describe(model, type(model).__name__)


def _settings(name: str) -> ModelSettings:
    named = presets()
    if name in named:
        return named[name]
    if name in FAMILIES:
        return cast(ModelSettings, FAMILIES[name].settings())
    names = [*FAMILIES, *named]
    raise UserError(
        f"there is no preset or family {shown(name)}; expected one of {', '.join(names)}{did_you_mean(name, names)}; "
        "regard.load opens a model folder"
    )


def _sizes(settings: ModelSettings, num_tokens: int | tuple[int, int] | None) -> tuple[int, int]:
    if isinstance(num_tokens, tuple):
        return num_tokens
    tokens = VOCABULARY if num_tokens is None else num_tokens
    return NUMBERS.get(settings.traits.frontend, tokens), tokens


def _describe(model: nn.Module, title: str) -> Description:
    reader = _Reader(model)
    parts = reader.stacks(model)
    missed = {name: parameter for name, parameter in model.named_parameters() if id(parameter) not in reader.counted}
    if missed:
        rest = tuple(
            ModelPart(name, shape=_shape(*parameter.shape), parameters=parameter.numel()) for name, parameter in missed.items()
        )
        parts = (*parts, _around("other parameters", rest))
    return Description(title, num_parameters(model), parts)


# --- parts -------------------------------------------------------------------------------------------------------------------


def _shape(*sizes: int | str) -> str:
    return f"({', '.join(map(str, sizes))})"


def _around(name: str, parts: Sequence[ModelPart], *, parameters: int = 0, **facts: Any) -> ModelPart:
    """Returns a part with inner parts. parameters: of its own."""
    inside = sum(part.copies * part.parameters for part in parts)
    return ModelPart(name, parameters=inside + parameters, parts=tuple(parts), **facts)


def _collapsed(parts: Iterable[ModelPart]) -> list[ModelPart]:
    """Joins neighbours that differ in nothing but their weights."""
    joined: list[ModelPart] = []
    for part in parts:
        if joined and _nameless(joined[-1]) == _nameless(part):
            joined[-1] = replace(joined[-1], copies=joined[-1].copies + part.copies)
        else:
            joined.append(part)
    return joined


def _nameless(part: ModelPart) -> ModelPart:
    """Returns a part without the names of its modules and the number of its copies."""
    return replace(part, module="", copies=1, parts=tuple(map(_nameless, part.parts)))


class _Reader:
    """Reads the parts of a model from its modules. Every parameter is counted once: `counted` holds their ids."""

    def __init__(self, model: nn.Module) -> None:
        self.names = {id(module): name for name, module in model.named_modules()}
        self.counted: set[int] = set()
        self.texts: list[ModelPart] = []  # the stacks of auxiliary texts
        self.reads_video = isinstance(model, Model | Ensemble) and model.traits.frontend in VIDEOS

    def count(self, *modules: nn.Module | nn.Parameter | None) -> int:
        """Counts the parameters of modules that were not counted before."""
        number = 0
        for module in modules:
            if module is None:
                continue
            for parameter in (module,) if isinstance(module, nn.Parameter) else module.parameters():
                if id(parameter) not in self.counted:
                    self.counted.add(id(parameter))
                    number += parameter.numel()
        return number

    def leaf(self, name: str, module: nn.Module | None, formula: str, shape: str, role: Role = "other") -> ModelPart:
        """Returns a part that is one module, or none."""
        shared = module is not None and any(id(parameter) in self.counted for parameter in module.parameters())
        parameters = self.count(module)
        note = " (shared)" if shared else ""
        return ModelPart(
            name + note,
            formula,
            shape,
            parameters,
            module=self.names.get(id(module), "") if module is not None else "",
            role=role,
        )

    # --- models ---

    def model(self, model: nn.Module) -> tuple[ModelPart, ...]:
        """Returns the stacks of a model, or the parts of any other module."""
        if isinstance(model, Ensemble):
            return tuple(
                _around(f"member {number}", self.stacks(member), role="stack") for number, member in enumerate(model.members)
            )
        if isinstance(model, RnnSeq2Seq):
            return self.recurrent_model(model)
        children = dict(model.named_children())
        encoder, decoder = children.get("encoder"), children.get("decoder")
        stacks: list[ModelPart] = []
        if isinstance(encoder, SourceEncoder):
            embedding = encoder.embedding or cast(nn.Module, decoder).embedding
            stacks.append(self.source_stack(encoder, embedding))
        if isinstance(decoder, TargetDecoder):
            stacks.append(self.target_stack(decoder))
        rest = [child for child in children.values() if not isinstance(child, SourceEncoder | TargetDecoder)]
        if not stacks and (parts := self.sequence_model(children)):
            return parts
        heads = [part for child in rest for part in self.parts(child, "S")] if stacks else self.parts(model, "T")
        if stacks and heads:
            stacks[-1] = _around(stacks[-1].name, (*stacks[-1].parts, *heads), role="stack")
            return tuple(stacks)
        return tuple(stacks or heads)

    def stacks(self, model: nn.Module) -> tuple[ModelPart, ...]:
        """Returns the stacks of a model, that of its auxiliary text first."""
        parts = self.model(model)
        texts, self.texts = self.texts, []
        return (*texts, *parts)

    def source_stack(self, encoder: SourceEncoder, embedding: Any) -> ModelPart:
        unit = "rows and columns" if encoder.grid_window else "positions"
        allowed = "" if encoder.window is None else f" of {unit} within ±{encoder.window}"
        parts = [*self.source(embedding), *self.layers(encoder.layers, "S", "encoder layer", allowed)]
        parts += self.norm(encoder.norm, parts[-1].shape)
        parts[-1] = replace(parts[-1], gives="memory")
        return _around("encoder", parts, role="stack", module=self.names.get(id(encoder), ""))

    def target_stack(self, decoder: TargetDecoder) -> ModelPart:
        allowed = " of positions up to t" if decoder.causal else ""
        if decoder.window is not None:
            allowed = f" of positions from t − {decoder.window} to t" + ("" if decoder.causal else f" + {decoder.window}")
        parts = [_input("target tokens, <sos> first", "(B, T)"), *self.embedding(decoder.embedding, "T")]
        parts += self.layers(decoder.layers, "T", "decoder layer", allowed)
        parts += self.norm(decoder.norm, parts[-1].shape)
        parts += self.output(decoder.output, decoder.embedding.tokens.num_embeddings)
        return _around("decoder", parts, role="stack", module=self.names.get(id(decoder), ""))

    def sequence_model(self, children: Mapping[str, nn.Module]) -> tuple[ModelPart, ...]:
        """Returns the parts of a recurrent model without attention: embedding, cells, output."""
        embedding, output = children.get("embedding"), children.get("output")
        cells = children.get("encoder", children.get("stack"))
        if not isinstance(embedding, nn.Embedding) or not isinstance(output, nn.Linear):
            return ()
        L, name = ("S", "source tokens") if isinstance(cells, RecurrentEncoder) else ("T", "target tokens, <sos> first")
        parts = [_input(name, _shape("B", L)), *self.parts(embedding, L)]
        parts += self.recurrent_encoder(cells) if isinstance(cells, RecurrentEncoder) else self.cells(cells, "h", "T")
        vocabulary = output.out_features
        parts.append(self.leaf("output layer", output, "W_o h + b", _shape("B", L, vocabulary), "output"))
        parts.append(ModelPart("softmax", shape=_shape("B", L, vocabulary), role="output"))
        return (_around("recurrent network", parts, role="stack"),)

    def recurrent_model(self, model: RnnSeq2Seq) -> tuple[ModelPart, ...]:
        """Returns the stacks of a recurrent encoder-decoder."""
        settings, children = model.settings, dict(model.named_children())
        features = self.feature_embedding(model) if settings.features == "set" else []
        tokens, *rest = self.source(model.source_embedding)
        source = [*features, replace(tokens, follows=not features), *rest]
        if "encoder" in children:
            source += self.recurrent_encoder(model.encoder)
        source[-1] = replace(source[-1], gives="memory")
        source += self.bridge(model, "the last states" if "encoder" in children else "the mean over all positions")
        target = [_input("target tokens, <sos> first", "(B, T)"), *self.parts(model.target_embedding, "T")]
        attention = [] if settings.decoder == "fixed" else [self.recurrent_attention(model)]
        if settings.decoder == "bahdanau":
            target += attention
        target += self.recurrence(model)
        if settings.features == "set":
            target += self.features(model)
        if settings.decoder == "luong":
            target += attention
        read, skips = ("s", 0) if settings.decoder == "fixed" else ("[s; c]", 2 if settings.decoder == "bahdanau" else 1)
        if "combine" in children:
            shape = _shape("B", "T", settings.width)
            combined = self.leaf("attentional state s̃", model.combine, "tanh(W [c; s] + b)", shape, "dense")
            target.append(replace(combined, skips=1, gives="s̃"))
            read, skips = "s̃", 0
        if settings.readout_activation != "none":
            read = f"{settings.readout_activation}({read})"
        shape = _shape("B", "T", model.output.out_features)
        target.append(replace(self.leaf("output layer", model.output, f"W_o {read} + b_o", shape, "output"), skips=skips))
        target.append(ModelPart("softmax", shape=shape, role="output"))
        if settings.copy:
            target.append(self.copying(model, shape))
        return _around("encoder", source, role="stack"), _around("decoder", target, role="stack")

    def feature_embedding(self, model: RnnSeq2Seq) -> list[ModelPart]:
        """Returns the features of a source, which are read apart from its text, and their embedding."""
        shape = _shape("B", "features", model.settings.embedding)
        part = self.leaf("feature embedding", model.source_embedding, "E[feature]", shape, "embedding")
        return [_input("features, in no order", "(B, features)"), replace(part, gives="features")]

    def features(self, model: RnnSeq2Seq) -> list[ModelPart]:
        """Returns the gates by which a state chooses among the features, and the state with what they let through."""
        width, embedding = model.settings.width, model.settings.embedding
        shape = _shape("B", "T", width)
        inner = [
            self.leaf("Q = s W_Q + b", model.feature_query, "", _shape("B", "T", embedding)),
            ModelPart("K", "f, the features", _shape("B", "features", embedding)),
            self.leaf("V = f W_V", model.feature_value, "", _shape("B", "features", width)),
            ModelPart("gates", f"σ(Q Kᵀ / √{embedding})", "(B, T, features)"),
            ModelPart("chosen features", "gates V", shape),
        ]
        gates = _around("feature gates", inner, shape=shape, reads=("features",), role="attention")
        return [gates, ModelPart("Add", "s + f(s)", shape, skips=1, role="norm")]

    def copying(self, model: RnnSeq2Seq, shape: str) -> ModelPart:
        """Returns the choice between a token of the vocabulary and a copy of the source token. shape: of the probabilities."""
        gate = self.leaf("gate g", model.gate, "σ(W_g [s; h] + b_g)", "(B, T, S)")
        formula = "g · source token + (1 − g) · softmax"
        return _around("copying", [gate], formula=formula, shape=shape, reads=("memory",), skips=3, role="output")

    def bridge(self, model: RnnSeq2Seq, ends: str) -> list[ModelPart]:
        """Returns the summary C of the source and the initial state of the decoder, as far as the model has them."""
        settings = model.settings
        summary = ModelPart("summary C", ends, _shape("B", settings.memory_width), gives="C")
        if settings.bridge == "zero":
            return [summary] if settings.every_step else []
        shape = _shape("B", model.decoder.num_layers, state_width(model.decoder))
        formula, module = ("tanh(W C + b)", model.bridge) if settings.bridge == "learned" else ("C", None)
        part = self.leaf("bridge", module, f"initial state s_0 = {formula}", shape, "dense")
        return [summary, replace(part, gives="s_0")]

    def recurrence(self, model: RnnSeq2Seq) -> list[ModelPart]:
        """Returns the cells of the decoder and, if they read more than the embedding y, what is joined with it."""
        settings = model.settings
        extra = "s̃" if settings.input_feeding else "c" if settings.decoder == "bahdanau" else "C" if settings.every_step else ""
        first, *rest = self.cells(model.decoder, "s", "T", f"[{extra}; y]" if extra else "y")
        initial = () if settings.bridge == "zero" else ("s_0",)
        cells = [replace(first, reads=initial, gives="" if rest else "s_(t−1)"), *rest]
        if rest:
            cells[-1] = replace(cells[-1], gives="s_(t−1)")
        if not extra:
            return cells
        shape = _shape("B", "T", model.decoder.input_size)
        joined = ModelPart("joined input", f"[{extra}; y]", shape, reads=() if extra == "c" else (extra,))
        return [replace(joined, skips=1 if extra == "c" else 0), *cells]

    def recurrent_attention(self, model: RnnSeq2Seq) -> ModelPart:
        """Returns the cross-attention of a recurrent decoder, with the layer that scores the moves of monotone attention."""
        settings, score = model.settings, model.score
        before = settings.decoder == "bahdanau"
        memory, query = (_shape("B", L, width) for L, width in (("S", settings.memory_width), ("T", settings.width)))
        inner = [
            ModelPart("Q", "s_(t−1)" if before else "s_t", query),
            ModelPart("K = V", "h, the memory", memory),
            self.leaf("scores", score if isinstance(score, nn.Module) else None, f"{score.name}(Q, K)", "(B, T, S)"),
        ]
        if settings.attention == "monotone":
            inner.append(self.leaf("moves", model.jump, "W [s; h] + b", _shape("B", "T", "S", model.jump.out_features)))
        shape = _shape("B", "T", settings.memory_width)
        inner += [ModelPart("weights", WEIGHTS[settings.attention], "(B, T, S)"), ModelPart("context c", "weights V", shape)]
        reads = ("memory", "s_(t−1)") if before else ("memory",)
        return _around("cross-attention", inner, shape=shape, reads=reads, follows=not before, role="attention")

    # --- modules ---

    def parts(self, module: nn.Module | None, L: str) -> list[ModelPart]:
        """Returns the parts of any module. L: the letter of the length of its sequence."""
        if module is None or (not list(module.children()) and not list(module.parameters())):
            return []
        if isinstance(module, nn.ModuleList):
            return self.layers(module, L, "layer", "")
        if isinstance(module, TransformerLayer):
            return self.layer(module, L, "")
        if isinstance(module, FixedMixing):
            return [self.mixing(module, L, "")]
        if isinstance(module, MultiHeadAttention):
            return [self.attention(module, L, "memory", "attention", "")]
        if isinstance(module, TokenEmbedding):
            return self.embedding(module, L)
        if isinstance(module, Frontend):
            return self.frontend(module)
        if isinstance(module, RecurrentEncoder):
            return self.recurrent_encoder(module)
        if isinstance(module, nn.RNNBase):
            return self.cells(module, "h", L)
        if isinstance(module, nn.Embedding):
            shape = _shape("B", L, module.embedding_dim)
            return [self.leaf("embedding", module, "E[token]", shape, "embedding")]
        if isinstance(module, nn.Linear):
            shape = _shape("B", L, module.out_features)
            return [
                self.leaf("linear", module, f"x W{_bias(module)}, {module.in_features} → {module.out_features}", shape, "dense")
            ]
        if isinstance(module, nn.LayerNorm | nn.RMSNorm):
            return self.norm(module, _shape("B", L, *module.normalized_shape))
        inner = [part for child in module.children() for part in self.parts(child, L)]
        own = self.count(module)
        shape = inner[-1].shape if inner else ""
        return [_around(type(module).__name__, inner, parameters=own, shape=shape, module=self.names.get(id(module), ""))]

    def layers(self, layers: Iterable[nn.Module], L: str, name: str, allowed: str) -> list[ModelPart]:
        """Returns layers; neighbours that differ in nothing but their weights are one part with several copies.

        allowed: what their self-attention may attend to, if not all positions.
        """
        described = []
        for layer in layers:
            inner = self.layer(layer, L, allowed) if isinstance(layer, TransformerLayer) else self.parts(layer, L)
            shape = inner[-1].shape if inner else ""
            described.append(_around(name, inner, shape=shape, role="layer", module=self.names.get(id(layer), "")))
        return _collapsed(described)

    def layer(self, layer: TransformerLayer, L: str, allowed: str) -> list[ModelPart]:
        """Returns the blocks of a layer, whatever they are, each with what is around it."""
        parts: list[ModelPart] = []
        children = dict(layer.named_children())
        for name, block in children.items():
            if isinstance(block, ResidualConnection):
                continue
            if isinstance(block, FixedMixing):
                inner = [self.mixing(block, L, allowed)]
            elif isinstance(block, MultiHeadAttention):
                inner = [self.attention(block, L, *ATTENTIONS.get(name, ("x", name)), "" if name == "cross" else allowed)]
            else:
                inner = self.block(block, name, L)
            around = children.get(f"around_{name}")
            parts += self.residual(around, inner) if isinstance(around, ResidualConnection) else inner
        return parts

    def residual(self, around: ResidualConnection, block: Sequence[ModelPart]) -> list[ModelPart]:
        """Returns a block with its residual connection and its norm, in the order in which they are computed."""
        shape = block[-1].shape if block else ""
        norm = self.norm(around.norm, shape)
        if around.norm_order == "pre":
            added = [ModelPart("Add", "x + f(x)", shape, skips=len(norm) + len(block), role="norm")] if around.adds else []
            return [*norm, *block, *added]
        if not around.adds or not norm:
            added = [ModelPart("Add", "x + f(x)", shape, skips=len(block), role="norm")] if around.adds else []
            return [*block, *added, *norm]
        (part,) = norm
        both = replace(part, name="Add & Norm", formula=f"{part.formula.split('(')[0]}(x + f(x))", skips=len(block))
        return [*block, both]

    def block(self, block: nn.Module, name: str, L: str) -> list[ModelPart]:
        """Returns a block of a layer other than attention."""
        module = self.names.get(id(block), "")
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
            return self.parts(block, L)
        shape = _shape("B", L, width)
        return [ModelPart(name.replace("_", "-"), formula, shape, self.count(block), module=module, role="dense")]

    def attention(self, attention: MultiHeadAttention, L: str, source: str, name: str, allowed: str) -> ModelPart:
        """Returns attention with the origin of its queries, keys and values.

        source: what keys and values are made of.  allowed: what it may attend to, if not all positions.
        """
        S = L if source == "x" else "S"
        heads, groups, d = attention.heads, attention.kv_heads, attention.key_dim
        bias = _bias(attention.query)
        turned = ", turned by rotary positions" if attention.rotary else ""
        parts = [self.leaf(f"Q = x W_Q{bias}{turned}", attention.query, "", _shape("B", heads, L, d))]
        if attention.key is not None:
            parts.append(self.leaf(f"K = {source} W_K{bias}{turned}", attention.key, "", _shape("B", groups, S, d)))
        parts.append(self.values(attention, source, S))
        far = " − slope · distance" if attention.slopes_H is not None else ""
        score: Score = attention.score
        keys = "Q, K" if attention.key is not None else "Q"
        formula = f"softmax({score.name}({keys}){far}){allowed}"
        parts.append(self.leaf("weights", score if isinstance(score, nn.Module) else None, formula, _shape("B", heads, L, S)))
        parts += self.heads(attention, L)
        return _around(
            name,
            parts,
            formula=_num_heads(attention, "keys and values"),
            shape=parts[-1].shape,
            reads=() if source == "x" else (source,),
            role="attention",
            module=self.names.get(id(attention), ""),
        )

    def mixing(self, mixing: FixedMixing, L: str, allowed: str) -> ModelPart:
        """Returns what replaces self-attention: heads whose weights w are fixed by position. allowed: as for `attention`."""
        weights = cast(OffsetWeights | TableWeights, mixing.score)
        if isinstance(weights, OffsetWeights):
            name, formula = "convolution", f"w_(j−i) for |j − i| ≤ {weights.reach}"
        else:
            name, formula = "dense mixing", f"w_ij for at most {weights.max_positions} positions"
        formula += f",{allowed}" if allowed else ""
        parts = [
            self.values(mixing, "x", L),
            self.leaf("weights", weights, formula, _shape(mixing.heads, L, L)),
            *self.heads(mixing, L),
        ]
        module = self.names.get(id(mixing), "")
        return _around(name, parts, formula=_num_heads(mixing, "values"), shape=parts[-1].shape, role="dense", module=module)

    def values(self, attention: MultiHeadAttention, source: str, S: str) -> ModelPart:
        """Returns the values of attention. source: what they are made of.  S: the letter of its length."""
        made = f"V = {source}" if attention.value is None else f"V = {source} W_V{_bias(attention.value)}"
        return self.leaf(made, attention.value, "", _shape("B", attention.kv_heads, S, attention.value_dim))

    def heads(self, attention: MultiHeadAttention, L: str) -> list[ModelPart]:
        """Returns the context of each head, and the output for all of them."""
        heads, v, output = attention.heads, attention.value_dim, attention.output
        joined = "context" if heads == 1 else f"[head 1; {'' if heads == 2 else '…; '}head {heads}]"
        made, width = joined, heads * v
        if isinstance(output, nn.Linear):
            made, width = f"{joined} W_O{_bias(output)}", attention.width
        context = ModelPart("context", "weights V", _shape("B", heads, L, v))
        return [context, self.leaf("output", output, made, _shape("B", L, width))]

    def embedding(self, embedding: TokenEmbedding, L: str) -> list[ModelPart]:
        """Returns token embedding, positions and norm."""
        tokens, whole = _shape("B", L, embedding.width), _shape("B", L, embedding.width + embedding.appended)
        parts = [self.leaf("embedding", embedding.tokens, f"√{embedding.width} · E[token]", tokens, "embedding")]
        if embedding.encoding not in IN_ATTENTION:
            formula = f"{'[x; φ(i)]' if embedding.appended else 'x + φ(i)'}, {embedding.encoding}"
            parts.append(self.leaf("positions", embedding.learned, formula, whole, "embedding"))
        return [*parts, *self.norm(embedding.norm, whole)]

    def norm(self, norm: nn.Module | None, shape: str) -> list[ModelPart]:
        if norm is None or isinstance(norm, nn.Identity):
            return []
        return [self.leaf("Norm", norm, f"{type(norm).__name__}(x)", shape, "norm")]

    def output(self, output: Output, vocabulary: int) -> list[ModelPart]:
        """Returns the output layer, whose matrix may be that of the embedding, and the softmax."""
        parts = []
        if output.project is not None:
            shape = _shape("B", "T", output.project.out_features)
            parts.append(self.leaf("projection", output.project, "x W", shape, "output"))
        formula = "x W + b" if output.weight is not None else "x Eᵀ + b, E of the embedding"
        shape = _shape("B", "T", vocabulary)
        parts.append(self.leaf("output layer", output, formula, shape, "output"))
        return [*parts, ModelPart("softmax", shape=shape, role="output")]

    def source(self, embedding: nn.Module) -> list[ModelPart]:
        """Returns what is read, and its embedding or frontend."""
        if isinstance(embedding, Frontend):
            return self.frontend(embedding)
        return [_input("source tokens", "(B, S)"), *self.parts(embedding, "S")]

    def recurrent_encoder(self, encoder: RecurrentEncoder) -> list[ModelPart]:
        """Returns one part per layer, with its cells in one or two directions."""
        parts = []
        for number, forwards in enumerate(encoder.forwards):
            ahead = self.cells(forwards, "h", "S", directions="left to right")
            back = (
                [] if encoder.backwards is None else self.cells(encoder.backwards[number], "h", "S", directions="right to left")
            )
            width = cast(nn.RNNBase, forwards).hidden_size * (2 if back else 1)
            joined = "[h→; h←]" if back else "h"
            parts.append(
                _around("encoder layer", [*ahead, *back], formula=joined, shape=_shape("B", "S", width), role="recurrent")
            )
        return parts

    def cells(self, stack: Any, letter: str, L: str, read: str = "x", *, directions: str = "") -> list[ModelPart]:
        """Returns one part per layer of a stack of recurrent cells. read: what the first layer reads."""
        width, name = stack.hidden_size, type(stack).__name__
        parts = []
        for number in range(stack.num_layers):
            own = [parameter for key, parameter in stack.named_parameters() if key.endswith(f"_l{number}")]
            formula = f"{letter}_t = {name}({letter}_(t−1), {read if number == 0 else letter + ' of the layer below'})"
            title = "cells" + (f", {directions}" if directions else "")
            parameters = self.count(*own)
            module = self.names.get(id(stack), "")
            parts.append(ModelPart(title, formula, _shape("B", L, width), parameters, module=module, role="recurrent"))
        return parts

    # --- frontends ---

    def frontend(self, frontend: Frontend) -> list[ModelPart]:
        """Returns what a frontend reads, and its parts."""
        if isinstance(frontend, FusionFrontend):
            return self.fusion(frontend)
        if isinstance(frontend, ResNetFrontend):
            return self.resnet(frontend)
        if isinstance(frontend, VideoFrontend):
            return self.resnet(frontend.frames, frontend.over_time)
        if isinstance(frontend, PatchFrontend):
            project = frontend.project
            read = _input("picture", _shape("B", project.in_channels, "H", "W"))
            cell = frontend.cell
            formula = f"W · patch of {cell} × {cell} pixels + φ(row, column)"
            return [read, self.leaf("patches", project, formula, _shape("B", "S", project.out_channels), "embedding")]
        if isinstance(frontend, GridFrontend):
            axes = ("frames", "rows", "columns") if self.reads_video else ("rows", "columns")
            read = _input("grid of features", _shape("B", frontend.projection.project.in_features, *axes))
            return [read, self.grid(frontend.projection)]
        if isinstance(frontend, SoundFrontend):
            return self.sound(frontend.subsampling, frontend.positions)
        if isinstance(frontend, FrameFrontend):
            shape = _shape("B", "S", frontend.project.out_features)
            part = self.leaf("frames", frontend.project, "x W + b", shape, "embedding")
            return [_input("frames", _shape("B", "S", frontend.project.in_features)), part, *_sines(frontend.positions, shape)]
        inner = [part for child in frontend.children() for part in self.parts(child, "S")]
        return [_around(type(frontend).__name__, inner, parameters=self.count(frontend), role="embedding")]

    def fusion(self, frontend: FusionFrontend) -> list[ModelPart]:
        """Returns the parts of a frontend that attends to an auxiliary text. The text is a stack of its own."""
        parts = self.frontend(frontend.frontend)
        shape = parts[-1].shape
        nothing = self.count(frontend.nothing)
        parts.append(ModelPart("missing source", "x, or a learned vector if there is no source", shape, nothing))
        text = [*self.parts(frontend.words, "S"), *self.parts(frontend.reader, "S")]
        text = [_along_text(part) for part in (_input("auxiliary tokens", "(B, S)"), *text)]
        text[-1] = replace(text[-1], gives="text")
        self.texts.append(_around("auxiliary text", text, role="stack"))
        attention = self.attention(frontend.attention, "S", "text", "fusion", "")
        inner = tuple(replace(part, shape=_keys_of_text(part)) for part in attention.parts)
        added = ModelPart("Add", "x + f(x)", shape, skips=2, role="norm")
        return [*parts, *self.norm(frontend.norm, shape), replace(attention, parts=inner), added]

    def resnet(self, network: ResNetFrontend, over_time: Iterable[nn.Module] = ()) -> list[ModelPart]:
        """Returns the parts of a residual network. over_time: for videos, the `TimeBlock` after each of its stages."""
        blocks = list(over_time)
        frames = ("frames",) if blocks else ()
        channels = cast(nn.Conv2d, network.halve[0]).in_channels // 2  # it reads raw and standardised values
        parts = [_input("video" if blocks else "picture", _shape("B", channels, *frames, "H", "W"))]
        for number, (halve, block) in enumerate(zip(network.halve, network.blocks, strict=True), 1):
            convolution = cast(nn.Conv2d, halve)
            shape = _shape("B", convolution.out_channels, *frames, f"H/{2**number}", f"W/{2**number}")
            formula = f"{convolution.in_channels} → {convolution.out_channels} channels, stride 2"
            inner = [self.leaf("convolution", halve, formula, shape), self.leaf("residual block", block, "x + f(x)", shape)]
            inner += [self.time_block(cast(TimeBlock, block), shape) for block in blocks[number - 1 : number]]
            parts.append(_around(f"stage {number}", inner, shape=shape, role="embedding"))
        return [*parts, self.grid(network.projection)]

    def time_block(self, block: TimeBlock, shape: str) -> ModelPart:
        frames = block.convolution.kernel_size[0]
        return self.leaf("convolution over time", block, f"x + f(x), {frames} frames", shape)

    def grid(self, projection: GridProjection) -> ModelPart:
        shape = _shape("B", "S", projection.output.out_features)
        position = "φ(time, row, column)" if self.reads_video else "φ(row, column)"
        return self.leaf("grid", projection, f"A x + W₂ relu(W₁ x + {position}) + b, S cells", shape, "embedding")

    def sound(self, subsampling: Subsampling, positions: bool) -> list[ModelPart]:
        first, second, width = subsampling.first, subsampling.second, subsampling.project.out_features
        shape = _shape("B", "S", width)
        return [
            _input("frames of sound", "(B, 4S, bands)"),
            self.leaf(
                "convolution", first, "3 × 3, stride 2, relu", _shape("B", first.out_channels, "2S", "bands/2"), "embedding"
            ),
            self.leaf(
                "convolution", second, "3 × 3, stride 2, relu", _shape("B", second.out_channels, "S", "bands/4"), "embedding"
            ),
            self.leaf("projection", subsampling.project, "x W + b", shape, "embedding"),
            *self.norm(subsampling.norm, shape),
            *_sines(positions, shape),
        ]


def _bias(linear: nn.Linear) -> str:
    return " + b" if linear.bias is not None else ""


def _num_heads(attention: MultiHeadAttention, shared: str) -> str:
    """Returns the number of heads. shared: what several heads may share."""
    heads, groups = attention.heads, attention.kv_heads
    return plural(heads, "head") + (f", {groups} of {shared}" if groups != heads else "")


def _input(name: str, shape: str) -> ModelPart:
    return ModelPart(name, shape=shape, role="input")


def _sines(positions: bool, shape: str) -> list[ModelPart]:
    return [ModelPart("positions", "x + φ(i), sinusoidal", shape, role="embedding")] if positions else []


def _along_text(part: ModelPart) -> ModelPart:
    """Returns a part that reads the U positions of the auxiliary text."""
    return replace(part, shape=part.shape.replace("S", "U"), parts=tuple(map(_along_text, part.parts)))


def _keys_of_text(part: ModelPart) -> str:
    """Returns the shape of a part of fusion, whose keys and values have the U positions of the auxiliary text."""
    if part.name.startswith(("K", "V")):
        return part.shape.replace("S", "U")
    return part.shape[::-1].replace("S", "U", 1)[::-1] if part.name == "weights" else part.shape
