"""One encoder layer and one decoder layer of a Transformer, and their parts: residual connection, layer norm, feed-forward."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack, cast, get_args, overload

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.core import masks
from regard.core.attention import AttentionOutput
from regard.core.positions import Layout
from regard.core.window import Window, check_window
from regard.errors import check_flags, check_sizes, did_you_mean, shown
from regard.layers import torch_layers
from regard.layers.attention import KeysValues, MultiHeadAttention, only_kind
from regard.layers.dropout import Dropout
from regard.layers.fixed import Mixing, make_mixing
from regard.layers.scores import ScoreMaker, make_score
from regard.look import Kind, Look, Seen

# B batch  S source positions  R rows: the positions of a target sequence, or the hypotheses of one step  D width

NormOrder = Literal["pre", "post"]
Norm = Literal["layer", "rms", "none"]
Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "swiglu"]
Positions = Literal["rotary", "alibi", "none"]
"""Positions inside self-attention. Position vectors, which are added to the input, are not part of a layer."""


class Gelu(nn.Module):
    """GELU, computed in place when gradients are disabled, because its input is the widest tensor of a layer.

    approximate: "none" or "tanh", as in F.gelu.
    """

    def __init__(self, approximate: Literal["none", "tanh"]) -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            return F.gelu(x, approximate=self.approximate)
        y: Tensor = torch.ops.aten.gelu_(x, approximate=self.approximate)
        return y


ACTIVATIONS: dict[Activation, Callable[[], nn.Module]] = {
    "relu": lambda: nn.ReLU(inplace=True),
    "gelu": lambda: Gelu("none"),
    "gelu_tanh": lambda: Gelu("tanh"),
    "silu": nn.SiLU,
}

SelfAttend = Callable[[MultiHeadAttention, Tensor], AttentionOutput]
"""Causal self-attention of a decoder layer, over a whole sequence or through a cache: (attention, x) -> AttentionOutput."""


def make_norm(kind: Norm, width: int, eps: float = 1e-5) -> nn.Module:
    """Returns a LayerNorm ("layer"), an RMSNorm ("rms") or the identity ("none")."""
    if kind == "none":
        return nn.Identity()
    return nn.LayerNorm(width, eps) if kind == "layer" else nn.RMSNorm(width, eps)


class SwiGlu(nn.Module):
    """Gated feed-forward block (swish(xW) ⊙ xV)W₂ (Shazeer 2020, eq. 6)."""

    def __init__(self, width: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.gate_and_value = nn.Linear(width, 2 * inner, bias=False)
        self.dropout = Dropout(dropout)
        self.output = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.gate_and_value(x).chunk(2, dim=-1)
        y: Tensor = self.output(self.dropout(F.silu(gate) * value))
        return y


def make_feed_forward(width: int, inner: int, dropout: float, activation: Activation = "relu") -> nn.Module:
    """Returns the position-wise block max(0, xW₁+b₁)W₂+b₂ (Vaswani et al. 2017, eq. 2), or one with another activation."""
    if activation == "swiglu":
        return SwiGlu(width, inner, dropout)
    return nn.Sequential(nn.Linear(width, inner), ACTIVATIONS[activation](), Dropout(dropout), nn.Linear(inner, width))


class ResidualConnection(nn.Module):
    """Residual connection with layer norm around a block f: x + f(LN(x)) (pre-norm) or LN(x + f(x)) (post-norm; Vaswani et al.
    2017).

    `before` returns the input of f, `after` the sum of x and f's output y. Dropout is applied to y.
    adds: whether x is added; if not, the connection is left out: f(LN(x)) or LN(f(x)).
    """

    def __init__(self, norm: nn.Module, dropout: float, norm_order: NormOrder, *, adds: bool = True) -> None:
        super().__init__()
        self.norm, self.norm_order, self.adds = norm, norm_order, adds
        self.dropout = Dropout(dropout)

    def before(self, x: Tensor) -> Tensor:
        return self.norm(x) if self.norm_order == "pre" else x

    def after(self, x: Tensor, y: Tensor) -> Tensor:
        x = x + self.dropout(y) if self.adds else self.dropout(y)
        return x if self.norm_order == "pre" else self.norm(x)


class LayerOptions(TypedDict, total=False):
    """The keyword arguments of all Transformer layers and of their stacks. `TransformerLayer` describes them."""

    feed_forward: int
    kv_heads: int
    key_dim: int
    score: str | ScoreMaker
    score_width: int
    max_positions: int
    positions: Positions
    layout: Layout
    activation: Activation
    dropout: float
    attention_dropout: float
    norm: Norm
    norm_order: NormOrder
    norm_eps: float
    residual: bool
    project_values: bool
    project_output: bool
    mixing: Mixing
    reach: int


class TransformerLayer(nn.Module):
    """What encoder layers and decoder layers have in common: self-attention, perhaps cross-attention, and a feed-forward block,
    each with a residual connection.

    width: width of the input and the output.
    heads: number of attention heads.
    cross: whether the layer attends to a memory.
    memory_width: width of that memory; by default `width`.
    feed_forward: width of the hidden layer of the feed-forward block; by default 4 · width.
    kv_heads: number of key-value heads, each shared by a group of query heads; by default `heads`.
    key_dim: width of one head; by default width / heads.
    score: score function: a name in `regard.scores.SCORES`, a class, or a function that returns a new score function.
    score_width: width of the hidden layer of the additive score.
    max_positions: number of positions that the location score supports.
    positions: "rotary", "alibi" or "none"; both act inside self-attention.
    layout: order of rotary pairs: interleaved (a1 b1 a2 b2 …), or halves (a1 a2 … b1 b2 …).
    activation: activation function of the feed-forward block.
    dropout: dropout probability in training, after each block and inside the feed-forward block.
    attention_dropout: probability of dropping an attention weight in training.
    norm: "layer" (LayerNorm), "rms" (RMSNorm) or "none".
    norm_order: "pre", x + f(LN(x)), or "post", LN(x + f(x)) (Vaswani et al. 2017).
    norm_eps: constant that is added to the variance in a normalisation.
    residual: whether each block has a residual connection; without it, f(LN(x)) or LN(f(x)).
    project_values: whether heads have W_V; without it, the values of all heads are the attended states themselves.
    project_output: whether attention has W_O; without it, the contexts of all heads together must have the width of the layer.
    mixing: what mixes the positions of the sequence: "attention", or weights fixed by position, which replace self-attention:
    "convolution" (by their distance) or "dense" (a table for the first max_positions positions). Cross-attention stays.
    reach: how many positions to either side a convolution reaches; its kernel has 2 · reach + 1.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        cross: bool,
        memory_width: int | None = None,
        feed_forward: int | None = None,
        kv_heads: int | None = None,
        key_dim: int | None = None,
        score: str | ScoreMaker = "scaled_dot",
        score_width: int = 32,
        max_positions: int = 256,
        positions: Positions = "none",
        layout: Layout = "interleaved",
        activation: Activation = "relu",
        dropout: float = 0.1,
        attention_dropout: float = 0.0,
        norm: Norm = "layer",
        norm_order: NormOrder = "pre",
        norm_eps: float = 1e-5,
        residual: bool = True,
        project_values: bool = True,
        project_output: bool = True,
        mixing: Mixing = "attention",
        reach: int = 3,
    ) -> None:
        super().__init__()
        check_flags(residual=residual)
        check_choice("mixing", mixing, get_args(Mixing))
        if mixing != "attention" and positions != "none":
            raise ValueError(
                f"positions={positions} change the scores of self-attention, but mixing={mixing} has none: its weights depend "
                "on position already; use positions that are added to the embeddings, or none"
            )
        check_sizes(width=width, heads=heads, score_width=score_width, max_positions=max_positions)
        check_choice("positions", positions, get_args(Positions))
        check_choice("activation", activation, get_args(Activation))
        check_choice("norm", norm, get_args(Norm))
        check_choice("norm_order", norm_order, get_args(NormOrder))
        self.activation = activation

        def make_attention(*, cross: bool) -> MultiHeadAttention:
            """Rotary positions and ALiBi need distances within one sequence: only self-attention has them."""
            if mixing != "attention" and not cross:
                return make_mixing(
                    mixing,
                    width,
                    heads,
                    reach=reach,
                    max_positions=max_positions,
                    key_dim=key_dim,
                    kv_heads=kv_heads,
                    project_values=project_values,
                    project_output=project_output,
                )
            head_width = key_dim or width // heads
            sizes = {"query_width": head_width, "key_width": head_width, "width": score_width, "max_source": max_positions}
            return MultiHeadAttention(
                width,
                heads,
                score=make_score(score, **sizes),
                memory_width=memory_width if cross else None,
                key_dim=key_dim,
                kv_heads=kv_heads,
                rotary=layout if positions == "rotary" and not cross else None,
                alibi=positions == "alibi" and not cross,
                dropout=attention_dropout,
                project_values=project_values,
                project_output=project_output,
            )

        def make_residual() -> ResidualConnection:
            return ResidualConnection(make_norm(norm, width, norm_eps), dropout, norm_order, adds=residual)

        cross_attention = make_attention(cross=True) if cross else None
        if not project_output and cross_attention is not None:
            check_contexts(heads, cross_attention.value_dim, width)
        self.attention, self.around_attention = make_attention(cross=False), make_residual()
        self.cross = cross_attention
        self.around_cross = make_residual() if cross else None
        if not project_output:
            check_contexts(heads, self.attention.value_dim, width)
        self.feed_forward = make_feed_forward(width, feed_forward or 4 * width, dropout, activation)
        self.around_feed_forward = make_residual()

    def feed(self, x_BLD: Tensor) -> Tensor:
        """Returns the output of the feed-forward block and its residual connection."""
        return self.around_feed_forward.after(x_BLD, self.feed_forward(self.around_feed_forward.before(x_BLD)))

    def beyond_torch(self) -> list[str]:
        """Returns what this layer has that the layers of torch.nn have not."""
        attentions = [attention for attention in (self.attention, self.cross) if attention is not None]
        reasons = [reason for attention in attentions for reason in attention.beyond_torch()]
        norm = self.around_attention.norm
        named = "no normalisation" if isinstance(norm, nn.Identity) else type(norm).__name__
        reasons += [] if isinstance(norm, nn.LayerNorm) else [named]
        reasons += [] if self.around_attention.adds else ["no residual connections"]
        reasons += [] if self.activation in torch_layers.ACTIVATIONS else [f"the activation {self.activation}"]
        memory_widths = {attention.memory_width for attention in attentions}
        reasons += [f"a memory of width {max(memory_widths)}"] if len(memory_widths) > 1 else []
        dropouts = {self.around_attention.dropout.p, *(attention.dropout for attention in attentions)}
        reasons += [f"dropout and attention_dropout differ ({min(dropouts)}, {max(dropouts)})"] if len(dropouts) > 1 else []
        return list(dict.fromkeys(reasons))

    def torch_options(self) -> dict[str, object]:
        """Returns the arguments of the same layer of torch.nn. Raises UserError with all reasons if there is none."""
        torch_layers.refuse(f"torch.nn cannot express this {type(self).__name__}", self.beyond_torch())
        hidden = cast(nn.Linear, self.feed_forward.get_submodule("0"))
        return {
            "d_model": self.attention.width,
            "nhead": self.attention.heads,
            "dim_feedforward": hidden.out_features,
            "dropout": self.attention.dropout,
            "activation": torch_layers.ACTIVATIONS[self.activation],
            "layer_norm_eps": cast(nn.LayerNorm, self.around_attention.norm).eps,
            "norm_first": self.around_attention.norm_order == "pre",
            "batch_first": True,
            "device": "meta",
        }


def check_contexts(heads: int, value_width: int, width: int) -> None:
    """Raises ValueError unless the contexts of all heads together have the width of the layer, as they must without W_O."""
    if heads * value_width != width:
        raise ValueError(
            f"project_output=False leaves out W_O, so the contexts of all heads together must have width {width}, but "
            f"{heads} heads of width {value_width} have {heads * value_width}; set key_dim to width / heads and keep the "
            "projection of the values, or use one head without it"
        )


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Raises ValueError unless the value is one of the choices."""
    if value not in (listed := list(choices)):
        raise ValueError(f"{name} is {shown(value)}, expected one of {', '.join(listed)}{did_you_mean(value, listed)}")


class TransformerEncoderLayer(TransformerLayer):
    """An encoder layer of a Transformer (Vaswani et al. 2017, 3.1): self-attention, then a feed-forward block, each with a
    residual connection and a layer norm.

    width: width of the input and the output. heads: number of attention heads. options: as in `TransformerLayer`.

    >>> layer = regard.TransformerEncoderLayer(16, 4, feed_forward=32, positions="rotary", dropout=0.0)
    >>> layer(torch.randn(2, 5, 16)).shape
    torch.Size([2, 5, 16])
    >>> layer.beyond_torch()
    ['rotary positions (interleaved)']
    """

    def __init__(self, width: int, heads: int, **options: Unpack[LayerOptions]) -> None:
        super().__init__(width, heads, cross=False, **options)

    @overload
    def forward(
        self,
        x: Tensor,
        *,
        allow: Tensor | None = None,
        positions: Tensor | None = None,
        window: int | None = None,
        axes: tuple[int, int] | None = None,
        look: None = None,
    ) -> Tensor: ...

    @overload
    def forward(
        self,
        x: Tensor,
        *,
        allow: Tensor | None = None,
        positions: Tensor | None = None,
        window: int | None = None,
        axes: tuple[int, int] | None = None,
        look: Look,
    ) -> AttentionOutput: ...

    def forward(
        self,
        x: Tensor,
        *,
        allow: Tensor | None = None,
        positions: Tensor | None = None,
        window: int | None = None,
        axes: tuple[int, int] | None = None,
        look: Look | None = None,
    ) -> Tensor | AttentionOutput:
        """Returns the output (B, S, D); with a look, an `AttentionOutput` with the output as `context`.

        allow: attention mask, True = may attend: (S, S), (B, S, S) or (B, H, S, S), any size may be 1; a key padding mask
        (B, S) is passed as allow[:, None].
        positions: positions of the tokens; by default they count from 0, and a score by position skips padding.
        window, axes: as in `attend`: the positions near each other, which may attend to each other, and those of a grid.
        look: taps and edits of this layer, of kind "encoder".
        """
        attention = self.attention
        attention.check_sequence("x", x, attention.width)
        if allow is not None:
            allow = attention.mask_for_heads(allow, x, x)
        if window is not None or axes is not None:
            check_window(window, axes, x.shape[-2], x.shape[-2])
        near = None if window is None else Window(window, axes)
        if positions is None:
            positions = attention.key_positions(x, allow)
        inner = self.around_attention.before(x)
        keys_values = attention.keys_values(inner, positions)
        attention_look = None if look is None else only_kind(look, "encoder")
        attended = attention.attend(attention.queries(inner, positions), *keys_values, allow, attention_look, window=near)
        output = self.feed(self.around_attention.after(x, attended.context))
        return output if look is None else replace(attended, context=output)

    if TYPE_CHECKING:
        __call__ = forward

    @classmethod
    def from_torch(cls, theirs: nn.TransformerEncoderLayer) -> TransformerEncoderLayer:
        """Returns the same layer as torch's, with copies of its weights; see `MultiHeadAttention.from_torch` for its masks.

        >>> theirs, x = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval(), torch.randn(2, 5, 16)
        >>> torch.allclose(regard.TransformerEncoderLayer.from_torch(theirs)(x), theirs(x), atol=1e-6)
        True
        """
        torch_layers.check_class(theirs, nn.TransformerEncoderLayer)
        with torch.device("meta"):
            ours = cls(**torch_layers.layer_options(theirs))
        torch_layers.load_from(ours, theirs)
        return ours

    def to_torch(self) -> nn.TransformerEncoderLayer:
        """Returns the same layer of torch.nn with copies of the weights. Raises UserError with all reasons if there is none.

        >>> regard.TransformerEncoderLayer(16, 4, attention_dropout=0.1).to_torch().norm_first
        True
        """
        theirs = nn.TransformerEncoderLayer(**self.torch_options())  # type: ignore[arg-type]
        torch_layers.copy_into(self, theirs)
        return theirs


class TransformerDecoderLayer(TransformerLayer):
    """A decoder layer of a Transformer (Vaswani et al. 2017, 3.1): self-attention, cross-attention to a memory and a
    feed-forward block, each with a residual connection and a layer norm.

    width: width of the input and the output. heads: number of attention heads.
    cross: whether the layer attends to a memory; a layer of a language model does not.
    memory_width: width of the memory; by default `width`. options: as in `TransformerLayer`.

    >>> layer = regard.TransformerDecoderLayer(16, 4, memory_width=24, dropout=0.0)
    >>> layer(torch.randn(2, 5, 16), torch.randn(2, 7, 24)).shape
    torch.Size([2, 5, 16])
    >>> layer.beyond_torch()
    ['a memory of width 24']
    """

    def __init__(
        self, width: int, heads: int, *, cross: bool = True, memory_width: int | None = None, **options: Unpack[LayerOptions]
    ) -> None:
        super().__init__(width, heads, cross=cross, memory_width=memory_width, **options)

    @overload
    def forward(
        self,
        x: Tensor,
        memory: Tensor | KeysValues | None = None,
        *,
        allow: Tensor | None = None,
        memory_allow: Tensor | None = None,
        causal: bool = True,
        positions: tuple[Tensor, Tensor] | None = None,
        self_attend: SelfAttend | None = None,
        look: None = None,
    ) -> Tensor: ...

    @overload
    def forward(
        self,
        x: Tensor,
        memory: Tensor | KeysValues | None = None,
        *,
        allow: Tensor | None = None,
        memory_allow: Tensor | None = None,
        causal: bool = True,
        positions: tuple[Tensor, Tensor] | None = None,
        self_attend: SelfAttend | None = None,
        look: Look,
    ) -> AttentionOutput: ...

    def forward(
        self,
        x: Tensor,
        memory: Tensor | KeysValues | None = None,
        *,
        allow: Tensor | None = None,
        memory_allow: Tensor | None = None,
        causal: bool = True,
        positions: tuple[Tensor, Tensor] | None = None,
        self_attend: SelfAttend | None = None,
        look: Look | None = None,
    ) -> Tensor | AttentionOutput:
        """Returns the output (B, R, D); with a look, an `AttentionOutput` with the output as `context`.

        memory: what the layer attends to, (B, S, E), or its keys and values (`cross.keys_values`), computed once.
        allow: mask of the self-attention, True = may attend: (R, R), (B, R, R) or (B, H, R, R), any size may be 1.
        memory_allow: mask of the cross-attention, (R, S), (B, R, S) or (B, H, R, S); for keys and values as in
        `MultiHeadAttention.attend`.
        causal: whether positions attend only to themselves and to earlier ones, in addition to `allow`.
        positions: in cross-attention, those of the rows and of the memory, for edits; by default 0, 1, 2, …
        self_attend: how self-attention is computed, e.g. through a cache; `allow` and `causal` are then not used.
        look: taps and edits of this layer, of the kinds "decoder" and "cross".
        """
        looks = split_kinds(look, "decoder", "cross")
        if self_attend is None:
            self.attention.check_sequence("x", x, self.attention.width)
            self_attend = partial(attend_whole, allow=allow, causal=causal, look=looks["decoder"])
        attended = self_attend(self.attention, self.around_attention.before(x))
        x, seen = self.around_attention.after(x, attended.context), attended.seen
        if self.cross is None or self.around_cross is None:
            if memory is not None:
                raise ValueError("a memory was given, but this decoder layer has no cross-attention (cross=False)")
        else:
            inner = self.around_cross.before(x)
            keys_values, memory_allow = self._source(x, memory, memory_allow)
            crossed = self.cross.attend(self.cross.queries(inner), *keys_values, memory_allow, looks["cross"], positions)
            x, seen = self.around_cross.after(x, crossed.context), seen + crossed.seen
        output = self.feed(x)
        return output if look is None else AttentionOutput(output, seen=seen)

    def _source(self, x: Tensor, memory: Tensor | KeysValues | None, allow: Tensor | None) -> tuple[KeysValues, Tensor | None]:
        """Returns the keys and values of the memory, and its mask with an axis for the heads."""
        assert self.cross is not None
        if memory is None:
            raise ValueError(
                "this decoder layer attends to a memory, but there is none; pass one, or create it with cross=False"
            )
        if not isinstance(memory, Tensor):
            return memory, allow
        self.cross.check_sequence("memory", memory, self.cross.memory_width)
        if allow is not None:
            allow = self.cross.mask_for_heads(allow, x, memory)
        return self.cross.keys_values(memory, self.cross.key_positions(memory, allow)), allow

    if TYPE_CHECKING:
        __call__ = forward

    @classmethod
    def from_torch(cls, theirs: nn.TransformerDecoderLayer) -> TransformerDecoderLayer:
        """Returns the same layer as torch's, with copies of its weights; see `MultiHeadAttention.from_torch` for its masks.

        It is causal unless causal=False is passed, as torch's is with a causal tgt_mask.

        >>> theirs, x = torch.nn.TransformerDecoderLayer(16, 4, 32, batch_first=True).eval(), torch.randn(2, 5, 16)
        >>> layer = regard.TransformerDecoderLayer.from_torch(theirs)
        >>> torch.allclose(layer(x, x, causal=False), theirs(x, x), atol=1e-6)
        True
        """
        torch_layers.check_class(theirs, nn.TransformerDecoderLayer)
        with torch.device("meta"):
            ours = cls(**torch_layers.layer_options(theirs))
        torch_layers.load_from(ours, theirs)
        return ours

    def beyond_torch(self) -> list[str]:
        return super().beyond_torch() + (["no cross-attention"] if self.cross is None else [])

    def to_torch(self) -> nn.TransformerDecoderLayer:
        """Returns the same layer of torch.nn with copies of the weights. Raises UserError with all reasons if there is none.

        >>> regard.TransformerDecoderLayer(16, 4, norm_order="post", attention_dropout=0.1).to_torch().norm_first
        False
        """
        theirs = nn.TransformerDecoderLayer(**self.torch_options())  # type: ignore[arg-type]
        torch_layers.copy_into(self, theirs)
        return theirs


def attend_whole(
    attention: MultiHeadAttention, x_BLD: Tensor, *, allow: Tensor | None, causal: bool, look: Look | None
) -> AttentionOutput:
    """Computes self-attention over a whole sequence. allow: mask as `MultiHeadAttention` takes it."""
    exact = causal and allow is None
    if allow is not None:
        allow = attention.mask_for_heads(allow, x_BLD, x_BLD)
    positions_BL = attention.key_positions(x_BLD, allow)
    if causal:
        allow_LL = masks.causal(x_BLD.shape[-2], device=x_BLD.device)
        allow = allow_LL if allow is None else masks.both(allow, allow_LL)
    keys, values = attention.keys_values(x_BLD, positions_BL)
    return attention.attend(attention.queries(x_BLD, positions_BL), keys, values, allow, look, causal=exact)


def split_kinds(look: Look | None, *kinds: Kind) -> dict[Kind, Look | None]:
    """Returns the taps and edits of one layer by kind. Raises UserError for requests of other kinds."""
    if look is None:
        return dict.fromkeys(kinds)
    whole = only_kind(look, *kinds) or look
    split = {
        kind: replace(
            whole,
            taps=tuple(tap for tap in whole.taps if tap.kind == kind),
            edits=tuple(edit for edit in whole.edits if kind in edit.kinds),
        )
        for kind in kinds
    }
    return {kind: part if part.taps or part.edits else None for kind, part in split.items()}


def output_and_seen(output: Tensor | AttentionOutput) -> tuple[Tensor, tuple[Seen[Tensor], ...]]:
    """Returns the output of a layer, and what its look requested: nothing without a look."""
    return (output, ()) if isinstance(output, Tensor) else (output.context, output.seen)
