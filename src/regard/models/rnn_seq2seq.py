"""The recurrent encoder-decoder with attention (Luong et al. 2015): a bidirectional GRU reads, a GRU writes.

    s_t = GRU(s_{t-1}, y_{t-1})    c_t from the scores of s_t against all h_i    s̃_t = tanh(W [c_t; s_t])    logits from s̃_t

The recurrence does not need c_t (no input feeding), so in training it runs as one sequence and attends for all steps at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor, nn

from regard.contracts import Decoded, Look, Memory, Source, State, Step
from regard.core import masks
from regard.core.attention import Attended
from regard.core.devices import default_generator
from regard.core.looking import record, watched
from regard.core.rule import Rule
from regard.core.weights import Choice
from regard.errors import check_numbers
from regard.layers.recurrent import BidirectionalGRU
from regard.layers.scores import ScoreMaker, make_score
from regard.models.state import Rows, per_hypothesis, per_sentence

# B sentences  K hypotheses  S source places  T target places  R rows: T or K  E memory width = D decoder width  A score width


@dataclass(frozen=True, kw_only=True)
class RnnSettings:
    kind: Literal["rnn"] = "rnn"
    width: int = 192
    embedding: int = 64
    encoder_layers: int = 1
    decoder_layers: int = 1
    score: str = "additive"
    score_width: int = 64
    choice: Choice = "soft"
    """How scores become weights; hard attention (one, gates) is drawn in training and arg-max afterwards."""
    max_places: int = 256
    """How many source places the location score knows."""
    beyond: Literal["error", "ignore"] = "error"
    """What the location score does with more."""
    dropout: float = 0.1

    def __post_init__(self) -> None:
        check_numbers(self)
        if self.width % 2:
            raise ValueError(f"width {self.width} does not split into two directions; make it even")


@dataclass(kw_only=True)
class RnnState(Rows):
    prepared_BSA: Tensor = per_sentence(grows=1)
    values_BSE: Tensor = per_sentence(grows=1)
    allow_BS: Tensor = per_sentence(grows=1)
    hidden_BKLD: Tensor = per_hypothesis()


class RnnSeq2Seq(nn.Module):
    def __init__(
        self, settings: RnnSettings, source_vocab: int, target_vocab: int, scores: Mapping[str, ScoreMaker] | None = None
    ) -> None:
        super().__init__()
        width, dropout = settings.width, settings.dropout
        self.source_embedding = nn.Embedding(source_vocab, settings.embedding)
        self.target_embedding = nn.Embedding(target_vocab, settings.embedding)
        self.encoder = BidirectionalGRU(settings.embedding, width // 2, settings.encoder_layers, dropout)
        self.bridge = nn.Linear(width, settings.decoder_layers * width)
        between = dropout if settings.decoder_layers > 1 else 0.0
        self.decoder = nn.GRU(settings.embedding, width, settings.decoder_layers, batch_first=True, dropout=between)
        self.score = make_score(
            settings.score,
            scores,
            query_width=width,
            key_width=width,
            width=settings.score_width,
            max_source=settings.max_places,
            beyond=settings.beyond,
        )
        self.choice = settings.choice
        self.combine = nn.Linear(2 * width, width)
        self.output = nn.Linear(width, target_vocab)
        self.dropout = nn.Dropout(dropout)

    def encode(self, source: Source, look: Look | None = None) -> Memory:
        embedded_BSI = self.dropout(self.source_embedding(source.values))
        values_BSE, summary_BE = self.encoder(embedded_BSI, source.allow)
        return Memory(self.dropout(values_BSE), source.allow, summary_BE, axes=(values_BSE.shape[1],))

    def start(self, memory: Memory, prefix_BP: Tensor | None = None) -> RnnState:
        hidden_LBD = self._first_hidden(memory)
        lengths_B = torch.zeros(len(memory.allow_BS), dtype=torch.long, device=memory.allow_BS.device)
        if prefix_BP is not None:
            _, hidden_LBD = self._recur(prefix_BP, hidden_LBD)
            lengths_B = lengths_B + prefix_BP.shape[1]
        return RnnState(
            lengths_B=lengths_B,
            prepared_BSA=self._prepare(memory),
            values_BSE=memory.values_BSE,
            allow_BS=memory.allow_BS,
            hidden_BKLD=hidden_LBD.transpose(0, 1).unsqueeze(1),
        )

    def step(self, ids_BK: Tensor, state: State, look: Look | None = None) -> Step:
        state = cast(RnnState, state)
        state.check_ids(ids_BK)
        state.spend()
        hidden_LND = state.hidden_BKLD.flatten(0, 1).transpose(0, 1).contiguous()
        query_N1D, hidden_LND = self._recur(ids_BK.reshape(-1, 1), hidden_LND)
        query_BKD = query_N1D.view(*ids_BK.shape, -1)
        decoded = self._read(query_BKD, state.prepared_BSA, state.values_BSE, state.allow_BS, look)
        following = RnnState(
            lengths_B=state.lengths_B + 1,
            prepared_BSA=state.prepared_BSA,
            values_BSE=state.values_BSE,
            allow_BS=state.allow_BS,
            hidden_BKLD=hidden_LND.transpose(0, 1).unflatten(0, ids_BK.shape),
        )
        return Step(decoded.logits_BTV, following, decoded.seen)

    def decode(self, ids_BT: Tensor, memory: Memory, look: Look | None = None) -> Decoded:
        query_BTD, _ = self._recur(ids_BT, self._first_hidden(memory))
        return self._read(query_BTD, self._prepare(memory), memory.values_BSE, memory.allow_BS, look)

    def _first_hidden(self, memory: Memory) -> Tensor:
        hidden_BLD: Tensor = self.bridge(memory.summary_BE).tanh().unflatten(-1, (self.decoder.num_layers, -1))
        return hidden_BLD.transpose(0, 1).contiguous()

    def _recur(self, ids_BT: Tensor, hidden_LBD: Tensor) -> tuple[Tensor, Tensor]:
        states_BTD, hidden_LBD = self.decoder(self.dropout(self.target_embedding(ids_BT)), hidden_LBD)
        return states_BTD, hidden_LBD

    def _prepare(self, memory: Memory) -> Tensor:
        if self.score.by_place:
            return self.score.prepare(memory.values_BSE, masks.places(memory.allow_BS))
        return self.score.prepare(memory.values_BSE)

    def _read(
        self, query_BRD: Tensor, prepared_BSA: Tensor, values_BSE: Tensor, allow_BS: Tensor, look: Look | None
    ) -> Decoded:
        """Attends from every row, be it a place of a sequence or a hypothesis of a step."""
        here = look.at("cross", 0, 1) if look else None
        attended = self._attend(query_BRD, prepared_BSA, values_BSE, allow_BS, here)
        mixed_BRD = self.combine(torch.cat((attended.context.squeeze(1), query_BRD), dim=-1)).tanh()
        log_prob, entropy = attended.log_prob, attended.entropy
        return Decoded(
            self.output(self.dropout(mixed_BRD)),
            None if log_prob is None else log_prob.squeeze(1),
            None if entropy is None else entropy.squeeze(1),
            choices_last=False,  # the recurrence does not see c_t
            seen=record(attended.weights, here, "cross", 0),
        )

    def _attend(
        self, query_BRD: Tensor, prepared_BSA: Tensor, values_BSE: Tensor, allow_BS: Tensor, look: Look | None
    ) -> Attended:
        """Axis 1 is the one head."""
        generator = default_generator(query_BRD.device) if self.training else None
        rule = Rule(self.score, allow_BS[:, None, None], choice=self.choice, generator=generator)
        return watched(query_BRD[:, None], prepared_BSA[:, None], values_BSE[:, None], rule, look)
