"""Multi-head self- and cross-attention: the projections around the functions of core/attention.py."""

from __future__ import annotations

from dataclasses import is_dataclass, replace
from typing import TYPE_CHECKING, Literal, overload

import torch
from torch import Tensor, nn

from regard.core import masks
from regard.core.attention import (
    AttentionOutput,
    ScaledDot,
    check_allow,
    check_device,
    check_shapes,
    leading_shape,
    weights_prepared,
)
from regard.core.checks import check_dtype, check_tensor
from regard.core.mechanism import Alibi, Mechanism
from regard.core.positions import LAYOUTS, Layout, alibi_slopes, rotate
from regard.core.score import Score
from regard.core.taps import attend_with_look
from regard.core.window import Window
from regard.errors import UserError, check_flags, check_sizes, shown
from regard.layers import torch_layers
from regard.look import Kind, Look

# B batch  L length of a sequence  H query heads  G key-value heads  D width of the query sequence
# E width of the attended sequence  F width of the sequence of values  d width of one head's queries and keys
# v width of one head's values

KeysValues = tuple[Tensor, Tensor]
"""(prepared keys, values) of the attended sequence, each of shape (B, G, L, ·)."""


class MultiHeadAttention(nn.Module):
    """Multi-head attention (Vaswani et al. 2017, 3.2.2). One wide projection, split into heads, equals H small ones.

    Calling the layer computes everything. `queries`, `keys_values` and `attend` are separate methods because a decoder projects
    the keys and values of the source once, but its queries at every step. `from_torch` and `to_torch` convert from and to
    torch.nn.MultiheadAttention.

    width: width of the query sequence and of the output.
    heads: number of query heads.
    score: score function; by default scaled dot product.
    memory_width: width of the attended sequence; by default `width`.
    value_width: width of the sequence of values, if it is not the attended sequence; by default `memory_width`.
    key_dim: width of one head's queries and keys; by default width / heads.
    value_dim: width of one head's values; by default `key_dim`.
    kv_heads: number of key-value heads, each shared by a group of query heads (grouped-query attention, Ainslie et al. 2023);
    by default `heads`.
    bias: whether the projections have a bias.
    project_values: if False, the values are the attended states themselves.
    project_output: if False, the output is the concatenation of the heads' contexts.
    rotary: layout of the pairs in which queries and keys are rotated by their positions; None for no rotation.
    alibi: whether ALiBi lowers the scores of distant keys. `rotary` and `alibi` are for self-attention only.
    dropout: attention dropout in training, the probability of dropping a weight. torch's default generator (torch.manual_seed)
    draws the numbers.

    Raises ValueError for sizes that do not fit together, and UserError if the score does not support rotary positions.

    >>> layer = regard.MultiHeadAttention(16, 4, kv_heads=2, rotary="halves")
    >>> x = torch.randn(2, 5, 16)
    >>> layer(x, allow=regard.masks.causal(5)).shape
    torch.Size([2, 5, 16])
    >>> output, weights = layer(x, weights=True)
    >>> weights.shape  # sentences, heads, queries, keys
    torch.Size([2, 4, 5, 5])
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        score: Score | None = None,
        memory_width: int | None = None,
        value_width: int | None = None,
        key_dim: int | None = None,
        value_dim: int | None = None,
        kv_heads: int | None = None,
        bias: bool = True,
        project_values: bool = True,
        project_output: bool = True,
        rotary: Layout | None = None,
        alibi: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        sizes = {
            "memory_width": memory_width,
            "value_width": value_width,
            "key_dim": key_dim,
            "value_dim": value_dim,
            "kv_heads": kv_heads,
        }
        check_sizes(width=width, heads=heads, **{name: size for name, size in sizes.items() if size is not None})
        check_flags(bias=bias, project_values=project_values, project_output=project_output, alibi=alibi)
        if rotary is not None and rotary not in LAYOUTS:
            raise ValueError(
                f"rotary is {shown(rotary)}, expected None or one of the layouts {' or '.join(map(repr, LAYOUTS))}"
            )
        if key_dim is None and width % heads:
            raise ValueError(
                f"width {width} is not divisible by {heads} heads; choose a multiple of {heads}, or give key_dim, "
                "the width of one head"
            )
        if value_dim is not None and not project_values:
            raise ValueError(
                f"value_dim is {value_dim}, but project_values=False leaves the values as they are; remove one of the two"
            )
        self.heads, self.kv_heads = heads, kv_heads or heads
        if heads % self.kv_heads:
            raise ValueError(f"{heads} heads cannot share {kv_heads} key-value heads evenly; make kv_heads a divisor of heads")
        self.score = ScaledDot() if score is None else score
        Mechanism(self.score, dropout=dropout, generator=torch.default_generator).check()
        if rotary and not self.score.rotary:
            raise UserError(
                "rotary positions rotate queries and keys, which only works with scores based on dot products or distances, "
                f"but the score is {self.score.name!r}; use a score such as scaled_dot, or positions added to the embeddings"
            )
        self.rotary, self.dropout = rotary, dropout
        self.width = width
        self.memory_width = memory_width or width
        self.value_width = value_width or self.memory_width
        self.key_dim = key_dim or width // heads
        self.value_dim = (value_dim or self.key_dim) if project_values else self.value_width
        self.query = nn.Linear(width, heads * self.key_dim, bias=bias)
        self.key = nn.Linear(self.memory_width, self.kv_heads * self.key_dim, bias=bias) if self.score.by_content else None
        self.value = nn.Linear(self.value_width, self.kv_heads * self.value_dim, bias=bias) if project_values else None
        self.output = nn.Linear(heads * self.value_dim, width, bias=bias) if project_output else nn.Identity()
        self.slopes_H: Tensor | None
        self.register_buffer("slopes_H", alibi_slopes(heads).float() if alibi else None, persistent=False)

    def extra_repr(self) -> str:
        score = repr(self.score) if is_dataclass(self.score) else self.score.name
        described = [f"width={self.width}, heads={self.heads}, score={score}"]
        usual = {
            "memory_width": self.width,
            "value_width": self.memory_width,
            "key_dim": self.width // self.heads,
            "value_dim": self.key_dim,
            "kv_heads": self.heads,
            "rotary": None,
            "dropout": 0.0,
        }
        described += [f"{name}={getattr(self, name)!r}" for name, value in usual.items() if getattr(self, name) != value]
        described += ["bias=False"] if self.query.bias is None else []
        described += ["project_values=False"] if self.value is None else []
        described += ["project_output=False"] if isinstance(self.output, nn.Identity) else []
        described += ["alibi=True"] if self.slopes_H is not None else []
        return ", ".join(described)

    # --- calling the layer ---------------------------------------------------------------------------------------------------

    @overload
    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        allow: Tensor | None = None,
        weights: Literal[False] = False,
        look: None = None,
    ) -> Tensor: ...

    @overload
    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        allow: Tensor | None = None,
        weights: Literal[True],
        look: None = None,
    ) -> tuple[Tensor, Tensor]: ...

    @overload
    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        allow: Tensor | None = None,
        weights: Literal[False] = False,
        look: Look,
    ) -> AttentionOutput: ...

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        allow: Tensor | None = None,
        weights: bool = False,
        look: Look | None = None,
    ) -> Tensor | tuple[Tensor, Tensor] | AttentionOutput:
        """Returns the output (B, Lq, D) for queries (B, Lq, D), keys (B, Lk, E) and values (B, Lk, F).

        key: the attended sequence; by default `query` (self-attention).
        value: what is mixed; by default `key`.
        allow: attention mask (Lq, Lk) shared by all sentences and heads, (B, Lq, Lk) with one mask per sentence, or
        (B, H, Lq, Lk) with one mask per sentence and head; True = may attend. Any of these sizes may be 1 and is then
        broadcast; pass a key padding mask (B, Lk) as allow[:, None].
        weights: whether to return (output, weights (B, H, Lq, Lk)). The weights are those before dropout, and have a gradient.
        look: taps and edits of this layer, of any one kind; the result is then an `AttentionOutput` with the output as
        `context` and what the taps requested as `seen`.

        The output is the same, bit for bit, with weights and with taps. Raises ValueError or TypeError for tensors that do not
        fit.
        """
        key = query if key is None else key
        value = key if value is None else value
        self._check_inputs(query, key, value)
        check_flags(weights=weights)
        if weights and look is not None:
            raise ValueError("weights=True and a look were both given; a look returns weights too, if it has a Tap")
        if allow is not None:
            allow = self.mask_for_heads(allow, query, key)
        query_BHLd, (prepared, value_BGLv) = self.queries(query), self.keys_values(key, self.key_positions(key, allow), value)
        if look is not None:
            return self.attend(query_BHLd, prepared, value_BGLv, allow, only_kind(look))
        output = self.attend(query_BHLd, prepared, value_BGLv, allow, None).context
        if not weights:
            return output
        return output, weights_prepared(query_BHLd, prepared, self._mechanism(query_BHLd, prepared, allow, None))

    if TYPE_CHECKING:
        __call__ = forward

    def _check_inputs(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        """Raises TypeError or ValueError unless shapes and dtypes fit each other and the layer."""
        if isinstance(value, Tensor) and value.dtype == torch.bool:
            raise ValueError("value is a boolean tensor, expected vectors; pass a mask by name: layer(query, key, allow=mask)")
        check_shapes(query, key, value, None)
        widths = self.width, self.memory_width, self.value_width
        for name, tensor, width in zip(("query", "key", "value"), (query, key, value), widths, strict=True):
            self.check_sequence(name, tensor, width)

    def check_sequence(self, name: str, x: Tensor, width: int) -> None:
        """Raises TypeError or ValueError unless x is a sequence of vectors of this width, with the dtype of the layer."""
        check_tensor(name, x)
        if x.dim() < 2 or x.shape[-1] != width:
            raise ValueError(f"{name} has shape {tuple(x.shape)}, expected (batch, length, {width})")
        if isinstance(weight := self.query.weight, Tensor):  # otherwise it is quantised
            check_dtype(name, x, weight.dtype, "the layer has weights of")

    def mask_for_heads(self, allow: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """Returns the mask with an axis for the heads unless it is shared by all sentences. The number of dimensions alone
        decides which axes a mask has."""
        lead, num_queries, num_keys = leading_shape(query, key), query.shape[-2], key.shape[-2]
        check_allow(allow, num_queries, num_keys)
        per_sentence = (*lead, num_queries, num_keys)
        shapes = {
            len(shape): shape for shape in ((num_queries, num_keys), per_sentence, (*lead, self.heads, num_queries, num_keys))
        }
        expected = shapes.get(allow.dim(), ())
        if not expected or any(got not in (1, size) for got, size in zip(allow.shape, expected, strict=True)):
            raise ValueError(
                f"allow has shape {tuple(allow.shape)}, expected one of {', '.join(map(str, shapes.values()))} = (Lq, Lk), "
                "(B, Lq, Lk), (B, H, Lq, Lk), where any size may be 1; pass masks per head (H, Lq, Lk) as allow[None]"
            )
        return allow.unsqueeze(-3) if lead and allow.dim() == len(per_sentence) else allow

    def key_positions(self, key: Tensor, allow: Tensor | None) -> Tensor | None:
        """Returns the positions (B, Lk) of the keys for scores that need them, or None to count from 0.

        allow: the mask as `mask_for_heads` returns it. A key to which no query of any head may attend is padding, so it does
        not count as a position.
        """
        if allow is None or not self.score.by_position:
            return None
        return masks.key_positions(allow if allow.dim() == 2 else allow.any(-3), key.shape[-2])

    # --- step by step --------------------------------------------------------------------------------------------------------

    def queries(self, x_BLD: Tensor, positions_BL: Tensor | None = None) -> Tensor:
        """Returns the queries (B, H, L, d) of all heads. Positions count from 0 by default."""
        return self._with_positions(self.query(x_BLD).unflatten(-1, (self.heads, -1)).transpose(-2, -3), positions_BL)

    def keys_values(self, x_BLE: Tensor, positions_BL: Tensor | None = None, value_BLF: Tensor | None = None) -> KeysValues:
        """Returns prepared keys and values, which depend on the attended sequence alone. Positions count from 0 by default.

        value_BLF: the sequence of values, if it is not the attended sequence.
        """
        key_BGLd = self._heads(self.key, x_BLE)
        value_BGLv = self._heads(self.value, x_BLE if value_BLF is None else value_BLF)
        if not self.score.by_position:
            return self._with_positions(self.score.prepare(key_BGLd), positions_BL), value_BGLv
        positions = _positions(x_BLE) if positions_BL is None else positions_BL.unsqueeze(-2)
        shape = torch.broadcast_shapes(positions.shape, key_BGLd.shape[:-1])
        return self.score.prepare(key_BGLd, positions.expand(shape)), value_BGLv

    def _heads(self, projection: nn.Linear | None, x_BLE: Tensor) -> Tensor:
        """Returns (B, G, L, ·). Without a projection all heads share the same vectors."""
        if projection is None:
            return x_BLE.unsqueeze(-3).expand(*x_BLE.shape[:-2], self.kv_heads, *x_BLE.shape[-2:])
        x_BLGd: Tensor = projection(x_BLE).unflatten(-1, (self.kv_heads, -1))
        return x_BLGd.transpose(-2, -3)

    def _with_positions(self, x_BHLd: Tensor, positions_BL: Tensor | None) -> Tensor:
        if not self.rotary:
            return x_BHLd
        return rotate(x_BHLd, _positions(x_BHLd) if positions_BL is None else positions_BL.unsqueeze(-2), layout=self.rotary)

    def attend(
        self,
        query_BHLd: Tensor,
        prepared: Tensor,
        value: Tensor,
        allow: Tensor | None,
        look: Look | None,
        positions: tuple[Tensor, Tensor] | None = None,
        *,
        causal: bool = False,
        window: Window | None = None,
    ) -> AttentionOutput:
        """Returns the projected output (B, L, D) as `context`, and what the look requested as `seen`.

        allow: mask (Lq, Lk) or (B, H, Lq, Lk), where any size may be 1.
        positions: positions of the queries and of the keys, each (B or 1, L), for ALiBi and for edits; by default 0, 1, 2, …
        causal: whether `allow` is exactly masks.causal.
        window: the keys near each query, to which it may attend if `allow` allows it too; for self-attention over a sequence.

        >>> layer, x = regard.MultiHeadAttention(16, 4), torch.randn(2, 5, 16)
        >>> keys, values = layer.keys_values(x)  # once per source
        >>> layer.attend(layer.queries(x), keys, values, None, None).context.shape
        torch.Size([2, 5, 16])
        """
        if allow is not None:
            check_allow(allow, query_BHLd.shape[-2], prepared.shape[-2])
            check_device(allow, query_BHLd)
            if allow.dim() not in (2, max(query_BHLd.dim(), prepared.dim())):
                raise ValueError(f"allow has shape {tuple(allow.shape)}, expected (Lq, Lk) or (B, H, Lq, Lk)")
        output_HvD = None
        if look is not None and isinstance(self.output, nn.Linear):
            output_HvD = self.output.weight.detach().t().unflatten(0, (self.heads, -1))
        mechanism = self._mechanism(query_BHLd, prepared, allow, positions, causal=causal)
        query_positions_BL = None if positions is None else positions[0]
        attended = attend_with_look(query_BHLd, prepared, value, mechanism, look, output_HvD, query_positions_BL, window)
        context_BLD = self.output(attended.context.transpose(-2, -3).flatten(-2))
        return AttentionOutput(context_BLD, seen=attended.seen)

    def _mechanism(
        self,
        query_BHLd: Tensor,
        prepared: Tensor,
        allow: Tensor | None,
        positions: tuple[Tensor, Tensor] | None,
        *,
        causal: bool = False,
    ) -> Mechanism:
        alibi = None
        if self.slopes_H is not None:
            query_positions, key_positions = positions or (_positions(query_BHLd), _positions(prepared))
            alibi = Alibi(self.slopes_H.to(query_BHLd.dtype), query_positions.unsqueeze(-2), key_positions.unsqueeze(-2))
        return Mechanism(self.score, allow, alibi, dropout=self.dropout if self.training else 0.0, causal=causal)

    # --- PyTorch's own layer -------------------------------------------------------------------------------------------------

    @classmethod
    def from_torch(cls, theirs: nn.MultiheadAttention) -> MultiHeadAttention:
        """Returns the same layer as torch's, with copies of its weights on the same device and with the same dtype.

        Width, heads, biases, kdim, vdim, dropout and training mode are taken over. There are three differences in calling it:

        - Inputs are batch first, whatever `theirs.batch_first` says: a layer with batch_first=False is called with
          x.transpose(0, 1), and so is its output.
        - True in a mask means the opposite. torch's True hides a key, ours allows it:

              theirs(x, x, x, attn_mask=hidden, key_padding_mask=padding)  # (Lq, Lk), (B, Lk): True = hidden
              ours(x, allow=~(hidden | padding[:, None]))                  # (B, Lq, Lk): True = may attend

          A query with no key allowed gives the output bias here, and NaN there.
        - weights=True returns the weights of every head; their mean over the heads, weights.mean(1), is what torch returns.

        Raises UserError with all reasons if it has parts that this layer has not (add_bias_kv, add_zero_attn).

        >>> theirs, x = torch.nn.MultiheadAttention(16, 4, batch_first=True), torch.randn(2, 5, 16)
        >>> layer = regard.MultiHeadAttention.from_torch(theirs)
        >>> torch.allclose(layer(x), theirs(x, x, x)[0], atol=1e-6)
        True
        """
        with torch.device("meta"):
            ours = cls(**torch_layers.attention_options(theirs))
        torch_layers.load_from(ours, theirs)
        return ours

    def to_torch(self) -> nn.MultiheadAttention:
        """Returns the same layer as a torch.nn.MultiheadAttention (batch_first=True), with copies of the weights.

        Its masks mean the opposite: attn_mask=~allow. Raises UserError with all reasons if torch's layer has no such parts.

        >>> layer, x, causal = regard.MultiHeadAttention(16, 4), torch.randn(2, 5, 16), regard.masks.causal(5)
        >>> torch.allclose(layer.to_torch()(x, x, x, attn_mask=~causal)[0], layer(x, allow=causal), atol=1e-6)
        True
        """
        torch_layers.refuse("torch.nn.MultiheadAttention cannot express this layer", self.beyond_torch())
        theirs = nn.MultiheadAttention(
            self.width,
            self.heads,
            self.dropout,
            bias=self.query.bias is not None,
            kdim=self.memory_width,
            vdim=self.value_width,
            batch_first=True,
            device="meta",
        )
        torch_layers.copy_into(self, theirs)
        return theirs

    def beyond_torch(self) -> list[str]:
        """Returns what this layer has that torch.nn.MultiheadAttention has not.

        >>> regard.MultiHeadAttention(16, 4, kv_heads=2, alibi=True).beyond_torch()
        ['ALiBi', '2 key-value heads for 4 heads']
        """
        score = self.score
        divisor = score.divide_by if isinstance(score, ScaledDot) and score.name in ("scaled_dot", "dot") else None
        found = {
            f"its score is {score.name}, not s·h / √d": divisor not in ("√d", self.key_dim**0.5),
            f"rotary positions ({self.rotary})": self.rotary is not None,
            "ALiBi": self.slopes_H is not None,
            f"{self.kv_heads} key-value heads for {self.heads} heads": self.kv_heads != self.heads,
            f"key_dim={self.key_dim}, not width / heads": self.key_dim * self.heads != self.width,
            "values without a projection": self.value is None,
            f"value_dim={self.value_dim}, not width / heads": self.value is not None
            and self.value_dim * self.heads != self.width,
            "no output projection": isinstance(self.output, nn.Identity),
            "quantised projections": not isinstance(self.query.weight, Tensor),
        }
        return [reason for reason, applies in found.items() if applies]


def only_kind(look: Look, *kinds: Kind) -> Look | None:
    """Returns the taps and edits of one layer's attention, or None if there are none. With grad, a tap of weights is extended
    to all heads and rows, because only the whole tensor has a gradient.

    kinds: the kinds that may be requested; by default any one.

    Raises UserError for requests of other kinds.
    """
    requested: list[tuple[Kind, ...]] = [*((tap.kind,) for tap in look.taps), *(edit.kinds for edit in look.edits)]
    kinds = kinds or tuple(kind for of_first in requested[:1] for kind in of_first)
    if wrong := [of_one[0] for of_one in requested if not set(of_one) & set(kinds)]:
        raise UserError(f"there is no {wrong[0]} attention here, only {' and '.join(kinds)}; request it with kind={kinds[0]!r}")
    taps = dict.fromkeys(
        replace(tap, head=None, rows=None) if look.grad and tap.what == "weights" else tap for tap in look.taps
    )
    return replace(look, taps=tuple(taps)) if requested else None


def _positions(x: Tensor) -> Tensor:
    return torch.arange(x.shape[-2], device=x.device)
