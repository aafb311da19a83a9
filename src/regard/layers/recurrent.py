"""Recurrent layers (RNN, LSTM, GRU): over whole sequences, where padding never affects real positions, and step by step, for
decoders whose inputs depend on earlier outputs.

A stack of cells is a torch module (nn.RNN, nn.LSTM, nn.GRU) or `SigmoidRNN`. Its state is a single tensor for every kind of
cell: h, or [h; c] for an LSTM.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from regard.core.linear import linear
from regard.core.precision import is_rounding
from regard.core.transforms import is_transformed
from regard.errors import did_you_mean
from regard.layers.dropout import Dropout
from regard.native import recurrent as native

# N rows: a batch B, or hypotheses  S, T length  I input width  W width of h  X width of a state: W, or 2W for an LSTM  L layers
# G width of all gates together: W, 3W (GRU) or 4W (LSTM)

Cell = Literal["rnn_tanh", "rnn_relu", "rnn_sigmoid", "lstm", "gru"]
CELLS: tuple[Cell, ...] = get_args(Cell)


def check_cell(cell: str) -> None:
    """Raises ValueError if there is no such kind of cell."""
    if cell not in CELLS:
        raise ValueError(f"there is no cell {cell!r}; expected one of {', '.join(CELLS)}{did_you_mean(cell, list(CELLS))}")


def make_stack(cell: Cell, input_width: int, width: int, layers: int = 1, dropout: float = 0.0) -> nn.RNNBase:
    """Returns a unidirectional stack of recurrent layers, with dropout between the layers."""
    check_cell(cell)
    dropout = dropout if layers > 1 else 0.0
    if cell == "lstm":
        return nn.LSTM(input_width, width, layers, batch_first=True, dropout=dropout)
    if cell == "gru":
        return GRU(input_width, width, layers, batch_first=True, dropout=dropout)
    if cell == "rnn_sigmoid":
        return SigmoidRNN(input_width, width, layers, dropout)
    nonlinearity = cell.removeprefix("rnn_")
    return RNN(input_width, width, layers, nonlinearity=nonlinearity, batch_first=True, dropout=dropout)


class GRU(nn.GRU):
    """torch's GRU; the native kernels compute whole sequences where they fit."""

    def forward(self, input: Any, hx: Tensor | None = None) -> tuple[Any, Tensor]:
        return super().forward(input, hx) if hx is None or not _is_native(self, input) else _whole(self, input, hx)


class RNN(nn.RNN):
    """torch's plain cells; the native kernels compute whole sequences where they fit."""

    def forward(self, input: Any, hx: Tensor | None = None) -> tuple[Any, Tensor]:
        return super().forward(input, hx) if hx is None or not _is_native(self, input) else _whole(self, input, hx)


class SigmoidRNN(nn.RNNBase):
    """Elman network h_t = σ(U h_{t−1} + W x_t + b) (Elman 1990), which torch lacks. Its parameters are named as in nn.RNN."""

    def __init__(self, input_width: int, width: int, layers: int, dropout: float) -> None:
        super().__init__("RNN_TANH", input_width, width, layers, batch_first=True, dropout=dropout)

    def forward(self, x_NTI: Tensor, state_LNW: Tensor) -> tuple[Tensor, Tensor]:
        if _is_native(self, x_NTI):
            return _whole(self, x_NTI, state_LNW)
        last = []
        for number, h_NW in enumerate(state_LNW):
            W_WI, U_WW, b_W, b_U = layer_weights(self, number)
            x_NTI = F.dropout(x_NTI, self.dropout, self.training and number > 0)
            states = []
            for input_NW in F.linear(x_NTI, W_WI, b_W + b_U).unbind(1):
                h_NW = torch.addmm(input_NW, h_NW, U_WW.t()).sigmoid()
                states.append(h_NW)
            x_NTI = torch.stack(states, dim=1)
            last.append(h_NW)
        return x_NTI, torch.stack(last)


def _is_native(stack: nn.RNNBase, x_NTI: Any) -> bool:
    """Whether the native kernels compute this: not LSTMs or single steps, where torch is faster, nor transforms."""
    if isinstance(stack, nn.LSTM) or not isinstance(x_NTI, Tensor) or x_NTI.dim() != 3:
        return False
    if x_NTI.shape[1] < 2 or is_transformed() or torch.compiler.is_exporting():
        return False
    return native.fits(x_NTI, *stack.parameters()) and not is_rounding(x_NTI.device)


def _mode(stack: nn.RNNBase) -> str:
    return "RNN_SIGMOID" if isinstance(stack, SigmoidRNN) else stack.mode


def _whole(stack: nn.RNNBase, x_NTI: Tensor, state_LNW: Tensor) -> tuple[Tensor, Tensor]:
    """Runs all layers over whole sequences on the native kernels."""
    last = []
    for number, state_NW in enumerate(state_LNW):
        x_NTI = F.dropout(x_NTI, stack.dropout, stack.training and number > 0)
        weights = native.Weights(*(one.unsqueeze(0) for one in layer_weights(stack, number)))
        states_NT1W, last_1NW = native.run_layer(_mode(stack), x_NTI, weights, state_NW.unsqueeze(0), None)
        x_NTI = states_NT1W.squeeze(2)
        last.append(last_1NW)
    return x_NTI, torch.cat(last)


def layer_weights(stack: nn.RNNBase, number: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns W (G, I) and U (G, W) of one layer, and the bias of each."""
    w, u, b_w, b_u = (getattr(stack, f"{name}_l{number}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    return w, u, b_w, b_u


def state_width(stack: nn.RNNBase) -> int:
    """Returns the width X of one layer's state."""
    return 2 * stack.hidden_size if isinstance(stack, nn.LSTM) else stack.hidden_size


def run(stack: nn.RNNBase, x_NTI: Tensor, state_LNX: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Returns (all h of the last layer (N, T, W), the state after the last step). The initial state is zero by default."""
    if state_LNX is None:
        state_LNX = x_NTI.new_zeros(stack.num_layers, x_NTI.shape[0], state_width(stack))
    if not isinstance(stack, nn.LSTM):
        states_NTW, state_LNX = stack(x_NTI, state_LNX.contiguous())
        return states_NTW, state_LNX
    h_LNW, c_LNW = state_LNX.chunk(2, dim=-1)
    states_NTW, last = stack(x_NTI, (h_LNW.contiguous(), c_LNW.contiguous()))
    return states_NTW, torch.cat(last, dim=-1)


# --- single steps ------------------------------------------------------------------------------------------------------------


LayerState = tuple[Tensor, ...]
"""The state of one layer: (h,) or (h, c), each (N, W)."""


class _DeferredWeightGradient(torch.autograd.Function):
    """Returns `known` unchanged. Its backward pass also computes the gradient of a weight that the steps use detached.

    The gradient Σ_t g_tᵀ x_t is one matrix product over all steps, where autograd would add up a small product per step.
    `inputs` is filled with all x_t before the backward pass.
    """

    @staticmethod
    def forward(ctx: Any, known_NTG: Tensor, weight_GI: Tensor, inputs: list[Tensor]) -> Tensor:
        ctx.inputs = inputs
        return known_NTG.view_as(known_NTG)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_NTG: Tensor) -> tuple[Tensor, Tensor, None]:
        x_NTI = torch.stack(ctx.inputs, dim=1).to(gradient_NTG.dtype)
        return gradient_NTG, gradient_NTG.flatten(0, 1).t() @ x_NTI.flatten(0, 1), None


class _StepwiseLinear:
    """Computes known_t + W x_t, where x_t becomes available only at step t. Call it exactly once per step."""

    def __init__(self, known_NTG: Tensor, weight_GI: Tensor) -> None:
        self.inputs: list[Tensor] | None = None
        if torch.is_grad_enabled() and weight_GI.requires_grad:
            self.inputs = []
            known_NTG = _DeferredWeightGradient.apply(known_NTG, weight_GI, self.inputs)  # type: ignore[no-untyped-call]
            weight_GI = weight_GI.detach()
        self.known, self.weight_IG = known_NTG.unbind(1), weight_GI.t()

    def __call__(self, step: int, x_NI: Tensor) -> Tensor:
        if self.inputs is not None:
            self.inputs.append(x_NI.detach())
        return torch.addmm(self.known[step], x_NI, self.weight_IG)


class StepwiseStack:
    """Runs a stack one step at a time on inputs [late; early], whose late part (c_t or s̃_{t−1}) depends on earlier steps.

    The constructor computes all that does not depend on the late part for all steps at once: the product with the early part,
    and the dropout masks between the layers. Call the steps in order, each exactly once.

    early_NTI: the early part of the inputs of all steps.
    dropout_masks: those of an earlier run over the same inputs; by default new ones are drawn.
    """

    def __init__(
        self, stack: nn.RNNBase, early_NTI: Tensor, dropout_masks: Sequence[Sequence[Tensor] | None] | None = None
    ) -> None:
        self.stack, self.width = stack, stack.hidden_size
        N, T, early = early_NTI.shape
        self.linears: list[tuple[_StepwiseLinear, ...]] = []
        for number in range(stack.num_layers):
            W_GI, U_GW, b_G, b_U_G = layer_weights(stack, number)
            separate = isinstance(stack, nn.GRU)  # its reset gate is applied to U h before W x is added
            b_G = b_G if separate else b_G + b_U_G
            if number == 0:
                W_GI, early_GI = W_GI.split((stack.input_size - early, early), dim=1)
                known_NTG = linear(early_NTI, early_GI, b_G)
            else:
                known_NTG = b_G.expand(N, T, -1)
            if separate:
                self.linears.append((_StepwiseLinear(known_NTG, W_GI), _StepwiseLinear(b_U_G.expand(N, T, -1), U_GW)))
            else:
                self.linears.append((_StepwiseLinear(known_NTG, torch.cat((W_GI, U_GW), dim=1)),))
        if dropout_masks is None:
            dropout_masks = [self._draw_masks(early_NTI, number) for number in range(stack.num_layers)]
        self.dropout_masks = dropout_masks

    def _draw_masks(self, like_NTI: Tensor, number: int) -> Sequence[Tensor] | None:
        """Returns one dropout mask (N, W) per step for the input of this layer, or None for no dropout."""
        if not (number and self.stack.training and self.stack.dropout):
            return None
        N, T, _ = like_NTI.shape
        return F.dropout(like_NTI.new_ones(T, N, self.width), self.stack.dropout).unbind(0)

    def split(self, state_LNX: Tensor) -> list[LayerState]:
        """Splits a state into one `LayerState` per layer; `join` is the inverse."""
        return [state_NX.split(self.width, dim=-1) for state_NX in state_LNX]

    def join(self, states: Sequence[LayerState]) -> Tensor:
        """Joins the states of all layers into one tensor (L, N, X)."""
        return torch.stack([torch.cat(state, dim=-1) for state in states])

    def __call__(self, step: int, late_NI: Tensor, states: Sequence[LayerState]) -> list[LayerState]:
        """Returns the states of all layers after this step.

        late_NI: the late part of this step's input. states: the states of all layers before it.
        """
        next_states: list[LayerState] = []
        x_NI = late_NI
        for linears, masks, state in zip(self.linears, self.dropout_masks, states, strict=True):
            x_NI = x_NI if masks is None else x_NI * masks[step]
            if len(linears) == 2:
                gates = [linear(step, y_NI) for linear, y_NI in zip(linears, (x_NI, state[0]), strict=True)]
            else:
                gates = [linears[0](step, torch.cat((x_NI, state[0]), dim=-1))]
            next_states.append(self._cell(gates, state))
            x_NI = next_states[-1][0]
        return next_states

    def _cell(self, gates: Sequence[Tensor], state: LayerState) -> LayerState:
        """Computes one step of one layer with torch's formulas (see regard.reference).

        gates: (W x + U h + b,), or for a GRU (W x + b, U h + b').
        """
        if isinstance(self.stack, nn.GRU):
            (input_rz, input_n), (hidden_rz, hidden_n) = (part.split((2 * self.width, self.width), dim=-1) for part in gates)
            r, z = (input_rz + hidden_rz).sigmoid().chunk(2, dim=-1)
            n = torch.addcmul(input_n, r, hidden_n).tanh()
            return (torch.lerp(n, state[0], z),)  # (1 − z) n + z h
        if isinstance(self.stack, nn.LSTM):
            i, f, g, o = gates[0].chunk(4, dim=-1)
            c = torch.addcmul(f.sigmoid() * state[1], i.sigmoid(), g.tanh())
            return o.sigmoid() * c.tanh(), c
        if isinstance(self.stack, SigmoidRNN):
            return (gates[0].sigmoid(),)
        return (gates[0].tanh() if self.stack.mode == "RNN_TANH" else gates[0].relu(),)


# --- inspection --------------------------------------------------------------------------------------------------------------


GATES = {"LSTM": ("input", "forget", "output"), "GRU": ("reset", "update")}
"""Names of the gates of each kind of cell. The update gate is the share of the old state that is kept, as in torch."""


STATES = {"LSTM": ("candidate", "cell", "state"), "GRU": ("candidate", "state")}
"""Names of what flows through the gates: the candidate (from −1 to 1), the cell state c of an LSTM, and the state h."""


@torch.no_grad()
def cell_over_time(stack: nn.RNNBase, x_NTI: Tensor, state_LNX: Tensor | None = None) -> list[dict[str, Tensor]]:
    """Returns the inside of every layer at every step: for each layer {a name of `GATES` or `STATES`: (N, T, W)}.

    An LSTM computes c' = forget ⊙ c + input ⊙ candidate and h' = output ⊙ tanh(c'), a GRU h' = (1 − update) ⊙ candidate +
    update ⊙ h. The list is empty for cells without gates. Dropout between the layers is not applied.
    """
    names = GATES.get(stack.mode, ()) + STATES.get(stack.mode, ())
    if state_LNX is None:
        state_LNX = x_NTI.new_zeros(stack.num_layers, x_NTI.shape[0], state_width(stack))
    layers: list[dict[str, Tensor]] = []
    for number in range(stack.num_layers if names else 0):
        W_GI, U_GW, b_W, b_U = layer_weights(stack, number)
        h_NW, *cell = state_LNX[number].split(stack.hidden_size, dim=-1)
        steps: list[tuple[Tensor, ...]] = []
        for input_NG in F.linear(x_NTI, W_GI, b_W).unbind(1):
            hidden_NG = F.linear(h_NW, U_GW, b_U)
            if isinstance(stack, nn.LSTM):
                i, f, g, o = (input_NG + hidden_NG).chunk(4, dim=-1)
                i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
                cell = [f * cell[0] + i * g]
                h_NW = o * cell[0].tanh()
                steps.append((i, f, o, g, cell[0], h_NW))
            else:
                (r, z, n), (hidden_r, hidden_z, hidden_n) = input_NG.chunk(3, dim=-1), hidden_NG.chunk(3, dim=-1)
                r, z = (r + hidden_r).sigmoid(), (z + hidden_z).sigmoid()
                n = (n + r * hidden_n).tanh()
                h_NW = (1 - z) * n + z * h_NW
                steps.append((r, z, n, h_NW))
        layers.append({name: torch.stack(values, dim=1) for name, values in zip(names, zip(*steps, strict=True), strict=True)})
        x_NTI = layers[-1]["state"]
    return layers


# --- encoder -----------------------------------------------------------------------------------------------------------------


def reverse_rows(x_BSI: Tensor, lengths_B: Tensor) -> Tensor:
    """Reverses the real positions of each row and leaves padding at the end. The function is its own inverse."""
    positions_S = torch.arange(x_BSI.shape[1], device=x_BSI.device)
    mirrored_BS = lengths_B[:, None] - 1 - positions_S
    index_BS = torch.where(mirrored_BS >= 0, mirrored_BS, positions_S)
    return x_BSI.gather(1, index_BS[..., None].expand_as(x_BSI))


class RecurrentEncoder(nn.Module):
    """Encodes sequences with padding at the end, forwards or in both directions (Schuster & Paliwal 1997).

    The backward direction reads each row reversed within its length. Padding thus comes after the real positions in both
    directions, and no packing is needed.

    width: width of the output states; each of two directions has half of it.
    """

    def __init__(
        self, cell: Cell, input_width: int, width: int, layers: int = 1, dropout: float = 0.0, *, bidirectional: bool = True
    ) -> None:
        super().__init__()
        if bidirectional and width % 2:
            raise ValueError(f"width {width} cannot be split evenly between two directions; make it even")
        direction_width = width // 2 if bidirectional else width
        sizes = [input_width] + [width] * (layers - 1)
        self.forwards = nn.ModuleList(make_stack(cell, size, direction_width) for size in sizes)
        self.backwards = nn.ModuleList(make_stack(cell, size, direction_width) for size in sizes) if bidirectional else None
        self.dropout = Dropout(dropout)

    def forward(self, x_BSI: Tensor, allow_BS: Tensor) -> tuple[Tensor, Tensor]:
        """Returns (states (B, S, width), final states (B, width)).

        The final state of a row is the forward state at its last real position and the backward state at its first.
        """
        lengths_B = allow_BS.sum(1)
        last_B = (lengths_B - 1).clamp(min=0)
        rows_B = torch.arange(x_BSI.shape[0], device=x_BSI.device)
        ends = x_BSI[:, 0]
        for number, forwards in enumerate(_stacks(self.forwards)):
            if number:
                x_BSI = self.dropout(x_BSI)
            if self.backwards is None:
                x_BSI, _ = run(forwards, x_BSI)
                ends = x_BSI[rows_B, last_B]
                continue
            x_BSI = _both_directions(forwards, _stacks(self.backwards)[number], x_BSI, lengths_B)
            ahead_BW, back_BW = x_BSI[rows_B, last_B], x_BSI[:, 0]
            width = forwards.hidden_size
            ends = torch.cat((ahead_BW[:, :width], back_BW[:, width:]), dim=-1)
        return x_BSI, ends


def _both_directions(forwards: nn.RNNBase, backwards: nn.RNNBase, x_BSI: Tensor, lengths_B: Tensor) -> Tensor:
    """Returns the states of both directions (B, S, 2W), the second of which reads each row reversed within its length."""
    stacks = (forwards, backwards)
    hooked = any(stack._forward_hooks or stack._forward_pre_hooks for stack in stacks)
    if hooked or not all(_is_native(stack, x_BSI) for stack in stacks):
        ahead_BSW, back_BSW = run(forwards, x_BSI)[0], run(backwards, reverse_rows(x_BSI, lengths_B))[0]
        return torch.cat((ahead_BSW, reverse_rows(back_BSW, lengths_B)), dim=-1)
    weights = native.Weights(*map(torch.stack, zip(*(layer_weights(stack, 0) for stack in stacks), strict=True)))
    zeros_2BW = x_BSI.new_zeros(2, len(x_BSI), forwards.hidden_size)
    return native.run_layer(_mode(forwards), x_BSI, weights, zeros_2BW, lengths_B)[0].flatten(2)


def _stacks(modules: nn.ModuleList) -> list[nn.RNNBase]:
    return cast("list[nn.RNNBase]", list(modules))
