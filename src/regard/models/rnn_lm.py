"""A recurrent language model: it reads no source, and continues what is written, softmax(W_o h_t + b_o) at every step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, cast

import torch
from torch import Tensor, nn

from regard.contracts import Decoded, Look, Memory, Source, State, Step
from regard.errors import check_numbers
from regard.layers.dropout import Dropout
from regard.layers.recurrent import Cell, check_cell, make_stack, run, state_width
from regard.layers.scores import ScoreMaker
from regard.models.state import BatchState, per_hypothesis

# B sentences  K hypotheses  N = B·K  T target places  R = K·T rows, one of K and T being 1  D width  L layers
# X width of a state (D; for an LSTM 2D)


@dataclass(frozen=True, kw_only=True)
class RnnLmSettings:
    kind: Literal["rnn_lm"] = "rnn_lm"
    """The family."""
    cell: Cell = "gru"
    """What the layers are made of."""
    width: int = 192
    """Of the states."""
    embedding: int = 64
    """Width of a token's vector."""
    layers: int = 1
    """Layers of cells."""
    dropout: float = 0.1
    """The share of numbers that training drops."""

    def __post_init__(self) -> None:
        check_numbers(self)
        check_cell(self.cell)


@dataclass(kw_only=True)
class RnnLmState(BatchState):
    hidden_BKLX: Tensor = per_hypothesis()


class RnnLm(nn.Module):
    """The contract of all models with a memory of no places, so that search, training and the pipeline work as they are."""

    def __init__(
        self, settings: RnnLmSettings, source_vocab: int, target_vocab: int, scores: Mapping[str, ScoreMaker] | None = None
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(target_vocab, settings.embedding)
        self.stack = make_stack(settings.cell, settings.embedding, settings.width, settings.layers, settings.dropout)
        self.output = nn.Linear(settings.width, target_vocab)
        self.dropout = Dropout(settings.dropout)

    def encode(self, source: Source, look: Look | None = None) -> Memory:
        nothing_BD = self.output.weight.new_zeros(source.num_sentences, self.output.in_features)
        return Memory(nothing_BD[:, None][:, :0], source.allow[:, :0], nothing_BD, axes=(0,))

    def start(self, memory: Memory, prefix_BP: Tensor | None = None) -> RnnLmState:
        summary_BD = memory.summary_BE
        state = RnnLmState(
            lengths_B=torch.zeros(len(summary_BD), dtype=torch.long, device=summary_BD.device),
            hidden_BKLX=summary_BD.new_zeros(len(summary_BD), 1, self.stack.num_layers, state_width(self.stack)),
        )
        if prefix_BP is None:
            return state
        _, state = self._recur(prefix_BP.unsqueeze(1), state)
        return state

    def step(self, ids_BK: Tensor, state: State, look: Look | None = None) -> Step:
        state = cast(RnnLmState, state)
        state.check_ids(ids_BK)
        state.spend()
        states_BKD, following = self._recur(ids_BK.unsqueeze(-1), state)
        return Step(self.output(self.dropout(states_BKD)), following)

    def decode(self, ids_BT: Tensor, memory: Memory, look: Look | None = None) -> Decoded:
        states_BTD, _ = self._recur(ids_BT.unsqueeze(1), self.start(memory))
        return Decoded(self.dropout(states_BTD), self.output.weight, self.output.bias)

    def _recur(self, ids_BKT: Tensor, state: RnnLmState) -> tuple[Tensor, RnnLmState]:
        """Reads one token of K hypotheses, or T tokens of one: (B, R, D), and the state behind them."""
        embedded_NTI = self.dropout(self.embedding(ids_BKT)).flatten(0, 1)
        states_NTD, hidden_LNX = run(self.stack, embedded_NTI, state.hidden_BKLX.flatten(0, 1).transpose(0, 1))
        following = replace(
            state,
            spent=False,
            lengths_B=state.lengths_B + ids_BKT.shape[-1],
            hidden_BKLX=hidden_LNX.transpose(0, 1).unflatten(0, ids_BKT.shape[:2]),
        )
        return states_NTD.reshape(len(ids_BKT), -1, states_NTD.shape[-1]), following
