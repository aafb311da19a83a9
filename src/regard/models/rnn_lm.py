"""A recurrent language model: it continues a text without a source, with softmax(W_o h_t + b_o) at every step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, cast

import torch
from torch import Tensor, nn

from regard.contracts import Traits
from regard.core.source import Source
from regard.layers.dropout import Dropout
from regard.layers.recurrent import Cell, check_cell, make_stack, run, state_width
from regard.layers.scores import ScoreMaker
from regard.look import Look
from regard.models.contract import Memory, Model, ModelSettings, Projected, State, Step
from regard.models.state import BatchState, per_hypothesis

# B sentences  K hypotheses  N = B·K  T target positions  R = K·T rows, where K or T is 1  D width  L layers
# X width of a state (D; for an LSTM 2D)


@dataclass(frozen=True, kw_only=True)
class RnnLmSettings(ModelSettings):
    """Settings of `RnnLm`."""

    kind: Literal["rnn_lm"] = "rnn_lm"
    cell: Cell = "gru"
    """Type of recurrent cell."""
    width: int = 192
    """Width of the recurrent states."""
    embedding: int = 64
    """Width of the token embeddings."""
    layers: int = 1
    """Number of recurrent layers."""
    dropout: float = 0.1
    """Dropout probability during training."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_cell(self.cell)

    @property
    def traits(self) -> Traits:
        return Traits(continues_text=True, learns_from="texts")


@dataclass(kw_only=True)
class RnnLmState(BatchState):
    """The recurrent state of each hypothesis."""

    hidden_BKLX: Tensor = per_hypothesis()


class RnnLm(Model):
    """A recurrent language model with the interface of `Seq2Seq`. Its Memory has no positions: the source is ignored."""

    def __init__(
        self,
        settings: RnnLmSettings,
        source_vocab: int,
        target_vocab: int,
        scores: Mapping[str, ScoreMaker] | None = None,
        auxiliary: int = 0,
    ) -> None:
        super().__init__(settings)
        self.embedding = nn.Embedding(target_vocab, settings.embedding)
        self.stack = make_stack(settings.cell, settings.embedding, settings.width, settings.layers, settings.dropout)
        self.output = nn.Linear(settings.width, target_vocab)
        self.dropout = Dropout(settings.dropout)

    def encode(self, source: Source, look: Look | None = None) -> Memory:
        zeros_BD = self.output.weight.new_zeros(source.num_sentences, self.output.in_features)
        return Memory(zeros_BD[:, None][:, :0], source.allow[:, :0], zeros_BD, axes=(0,))

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
        states_BKD, next_state = self._recur(ids_BK.unsqueeze(-1), state)
        return Step(self.output(self.dropout(states_BKD)), next_state)

    def decode(self, ids_BT: Tensor, memory: Memory, look: Look | None = None) -> Projected:
        states_BTD, _ = self._recur(ids_BT.unsqueeze(1), self.start(memory))
        return Projected(self.dropout(states_BTD), self.output.weight, self.output.bias)

    def _recur(self, ids_BKT: Tensor, state: RnnLmState) -> tuple[Tensor, RnnLmState]:
        """Reads one token of K hypotheses, or T tokens of one. Returns the states (B, R, D) and the State after them."""
        embedded_NTI = self.dropout(self.embedding(ids_BKT)).flatten(0, 1)
        states_NTD, hidden_LNX = run(self.stack, embedded_NTI, state.hidden_BKLX.flatten(0, 1).transpose(0, 1))
        next_state = replace(
            state,
            spent=False,
            lengths_B=state.lengths_B + ids_BKT.shape[-1],
            hidden_BKLX=hidden_LNX.transpose(0, 1).unflatten(0, ids_BKT.shape[:2]),
        )
        return states_NTD.reshape(len(ids_BKT), -1, states_NTD.shape[-1]), next_state
