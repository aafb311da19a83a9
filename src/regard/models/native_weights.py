"""Which Transformers the native engine runs, and their weights as it reads them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor, nn

from regard.core.attention import ScaledDot
from regard.layers.attention import MultiHeadAttention
from regard.layers.blocks import ResidualConnection, SwiGlu, TransformerDecoderLayer, TransformerEncoderLayer
from regard.layers.embed import IN_ATTENTION, TokenEmbedding
from regard.layers.frontends import Frontend
from regard.layers.scores import Basic, Dot, General
from regard.models.decoder_only import DecoderOnly
from regard.models.stack import StackSettings
from regard.models.transformer import Transformer
from regard.native import engine
from regard.native.library import load

NativeModel = Transformer | DecoderOnly
"""The families that the native engine runs."""

ACTIVATIONS = {"relu": 1, "gelu": 2, "gelu_tanh": 3, "silu": 4, "swiglu": 5}
NORMS: dict[type[nn.Module], int] = {nn.Identity: 0, nn.LayerNorm: 1, nn.RMSNorm: 2}
LAYOUTS = {None: 0, "interleaved": 1, "halves": 2}
"""The numbers of engine_abi.h."""

SCORES = (ScaledDot, Dot, General, Basic)
PARTS = (nn.Linear, nn.Embedding, *NORMS)
"""The modules with weights that are read. A subclass of one of them may compute something else."""


def beyond_native(model: object) -> list[str]:
    """Returns why the native engine cannot run a model: what it lacks, by name; nothing if it can."""
    if (loaded := load()).functions is None:
        return [f"the native library is missing: {loaded.reason}"]
    if type(model) not in (Transformer, DecoderOnly):
        return [f"models of the class {type(model).__name__} have no native steps yet"]
    model = cast(NativeModel, model)
    settings, layers = cast(StackSettings, model.settings), _layers(model)
    scores = {attention.score.name: type(attention.score) for layer in layers for attention in _attentions(layer)}
    reasons = [] if settings.mixing == "attention" else [f"mixing={settings.mixing}"]
    reasons += [f"the score {name}" for name, kind in scores.items() if kind not in SCORES and settings.mixing == "attention"]
    reasons += ["no look-ahead mask"] if model.traits.looks_ahead else []
    tensors = [*model.parameters()]
    reasons += sorted({f"weights on {one.device.type}" for one in tensors if one.device.type != "cpu"})
    reasons += sorted({f"weights of {one.dtype}" for one in tensors if one.dtype != torch.float32})
    return reasons + sorted({reason for module in _read_modules(model) for reason in _changed(module)})


def _changed(module: nn.Module) -> Iterator[str]:
    """Yields what a user changed in a module, so that it may compute something else."""
    if module._forward_hooks or module._forward_pre_hooks:
        yield "hooks of its modules"
    holds_weights = any(True for _ in module.parameters(recurse=False))
    if holds_weights and type(module).__module__.partition(".")[0] != "regard" and type(module) not in PARTS:
        yield f"modules of the class {type(module).__name__}"


def _read_modules(model: NativeModel) -> Iterator[nn.Module]:
    """Yields the modules that the native engine replaces: all but a frontend, which torch runs."""
    frontend = _frontend(model)
    inside = set() if frontend is None else set(frontend.modules())
    return (module for module in model.modules() if module not in inside)


def _frontend(model: NativeModel) -> Frontend | None:
    embedding = model.encoder.embedding if isinstance(model, Transformer) else None
    return embedding if isinstance(embedding, Frontend) else None


def encodes(model: NativeModel) -> bool:
    """Returns whether the native engine runs its encoder: torch does, if the model reads files."""
    return isinstance(model, Transformer) and _frontend(model) is None


def _layers(model: NativeModel) -> list[TransformerEncoderLayer | TransformerDecoderLayer]:
    stacks = [model.decoder.layers, *([model.encoder.layers] if isinstance(model, Transformer) else [])]
    return [cast(TransformerEncoderLayer | TransformerDecoderLayer, layer) for stack in stacks for layer in stack]


def _attentions(layer: TransformerEncoderLayer | TransformerDecoderLayer) -> list[MultiHeadAttention]:
    return [attention for attention in (layer.attention, layer.cross) if attention is not None]


# --- weights -----------------------------------------------------------------------------------------------------------------


@dataclass
class WeightReader:
    """Describes a model for `engine.Packed`. kept: the tensors whose addresses it gave."""

    kept: list[object] = field(default_factory=list)

    def transformer(self, model: NativeModel) -> engine.Transformer:
        """Returns the description of a model that `beyond_native` accepts."""
        decoder, settings = model.decoder, cast(StackSettings, model.settings)
        described = engine.Transformer()
        if isinstance(model, Transformer) and encodes(model):
            encoder = model.encoder
            embedding = encoder.embedding if isinstance(encoder.embedding, TokenEmbedding) else decoder.embedding
            described.encoder = self.stack(list(encoder.layers), encoder.norm, embedding, encoder.window)
        described.decoder = self.stack(list(decoder.layers), decoder.norm, decoder.embedding, decoder.window)
        output = decoder.output
        described.project = self.linear(output.project)
        weight = decoder.embedding.tokens.weight if output.weight is None else output.weight
        described.output = self.product(weight, output.bias)
        described.width, described.pre_norm = settings.width, settings.norm_order == "pre"
        described.residual = settings.residual
        return described

    def stack(
        self, layers: Sequence[nn.Module], norm: nn.Module, embedding: TokenEmbedding, window: int | None
    ) -> engine.Stack:
        array = (engine.Layer * len(layers))(*(self.layer(cast(TransformerDecoderLayer, layer)) for layer in layers))
        self.kept.append(array)
        tokens = embedding.tokens.weight
        return engine.Stack(
            layers=array,
            num_layers=len(layers),
            tokens=self.address(tokens),
            vocab=tokens.shape[0],
            token_width=tokens.shape[1],
            position_width=0 if embedding.encoding in IN_ATTENTION else embedding.appended or embedding.width,
            window=-1 if window is None else window,
            token_scale=math.sqrt(embedding.width) if embedding.scaled else 1.0,
            embedding_norm=self.norm(embedding.norm or nn.Identity()),
            last_norm=self.norm(norm),
        )

    def layer(self, layer: TransformerEncoderLayer | TransformerDecoderLayer) -> engine.Layer:
        feed, cross = layer.feed_forward, layer.cross
        gated = isinstance(feed, SwiGlu)
        inner, outer = (feed.gate_and_value, feed.output) if gated else (feed.get_submodule("0"), feed.get_submodule("3"))
        return engine.Layer(
            own=self.attention(layer.attention),
            cross=engine.Attention() if cross is None else self.attention(cross),
            own_norm=self.residual_norm(layer.around_attention),
            cross_norm=engine.Norm() if layer.around_cross is None else self.residual_norm(layer.around_cross),
            feed_norm=self.residual_norm(layer.around_feed_forward),
            inner=self.linear(cast(nn.Linear, inner)),
            outer=self.linear(cast(nn.Linear, outer)),
            activation=ACTIVATIONS[layer.activation],
        )

    def attention(self, attention: MultiHeadAttention) -> engine.Attention:
        one = torch.zeros(1, attention.key_dim)
        scaled = attention.score.as_dot(one, one)
        assert scaled is not None
        return engine.Attention(
            query=self.linear(attention.query),
            key=self.key(attention),
            value=self.linear(attention.value),
            output=self.linear(attention.output if isinstance(attention.output, nn.Linear) else None),
            heads=attention.heads,
            kv_heads=attention.kv_heads,
            key_width=attention.key_dim,
            value_width=attention.value_dim,
            rotary=LAYOUTS[attention.rotary],
            slopes=0 if attention.slopes_H is None else self.address(attention.slopes_H),
            scale=scaled[2],
        )

    def key(self, attention: MultiHeadAttention) -> engine.Linear:
        """Returns the projection to prepared keys: `prepare` is linear, so it is a part of the matrix."""
        assert attention.key is not None
        if isinstance(attention.score, ScaledDot):
            return self.linear(attention.key)
        rows_GED = attention.key.weight.unflatten(0, (attention.kv_heads, -1)).transpose(1, 2)
        weight = attention.score.prepare(rows_GED).transpose(1, 2).flatten(0, 1)
        bias = attention.key.bias
        return self.product(
            weight, None if bias is None else attention.score.prepare(bias.unflatten(0, (attention.kv_heads, -1))).flatten()
        )

    def linear(self, linear: nn.Linear | None) -> engine.Linear:
        return engine.Linear() if linear is None else self.product(linear.weight, linear.bias)

    def product(self, weight_VD: Tensor, bias_V: Tensor | None) -> engine.Linear:
        outputs, inputs = weight_VD.shape
        return engine.Linear(self.address(weight_VD), 0 if bias_V is None else self.address(bias_V), inputs, outputs)

    def residual_norm(self, around: ResidualConnection) -> engine.Norm:
        return self.norm(around.norm)

    def norm(self, norm: nn.Module) -> engine.Norm:
        if isinstance(norm, nn.LayerNorm):
            return engine.Norm(self.address(norm.weight), self.address(norm.bias), NORMS[nn.LayerNorm], norm.eps)
        if isinstance(norm, nn.RMSNorm):
            return engine.Norm(self.address(norm.weight), 0, NORMS[nn.RMSNorm], norm.eps)
        return engine.Norm()

    def address(self, tensor: Tensor) -> int:
        """Returns the address of the numbers of a tensor, and keeps them."""
        numbers = tensor.detach().float().contiguous()
        self.kept.append(numbers)
        return numbers.data_ptr()


@torch.no_grad()
def pack(model: NativeModel) -> engine.Packed:
    """Returns the native engine of a model that `beyond_native` accepts. Only the embeddings are shared with the model."""
    reader = WeightReader()
    described = reader.transformer(model)
    embeddings = [model.decoder.embedding.tokens.weight.detach()]
    if encodes(model) and isinstance(embedding := cast(Transformer, model).encoder.embedding, TokenEmbedding):
        embeddings.append(embedding.tokens.weight.detach())
    return engine.Packed(described, embeddings)
