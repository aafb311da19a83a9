"""Multi-head attention: projections around the functions in core/attention.py."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.contracts import Look, Score
from regard.core.attention import AttentionOutput, ScaledDot, check_allow, check_device, leading_shape
from regard.core.checks import check_dtype, check_tensor
from regard.core.mechanism import Alibi, Mechanism
from regard.core.positions import LAYOUTS, Layout, alibi_slopes, rotate
from regard.core.taps import attend_with_look
from regard.errors import UserError, check_flags, check_sizes, shown

# B batch  L any length  H heads  G heads of keys and values  D width of the queries' sequence  E of the attended one
# d width of one head's queries and keys

KeysValues = tuple[Tensor, Tensor]
"""(prepared keys, values) of an attended sequence, (B, G, L, ·)."""


class MultiHeadAttention(nn.Module):
    """H independent attentions, side by side (Vaswani et al. 2017, 3.2.2). One wide matrix split = H small ones.

    The parts are separate, because a decoder projects the source's keys and values once and its queries at every step;
    calling the layer does it all.

    width: of the queries' sequence and of the output. memory_width: of the attended sequence; default: the same.
    key_dim, value_dim: of one head; default: width / heads, and key_dim.
    kv_heads: keys and values have fewer heads, each of which serves a group of query heads; default: as many.
    project_values=False: the values are the attended states themselves. project_output=False: the heads' contexts side by side.
    rotary: queries and keys are turned by their places, in pairs of this layout. alibi: near keys count more. Both are for
    self-attention.
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
        given = {name: size for name, size in sizes.items() if size is not None}
        check_sizes(width=width, heads=heads, **given)
        check_flags(bias=bias, project_values=project_values, project_output=project_output, alibi=alibi)
        if rotary is not None and rotary not in LAYOUTS:
            raise ValueError(
                f"rotary is {shown(rotary)}, expected None or one of the layouts {' or '.join(map(repr, LAYOUTS))}"
            )
        if key_dim is None and width % heads:
            raise ValueError(
                f"width {width} does not split into {heads} heads; choose a multiple of {heads}, or give key_dim, "
                "the width of one head"
            )
        if value_dim is not None and not project_values:
            raise ValueError(
                f"value_dim is {value_dim}, but the values are not projected; leave out value_dim or project_values=False"
            )
        self.heads, self.kv_heads = heads, kv_heads or heads
        if heads % self.kv_heads:
            raise ValueError(
                f"{heads} heads do not fall into groups for {kv_heads} heads of keys and values; expected a divisor"
            )
        self.score = ScaledDot() if score is None else score
        Mechanism(self.score).check()
        if rotary and not self.score.rotary:
            raise UserError(
                f"rotary positions turn queries and keys, which makes sense for dot products and distances, but the score is "
                f"{self.score.name!r}; use another score such as scaled_dot, or positions that are added to the tokens"
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
        """Self-attention, or attention to another sequence, which gives keys and values both.

        allow: (Lq, Lk), the same for all; (B, Lq, Lk), each sentence its own; or (B, H, Lq, Lk), each head its own as well. Any
        of these sizes may be 1, which stands for all.
        """
        memory_BLE = x_BLD if memory_BLE is None else memory_BLE
        lead = self._check_inputs(x_BLD, memory_BLE)
        if allow is not None:
            if isinstance(allow, Tensor) and allow.is_floating_point() and allow.shape == memory_BLE.shape:
                raise ValueError(
                    f"allow is a float tensor of memory's shape {tuple(allow.shape)}; unlike nn.MultiheadAttention, this layer "
                    "makes keys and values from one memory: write layer(x, memory, allow=mask), with True = may attend"
                )
            allow = self._for_heads(allow, (*lead, x_BLD.shape[-2], memory_BLE.shape[-2]))
        attended = self.attend(self.queries(x_BLD), *self.keys_values(memory_BLE), allow, None)
        return attended.context

    def _check_inputs(self, x_BLD: Tensor, memory_BLE: Tensor) -> tuple[int, ...]:
        """The batch that both share: all axes but the last two."""
        for name, tensor, width in (("x", x_BLD, self.query.in_features), ("memory", memory_BLE, self.memory_width)):
            check_tensor(name, tensor)
            if tensor.dim() < 2 or tensor.shape[-1] != width:
                raise ValueError(f"{name} has shape {tuple(tensor.shape)}, expected (batch, length, {width})")
            if isinstance(weight := self.query.weight, Tensor):  # else it is quantised
                check_dtype(name, tensor, weight.dtype, "the layer has weights of")
        try:
            return leading_shape(x_BLD, memory_BLE)
        except ValueError:
            raise ValueError(
                f"x {tuple(x_BLD.shape)} and memory {tuple(memory_BLE.shape)} have different batches; expected equal ones, or 1"
            ) from None

    def _for_heads(self, allow: Tensor, shape_BLL: tuple[int, ...]) -> Tensor:
        """A mask with an axis for the heads, or one that all sentences share. Ranks say which axes it has, sizes never do."""
        *lead, num_queries, num_keys = shape_BLL
        check_allow(allow, num_queries, num_keys)
        shapes = {len(shape): shape for shape in (shape_BLL[-2:], shape_BLL, (*lead, self.heads, num_queries, num_keys))}
        expected = shapes.get(allow.dim(), ())
        if not expected or any(got not in (1, size) for got, size in zip(allow.shape, expected, strict=True)):
            raise ValueError(
                f"allow has shape {tuple(allow.shape)}, expected one of {', '.join(map(str, shapes.values()))} = (Lq, Lk), "
                "(B, Lq, Lk), (B, H, Lq, Lk), where any size may be 1; masks of each head (H, Lq, Lk) want allow[None]"
            )
        return allow.unsqueeze(-3) if lead and allow.dim() == len(shape_BLL) else allow

    def queries(self, x_BLD: Tensor, positions_BL: Tensor | None = None) -> Tensor:
        return self._with_positions(self.query(x_BLD).unflatten(-1, (self.heads, -1)).transpose(-2, -3), positions_BL)

    def keys_values(self, x_BLE: Tensor, positions_BL: Tensor | None = None) -> KeysValues:
        """All that depends on the attended sequence alone. Places count from 0 unless they are given."""
        key_BGLd, value_BGLv = self._heads(self.key, x_BLE), self._heads(self.value, x_BLE)
        if not self.score.by_position:
            return self._with_positions(self.score.prepare(key_BGLd), positions_BL), value_BGLv
        positions = _positions(x_BLE) if positions_BL is None else positions_BL.unsqueeze(-2)
        return self.score.prepare(key_BGLd, positions.expand(key_BGLd.shape[:-1])), value_BGLv

    def _heads(self, projection: nn.Linear | None, x_BLE: Tensor) -> Tensor:
        """(B, G, L, ·). What is not projected is the same for all heads."""
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
        """The output as context, and what a look asked for.

        allow: (Lq, Lk) or (B, H, Lq, Lk), where any size may be 1.
        places: the numbers of the queries and of the keys, (B or 1, L) each; only ALiBi asks for them. causal: `allow` is
        masks.causal and nothing else.
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
        attended = attend_with_look(
            query_BHLd, prepared, value, Mechanism(self.score, allow, alibi, causal=causal), look, output_HvD
        )
        context_BLD = self.output(attended.context.transpose(-2, -3).flatten(-2))
        return AttentionOutput(context_BLD, seen=attended.seen)


def _positions(x: Tensor) -> Tensor:
    return torch.arange(x.shape[-2], device=x.device)
