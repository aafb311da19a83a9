"""Stacks of Transformer layers: vectors in, vectors out. Embeddings and output layers are not part of them."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Unpack, cast, overload

import torch
from torch import Tensor, nn

from regard.core.attention import AttentionOutput
from regard.errors import check_sizes
from regard.layers import torch_layers
from regard.layers.attention import only_kind
from regard.layers.blocks import (
    LayerOptions,
    TransformerDecoderLayer,
    TransformerEncoderLayer,
    TransformerLayer,
    make_norm,
    output_and_seen,
)
from regard.look import Kind, Look, Seen

DECODER_KINDS: tuple[Kind, ...] = ("decoder", "cross")

# B batch  L length of a sequence  S length of the memory  D width  E width of the memory


class TransformerEncoder(nn.Module):
    """A stack of encoder layers (Vaswani et al. 2017, 3.1) for vectors (B, L, D). With norm_order="pre", a norm follows the
    last layer.

    width: width of the input and the output. heads: number of attention heads. layers: number of layers.
    options: as in `TransformerLayer`: feed_forward, kv_heads, key_dim, score, score_width, max_positions, positions, layout,
    activation, dropout, attention_dropout, norm, norm_order, norm_eps, residual, project_values, project_output,
    mixing, reach.

    >>> encoder, x = regard.TransformerEncoder(16, 4, 2, positions="rotary"), torch.randn(2, 5, 16)
    >>> encoder(x).shape
    torch.Size([2, 5, 16])
    >>> seen = encoder(x, look=regard.Look(taps=(regard.Tap("encoder"),))).seen
    >>> [(one.layer, one.weights_BHTS.shape) for one in seen]
    [(0, torch.Size([2, 4, 5, 5])), (1, torch.Size([2, 4, 5, 5]))]
    """

    def __init__(self, width: int, heads: int, layers: int, **options: Unpack[LayerOptions]) -> None:
        super().__init__()
        check_sizes(layers=layers)
        self.layers = nn.ModuleList(TransformerEncoderLayer(width, heads, **options) for _ in range(layers))
        self.norm = _last_norm(width, options)

    @overload
    def forward(self, x: Tensor, *, allow: Tensor | None = None, look: None = None) -> Tensor: ...

    @overload
    def forward(self, x: Tensor, *, allow: Tensor | None = None, look: Look) -> AttentionOutput: ...

    def forward(self, x: Tensor, *, allow: Tensor | None = None, look: Look | None = None) -> Tensor | AttentionOutput:
        """Returns the output (B, L, D); with a look, an `AttentionOutput` with the output as `context`.

        allow: attention mask, True = may attend: (L, L), (B, L, L) or (B, H, L, L), any size may be 1; a key padding mask
        (B, L) is passed as allow[:, None].
        look: taps and edits of kind "encoder".
        """
        if look is not None:
            only_kind(look, "encoder")
        seen: tuple[Seen[Tensor], ...] = ()
        for number, layer in enumerate(cast("Iterable[TransformerEncoderLayer]", self.layers)):
            layer_look = look.at("encoder", number, len(self.layers)) if look else None
            x, layer_seen = output_and_seen(layer(x, allow=allow, look=layer_look))
            seen += layer_seen
        output: Tensor = self.norm(x)
        return output if look is None else AttentionOutput(output, seen=seen)

    if TYPE_CHECKING:
        __call__ = forward

    @classmethod
    def from_torch(cls, theirs: nn.TransformerEncoder) -> TransformerEncoder:
        """Returns the same stack as torch's, with copies of its weights; see `MultiHeadAttention.from_torch` for its masks.

        >>> layer, x = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), torch.randn(2, 5, 16)
        >>> theirs = torch.nn.TransformerEncoder(layer, 2).eval()
        >>> torch.allclose(regard.TransformerEncoder.from_torch(theirs)(x), theirs(x), atol=1e-5)
        True
        """
        torch_layers.check_class(theirs, nn.TransformerEncoder)
        with torch.device("meta"):
            ours = cls(layers=len(theirs.layers), **torch_layers.stack_options(theirs))
            ours.norm = nn.Identity() if theirs.norm is None else deepcopy(theirs.norm)
        torch_layers.load_from(ours, theirs)
        return ours

    def to_torch(self) -> nn.TransformerEncoder:
        """Returns the same stack of torch.nn with copies of the weights. Raises UserError with all reasons if there is none.

        >>> regard.TransformerEncoder(16, 4, 2, attention_dropout=0.1).to_torch().num_layers
        2
        """
        options = cast(TransformerLayer, self.layers[0]).torch_options()
        layer = nn.TransformerEncoderLayer(**options)  # type: ignore[arg-type]
        norm = None if isinstance(self.norm, nn.Identity) else deepcopy(self.norm)
        theirs = nn.TransformerEncoder(layer, len(self.layers), norm, enable_nested_tensor=False)
        torch_layers.copy_into(self, theirs)
        return theirs


class TransformerDecoder(nn.Module):
    """A stack of decoder layers (Vaswani et al. 2017, 3.1) for vectors (B, L, D), which attend to a memory (B, S, E). With
    norm_order="pre", a norm follows the last layer.

    width: width of the input and the output. heads: number of attention heads. layers: number of layers.
    cross: whether the layers attend to a memory; those of a language model do not.
    memory_width: width of the memory; by default `width`. options: as in `TransformerEncoder`.

    >>> decoder, memory = regard.TransformerDecoder(16, 4, 2), torch.randn(2, 7, 16)
    >>> decoder(torch.randn(2, 5, 16), memory).shape
    torch.Size([2, 5, 16])
    """

    def __init__(
        self,
        width: int,
        heads: int,
        layers: int,
        *,
        cross: bool = True,
        memory_width: int | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__()
        check_sizes(layers=layers)
        self.layers = nn.ModuleList(
            TransformerDecoderLayer(width, heads, cross=cross, memory_width=memory_width, **options) for _ in range(layers)
        )
        self.norm = _last_norm(width, options)

    @overload
    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        allow: Tensor | None = None,
        memory_allow: Tensor | None = None,
        causal: bool = True,
        look: None = None,
    ) -> Tensor: ...

    @overload
    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        allow: Tensor | None = None,
        memory_allow: Tensor | None = None,
        causal: bool = True,
        look: Look,
    ) -> AttentionOutput: ...

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        allow: Tensor | None = None,
        memory_allow: Tensor | None = None,
        causal: bool = True,
        look: Look | None = None,
    ) -> Tensor | AttentionOutput:
        """Returns the output (B, L, D); with a look, an `AttentionOutput` with the output as `context`.

        memory: what the decoder attends to, (B, S, E).
        allow: mask of the self-attention, True = may attend: (L, L), (B, L, L) or (B, H, L, L), any size may be 1.
        memory_allow: mask of the cross-attention: (L, S), (B, L, S) or (B, H, L, S); a padding mask (B, S) of the memory is
        passed as memory_allow[:, None].
        causal: whether positions attend only to themselves and to earlier ones, in addition to `allow`.
        look: taps and edits of the kinds "decoder" and "cross".
        """
        if look is not None:
            only_kind(look, *DECODER_KINDS)
        seen: tuple[Seen[Tensor], ...] = ()
        for number, layer in enumerate(cast("Iterable[TransformerDecoderLayer]", self.layers)):
            layer_look = None if look is None else _both_kinds(look, number, len(self.layers))
            output = layer(x, memory, allow=allow, memory_allow=memory_allow, causal=causal, look=layer_look)
            x, layer_seen = output_and_seen(output)
            seen += layer_seen
        x = self.norm(x)
        return x if look is None else AttentionOutput(x, seen=seen)

    if TYPE_CHECKING:
        __call__ = forward

    @classmethod
    def from_torch(cls, theirs: nn.TransformerDecoder) -> TransformerDecoder:
        """Returns the same stack as torch's, with copies of its weights; see `MultiHeadAttention.from_torch` for its masks.

        It is causal unless causal=False is passed, as torch's is with a causal tgt_mask.

        >>> layer, x = torch.nn.TransformerDecoderLayer(16, 4, 32, batch_first=True), torch.randn(2, 5, 16)
        >>> theirs = torch.nn.TransformerDecoder(layer, 2).eval()
        >>> torch.allclose(regard.TransformerDecoder.from_torch(theirs)(x, x, causal=False), theirs(x, x), atol=1e-5)
        True
        """
        torch_layers.check_class(theirs, nn.TransformerDecoder)
        with torch.device("meta"):
            ours = cls(layers=len(theirs.layers), **torch_layers.stack_options(theirs))
            ours.norm = nn.Identity() if theirs.norm is None else deepcopy(theirs.norm)
        torch_layers.load_from(ours, theirs)
        return ours

    def to_torch(self) -> nn.TransformerDecoder:
        """Returns the same stack of torch.nn with copies of the weights. Raises UserError with all reasons if there is none.

        >>> regard.TransformerDecoder(16, 4, 2, attention_dropout=0.1).to_torch().num_layers
        2
        """
        options = cast(TransformerLayer, self.layers[0]).torch_options()
        layer = nn.TransformerDecoderLayer(**options)  # type: ignore[arg-type]
        norm = None if isinstance(self.norm, nn.Identity) else deepcopy(self.norm)
        theirs = nn.TransformerDecoder(layer, len(self.layers), norm)
        torch_layers.copy_into(self, theirs)
        return theirs


def _both_kinds(look: Look, number: int, num_layers: int) -> Look:
    """Returns the taps and edits for one decoder layer."""
    parts = [part for kind in DECODER_KINDS if (part := look.at(kind, number, num_layers)) is not None]
    return replace(
        look, taps=tuple(tap for part in parts for tap in part.taps), edits=tuple(edit for part in parts for edit in part.edits)
    )


def _last_norm(width: int, options: LayerOptions) -> nn.Module:
    """Returns the norm after the last layer; the identity with post-norm, where every layer already ends with a norm."""
    if options.get("norm_order", "pre") == "post":
        return nn.Identity()
    return make_norm(options.get("norm", "layer"), width, options.get("norm_eps", 1e-5))
