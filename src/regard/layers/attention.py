"""Multi-head self- and cross-attention: the projections around the functions of core/attention.py."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.core.attention import AttentionOutput, ScaledDot, check_allow, check_device, leading_shape
from regard.core.checks import check_dtype, check_tensor
from regard.core.mechanism import Alibi, Mechanism
from regard.core.positions import LAYOUTS, Layout, alibi_slopes, rotate
from regard.core.score import Score
from regard.core.taps import attend_with_look
from regard.errors import UserError, check_flags, check_sizes, shown
from regard.look import Look

# B batch  L length of a sequence  H query heads  G key-value heads  D width of the query sequence
# E width of the attended sequence  d width of one head's queries and keys  v width of one head's values

KeysValues = tuple[Tensor, Tensor]
"""(prepared keys, values) of the attended sequence, each of shape (B, G, L, ·)."""


class MultiHeadAttention(nn.Module):
    """Multi-head attention (Vaswani et al. 2017, 3.2.2). One wide projection, split into heads, equals H small ones.

    Calling the layer computes everything. `queries`, `keys_values` and `attend` are separate methods because a decoder projects
    the keys and values of the source once, but its queries at every step.

    width: width of the query sequence and of the output.
    heads: number of query heads.
    score: score function; by default scaled dot product.
    memory_width: width of the attended sequence; by default `width`.
    key_dim: width of one head's queries and keys; by default width / heads.
    value_dim: width of one head's values; by default `key_dim`.
    kv_heads: number of key-value heads, each shared by a group of query heads (grouped-query attention, Ainslie et al. 2023);
    by default `heads`.
    bias: whether the projections have a bias.
    project_values: if False, the values are the attended states themselves.
    project_output: if False, the output is the concatenation of the heads' contexts.
    rotary: layout of the pairs in which queries and keys are rotated by their positions; None for no rotation.
    alibi: whether ALiBi lowers the scores of distant keys. `rotary` and `alibi` are for self-attention only.
    There is no attention dropout in this layer; `regard.attend` has it.

    Raises ValueError for sizes that do not fit together, and UserError if the score does not support rotary positions.

    >>> layer = regard.MultiHeadAttention(16, 4, kv_heads=2, rotary="halves")
    >>> x = torch.randn(2, 5, 16)
    >>> layer(x, allow=regard.masks.causal(5)).shape
    torch.Size([2, 5, 16])
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        score: Score | None = None,
        memory_width: int | None = None,
        key_dim: int | None = None,
        value_dim: int | None = None,
        kv_heads: int | None = None,
        bias: bool = True,
        project_values: bool = True,
        project_output: bool = True,
        rotary: Layout | None = None,
        alibi: bool = False,
    ) -> None:
        super().__init__()
        sizes = {"memory_width": memory_width, "key_dim": key_dim, "value_dim": value_dim, "kv_heads": kv_heads}
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
        Mechanism(self.score).check()
        if rotary and not self.score.rotary:
            raise UserError(
                "rotary positions rotate queries and keys, which only works with scores based on dot products or distances, "
                f"but the score is {self.score.name!r}; use a score such as scaled_dot, or positions added to the embeddings"
            )
        self.rotary = rotary
        memory_width, key_dim = memory_width or width, key_dim or width // heads
        value_dim = (value_dim or key_dim) if project_values else memory_width
        self.memory_width = memory_width
        self.query = nn.Linear(width, heads * key_dim, bias=bias)
        self.key = nn.Linear(memory_width, self.kv_heads * key_dim, bias=bias) if self.score.by_content else None
        self.value = nn.Linear(memory_width, self.kv_heads * value_dim, bias=bias) if project_values else None
        self.output = nn.Linear(heads * value_dim, width, bias=bias) if project_output else nn.Identity()
        self.slopes_H: Tensor | None
        self.register_buffer("slopes_H", alibi_slopes(heads).float() if alibi else None, persistent=False)

    def forward(self, x_BLD: Tensor, memory_BLE: Tensor | None = None, allow: Tensor | None = None) -> Tensor:
        """Returns the output (B, L, D) of self-attention, or of cross-attention to `memory_BLE`, for keys and values.

        allow: attention mask (Lq, Lk) shared by all sentences and heads, (B, Lq, Lk) with one mask per sentence, or
        (B, H, Lq, Lk) with one mask per sentence and head. Any of these sizes may be 1 and is then broadcast; pass a
        key padding mask (B, Lk) as allow[:, None].
        """
        memory_BLE = x_BLD if memory_BLE is None else memory_BLE
        lead = self._check_inputs(x_BLD, memory_BLE)
        if allow is not None:
            if isinstance(allow, Tensor) and allow.is_floating_point() and allow.shape == memory_BLE.shape:
                raise ValueError(
                    f"allow is a float tensor of the shape of memory {tuple(allow.shape)}; unlike nn.MultiheadAttention, "
                    "this layer computes keys and values from one memory: call layer(x, memory, allow=mask), True = may attend"
                )
            allow = self._for_heads(allow, (*lead, x_BLD.shape[-2], memory_BLE.shape[-2]))
        attended = self.attend(self.queries(x_BLD), *self.keys_values(memory_BLE), allow, None)
        return attended.context

    def _check_inputs(self, x_BLD: Tensor, memory_BLE: Tensor) -> tuple[int, ...]:
        """Checks shapes and dtypes, and returns the batch shape that both inputs share: all axes but the last two."""
        for name, tensor, width in (("x", x_BLD, self.query.in_features), ("memory", memory_BLE, self.memory_width)):
            check_tensor(name, tensor)
            if tensor.dim() < 2 or tensor.shape[-1] != width:
                raise ValueError(f"{name} has shape {tuple(tensor.shape)}, expected (batch, length, {width})")
            if isinstance(weight := self.query.weight, Tensor):  # otherwise it is quantised
                check_dtype(name, tensor, weight.dtype, "the layer has weights of")
        try:
            return leading_shape(x_BLD, memory_BLE)
        except ValueError:
            raise ValueError(
                f"x {tuple(x_BLD.shape)} and memory {tuple(memory_BLE.shape)} have different batch sizes; "
                "expected equal sizes, or size 1"
            ) from None

    def _for_heads(self, allow: Tensor, shape_BLL: tuple[int, ...]) -> Tensor:
        """Returns the mask with an axis for the heads unless it is shared by all sentences. The number of dimensions alone
        decides which axes a mask has."""
        *lead, num_queries, num_keys = shape_BLL
        check_allow(allow, num_queries, num_keys)
        shapes = {len(shape): shape for shape in (shape_BLL[-2:], shape_BLL, (*lead, self.heads, num_queries, num_keys))}
        expected = shapes.get(allow.dim(), ())
        if not expected or any(got not in (1, size) for got, size in zip(allow.shape, expected, strict=True)):
            raise ValueError(
                f"allow has shape {tuple(allow.shape)}, expected one of {', '.join(map(str, shapes.values()))} = (Lq, Lk), "
                "(B, Lq, Lk), (B, H, Lq, Lk), where any size may be 1; pass masks per head (H, Lq, Lk) as allow[None]"
            )
        return allow.unsqueeze(-3) if lead and allow.dim() == len(shape_BLL) else allow

    def queries(self, x_BLD: Tensor, positions_BL: Tensor | None = None) -> Tensor:
        """Returns the queries (B, H, L, d) of all heads. Positions count from 0 by default."""
        return self._with_positions(self.query(x_BLD).unflatten(-1, (self.heads, -1)).transpose(-2, -3), positions_BL)

    def keys_values(self, x_BLE: Tensor, positions_BL: Tensor | None = None) -> KeysValues:
        """Returns prepared keys and values, which depend on the attended sequence alone. Positions count from 0 by default."""
        key_BGLd, value_BGLv = self._heads(self.key, x_BLE), self._heads(self.value, x_BLE)
        if not self.score.by_position:
            return self._with_positions(self.score.prepare(key_BGLd), positions_BL), value_BGLv
        positions = _positions(x_BLE) if positions_BL is None else positions_BL.unsqueeze(-2)
        return self.score.prepare(key_BGLd, positions.expand(key_BGLd.shape[:-1])), value_BGLv

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
    ) -> AttentionOutput:
        """Returns the projected output (B, L, D) as `context`, and what the look requested as `seen`.

        allow: mask (Lq, Lk) or (B, H, Lq, Lk), where any size may be 1.
        positions: positions of the queries and of the keys, each (B or 1, L), for ALiBi and for edits; by default 0, 1, 2, …
        causal: whether `allow` is exactly masks.causal.

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
        alibi = None
        if self.slopes_H is not None:
            query_positions, key_positions = positions or (_positions(query_BHLd), _positions(prepared))
            alibi = Alibi(self.slopes_H.to(query_BHLd.dtype), query_positions.unsqueeze(-2), key_positions.unsqueeze(-2))
        output_HvD = None
        if look is not None and isinstance(self.output, nn.Linear):
            output_HvD = self.output.weight.detach().t().unflatten(0, (self.heads, -1))
        mechanism = Mechanism(self.score, allow, alibi, causal=causal)
        query_positions_BL = None if positions is None else positions[0]
        attended = attend_with_look(query_BHLd, prepared, value, mechanism, look, output_HvD, query_positions_BL)
        context_BLD = self.output(attended.context.transpose(-2, -3).flatten(-2))
        return AttentionOutput(context_BLD, seen=attended.seen)


def _positions(x: Tensor) -> Tensor:
    return torch.arange(x.shape[-2], device=x.device)
