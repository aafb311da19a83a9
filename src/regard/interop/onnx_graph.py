"""Builds the two ONNX graphs of an encoder-decoder Transformer, with the names that transformers.js and Optimum expect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

from regard.core.positions import sinusoidal
from regard.models.transformer import TransformerSettings

OPSET = 17
"""The version of the operators: the first that has LayerNormalization."""
WIDEST = 2048
"""How many sinusoidal positions a graph holds."""
MASKED = -1e9
"""The score of a padded position."""
BATCH, SOURCE, TARGET, PAST = "batch_size", "encoder_sequence_length", "decoder_sequence_length", "past_decoder_sequence_length"
"""Names of axes. transformers.js requires the first one."""

# B batch  S source positions  T target positions  P positions read before  H heads  d width of one head  D width  V vocabulary


class Graph:
    """A graph that is being built. Values are names."""

    def __init__(self, weights: Mapping[str, Tensor], settings: TransformerSettings, outer: Graph | None = None) -> None:
        self.weights, self.settings = weights, settings
        self.nodes: list[Any] = []
        self.held: dict[str, Any] = {} if outer is None else outer.held
        self.prefix = "" if outer is None else f"sub{len(outer.nodes)}_"

    def add(self, operator: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        """Adds an operator and returns the name of its output."""
        output = name or f"{self.prefix}{operator}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [output], name=f"node_{output}", **attributes))
        return output

    def hold(self, name: str, array: Any) -> str:
        """Returns the name of a constant, which is stored once."""
        if name not in self.held:
            self.held[name] = numpy_helper.from_array(np.array(array, order="C"), name)
        return name

    def integers(self, *values: int) -> str:
        return self.hold(f"integers_{'_'.join(map(str, values))}", np.array(values, dtype=np.int64))

    def number(self, value: float) -> str:
        return self.hold(f"number_{value}", np.array(value, dtype=np.float32))

    def weight(self, name: str) -> str:
        return self.hold(name, self.weights[name].numpy())

    def linear(self, x: str, name: str) -> str:
        """x Wᵀ + b."""
        matrix = self.hold(f"{name}.transposed", self.weights[f"{name}.weight"].T.numpy())
        return self.add("Add", self.add("MatMul", x, matrix), self.weight(f"{name}.bias"))

    def norm(self, x: str, name: str) -> str:
        gain, shift = self.weight(f"{name}.weight"), self.weight(f"{name}.bias")
        return self.add("LayerNormalization", x, gain, shift, axis=-1, epsilon=self.settings.norm_eps)

    def activation(self, x: str) -> str:
        """The activation function of the feed-forward blocks."""
        kind = self.settings.activation
        if kind == "relu":
            return self.add("Relu", x)
        if kind == "silu":
            return self.add("Mul", x, self.add("Sigmoid", x))
        if kind == "gelu":
            inner = self.add("Erf", self.add("Mul", x, self.number(0.5**0.5)))
        else:  # √(2/π) (x + 0.044715 x³)
            cube = self.add("Mul", self.add("Mul", self.add("Mul", x, x), x), self.number(0.044715))
            inner = self.add("Tanh", self.add("Mul", self.add("Add", x, cube), self.number((2 / np.pi) ** 0.5)))
        return self.add("Mul", self.add("Mul", x, self.number(0.5)), self.add("Add", inner, self.number(1.0)))

    def heads(self, x: str) -> str:
        """(B, L, D) -> (B, H, L, d)."""
        split = self.add("Reshape", x, self.integers(0, 0, self.settings.heads, self.settings.head_width))
        return self.add("Transpose", split, perm=[0, 2, 1, 3])

    def keys_values(self, x: str, name: str) -> list[str]:
        return [self.heads(self.linear(x, f"{name}.{what}")) for what in ("key", "value")]

    def attend(self, x: str, keys_values: Sequence[str], bias: str, name: str) -> str:
        """Attention of x; bias: added to the scores, MASKED where attention is not allowed."""
        query = self.add("Mul", self.heads(self.linear(x, f"{name}.query")), self.number(self.settings.head_width**-0.5))
        keys = self.add("Transpose", keys_values[0], perm=[0, 1, 3, 2])
        weights = self.add("Softmax", self.add("Add", self.add("MatMul", query, keys), bias), axis=-1)
        context = self.add("Transpose", self.add("MatMul", weights, keys_values[1]), perm=[0, 2, 1, 3])
        return self.linear(self.add("Reshape", context, self.integers(0, 0, self.settings.width)), f"{name}.output")

    def block(self, x: str, name: str, compute: Any) -> str:
        """A residual connection with its norm around a block."""
        if self.settings.norm_order == "pre":
            return self.add("Add", x, compute(self.norm(x, f"{name}.norm")))
        return self.norm(self.add("Add", x, compute(x)), f"{name}.norm")

    def feed_forward(self, x: str, layer: str) -> str:
        def compute(inner: str) -> str:
            return self.linear(self.activation(self.linear(inner, f"{layer}.feed_forward.0")), f"{layer}.feed_forward.3")

        return self.block(x, f"{layer}.around_feed_forward", compute)

    def embedding(self, ids: str, side: str, first: str) -> str:
        """√d E[ids] + φ(first), φ(first + 1), …; first: a scalar."""
        own = f"{side}.embedding.tokens.weight"
        matrix = self.weight(own if own in self.weights else "decoder.embedding.tokens.weight")
        tokens = self.add("Mul", self.add("Gather", matrix, ids), self.number(self.settings.width**0.5))
        length = self.add("Gather", self.add("Shape", ids), self.hold("one", np.array(1, dtype=np.int64)))
        one = self.hold("one", np.array(1, dtype=np.int64))
        positions = self.add("Range", first, self.add("Add", first, length), one)
        return self.add("Add", tokens, self.add("Gather", self.positions(side), positions))

    def positions(self, side: str) -> str:
        learned = f"{side}.embedding.learned.vectors.weight"
        if learned in self.weights:
            return self.weight(learned)
        table_PD = sinusoidal(torch.arange(WIDEST), self.settings.width, layout=self.settings.layout)
        return self.hold("positions", table_PD.numpy())

    def padding_bias(self, mask: str) -> str:
        """(B, S) with 1 at real positions -> (B, 1, 1, S), MASKED at the others."""
        real = self.add("Cast", self.add("Unsqueeze", mask, self.integers(1, 2)), to=TensorProto.FLOAT)
        return self.add("Mul", self.add("Sub", self.number(1.0), real), self.number(MASKED))

    def last_norm(self, x: str, side: str) -> str:
        return self.norm(x, f"{side}.norm") if f"{side}.norm.weight" in self.weights else x

    def model(self, name: str, inputs: Sequence[Any], outputs: Sequence[Any]) -> Any:
        graph = helper.make_graph(self.nodes, name, inputs, outputs, list(self.held.values()))
        made = helper.make_model(graph, producer_name="regard", opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
        onnx.checker.check_model(made)
        return made


def encoder_graph(weights: Mapping[str, Tensor], settings: TransformerSettings) -> Any:
    """Returns the graph input_ids, attention_mask -> last_hidden_state."""
    graph = Graph(weights, settings)
    zero = graph.hold("zero", np.array(0, dtype=np.int64))
    x, bias = graph.embedding("input_ids", "encoder", zero), graph.padding_bias("attention_mask")
    for number in range(settings.encoder_layers):
        layer = f"encoder.layers.{number}"

        def attend(inner: str, name: str = f"{layer}.attention") -> str:
            return graph.attend(inner, graph.keys_values(inner, name), bias, name)

        x = graph.feed_forward(graph.block(x, f"{layer}.around_attention", attend), layer)
    graph.add("Identity", graph.last_norm(x, "encoder"), name="last_hidden_state")
    return graph.model(
        "encoder",
        [integers("input_ids", BATCH, SOURCE), integers("attention_mask", BATCH, SOURCE)],
        [floats("last_hidden_state", BATCH, SOURCE, settings.width)],
    )


def decoder_graph(weights: Mapping[str, Tensor], settings: TransformerSettings, vocabulary: int) -> Any:
    """Returns the graph of a step, or of several: input_ids, encoder_hidden_states, encoder_attention_mask and the keys and
    values of what was read before -> logits and all keys and values. Those of the source are computed if use_cache_branch is
    false, and are otherwise what was given."""
    graph, cache, present = Graph(weights, settings), [], []
    past_length = graph.add("Gather", graph.add("Shape", "past_key_values.0.decoder.key"), graph.hold("two", np.array(2)))
    x = graph.embedding("input_ids", "decoder", past_length)
    causal, padding = _causal_bias(graph, past_length), graph.padding_bias("encoder_attention_mask")
    for number in range(settings.decoder_layers):
        layer, names = f"decoder.layers.{number}", {}
        for kind, axis in (("decoder", PAST), ("encoder", SOURCE)):
            for what in ("key", "value"):
                names[kind, what] = f"past_key_values.{number}.{kind}.{what}"
                shape = BATCH, settings.heads, axis, settings.head_width
                cache.append(floats(names[kind, what], *shape))
                written = f"present.{number}.{kind}.{what}"
                present.append(floats(written, BATCH, settings.heads, f"{axis} + new" if kind == "decoder" else axis, shape[3]))

        def attend(inner: str, layer: str = layer, number: int = number, names: Any = names) -> str:
            new = graph.keys_values(inner, f"{layer}.attention")
            held = [
                graph.add("Concat", names["decoder", what], one, axis=2, name=f"present.{number}.decoder.{what}")
                for what, one in zip(("key", "value"), new, strict=True)
            ]
            return graph.attend(inner, held, causal, f"{layer}.attention")

        def cross(inner: str, layer: str = layer, number: int = number, names: Any = names) -> str:
            held = _source_keys_values(graph, f"{layer}.cross", number, [names["encoder", what] for what in ("key", "value")])
            return graph.attend(inner, held, padding, f"{layer}.cross")

        x = graph.block(graph.block(x, f"{layer}.around_attention", attend), f"{layer}.around_cross", cross)
        x = graph.feed_forward(x, layer)
    _logits(graph, graph.last_norm(x, "decoder"), vocabulary)
    inputs = [
        integers("encoder_attention_mask", BATCH, SOURCE),
        integers("input_ids", BATCH, TARGET),
        floats("encoder_hidden_states", BATCH, SOURCE, settings.width),
        *cache,
        helper.make_tensor_value_info("use_cache_branch", TensorProto.BOOL, [1]),
    ]
    return graph.model("decoder", inputs, [floats("logits", BATCH, TARGET, vocabulary), *present])


def _causal_bias(graph: Graph, past_length: str) -> str:
    """Returns the bias (T, P + T): MASKED where a key is later than the query."""
    one, zero = graph.hold("one", np.array(1, dtype=np.int64)), graph.hold("zero", np.array(0, dtype=np.int64))
    length = graph.add("Gather", graph.add("Shape", "input_ids"), one)
    last = graph.add("Add", past_length, length)
    queries = graph.add("Unsqueeze", graph.add("Range", past_length, last, one), graph.integers(1))
    later = graph.add("Greater", graph.add("Range", zero, last, one), queries)
    return graph.add("Mul", graph.add("Cast", later, to=TensorProto.FLOAT), graph.number(MASKED))


def _source_keys_values(graph: Graph, name: str, number: int, past: Sequence[str]) -> list[str]:
    """Returns the keys and values of the source, computed in the first step only."""
    computed, given = Graph(graph.weights, graph.settings, graph), Graph(graph.weights, graph.settings, graph)
    branches = []
    for branch, values in (
        (given, [given.add("Identity", one, name=f"given_{number}_{at}") for at, one in enumerate(past)]),
        (computed, computed.keys_values("encoder_hidden_states", name)),
    ):
        results = [helper.make_tensor_value_info(value, TensorProto.FLOAT, None) for value in values]
        branches.append(helper.make_graph(branch.nodes, f"{name}_{'given' if branch is given else 'computed'}", [], results))
    outputs = [f"present.{number}.encoder.{what}" for what in ("key", "value")]
    graph.nodes.append(
        helper.make_node(
            "If", ["use_cache_branch"], outputs, name=f"node_source_{number}", then_branch=branches[0], else_branch=branches[1]
        )
    )
    return outputs


def _logits(graph: Graph, x: str, vocabulary: int) -> None:
    """x Wᵀ + b with the matrix as it is stored, which may also be the embedding."""
    name = "decoder.output.weight"
    matrix = graph.weight(name if name in graph.weights else "decoder.embedding.tokens.weight")
    rows = graph.add("Reshape", x, graph.integers(-1, graph.settings.width))
    flat = graph.add("Gemm", rows, matrix, graph.weight("decoder.output.bias"), transB=1)
    shape = graph.add("Concat", graph.add("Shape", "input_ids"), graph.integers(vocabulary), axis=0)
    graph.add("Reshape", flat, shape, name="logits")


def integers(name: str, *shape: str | int) -> Any:
    """Returns the description of an input of whole numbers."""
    return helper.make_tensor_value_info(name, TensorProto.INT64, list(shape))


def floats(name: str, *shape: str | int) -> Any:
    """Returns the description of an input or output of float32."""
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape))
