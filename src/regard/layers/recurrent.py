"""Recurrent layers: whole sequences, in which padding never reaches a state, and single steps, for decoders that have to wait.

A stack of cells is one of torch's own modules (nn.RNN, nn.LSTM, nn.GRU), or `SigmoidRNN`. Its state is one tensor for every
kind of cell: h, or, where there is a cell state, [h; c].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from regard.errors import did_you_mean
from regard.layers.dropout import Dropout

# N rows: a batch B, or hypotheses  S, T length  I input width  W width of h  X width of a state: W, or 2W for an LSTM  L layers
# G all gates: W, 3W (GRU) or 4W (LSTM)

Cell = Literal["rnn_tanh", "rnn_relu", "rnn_sigmoid", "lstm", "gru"]
CELLS: tuple[Cell, ...] = get_args(Cell)


def check_cell(cell: str) -> None:
    if cell not in CELLS:
        raise ValueError(f"there is no cell {cell!r}; expected one of {', '.join(CELLS)}{did_you_mean(cell, list(CELLS))}")


def make_stack(cell: Cell, input_width: int, width: int, layers: int = 1, dropout: float = 0.0) -> nn.RNNBase:
    """One direction. Dropout acts between the layers."""
    check_cell(cell)
    dropout = dropout if layers > 1 else 0.0
    if cell == "lstm":
        return nn.LSTM(input_width, width, layers, batch_first=True, dropout=dropout)
    if cell == "gru":
        return nn.GRU(input_width, width, layers, batch_first=True, dropout=dropout)
    if cell == "rnn_sigmoid":
        return SigmoidRNN(input_width, width, layers, dropout)
    function = cell.removeprefix("rnn_")
    return nn.RNN(input_width, width, layers, nonlinearity=function, batch_first=True, dropout=dropout)


class SigmoidRNN(nn.RNNBase):
    """h_t = σ(U h_{t−1} + W x_t + b) (Elman 1990), which torch does not have. Parameters are named as in nn.RNN."""

    def __init__(self, input_width: int, width: int, layers: int, dropout: float) -> None:
        super().__init__("RNN_TANH", input_width, width, layers, batch_first=True, dropout=dropout)

    def forward(self, x_NTI: Tensor, state_LNW: Tensor) -> tuple[Tensor, Tensor]:
        last = []
        for number, h_NW in enumerate(state_LNW):
            W_WI, U_WW, b_W, b_U = layer_weights(self, number)
            x_NTI = F.dropout(x_NTI, self.dropout, self.training and number > 0)
            states = []
            for given_NW in F.linear(x_NTI, W_WI, b_W + b_U).unbind(1):
                h_NW = torch.addmm(given_NW, h_NW, U_WW.t()).sigmoid()
                states.append(h_NW)
            x_NTI = torch.stack(states, dim=1)
            last.append(h_NW)
        return x_NTI, torch.stack(last)


def layer_weights(stack: nn.RNNBase, number: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """W (G, I) and U (G, W) of one layer, and a bias for each."""
    w, u, b_w, b_u = (getattr(stack, f"{name}_l{number}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    return w, u, b_w, b_u


def state_width(stack: nn.RNNBase) -> int:
    return 2 * stack.hidden_size if isinstance(stack, nn.LSTM) else stack.hidden_size


def run(stack: nn.RNNBase, x_NTI: Tensor, state_LNX: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """(all h of the last layer (N, T, W), the state after the last step); it starts from zeros."""
    if state_LNX is None:
        state_LNX = x_NTI.new_zeros(stack.num_layers, x_NTI.shape[0], state_width(stack))
    if not isinstance(stack, nn.LSTM):
        states_NTW, state_LNX = stack(x_NTI, state_LNX.contiguous())
        return states_NTW, state_LNX
    h_LNW, c_LNW = state_LNX.chunk(2, dim=-1)
    states_NTW, last = stack(x_NTI, (h_LNW.contiguous(), c_LNW.contiguous()))
    return states_NTW, torch.cat(last, dim=-1)


# --- single steps ------------------------------------------------------------------------------------------------------------


Parts = tuple[Tensor, ...]
"""The state of one layer, (N, W) each: (h,), or (h, c)."""


class _AllAtOnce(torch.autograd.Function):
    """Hands `given` on, and collects in its backward pass the gradient of a weight that the steps held fixed: Σ_t g_tᵀ x_t is
    one product of all steps, where autograd would add up a small one for each. `inputs` holds all x_t by then."""

    @staticmethod
    def forward(ctx: Any, given_NTG: Tensor, weight_GI: Tensor, inputs: list[Tensor]) -> Tensor:
        ctx.inputs = inputs
        return given_NTG.view_as(given_NTG)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_NTG: Tensor) -> tuple[Tensor, Tensor, None]:
        x_NTI = torch.stack(ctx.inputs, dim=1).to(gradient_NTG.dtype)
        return gradient_NTG, gradient_NTG.flatten(0, 1).t() @ x_NTI.flatten(0, 1), None


class _Product:
    """given_t + W x_t, where x_t is known only at step t. Every step is taken once."""

    def __init__(self, given_NTG: Tensor, weight_GI: Tensor) -> None:
        self.inputs: list[Tensor] | None = None
        if torch.is_grad_enabled() and weight_GI.requires_grad:
            self.inputs = []
            given_NTG = _AllAtOnce.apply(given_NTG, weight_GI, self.inputs)  # type: ignore[no-untyped-call]
            weight_GI = weight_GI.detach()
        self.given, self.weight_IG = given_NTG.unbind(1), weight_GI.t()

    def __call__(self, step: int, x_NI: Tensor) -> Tensor:
        if self.inputs is not None:
            self.inputs.append(x_NI.detach())
        return torch.addmm(self.given[step], x_NI, self.weight_IG)


class StepByStep:
    """A stack for inputs [late; early], the first part of which is known only when its step comes (c_t, or s̃_{t−1}).

    What need not wait is done here for all steps at once: the product with the early part, and the dropout between the layers.
    Steps are taken in order, each once. `dropped`: the dropout of an earlier run over the same inputs.
    """

    def __init__(self, stack: nn.RNNBase, early_NTI: Tensor, dropped: Sequence[Sequence[Tensor] | None] | None = None) -> None:
        self.stack, self.width = stack, stack.hidden_size
        N, T, early = early_NTI.shape
        self.products: list[tuple[_Product, ...]] = []
        for number in range(stack.num_layers):
            W_GI, U_GW, b_G, b_U_G = layer_weights(stack, number)
            apart = isinstance(stack, nn.GRU)  # whose reset gate acts between W x and U h
            b_G = b_G if apart else b_G + b_U_G
            if number == 0:
                W_GI, early_GI = W_GI.split((stack.input_size - early, early), dim=1)
                given_NTG = F.linear(early_NTI, early_GI, b_G)
            else:
                given_NTG = b_G.expand(N, T, -1)
            if apart:
                self.products.append((_Product(given_NTG, W_GI), _Product(b_U_G.expand(N, T, -1), U_GW)))
            else:
                self.products.append((_Product(given_NTG, torch.cat((W_GI, U_GW), dim=1)),))
        self.dropped = [self._dropout(early_NTI, number) for number in range(stack.num_layers)] if dropped is None else dropped

    def _dropout(self, like_NTI: Tensor, number: int) -> Sequence[Tensor] | None:
        """What the input of this layer is multiplied by at each step."""
        if not (number and self.stack.training and self.stack.dropout):
            return None
        N, T, _ = like_NTI.shape
        return F.dropout(like_NTI.new_ones(T, N, self.width), self.stack.dropout).unbind(0)

    def split(self, state_LNX: Tensor) -> list[Parts]:
        """One state per layer; `join` is the inverse."""
        return [state_NX.split(self.width, dim=-1) for state_NX in state_LNX]

    def join(self, states: Sequence[Parts]) -> Tensor:
        return torch.stack([torch.cat(parts, dim=-1) for parts in states])

    def __call__(self, step: int, late_NI: Tensor, states: Sequence[Parts]) -> list[Parts]:
        """The states of all layers one step further."""
        following: list[Parts] = []
        x_NI = late_NI
        for products, dropped, parts in zip(self.products, self.dropped, states, strict=True):
            x_NI = x_NI if dropped is None else x_NI * dropped[step]
            if len(products) == 2:
                gates = [product(step, one) for product, one in zip(products, (x_NI, parts[0]), strict=True)]
            else:
                gates = [products[0](step, torch.cat((x_NI, parts[0]), dim=-1))]
            following.append(self._cell(gates, parts))
            x_NI = following[-1][0]
        return following

    def _cell(self, gates: Sequence[Tensor], parts: Parts) -> Parts:
        """One step of one layer, as torch has it (formulas: regard.reference). gates: W x + U h + b; of a GRU both apart."""
        if isinstance(self.stack, nn.GRU):
            (given_rz, given_n), (own_rz, own_n) = (one.split((2 * self.width, self.width), dim=-1) for one in gates)
            r, z = (given_rz + own_rz).sigmoid().chunk(2, dim=-1)
            n = torch.addcmul(given_n, r, own_n).tanh()
            return (torch.lerp(n, parts[0], z),)  # (1 − z) n + z h
        if isinstance(self.stack, nn.LSTM):
            i, f, g, o = gates[0].chunk(4, dim=-1)
            c = torch.addcmul(f.sigmoid() * parts[1], i.sigmoid(), g.tanh())
            return o.sigmoid() * c.tanh(), c
        if isinstance(self.stack, SigmoidRNN):
            return (gates[0].sigmoid(),)
        return (gates[0].tanh() if self.stack.mode == "RNN_TANH" else gates[0].relu(),)


# --- looking inside ----------------------------------------------------------------------------------------------------------


GATES = {"LSTM": ("input", "forget", "output"), "GRU": ("reset", "update")}
"""What the gates of a cell are called. Update: the share of the old state that is kept, as torch has it."""


@torch.no_grad()
def gates_over_time(stack: nn.RNNBase, x_NTI: Tensor, state_LNX: Tensor | None = None) -> list[dict[str, Tensor]]:
    """How far every gate of every layer is open at every step, (N, T, W), from 0 to 1. Cells without gates have none.

    Dropout between the layers is left out.
    """
    names = GATES.get(stack.mode, ())
    if state_LNX is None:
        state_LNX = x_NTI.new_zeros(stack.num_layers, x_NTI.shape[0], state_width(stack))
    found: list[dict[str, Tensor]] = []
    for number in range(stack.num_layers if names else 0):
        W_GI, U_GW, b_W, b_U = layer_weights(stack, number)
        h_NW, *cell = state_LNX[number].split(stack.hidden_size, dim=-1)
        opened: list[Parts] = []
        states: list[Tensor] = []
        gates: Parts
        for given_NG in F.linear(x_NTI, W_GI, b_W).unbind(1):
            own_NG = F.linear(h_NW, U_GW, b_U)
            if names == GATES["LSTM"]:
                i, f, g, o = (given_NG + own_NG).chunk(4, dim=-1)
                gates = (i.sigmoid(), f.sigmoid(), o.sigmoid())
                cell = [gates[1] * cell[0] + gates[0] * g.tanh()]
                h_NW = gates[2] * cell[0].tanh()
            else:
                (r, z, n), (own_r, own_z, own_n) = given_NG.chunk(3, dim=-1), own_NG.chunk(3, dim=-1)
                gates = ((r + own_r).sigmoid(), (z + own_z).sigmoid())
                h_NW = (1 - gates[1]) * (n + gates[0] * own_n).tanh() + gates[1] * h_NW
            opened.append(gates)
            states.append(h_NW)
        found.append({name: torch.stack([one[index] for one in opened], dim=1) for index, name in enumerate(names)})
        x_NTI = torch.stack(states, dim=1)
    return found


# --- reading -----------------------------------------------------------------------------------------------------------------


def reverse_rows(x_BSI: Tensor, lengths_B: Tensor) -> Tensor:
    """Each row's real places in reverse order, padding left at the end. Its own inverse."""
    positions_S = torch.arange(x_BSI.shape[1], device=x_BSI.device)
    mirrored_BS = lengths_B[:, None] - 1 - positions_S
    index_BS = torch.where(mirrored_BS >= 0, mirrored_BS, positions_S)
    return x_BSI.gather(1, index_BS[..., None].expand_as(x_BSI))


class RecurrentEncoder(nn.Module):
    """Reads sequences with padding at their ends, ahead or in both directions.

    The backward direction (Schuster & Paliwal 1997) reads rows reversed within their own length, so both keep padding behind
    the real places and no packing is needed.
    """

    def __init__(
        self, cell: Cell, input_width: int, width: int, layers: int = 1, dropout: float = 0.0, *, bidirectional: bool = True
    ) -> None:
        """width: of the states that come out; each of two directions has half of it."""
        super().__init__()
        if bidirectional and width % 2:
            raise ValueError(f"width {width} does not split into two directions; make it even")
        own = width // 2 if bidirectional else width
        sizes = [input_width] + [width] * (layers - 1)
        self.forwards = nn.ModuleList(make_stack(cell, size, own) for size in sizes)
        self.backwards = nn.ModuleList(make_stack(cell, size, own) for size in sizes) if bidirectional else None
        self.dropout = Dropout(dropout)

    def forward(self, x_BSI: Tensor, allow_BS: Tensor) -> tuple[Tensor, Tensor]:
        """(states (B, S, width), the last states: of each row at its last real place, and backwards at its first)."""
        lengths_B = allow_BS.sum(1)
        last_B = (lengths_B - 1).clamp(min=0)
        rows_B = torch.arange(x_BSI.shape[0], device=x_BSI.device)
        ends = x_BSI[:, 0]
        for number, forwards in enumerate(_stacks(self.forwards)):
            if number:
                x_BSI = self.dropout(x_BSI)
            ahead_BSW, _ = run(forwards, x_BSI)
            if self.backwards is None:
                x_BSI, ends = ahead_BSW, ahead_BSW[rows_B, last_B]
                continue
            backwards = _stacks(self.backwards)[number]
            back_BSW, _ = run(backwards, reverse_rows(x_BSI, lengths_B))
            ends = torch.cat((ahead_BSW[rows_B, last_B], back_BSW[rows_B, last_B]), dim=-1)
            x_BSI = torch.cat((ahead_BSW, reverse_rows(back_BSW, lengths_B)), dim=-1)
        return x_BSI, ends


def _stacks(modules: nn.ModuleList) -> list[nn.RNNBase]:
    return cast("list[nn.RNNBase]", list(modules))
