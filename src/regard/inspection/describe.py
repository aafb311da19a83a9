"""Describes a model before anything is trained: its parts in the order of computation, with the shape of every output and the
number of parameters of every part; as text, and as a diagram (diagram.py).

Wherever possible, the description is read from the modules of a model, not from its settings, so that it says what the model is
made of. A module that has no description here is listed by its class, with its inner modules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import torch
from torch import nn

from regard.checkpoint.weights import SkipInitialisation
from regard.core.spectrum import BANDS
from regard.errors import UserError, did_you_mean, shown
from regard.inspection.description import Description
from regard.inspection.ledger import Ledger, PartReader, around, input_part, shape_of
from regard.inspection.parts import ModelPart
from regard.inspection.read_blocks import (
    read_attention,
    read_embedding,
    read_layer,
    read_layer_norm,
    read_layers,
    read_linear,
    read_lookup,
    read_mixing,
    read_norm,
    read_output,
)
from regard.inspection.read_frontends import read_frontend, read_source
from regard.inspection.read_recurrent import (
    read_cells,
    read_recurrent_encoder,
    read_recurrent_model,
    read_sequence_model,
)
from regard.layers.attention import MultiHeadAttention
from regard.layers.blocks import TransformerLayer
from regard.layers.embed import TokenEmbedding
from regard.layers.fixed import FixedMixing
from regard.layers.frontends import VIDEOS, Frontend
from regard.layers.recurrent import RecurrentEncoder
from regard.layers.scores import ScoreMaker
from regard.models.build import FAMILIES, build, num_parameters, presets
from regard.models.contract import Model, ModelSettings
from regard.models.decoder import TargetDecoder
from regard.models.encoder import SourceEncoder
from regard.models.ensemble import Ensemble
from regard.models.rnn_seq2seq import RnnSeq2Seq
from regard.pipeline import Translator

VOCABULARY = 8000
"""Tokens of a vocabulary that is not known."""
NUMBERS = {"picture": 3, "patches": 3, "sound": BANDS, "whisper": 160, "grid": 64, "frames": 64, "video": 3, "video_grid": 64}
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
        with torch.device("meta"), SkipInitialisation() as mode:  # shapes without numbers: nothing is computed
            module: nn.Module = build(model, *sizes, mode.except_for(scores or {}))
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


READERS: dict[type[nn.Module], PartReader] = {
    nn.ModuleList: lambda ledger, layers, L: read_layers(ledger, layers, L, "layer", ""),
    TransformerLayer: lambda ledger, layer, L: read_layer(ledger, layer, L, ""),
    FixedMixing: lambda ledger, mixing, L: [read_mixing(ledger, mixing, L, "")],
    MultiHeadAttention: lambda ledger, attention, L: [read_attention(ledger, attention, L, "memory", "attention", "")],
    TokenEmbedding: read_embedding,
    Frontend: lambda ledger, frontend, L: read_frontend(ledger, frontend),
    RecurrentEncoder: lambda ledger, encoder, L: read_recurrent_encoder(ledger, encoder),
    nn.RNNBase: lambda ledger, cells, L: read_cells(ledger, cells, "h", L),
    nn.Embedding: read_lookup,
    nn.Linear: read_linear,
    nn.LayerNorm: read_layer_norm,
    nn.RMSNorm: read_layer_norm,
}
"""Kind of module -> what reads its parts; the first kind that fits counts."""


def _describe(model: nn.Module, title: str) -> Description:
    reads_video = isinstance(model, Model | Ensemble) and model.traits.frontend in VIDEOS
    ledger = Ledger(model, READERS, reads_video=reads_video)
    parts = read_stacks(ledger, model)
    missed = {name: parameter for name, parameter in model.named_parameters() if id(parameter) not in ledger.counted}
    if missed:
        rest = tuple(
            ModelPart(name, shape=shape_of(*parameter.shape), parameters=parameter.numel())
            for name, parameter in missed.items()
        )
        parts = (*parts, around("other parameters", rest))
    return Description(title, num_parameters(model), parts)


def read_model(ledger: Ledger, model: nn.Module) -> tuple[ModelPart, ...]:
    """Returns the stacks of a model, or the parts of any other module."""
    if isinstance(model, Ensemble):
        return tuple(
            around(f"member {number}", read_stacks(ledger, member), role="stack") for number, member in enumerate(model.members)
        )
    if isinstance(model, RnnSeq2Seq):
        return read_recurrent_model(ledger, model)
    children = dict(model.named_children())
    encoder, decoder = children.get("encoder"), children.get("decoder")
    stacks: list[ModelPart] = []
    if isinstance(encoder, SourceEncoder):
        embedding = encoder.embedding or cast(nn.Module, decoder).embedding
        stacks.append(read_source_stack(ledger, encoder, embedding))
    if isinstance(decoder, TargetDecoder):
        stacks.append(read_target_stack(ledger, decoder))
    rest = [child for child in children.values() if not isinstance(child, SourceEncoder | TargetDecoder)]
    if not stacks and (parts := read_sequence_model(ledger, children)):
        return parts
    heads = [part for child in rest for part in ledger.parts(child, "S")] if stacks else ledger.parts(model, "T")
    if stacks and heads:
        stacks[-1] = around(stacks[-1].name, (*stacks[-1].parts, *heads), role="stack")
        return tuple(stacks)
    return tuple(stacks or heads)


def read_stacks(ledger: Ledger, model: nn.Module) -> tuple[ModelPart, ...]:
    """Returns the stacks of a model, that of its auxiliary text first."""
    parts = read_model(ledger, model)
    texts, ledger.texts = ledger.texts, []
    return (*texts, *parts)


def read_source_stack(ledger: Ledger, encoder: SourceEncoder, embedding: Any) -> ModelPart:
    unit = "rows and columns" if encoder.grid_window else "positions"
    allowed = "" if encoder.window is None else f" of {unit} within ±{encoder.window}"
    parts = [*read_source(ledger, embedding), *read_layers(ledger, encoder.layers, "S", "encoder layer", allowed)]
    parts += read_norm(ledger, encoder.norm, parts[-1].shape)
    parts[-1] = replace(parts[-1], gives="memory")
    return around("encoder", parts, role="stack", module=ledger.name(encoder))


def read_target_stack(ledger: Ledger, decoder: TargetDecoder) -> ModelPart:
    allowed = " of positions up to t" if decoder.causal else ""
    if decoder.window is not None:
        allowed = f" of positions from t − {decoder.window} to t" + ("" if decoder.causal else f" + {decoder.window}")
    parts = [input_part("target tokens, <sos> first", "(B, T)"), *read_embedding(ledger, decoder.embedding, "T")]
    parts += read_layers(ledger, decoder.layers, "T", "decoder layer", allowed)
    parts += read_norm(ledger, decoder.norm, parts[-1].shape)
    parts += read_output(ledger, decoder.output, decoder.embedding.tokens.num_embeddings)
    return around("decoder", parts, role="stack", module=ledger.name(decoder))
